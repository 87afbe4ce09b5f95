"""The machine of an expression: the product of its automata, with the counts of every character.

atoms -> automata -> common partition of characters -> reachable joint states -> minimal states

The automaton of each atom is complete, as in `constraints.regex.dfa`. Of the machine,
unreachable and dead states are removed, equivalent ones merged. A dropped stop phrase may end an
output, and is then no part of it:

    text so far   = committed text + longest suffix that may become a phrase
    state         = (state of the machine after the committed text, that suffix)
    counts        = of the committed text; those of the suffix are `pending` until it is committed
    phrase ended  -> a state without steps, accepting if the text before the phrase is accepted

A phrase ends an output as soon as it is complete; if several end at the same character, the longest
one counts.

Whether the expression holds is known for every state of its automata and segment of its counts:

grid[state, chars, words, sentences, tokens]    an uncounted measure has one segment

A counter distinguishes segments of counts:

len(X) > 2 and len(X) < 5:   counts 0 1 2 | 3 4 | 5 ...    three segments with boundaries 3 and 5
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import accumulate
from operator import mul
from typing import cast

import numpy as np
import numpy.typing as npt

from constraints.errors import OutOfReach, TooComplex, TooManyStates
from constraints.regex.char_sets import WHITESPACE, Partition, join
from constraints.regex.dfa import (
    MAX_STEPS,
    Automaton,
    Flags,
    Steps,
    can_reach,
    matches,
    numbered,
    refined,
)
from constraints.regex.syntax import between
from constraints.string_trie import StringTrie
from constraints.where.evaluate import dropped_phrases, related, top_parts
from constraints.where.terms import (
    And,
    Compare,
    Constant,
    Contains,
    EndsWith,
    Expression,
    IsFloat,
    IsInt,
    Matches,
    Measure,
    Not,
    OneOf,
    Or,
    Relation,
    StartsWith,
    StopsAt,
    StopsBefore,
    all_of,
    any_of,
)

# The most states of an expression's machine, over characters. Larger ones use another engine.
_MAX_STATES = 20_000
# The largest bound that is counted towards.
_MAX_COUNT = 1_000_000


def pieces(ends: Partition) -> Automaton:
    """Accepts within a piece, which other characters begin and those with a label end."""
    steps = np.array([[1, 0], [1, 0]], dtype=np.int32)
    return Automaton(ends, steps, np.array([False, True]))


class PhraseTrie(StringTrie):
    """The trie of some phrases, by labels of their characters."""

    def __init__(self, phrases: Iterable[str]) -> None:
        phrases = tuple(dict.fromkeys(phrases))
        self.chars = sorted(set("".join(phrases)))
        self.partition = Partition.of_chars(self.chars)
        self.num_labels = len(self.chars) + 1
        label_of = {char: index + 1 for index, char in enumerate(self.chars)}
        super().__init__([label_of[char] for char in phrase] for phrase in phrases)
        if len(self.children) * self.num_labels > MAX_STEPS:
            raise OutOfReach(f"{len(self.children)} prefixes of phrases")
        self._path_of = {node: path for path in self.paths for node in path}

    def beginning(self, node: int, length: int) -> int:
        """The node of the first `length` characters of a node's prefix."""
        return self._path_of[node][length]

    def prefix_tree(self) -> Steps:
        """The trie itself: other characters lead to one more state, the last, which is a sink."""
        sink = len(self.children)
        steps = np.full((sink + 1, self.num_labels), sink, dtype=np.int32)
        for node, children in enumerate(self.children):
            for label, child in children.items():
                steps[node, label] = child
        return steps


def contains(phrases: Sequence[str]) -> Automaton:
    """Accepts once one of the phrases has occurred in the text."""
    return _for_good(ends_with(phrases))


def starts_with(phrases: Sequence[str]) -> Automaton:
    """Accepts once the text began with one of the phrases."""
    return _for_good(one_of(phrases))


def _for_good(automaton: Automaton) -> Automaton:
    """Accepts whatever follows what the automaton accepts."""
    found = np.flatnonzero(automaton.accepts)
    automaton.steps[found] = found[:, None]
    return automaton


def ends_with(phrases: Sequence[str]) -> Automaton:
    """Accepts where the text ends with one of the phrases."""
    trie = PhraseTrie(phrases)
    steps, longest = trie.following(trie.num_labels)
    return Automaton(trie.partition, steps, np.array(longest) >= 0)


def one_of(values: Sequence[str]) -> Automaton:
    """Accepts these texts."""
    trie = PhraseTrie(values)
    return Automaton(trie.partition, trie.prefix_tree(), np.array([*trie.ends, -1]) >= 0)


def stops_at(phrases: Sequence[str]) -> Automaton:
    """Accepts unless something follows one of the phrases."""
    ends = ends_with(phrases)
    sink = ends.num_states
    steps = np.vstack([ends.steps, np.full_like(ends.steps[:1], sink)])
    steps[np.flatnonzero(ends.accepts)] = sink
    return Automaton(ends.partition, steps, np.arange(sink + 1) < sink)


def compared(relation: Relation, bound: int) -> Automaton:
    """Accepts integers whose value has this relation to the bound; leading zeros are ignored."""
    below = _integers(None, bound - 1)
    above = _integers(bound + 1, None)
    options = {
        Relation.LT: below,
        Relation.LE: _integers(None, bound),
        Relation.EQ: _integers(bound, bound),
        Relation.NE: f"{below}|{above}",
        Relation.GE: _integers(bound, None),
        Relation.GT: above,
    }
    return matches(options[relation])


def _integers(low: int | None, high: int | None) -> str:
    """The pattern of integers from `low` to `high`; None: no bound. Minus zero is zero."""
    options = []
    if high is None or high >= 0:
        options.append(f"0*{_digits(max(low or 0, 0), high)}")
    if low is None or low <= 0:
        options.append(f"-0*{_digits(max(-(high or 0), 0), None if low is None else -low)}")
    return "|".join(options)


def _digits(low: int, high: int | None) -> str:
    if high is not None:
        return between(low, high)
    length = len(str(low))
    return f"(?:{between(low, 10**length - 1)}|[1-9][0-9]{{{length},}})"


_BOUNDARIES = {
    Relation.LT: (0,),
    Relation.GE: (0,),
    Relation.LE: (1,),
    Relation.GT: (1,),
    Relation.EQ: (0, 1),
    Relation.NE: (0, 1),
}


@dataclass(frozen=True, slots=True)
class Counter:
    """The count of one measure. Counts of `cap` and more are held at `cap`: they are equal."""

    measure: Measure
    boundaries: tuple[int, ...]  # ascending: first counts of all segments but the first

    @property
    def cap(self) -> int:
        """The first count of the last segment."""
        return self.boundaries[-1]

    @property
    def firsts(self) -> tuple[int, ...]:
        """The first count of each segment."""
        return (0, *self.boundaries)

    def segments(self) -> npt.NDArray[np.int64]:
        """The segment of each count, [cap + 1]."""
        return np.searchsorted(self.boundaries, np.arange(self.cap + 1), side="right")


def atoms(expression: Expression) -> Iterator[Expression]:
    """The parts that are neither And, Or nor Not, from left to right."""
    match expression:
        case And(parts) | Or(parts):
            for part in parts:
                yield from atoms(part)
        case Not(part):
            yield from atoms(part)
        case _:
            yield expression


def counter_of(measure: Measure, expression: Expression) -> Counter | None:
    """The counter of a measure; None where the expression does not compare it."""
    boundaries = {
        atom.bound + shift
        for atom in atoms(expression)
        if isinstance(atom, Compare) and atom.measure is measure
        for shift in _BOUNDARIES[atom.relation]
    }
    above = sorted(cut for cut in boundaries if cut > 0)
    if above and above[-1] > _MAX_COUNT:
        raise TooComplex(f"{measure.value} is compared with more than {_MAX_COUNT}")
    return Counter(measure, tuple(above)) if above else None


Grid = npt.NDArray[np.bool_]

MEASURES = (Measure.CHARS, Measure.WORDS, Measure.SENTENCES, Measure.TOKENS)


def is_counted(atom: Expression) -> bool:
    """Whether the atom compares a count; the value of an integer is none."""
    return isinstance(atom, Compare) and atom.measure is not Measure.INT


def holds(
    expression: Expression,
    truths: Mapping[Expression, npt.NDArray[np.bool_]],
    counters: Mapping[Measure, Counter],
) -> Grid:
    """The grid of an expression; truths: whether each atom without a count holds, [states]."""
    match expression:
        case And(parts):
            return reduce(np.logical_and, [holds(part, truths, counters) for part in parts])
        case Or(parts):
            return reduce(np.logical_or, [holds(part, truths, counters) for part in parts])
        case Not(part):
            return ~holds(part, truths, counters)
        case Constant(value):
            return np.full((1,) * 5, value)
        case Compare(measure, relation, bound) if is_counted(expression):
            firsts = counters[measure].firsts if measure in counters else (0,)
            along = np.array([related(first, relation, bound) for first in firsts])
            shape = [1] * 5
            shape[1 + MEASURES.index(measure)] = len(firsts)
            return along.reshape(shape)
        case _:
            return truths[expression].reshape(-1, 1, 1, 1, 1)


@dataclass(frozen=True, slots=True)
class ContainsAny:
    """At least one of the phrases occurs in the output. An atom without syntax."""

    phrases: tuple[str, ...]


def with_lists_joined(expression: Expression) -> Expression:
    """One list for those of an `or`, and for those that an `and` excludes: there may be hundreds.

    Then one automaton searches for all of them.
    """
    match expression:
        case Not(part):
            return Not(with_lists_joined(part))
        case Or(parts):
            return any_of(_joined(map(with_lists_joined, parts)))
        case And(parts):
            joined = list(map(with_lists_joined, parts))
            excluded = _joined(part.part for part in joined if isinstance(part, Not))
            others = (part for part in joined if not isinstance(part, Not))
            return all_of([*others, *map(Not, excluded)])
    return expression


def _joined(parts: Iterable[Expression]) -> list[Expression]:
    lists: dict[type, dict[str, None]] = {}
    others = []
    for part in parts:
        match part:
            case Contains(phrase):
                lists.setdefault(ContainsAny, {})[phrase] = None
            case OneOf(phrases) | StartsWith(phrases) | EndsWith(phrases):
                lists.setdefault(type(part), {}).update(dict.fromkeys(phrases))
            case _:
                others.append(part)
    # Only the automata see ContainsAny, as an atom like others.
    joined = [cast(Expression, kind(tuple(phrases))) for kind, phrases in lists.items()]
    return joined + others


Counts = npt.NDArray[np.int64]

# Measures that the text determines, unlike tokens.
TEXT_MEASURES = MEASURES[:3]


@dataclass(frozen=True, slots=True, eq=False)
class Machine:
    """States 0 .. num_states - 1; state 0 is dead.

    start:   the state of the empty text
    steps:   [num_states, num_labels]
    gains:   [num_states, num_labels, num_counters] what a character adds to each count
    pending: [num_states, num_counters] what is added to the counts before `accepts` is looked up
    accepts: [num_states, segments of each measure]
    counters: of the counted measures, except tokens
    tokens:  the counter of tokens, None if they are not compared
    """

    partition: Partition
    start: int
    steps: Steps
    gains: Counts
    pending: Counts
    accepts: Grid
    counters: tuple[Counter, ...]
    tokens: Counter | None

    @property
    def num_states(self) -> int:
        """Including the dead state 0."""
        return len(self.steps)


def automaton_of(atom: Expression | ContainsAny) -> Automaton:
    """The automaton of an atom without a count. Raises OutOfReach."""
    match atom:
        case OneOf(values):
            return one_of(values)
        case Contains(phrase):
            return contains((phrase,))
        case ContainsAny(phrases):
            return contains(phrases)
        case StartsWith(phrases):
            return starts_with(phrases)
        case EndsWith(phrases):
            return ends_with(phrases)
        case StopsAt(phrases):
            return stops_at(phrases)
        case Matches(pattern):
            return matches(pattern)
        case IsInt():
            return matches("-?[0-9]+")
        case IsFloat():
            return matches(r"-?[0-9]+(\.[0-9]+)?")
        case Compare(Measure.INT, relation, bound):
            return compared(relation, bound)
    raise OutOfReach(f"no automaton for {atom!r}")


def machine_of(expression: Expression) -> Machine:
    """The smallest machine of an expression. Raises OutOfReach, TooComplex."""
    phrases = dropped_phrases(expression)
    # What must hold of the text without the dropped phrase.
    kept = all_of(part for part in top_parts(expression) if not isinstance(part, StopsBefore))
    machine = minimised(build(kept))
    return minimised(with_stop_phrases(machine, phrases)) if phrases else machine


def build(expression: Expression) -> Machine:
    """The machine of an expression without stops_before. Raises OutOfReach, TooComplex."""
    expression = with_lists_joined(expression)
    finite: dict[Expression, None] = dict.fromkeys(
        atom
        for atom in atoms(expression)
        if not is_counted(atom) and not isinstance(atom, Constant)
    )
    parts = {atom: automaton_of(atom) for atom in finite}
    counted = {
        measure: counter
        for measure in MEASURES
        if (counter := counter_of(measure, expression)) is not None
    }
    joint = _Joint(expression, parts, counted)
    rows, steps = joint.explore()
    return Machine(
        partition=joint.partition,
        start=1,
        steps=steps,
        gains=joint.gains(rows),
        pending=np.zeros((len(rows), len(joint.counters)), dtype=np.int64),
        accepts=joint.grid(rows),
        counters=joint.counters,
        tokens=counted.get(Measure.TOKENS),
    )


class _Joint:
    """The product of automata; a joint state is a row of their states, row 0 is dead."""

    def __init__(
        self,
        expression: Expression,
        parts: Mapping[Expression, Automaton],
        counted: Mapping[Measure, Counter],
    ) -> None:
        self._expression = expression
        self._counted = counted
        self.counters = tuple(counted[measure] for measure in TEXT_MEASURES if measure in counted)
        members = list(parts.values())
        self._flags: dict[Measure, int] = {}
        for measure, ends in (
            (Measure.WORDS, Partition.of_sets([WHITESPACE])),
            (Measure.SENTENCES, Partition.of_chars(".")),
        ):
            if measure in counted:
                self._flags[measure] = len(members)
                members.append(pieces(ends))
        self.partition, columns = join([member.partition for member in members])
        if sum(member.num_states for member in members) * columns.shape[1] > MAX_STEPS:
            raise TooManyStates("automata with too many states and characters")
        self._steps = [
            member.steps[:, column] for member, column in zip(members, columns, strict=True)
        ]
        self._members = members
        self._columns = columns
        self._atoms = {atom: index for index, atom in enumerate(parts)}
        # By atom that has to hold, or not to hold, the states from which it may.
        self._hopeful: list[tuple[int, Flags]] = []
        for part in top_parts(expression):
            atom = part.part if isinstance(part, Not) else part
            if atom in self._atoms:
                may_hold, may_fail = parts[atom].decided()
                hopeful = may_fail if isinstance(part, Not) else may_hold
                self._hopeful.append((self._atoms[atom], hopeful))
        self._weights = _mixed_radix([member.num_states for member in members])

    def explore(self) -> tuple[npt.NDArray[np.int32], Steps]:
        """The rows of the reachable states, and the steps between them.

        Row 0 represents rows in which one of the parts can no longer hold; it is a sink.
        Row 1 is the start.
        """
        num_labels = self._columns.shape[1]
        rows = np.zeros((1, len(self._members)), dtype=np.int32)
        # The keys of all rows except the dead one, ascending, and the row of each.
        known = np.zeros(1, dtype=np.int64)
        numbers = np.ones(1, dtype=np.int32)
        found = [rows]
        steps = [np.zeros((1, num_labels), dtype=np.int32)]
        num_rows = 2
        while len(rows):
            flat = self._after(rows)
            keys = flat.astype(np.int64) @ self._weights
            unique, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
            fresh_rows = flat[first]
            is_dead = np.zeros(len(unique), dtype=np.bool_)
            for index, hopeful in self._hopeful:
                is_dead |= ~hopeful[fresh_rows[:, index]]
            places = np.asarray(np.searchsorted(known, unique))
            held = np.minimum(places, len(known) - 1)
            ids = numbers[held]
            ids[known[held] != unique] = 0
            ids[is_dead] = 0
            fresh = np.flatnonzero(~is_dead & (ids == 0))
            ids[fresh] = num_rows + np.arange(len(fresh))
            steps.append(ids[inverse.reshape(-1)].reshape(len(rows), num_labels))
            rows = fresh_rows[fresh]
            found.append(rows)
            known = np.insert(known, places[fresh], unique[fresh])
            numbers = np.insert(numbers, places[fresh], ids[fresh])
            num_rows += len(fresh)
            if num_rows > _MAX_STATES or num_rows * num_labels > MAX_STEPS:
                raise TooManyStates(f"more than {num_rows} states")
        dead = np.zeros((1, len(self._members)), dtype=np.int32)
        return np.concatenate([dead, *found]), np.concatenate(steps)

    def _after(self, rows: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
        """The rows behind each label, [num_rows * num_labels, num_members]."""
        num_labels = self._columns.shape[1]
        after = np.empty((len(rows), num_labels, len(self._members)), dtype=np.int32)
        for index, steps in enumerate(self._steps):
            after[:, :, index] = steps[rows[:, index]]
        return after.reshape(len(rows) * num_labels, len(self._members))

    def grid(self, rows: npt.NDArray[np.int32]) -> Grid:
        """Whether the expression holds; never in row 0."""
        truths = {
            atom: self._members[index].accepts[rows[:, index]]
            for atom, index in self._atoms.items()
        }
        grid = holds(self._expression, truths, self._counted)
        shape = [len(rows)] + [
            len(self._counted[measure].firsts) if measure in self._counted else 1
            for measure in MEASURES
        ]
        whole = np.array(np.broadcast_to(grid, shape))
        whole[0] = False
        return whole

    def gains(self, rows: npt.NDArray[np.int32]) -> Counts:
        """The counts that each label adds in each row."""
        num_labels = self._columns.shape[1]
        gains = np.zeros((len(rows), num_labels, len(self.counters)), dtype=np.int64)
        for place, counter in enumerate(self.counters):
            if counter.measure is Measure.CHARS:
                gains[:, :, place] = 1
                continue
            flag = self._flags[counter.measure]
            is_outside = rows[:, flag] == 0
            begins = self._columns[flag] == 0
            if counter.measure is Measure.SENTENCES:
                begins = np.ones_like(begins)
            gains[:, :, place] = is_outside[:, None] & begins[None, :]
        gains[0] = 0
        return gains


def _mixed_radix(sizes: Sequence[int]) -> npt.NDArray[np.int64]:
    """Weights that turn a row of digits into one number."""
    weights = list(accumulate(sizes, mul, initial=1))
    if weights[-1] >= 2**62:
        raise TooManyStates("too many automata")
    return np.array(weights[:-1], dtype=np.int64)


def with_stop_phrases(machine: Machine, phrases: tuple[str, ...]) -> Machine:
    """The machine of outputs that `machine` accepts, or accepts before one of the phrases."""
    trie = PhraseTrie(phrases)
    following, longest = trie.following(trie.num_labels)
    partition, columns = join([machine.partition, trie.partition])
    num_states = machine.num_states
    num_nodes = len(following)
    num_labels = columns.shape[1]
    total = num_states * (num_nodes + 1)
    if total > _MAX_STATES or num_states * num_nodes * num_labels > MAX_STEPS:
        raise OutOfReach("too many states before phrases")
    # By node, the states behind its prefix and what they have counted, from every state.
    labels = [0, *(machine.partition.label_of(ord(char)) for char in trie.chars)]
    states = [np.arange(num_states)] * num_nodes
    gained: list[Counts] = [np.zeros_like(machine.pending)] * num_nodes
    for node, children in enumerate(trie.children):
        for label, child in children.items():
            gained[child] = gained[node] + machine.gains[states[node], labels[label]]
            states[child] = machine.steps[states[node], labels[label]].astype(np.int64)
    # [num_nodes + 1, num_states, ...]; the last block is of outputs that a phrase has ended.
    steps = np.zeros((num_nodes + 1, num_states, num_labels), dtype=np.int32)
    gains = np.zeros((*steps.shape, len(machine.counters)), dtype=np.int64)
    for node in range(num_nodes):
        # Characters that continue no phrase commit the suffix and themselves.
        steps[node] = machine.steps[states[node]][:, columns[0]]
        gains[node] = machine.gains[states[node]][:, columns[0]] + gained[node][:, None]
        for label in np.flatnonzero(following[node]).tolist():
            after = int(following[node, label])
            is_ended = longest[after] >= 0
            kept_len = longest[after] if is_ended else trie.depths[after]
            committed = trie.beginning(node, trie.depths[node] + 1 - kept_len)
            goes_on = columns[1] == label
            block = num_nodes if is_ended else after
            steps[node][:, goes_on] = (block * num_states + states[committed])[:, None]
            gains[node][:, goes_on] = gained[committed][:, None]
    return replace(
        machine,
        partition=partition,
        steps=steps.reshape(total, num_labels),
        gains=gains.reshape(total, num_labels, len(machine.counters)),
        pending=np.concatenate([*gained, np.zeros_like(machine.pending)]),
        accepts=machine.accepts[np.concatenate([*states, np.arange(num_states)])],
    )


def minimised(machine: Machine) -> Machine:
    """The equivalent machine with the fewest states; state 0 is dead."""
    machine = _without_hopeless(machine)
    kept = np.flatnonzero(_reachable(machine.steps, machine.start))
    kept = np.concatenate([[0], kept[kept > 0]])
    places = np.zeros(machine.num_states, dtype=np.int32)
    places[kept] = np.arange(len(kept))
    return _merged(_picked(machine, kept, places))


def _picked(
    machine: Machine, kept: npt.NDArray[np.int64], places: npt.NDArray[np.int32]
) -> Machine:
    """The machine with the kept states only; places: the new state of each old one."""
    return replace(
        machine,
        start=int(places[machine.start]),
        steps=places[machine.steps[kept]],
        gains=machine.gains[kept],
        pending=machine.pending[kept],
        accepts=machine.accepts[kept],
    )


def _reachable(steps: Steps, start: int) -> Flags:
    reached = np.zeros(len(steps), dtype=np.bool_)
    reached[start] = True
    frontier = np.array([start])
    while len(frontier):
        after = np.unique(steps[frontier])
        frontier = after[~reached[after]]
        reached[frontier] = True
    return reached


def _without_hopeless(machine: Machine) -> Machine:
    """Merge all states that cannot reach acceptance with any counts into the dead state."""
    holds = machine.accepts.reshape(machine.num_states, -1)
    hopeful = can_reach(machine.steps, np.any(holds, axis=1))
    states = np.where(hopeful, np.arange(machine.num_states), 0).astype(np.int32)
    steps = states[machine.steps]
    steps[~hopeful] = 0
    gains = np.where((steps == 0)[:, :, None], 0, machine.gains)
    return replace(machine, start=int(states[machine.start]), steps=steps, gains=gains)


def _merged(machine: Machine) -> Machine:
    """Merge equivalent states (Moore's partition refinement)."""
    num_states = machine.num_states
    traits = [machine.accepts, machine.gains, machine.pending]
    blocks = numbered(
        np.concatenate([trait.reshape(num_states, -1).astype(np.int64) for trait in traits], axis=1)
    )
    blocks = numbered(refined(blocks, machine.steps)[:, None])
    _, kept = np.unique(blocks, return_index=True)
    return _picked(machine, kept, blocks.astype(np.int32))
