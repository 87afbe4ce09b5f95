"""Regular expressions as automata.

    state of the DFA:   lookbehind states | threads
    thread:             lookaheads that must, that must not succeed | NFA states

Edges of the NFA read a character of a set, or nothing (epsilon). An epsilon edge may have a
condition: that another part ends here (lookbehind) or begins here (lookahead). Anchors and word
boundaries are such conditions: `$` is `(?!.)`. Backreferences, atomic groups and lookahead within a
lookbehind are out of reach.

The DFA is made by subset construction; sets of states are bits of integers. A thread goes on where
all of its lookaheads may still be kept, so several that begin within one make it several threads.

Automata over characters are small, deterministic and complete: every state has a step for every
character. State 0 is the start.

The pattern of an automaton: its states are left out one after the other, the cheapest first.
J. A. Brzozowski and E. J. McCluskey, "Signal flow graph techniques for sequential circuit state
diagrams", 1963.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from constraints.errors import ConstraintError, OutOfReach, TooManyStates
from constraints.regex.char_sets import (
    NUM_CODE_POINTS,
    Partition,
    Ranges,
    complement,
    encodable,
    join,
)
from constraints.regex.syntax import (
    ANY,
    EMPTY,
    Anchor,
    Chars,
    Choice,
    Concat,
    Dialect,
    Empty,
    Look,
    Pattern,
    Repeat,
    concat,
    options_of,
    parse,
)

Steps = npt.NDArray[np.int32]
Indices = npt.NDArray[np.int64]

# The most states times classes of characters: the size of an automaton's table.
MAX_STEPS = 4_000_000
# Smaller numbers are sorted in one pass.
_SMALL = 1 << 16


class Sources:
    """The sources of every target; the numbers of both are indices."""

    def __init__(self, targets: npt.NDArray[np.integer], num_targets: int) -> None:
        """targets: of each source, its only one [num_sources] or all [num_sources, num_labels]."""
        flat = targets.reshape(-1)
        if num_targets < _SMALL:
            flat = flat.astype(np.uint16)
        order = np.argsort(flat, kind="stable")
        self._sources = order if targets.ndim == 1 else order // targets.shape[1]
        self._begins = np.searchsorted(flat[order], np.arange(num_targets + 1))

    def of(self, targets: Indices) -> Indices:
        """The sources of some targets, each once and ascending."""
        begins = self._begins[targets]
        counts = self._begins[targets + 1] - begins
        before = np.cumsum(counts) - counts
        return np.unique(
            self._sources[np.arange(int(counts.sum())) + np.repeat(begins - before, counts)]
        )


Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class Automaton:
    """steps: [num_states, num_labels] of `partition`; accepts: [num_states]."""

    partition: Partition
    steps: Steps
    accepts: Flags

    @property
    def num_states(self) -> int:
        """The number of states, with sinks."""
        return len(self.accepts)

    def decided(self) -> tuple[Flags, Flags]:
        """For each state, whether an accepting and whether a rejecting state is reachable."""
        return can_reach(self.steps, self.accepts), can_reach(self.steps, ~self.accepts)


def can_reach(steps: Steps, wanted: Flags) -> Flags:
    """The states from which a wanted state is reachable, including the wanted ones."""
    sources = Sources(steps, len(steps))
    reached = wanted.copy()
    fresh = np.flatnonzero(wanted)
    while len(fresh):
        found = sources.of(fresh)
        fresh = found[~reached[found]]
        reached[fresh] = True
    return reached


def refined(blocks: npt.NDArray[np.int64], steps: Steps) -> npt.NDArray[np.int64]:
    """The coarsest refinement of blocks 0, 1, ... in which states of one lead to the same blocks.

    A state is visited again only if a successor has left its block. When a block splits, the part
    that was not visited, or else the largest, keeps the block's number.
    """
    blocks = blocks.copy()
    sources = Sources(steps, len(steps))
    sizes = np.zeros(len(steps), dtype=np.int64)
    sizes[: int(blocks.max()) + 1] = np.bincount(blocks)
    num_blocks = int(blocks.max()) + 1
    seen = np.arange(len(steps))
    while len(seen := seen[sizes[blocks[seen]] > 1]):
        parts = numbered(np.concatenate([blocks[seen, None], blocks[steps[seen]]], axis=1))
        part_sizes = np.bincount(parts)
        of_parts = np.zeros(len(part_sizes), dtype=np.int64)
        of_parts[parts] = blocks[seen]
        stays = _largest_of_each(of_parts, part_sizes)
        stays &= sizes[of_parts] == np.bincount(of_parts, part_sizes)[of_parts]
        numbers = np.where(stays, of_parts, num_blocks + np.cumsum(~stays) - 1)
        np.subtract.at(sizes, of_parts[~stays], part_sizes[~stays])
        sizes[numbers[~stays]] = part_sizes[~stays]
        num_blocks += int((~stays).sum())
        leaving = seen[~stays[parts]]
        blocks[seen] = numbers[parts]
        seen = sources.of(leaving)
    return blocks


def _largest_of_each(groups: npt.NDArray[np.int64], weights: npt.NDArray[np.int64]) -> Flags:
    """The heaviest member of each group."""
    order = np.lexsort([weights, groups])
    is_largest = np.zeros(len(groups), dtype=np.bool_)
    is_last = np.append(groups[order][1:] != groups[order][:-1], True)
    is_largest[order[is_last]] = True
    return is_largest


def numbered(rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Number the distinct rows in order of first appearance."""
    packed = np.ascontiguousarray(rows)
    view = packed.view(np.dtype((np.void, packed.dtype.itemsize * packed.shape[1]))).reshape(-1)
    _, first, inverse = np.unique(view, return_index=True, return_inverse=True)
    rank = np.empty(len(first), dtype=np.int64)
    rank[np.argsort(first)] = np.arange(len(first))
    return rank[inverse.reshape(-1)]


# The most states of a pattern with its repeats written out.
_MAX_PARTS = 4000
_NEWLINE = Chars(((10, 10),))
_NO_NEWLINE = Chars(complement(_NEWLINE.ranges))


@dataclass(frozen=True, slots=True)
class Lookaround:
    """A lookahead or lookbehind: whether text there can be read from `start` to `final`."""

    is_ahead: bool
    is_negated: bool
    start: int
    final: int


@dataclass(slots=True, eq=False)
class Nfa:
    """An NFA over sets of characters; state 0 is the start.

    epsilon_edges: by state, (number of a condition or None, state)
    char_edges:    by state, (number of a set, state)
    conditions:    those within another come before it
    """

    final: int
    epsilon_edges: list[list[tuple[int | None, int]]]
    char_edges: list[tuple[int, int] | None]
    sets: dict[Ranges, int]
    conditions: list[Lookaround]


class NfaBuilder:
    """Builds the NFA of a pattern part by part. Raises OutOfReach."""

    def __init__(self, max_states: int = _MAX_PARTS) -> None:
        self.parts = Nfa(0, [[]], [None], {}, [])
        self._max_states = max_states
        self._num_behind = 0  # lookbehinds around the present part

    def add(self, pattern: Pattern, start: int) -> int:
        """Add a part behind `start`; returns the last state."""
        match pattern:
            case Empty():
                return start
            case Chars(ranges):
                label = self.parts.sets.setdefault(ranges, len(self.parts.sets))
                return self.edge(label, start)
            case Concat(parts):
                for part in parts:
                    start = self.add(part, start)
                return start
            case Choice(options):
                return self._choice(options, start)
            case Repeat():
                return self._repeat(pattern, start)
            case Anchor():
                return self.add(_look_of(pattern), start)
            case Look():
                return self._look(pattern, start)
        raise AssertionError(f"{pattern} is for grammars alone")

    def state(self) -> int:
        if len(self.parts.epsilon_edges) > self._max_states:
            raise TooManyStates("a pattern of too many parts")
        self.parts.epsilon_edges.append([])
        self.parts.char_edges.append(None)
        return len(self.parts.epsilon_edges) - 1

    def link(self, start: int, end: int, condition: int | None = None) -> None:
        self.parts.epsilon_edges[start].append((condition, end))

    def edge(self, label: int, start: int) -> int:
        """Add an edge that reads; returns its end."""
        end = self.state()
        # A state has one character edge: another one begins in a new state.
        begin = self.state()
        self.link(start, begin)
        self.parts.char_edges[begin] = (label, end)
        return end

    def _choice(self, options: Iterable[Pattern], start: int) -> int:
        joined = self.state()
        for option in options:
            begin = self.state()
            self.link(start, begin)
            self.link(self.add(option, begin), joined)
        return joined

    def _repeat(self, repeat: Repeat, start: int) -> int:
        if isinstance(repeat.part, Empty):
            return start
        for _ in range(repeat.min_count):
            start = self.add(repeat.part, start)
        if repeat.max_count is None:
            loop = self.state()
            self.link(start, loop)
            self.link(self.add(repeat.part, loop), loop)
            after = self.state()
            self.link(loop, after)
            return after
        end = self.state()
        for _ in range(repeat.max_count - repeat.min_count):
            self.link(start, end)
            # A new state for each repeat, or the loops of one would be entered by the next.
            begin = self.state()
            self.link(start, begin)
            start = self.add(repeat.part, begin)
        self.link(start, end)
        return end

    def _look(self, look: Look, start: int) -> int:
        if look.is_ahead and self._num_behind:
            raise OutOfReach("looking ahead from within a look-behind")
        begin = self.state()
        self._num_behind += not look.is_ahead
        final = self.add(look.part, begin)
        self._num_behind -= not look.is_ahead
        self.parts.conditions.append(Lookaround(look.is_ahead, look.is_negated, begin, final))
        end = self.state()
        self.link(start, end, len(self.parts.conditions) - 1)
        return end


def _look_of(anchor: Anchor) -> Pattern:
    part = _NO_NEWLINE if anchor.of_lines else ANY
    edge = Look(part, not anchor.is_start, True, anchor.position)
    if not anchor.may_have_newline:
        return edge
    return Choice((edge, Look(Concat((_NEWLINE, edge)), True, False, anchor.position)))


_MAX_STATES = 4000
_MAX_THREADS = 200
# The lookaheads of a thread: sets of states of which one must reach the end, and states of which
# none may.
_Duties = tuple[frozenset[int], int]
_NO_DUTIES: _Duties = (frozenset(), 0)
# By number of a condition, whether it holds; not of lookaheads, which are unknown yet.
_Situation = tuple[bool, ...]


def matches(pattern: str) -> Automaton:
    """Accepts what re.fullmatch matches. Raises OutOfReach."""
    try:
        parsed = parse(pattern, Dialect.PYTHON)
    except ConstraintError as error:
        raise OutOfReach(f"pattern {pattern!r}: {error}") from error
    return automaton_of(parsed)


def automaton_of(pattern: Pattern, max_states: int = _MAX_STATES) -> Automaton:
    """Accepts the texts that match the whole pattern. Raises OutOfReach, NotEnforced."""
    builder = NfaBuilder()
    builder.parts.final = builder.add(pattern, 0)
    return _SubsetConstruction(builder.parts, max_states).automaton()


@dataclass(frozen=True, slots=True)
class _Place:
    """A state of the DFA, before epsilon edges are followed.

    behind:  by lookbehind, the states reached
    threads: NFA states by their lookaheads
    """

    behind: tuple[int, ...]
    threads: frozenset[tuple[_Duties, int]]


class _SubsetConstruction:
    """Builds the DFA, whose states are places."""

    def __init__(self, parts: Nfa, max_states: int) -> None:
        self._parts = parts
        self._max_states = max_states
        self._partition, columns = join([Partition.of_sets([ranges]) for ranges in parts.sets])
        # By label, the sets that contain its characters.
        self._holds = [frozenset(np.flatnonzero(column).tolist()) for column in columns.T]
        looks = list(enumerate(parts.conditions))
        self._behind = [(number, look) for number, look in looks if not look.is_ahead]
        self._kept = _bits_of(look.final for _, look in looks if look.is_ahead)
        # The lookaheads that may begin at a state, and where it goes on behind them.
        self._ahead: dict[int, list[tuple[int, int]]] = {}
        for state, edges in enumerate(parts.epsilon_edges):
            for condition, after in edges:
                if condition is not None and parts.conditions[condition].is_ahead:
                    self._ahead.setdefault(state, []).append((condition, after))
        self._with_ahead = _bits_of(self._ahead)
        self._closures: dict[tuple[int, _Situation], int] = {}

    def automaton(self) -> Automaton:
        """The DFA. Raises OutOfReach for too many places."""
        nothing = tuple(0 for _ in self._behind)
        queue = [_Place(nothing, frozenset({(_NO_DUTIES, 1)}))]
        known = {queue[0]: 0}
        rows = []
        accepts = []
        for place in queue:
            behind, threads = self._closed(place)
            row = []
            for holds in self._holds:
                after = self._step(behind, threads, holds)
                if after not in known:
                    known[after] = len(queue)
                    queue.append(after)
                row.append(known[after])
            rows.append(row)
            final = 1 << self._parts.final
            accepts.append(any(not must and each & final for (must, _), each in threads.items()))
            if len(queue) > self._max_states or len(queue) * len(row) > MAX_STEPS:
                raise TooManyStates("a pattern of too many states")
        return _without_equal_labels(self._partition, np.array(rows, dtype=np.int32), accepts)

    def _step(
        self, behind: tuple[int, ...], closed: Mapping[_Duties, int], holds: frozenset[int]
    ) -> _Place:
        """The place behind a character of these sets."""
        after: dict[_Duties, int] = {}
        for (must, must_not), states in closed.items():
            moved = self._moved(states, holds)
            left = frozenset(self._moved(each, holds) for each in must)
            broken = self._moved(must_not, holds)
            if moved and 0 not in left and not broken & self._kept:
                key = frozenset(each for each in left if not each & self._kept), broken
                after[key] = after.get(key, 0) | moved
        moved_behind = tuple(self._moved(each, holds) if after else 0 for each in behind)
        threads = after.items()
        kept = [one for one in threads if not any(_asks_less(other, one) for other in threads)]
        return _Place(moved_behind, frozenset(kept))

    def _closed(self, place: _Place) -> tuple[tuple[int, ...], Mapping[_Duties, int]]:
        """The epsilon closure."""
        situation = [False] * len(self._parts.conditions)
        behind = []
        for (number, look), states in zip(self._behind, place.behind, strict=True):
            closed = self._passed(states | 1 << look.start, tuple(situation))
            behind.append(closed)
            situation[number] = bool(closed >> look.final & 1) != look.is_negated
        known = tuple(situation)
        threads: dict[_Duties, int] = {}
        for (must, must_not), states in place.threads:
            kept = [_NO_DUTIES]
            for each in must:
                kept = _each_of_both(kept, self._once(each, known))
            kept = _each_of_both(kept, self._never(must_not, known)) if must_not else kept
            for more, reached in self._options(states, known):
                for duties in _each_of_both(kept, [more]):
                    threads[duties] = threads.get(duties, 0) | reached
        return tuple(behind), threads

    def _options(
        self, states: int, known: _Situation, used: frozenset[int] = frozenset()
    ) -> list[tuple[_Duties, int]]:
        """Where one of the states leads, and what has to be kept for it; `used`: lookaheads on the
        way there."""
        reached = self._passed(states, known)
        found = [(_NO_DUTIES, reached)]
        for state in _bits(reached & self._with_ahead):
            for number, end in self._ahead[state]:
                if number in used:
                    continue
                look = self._parts.conditions[number]
                ahead = self._never if look.is_negated else self._once
                duties = ahead(1 << look.start, known, used | {number})
                for more, after in self._options(1 << end, known, used | {number}):
                    found += [(each, after) for each in _each_of_both(duties, [more])]
        return found

    def _once(
        self, states: int, known: _Situation, used: frozenset[int] = frozenset()
    ) -> list[_Duties]:
        """Ways to keep a lookahead that has come to these states."""
        found = []
        for duties, reached in self._options(states, known, used):
            own = (frozenset() if reached & self._kept else frozenset({reached}), 0)
            found += _each_of_both([duties], [own])
        return [_NO_DUTIES] if _NO_DUTIES in found else found

    def _never(
        self, states: int, known: _Situation, used: frozenset[int] = frozenset()
    ) -> list[_Duties]:
        """Ways to keep a negated lookahead that has come to these states."""
        found = [_NO_DUTIES]
        for (must, must_not), reached in self._options(states, known, used):
            ways: list[_Duties] = [(frozenset(), each) for each in must]
            if must_not:
                ways.append((frozenset({must_not}), 0))
            if not reached & self._kept:
                ways.append((frozenset(), reached))
            found = _each_of_both(found, ways)
        return found

    def _passed(self, states: int, known: _Situation) -> int:
        """All states that epsilon edges reach under conditions that hold."""
        key = states, known
        if key not in self._closures:
            queue = _bits(states)
            while queue:
                for condition, after in self._parts.epsilon_edges[queue.pop()]:
                    if (condition is None or known[condition]) and not states >> after & 1:
                        states |= 1 << after
                        queue.append(after)
            self._closures[key] = states
        return self._closures[key]

    def _moved(self, states: int, holds: frozenset[int]) -> int:
        """The states behind a character of these sets."""
        after = 0
        for state in _bits(states):
            char_edges = self._parts.char_edges[state]
            if char_edges is not None and char_edges[0] in holds:
                after |= 1 << char_edges[1]
        return after


def _asks_less(one: tuple[_Duties, int], other: tuple[_Duties, int]) -> bool:
    """Whether the other thread adds nothing to this one."""
    (must, must_not), states = one
    (more, more_not), others = other
    return one != other and must <= more and not must_not & ~more_not and not others & ~states


def _each_of_both(some: Iterable[_Duties], others: Sequence[_Duties]) -> list[_Duties]:
    """One way of the first and one of the second, kept together. Raises TooManyStates."""
    found = {(must | more, not_ | never) for must, not_ in some for more, never in others}
    if len(found) > _MAX_THREADS:
        raise TooManyStates("a pattern that looks ahead too often")
    return list(found)


def _without_equal_labels(
    partition: Partition, steps: npt.NDArray[np.int32], accepts: list[bool]
) -> Automaton:
    """Merge labels whose characters have equal steps everywhere."""
    columns, labels = np.unique(steps, axis=1, return_inverse=True)
    labels = labels.reshape(-1)[partition.labels]
    is_new = np.ones(len(labels), dtype=np.bool_)
    is_new[1:] = labels[1:] != labels[:-1]
    used, labels = np.unique(labels[is_new], return_inverse=True)
    coarser = Partition(partition.starts[is_new], labels.reshape(-1).astype(np.int32))
    return Automaton(coarser, np.ascontiguousarray(columns[:, used]), np.array(accepts))


def _bits_of(states: Iterable[int]) -> int:
    found = 0
    for state in states:
        found |= 1 << state
    return found


def _bits(states: int) -> list[int]:
    found = []
    while states:
        lowest = states & -states
        found.append(lowest.bit_length() - 1)
        states ^= lowest
    return found


# The most states of an automaton that becomes a pattern.
_MAX_LIVE_STATES = 200
# The most sets of characters in what leads from one state to another.
_MAX_SIZE = 2000


@dataclass(frozen=True, slots=True)
class _Part:
    """What leads from one state to another. `size`: its sets of characters."""

    pattern: Pattern
    size: int


_NOTHING = _Part(EMPTY, 0)


def pattern_of(automaton: Automaton) -> Pattern | None:
    """The pattern of the texts that it accepts. None: there are none. Raises OutOfReach."""
    _, kinds = np.unique(automaton.accepts, return_inverse=True)
    blocks = refined(kinds.astype(np.int64), automaton.steps)
    _, first = np.unique(blocks, return_index=True)
    steps = blocks[automaton.steps[first]].astype(np.int32)
    accepts = automaton.accepts[first]
    live = can_reach(steps, accepts)
    if np.count_nonzero(live) > _MAX_LIVE_STATES:
        raise TooManyStates("a pattern of too many states")
    sets = _sets(automaton)
    edges = _Edges(len(first))
    for state in np.flatnonzero(live).tolist():
        for after in np.flatnonzero(live & np.isin(np.arange(len(live)), steps[state])).tolist():
            labels = np.flatnonzero(steps[state] == after).tolist()
            ranges = encodable(tuple(each for label in labels for each in sets[label]))
            if ranges:
                edges.add(state, after, _Part(Chars(ranges), 1))
        if accepts[state]:
            edges.add(state, edges.end, _NOTHING)
    edges.add(edges.start, int(blocks[0]), _NOTHING)
    return edges.eliminated()


class _Edges:
    """Parts between states, and between two more that nothing leads to and from."""

    def __init__(self, num_states: int) -> None:
        self.start = num_states
        self.end = num_states + 1
        self._after: dict[int, dict[int, _Part]] = {each: {} for each in range(num_states + 2)}
        self._before: dict[int, set[int]] = {each: set() for each in range(num_states + 2)}

    def add(self, state: int, after: int, part: _Part) -> None:
        known = self._after[state].get(after)
        self._after[state][after] = part if known is None else _either(known, part)
        self._before[after].add(state)
        if self._after[state][after].size > _MAX_SIZE:
            raise TooManyStates("a pattern of too many parts")

    def eliminated(self) -> Pattern | None:
        """What leads from the start to the end."""
        left = set(range(self.start))
        while left:
            state = min(left, key=self._cost)
            left.remove(state)
            self._eliminate(state)
        whole = self._after[self.start].get(self.end)
        return None if whole is None else whole.pattern

    def _cost(self, state: int) -> int:
        """By how much leaving out a state makes the rest longer."""
        after = {each: part for each, part in self._after[state].items() if each != state}
        before = [self._after[each][state] for each in self._before[state] if each != state]
        loop = self._after[state].get(state, _NOTHING).size
        return (
            sum(part.size for part in before) * len(after)
            + sum(part.size for part in after.values()) * len(before)
            + loop * len(before) * len(after)
        )

    def _eliminate(self, state: int) -> None:
        after = self._after.pop(state)
        loop = after.pop(state, None)
        again = _NOTHING if loop is None else _Part(Repeat(loop.pattern, 0, None), loop.size)
        for each in after:
            self._before[each].remove(state)
        for before in self._before.pop(state) - {state}:
            into = self._after[before].pop(state)
            for each, part in after.items():
                self.add(before, each, _sequence(into, again, part))


def _sequence(*parts: _Part) -> _Part:
    patterns: list[Pattern] = []
    for part in parts:
        patterns += part.pattern.parts if isinstance(part.pattern, Concat) else (part.pattern,)
    return _Part(concat(patterns), sum(part.size for part in parts))


def _either(one: _Part, other: _Part) -> _Part:
    match one.pattern, other.pattern:
        case Empty(), Empty():
            return one
        case Empty(), _:
            return _Part(Repeat(other.pattern, 0, 1), other.size)
        case _, Empty():
            return _Part(Repeat(one.pattern, 0, 1), one.size)
    either = Choice((*options_of(one.pattern), *options_of(other.pattern)))
    return _Part(either, one.size + other.size)


def _sets(automaton: Automaton) -> list[list[tuple[int, int]]]:
    """The characters of each label."""
    found: list[list[tuple[int, int]]] = [[] for _ in range(automaton.steps.shape[1])]
    starts = automaton.partition.starts.tolist()
    for start, end, label in zip(
        starts, [*starts[1:], NUM_CODE_POINTS], automaton.partition.labels.tolist(), strict=True
    ):
        found[label].append((start, end - 1))
    return found
