r"""Regular expressions as automata.

    state of the DFA:   sets of the last character | lookbehind states | threads
    thread:             NFA states | lookaheads that must, that must not succeed

Edges of the NFA read a character of a set, or nothing (epsilon). An epsilon edge may have a
condition: on the adjacent characters (`\b`, `^`, `$`), or that another part ends here (lookbehind)
or begins here (lookahead). Backreferences, atomic groups and lookahead within a lookaround are out
of reach.

The DFA is made by subset construction; sets of states are bits of integers. Conditions such as
`\b` depend on the next character, so epsilon edges are followed only when the next character, or
the end, is known.

Automata over characters are small, deterministic and complete: every state has a step for every
character. State 0 is the start.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from constraints.errors import ConstraintError
from constraints.regex.char_sets import NUM_CODE_POINTS, Partition, Ranges, join
from constraints.regex.limits import MAX_STEPS, OutOfReach, TooManyStates
from constraints.regex.syntax import (
    Anchor,
    Chars,
    Choice,
    Concat,
    Dialect,
    Empty,
    Look,
    Pattern,
    Repeat,
    WordBoundary,
    parse,
)

Steps = npt.NDArray[np.int32]
Indices = npt.NDArray[np.int64]

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
_EVERY: Ranges = ((0, NUM_CODE_POINTS - 1),)
_NEWLINE: Ranges = ((10, 10),)
_NO_NEWLINE: Ranges = ((0, 9), (11, NUM_CODE_POINTS - 1))
_ALL_PAIRS = frozenset((before, after) for before in (False, True) for after in (False, True))
_NOT_BEHIND = frozenset(pair for pair in _ALL_PAIRS if not pair[0])
_NOT_AHEAD = frozenset(pair for pair in _ALL_PAIRS if not pair[1])
_ONE_SIDE = frozenset({(True, False), (False, True)})


@dataclass(frozen=True, slots=True)
class Boundary:
    """A condition on the adjacent characters.

    known: the number of the set that they are in or not; beyond the text's edges: not in it
    pairs: (whether the one before is in it, whether the one behind is) for which it holds
    fits_empty: whether it may hold in the empty text
    """

    known: int
    pairs: frozenset[tuple[bool, bool]]
    fits_empty: bool = True


@dataclass(frozen=True, slots=True)
class Lookaround:
    """A lookahead or lookbehind: whether text there can be read from `start` to `final`."""

    is_ahead: bool
    is_negated: bool
    start: int
    final: int


Condition = Boundary | Lookaround


@dataclass(slots=True, eq=False)
class Nfa:
    """An NFA over sets of characters; state 0 is the start.

    epsilon_edges: by state, (number of a condition or None, state)
    char_edges:    by state, (number of a set, state)
    conditions:    those within a lookaround come before it
    """

    final: int
    epsilon_edges: list[list[tuple[int | None, int]]]
    char_edges: list[tuple[int, int] | None]
    sets: dict[Ranges, int]
    conditions: list[Condition]


class NfaBuilder:
    """Builds the NFA of a pattern part by part. Raises OutOfReach."""

    def __init__(self, max_states: int = _MAX_PARTS) -> None:
        self.parts = Nfa(0, [[]], [None], {}, [])
        self._max_states = max_states
        self._num_looks = 0  # around the present part

    def add(self, pattern: Pattern, start: int) -> int:
        """Add a part behind `start`; returns the last state."""
        match pattern:
            case Empty():
                return start
            case Chars(ranges):
                return self.edge(self._set(ranges), start)
            case Concat(parts):
                for part in parts:
                    start = self.add(part, start)
                return start
            case Choice(options):
                return self._choice(options, start)
            case Repeat():
                return self._repeat(pattern, start)
            case Anchor():
                return self._anchor(pattern, start)
            case WordBoundary(word, is_negated, fits_empty):
                pairs = _ALL_PAIRS - _ONE_SIDE if is_negated else _ONE_SIDE
                return self._boundary(word.ranges, pairs, start, fits_empty)
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

    def _set(self, ranges: Ranges) -> int:
        return self.parts.sets.setdefault(ranges, len(self.parts.sets))

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

    def _anchor(self, anchor: Anchor, start: int) -> int:
        if anchor.may_have_newline:
            end = Anchor(False, anchor.position)
            newline = Look(Concat((Chars(_NEWLINE), end)), True, False, anchor.position)
            return self._choice((end, newline), start)
        pairs = _NOT_BEHIND if anchor.is_start else _NOT_AHEAD
        return self._boundary(_NO_NEWLINE if anchor.of_lines else _EVERY, pairs, start)

    def _boundary(
        self,
        ranges: Ranges,
        pairs: frozenset[tuple[bool, bool]],
        start: int,
        fits_empty: bool = True,
    ) -> int:
        self.parts.conditions.append(Boundary(self._set(ranges), pairs, fits_empty))
        end = self.state()
        self.link(start, end, len(self.parts.conditions) - 1)
        return end

    def _look(self, look: Look, start: int) -> int:
        if look.is_ahead and self._num_looks:
            raise OutOfReach("looking ahead from within a look")
        begin = self.state()
        self._num_looks += 1
        final = self.add(look.part, begin)
        self._num_looks -= 1
        self.parts.conditions.append(Lookaround(look.is_ahead, look.is_negated, begin, final))
        end = self.state()
        self.link(start, end, len(self.parts.conditions) - 1)
        return end


_MAX_STATES = 4000
_MAX_THREADS = 200
# The lookaheads of a thread: sets of states of which one must reach the end, and states of which
# none may.
_Duties = tuple[frozenset[int], int]
_NO_DUTIES: _Duties = (frozenset(), 0)
# By number of a condition, whether it holds; lookaheads are unknown yet.
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

    last:    the sets that contain the last character, None at the start
    behind:  by lookbehind, the states reached
    threads: NFA states by their lookaheads
    """

    last: frozenset[int] | None
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
        self._boundary = {each.known for each in parts.conditions if isinstance(each, Boundary)}
        self._behind = [
            (number, each)
            for number, each in enumerate(parts.conditions)
            if isinstance(each, Lookaround) and not each.is_ahead
        ]
        lookarounds = [
            each for each in parts.conditions if isinstance(each, Lookaround) and each.is_ahead
        ]
        self._kept = _bits_of(each.final for each in lookarounds if not each.is_negated)
        self._broken = _bits_of(each.final for each in lookarounds if each.is_negated)
        self._dead = _Place(frozenset(), tuple(0 for _ in self._behind), frozenset())
        self._closures: dict[tuple[int, _Situation], int] = {}

    def automaton(self) -> Automaton:
        """The DFA. Raises OutOfReach for too many places."""
        nothing = tuple(0 for _ in self._behind)
        queue = [_Place(None, nothing, frozenset({(_NO_DUTIES, 1)}))]
        known = {queue[0]: 0}
        rows = []
        accepts = []
        for place in queue:
            row = []
            for after in self._steps(place):
                if after not in known:
                    known[after] = len(queue)
                    queue.append(after)
                row.append(known[after])
            rows.append(row)
            accepts.append(self._accepts(place))
            if len(queue) > self._max_states or len(queue) * len(row) > MAX_STEPS:
                raise TooManyStates("a pattern of too many states")
        return _without_equal_labels(self._partition, np.array(rows, dtype=np.int32), accepts)

    def _steps(self, place: _Place) -> Iterable[_Place]:
        """The places behind each label."""
        closed: dict[frozenset[int], tuple[tuple[int, ...], Mapping[_Duties, int]]] = {}
        for holds in self._holds:
            boundary = holds & self._boundary
            if boundary not in closed:
                closed[boundary] = self._closed(place, boundary)
            behind, threads = closed[boundary]
            after: dict[_Duties, int] = {}
            for (must, must_not), states in threads.items():
                duties = frozenset(self._moved(each, holds) for each in must)
                moved = self._moved(states, holds)
                if moved and 0 not in duties:
                    key = duties, self._moved(must_not, holds)
                    after[key] = after.get(key, 0) | moved
            if not after:
                yield self._dead
                continue
            moved_behind = tuple(self._moved(each, holds) for each in behind)
            yield _Place(boundary, moved_behind, frozenset(after.items()))

    def _accepts(self, place: _Place) -> bool:
        _, threads = self._closed(place, None)
        final = 1 << self._parts.final
        return any(not must and states & final for (must, _), states in threads.items())

    def _closed(
        self, place: _Place, after: frozenset[int] | None
    ) -> tuple[tuple[int, ...], Mapping[_Duties, int]]:
        """The epsilon closure if a character in the sets `after` is next, None: the end."""
        situation = [
            isinstance(each, Boundary) and _holds(each, place.last, after)
            for each in self._parts.conditions
        ]
        behind = []
        for (number, lookaround), states in zip(self._behind, place.behind, strict=True):
            closed = self._passed(states | 1 << lookaround.start, tuple(situation))
            behind.append(closed)
            situation[number] = bool(closed >> lookaround.final & 1) != lookaround.is_negated
        known = tuple(situation)
        threads: dict[_Duties, int] = {}
        for duties, states in place.threads:
            self._pass_ahead(duties, states, known, threads)
        return tuple(behind), threads

    def _pass_ahead(
        self, duties: _Duties, states: int, known: _Situation, threads: dict[_Duties, int]
    ) -> None:
        """Close a thread, and those into which it splits at lookaheads."""
        todo = [(duties, states)]
        done: dict[_Duties, int] = {}
        while todo:
            before, states = todo.pop()
            own = self._fulfilled(before, known)
            if own is None:
                continue
            reached = done.get(own, 0) | self._passed(states | done.get(own, 0), known)
            if reached == done.get(own, 0):
                continue
            done[own] = reached
            if len(done) > _MAX_THREADS:
                raise TooManyStates("a pattern that looks ahead too often")
            for lookaround, end in self._lookarounds_of(reached):
                must, must_not = own
                if lookaround.is_negated:
                    todo.append(((must, must_not | 1 << lookaround.start), 1 << end))
                else:
                    todo.append(((must | {1 << lookaround.start}, must_not), 1 << end))
        for own, reached in done.items():
            threads[own] = threads.get(own, 0) | reached

    def _fulfilled(self, duties: _Duties, known: _Situation) -> _Duties | None:
        """The remaining lookaheads, closed; None: one failed."""
        must_not = self._passed(duties[1], known)
        if must_not & self._broken:
            return None
        must = (self._passed(each, known) for each in duties[0])
        return frozenset(each for each in must if not each & self._kept), must_not

    def _lookarounds_of(self, states: int) -> Iterable[tuple[Lookaround, int]]:
        for state in _bits(states):
            for condition, after in self._parts.epsilon_edges[state]:
                lookaround = None if condition is None else self._parts.conditions[condition]
                if isinstance(lookaround, Lookaround) and lookaround.is_ahead:
                    yield lookaround, after

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


def _holds(boundary: Boundary, last: frozenset[int] | None, after: frozenset[int] | None) -> bool:
    if last is None and after is None and not boundary.fits_empty:
        return False
    return (boundary.known in (last or ()), boundary.known in (after or ())) in boundary.pairs


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
