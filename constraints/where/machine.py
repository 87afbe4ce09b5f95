"""The machine of an expression: the product of its automata, with the counts of every character.

atoms -> automata -> common partition of characters -> reachable joint states -> minimal states
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from constraints.where import automata, numerals, regex_dfa
from constraints.where.automata import Automaton
from constraints.where.code_points import Partition, join
from constraints.where.grid import MEASURES, Grid, holds, is_counted, may_hold
from constraints.where.grouping import ContainsAny, group_phrases
from constraints.where.limits import MAX_STATES, MAX_STEPS, OutOfReach, TooManyStates
from constraints.where.measures import Counter, atoms, counter_of
from constraints.where.sources import Steps
from constraints.where.terms import (
    Compare,
    Constant,
    Contains,
    EndsWith,
    Expression,
    IsFloat,
    IsInt,
    Matches,
    Measure,
    OneOf,
    StartsWith,
    StopsAt,
)

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


def automaton_of(atom: Expression) -> Automaton:
    """The automaton of an atom without a count. Raises OutOfReach."""
    if isinstance(atom, ContainsAny):
        return automata.contains(atom.phrases)
    return _phrase_automaton(atom) or _shape_automaton(atom)


def _phrase_automaton(atom: Expression) -> Automaton | None:
    match atom:
        case OneOf(values):
            return automata.one_of(values)
        case Contains(phrase):
            return automata.contains((phrase,))
        case StartsWith(phrases):
            return automata.starts_with(phrases)
        case EndsWith(phrases):
            return automata.ends_with(phrases)
        case StopsAt(phrases):
            return automata.stops_at(phrases)
    return None


def _shape_automaton(atom: Expression) -> Automaton:
    match atom:
        case Matches(pattern):
            return regex_dfa.matches(pattern)
        case IsInt():
            return numerals.is_int()
        case IsFloat():
            return numerals.is_float()
        case Compare(Measure.INT, relation, bound):
            return numerals.compared(relation, bound)
    raise OutOfReach(f"no automaton for {atom!r}")


def build(expression: Expression) -> Machine:
    """The machine of an expression without stops_before. Raises OutOfReach, TooComplex."""
    expression = group_phrases(expression)
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
        for measure, flag in (
            (Measure.WORDS, automata.words),
            (Measure.SENTENCES, automata.sentences),
        ):
            if measure in counted:
                self._flags[measure] = len(members)
                members.append(flag())
        self.partition, columns = join([member.partition for member in members])
        if sum(member.num_states for member in members) * columns.shape[1] > MAX_STEPS:
            raise TooManyStates("automata with too many states and characters")
        self._steps = [
            member.steps[:, column] for member, column in zip(members, columns, strict=True)
        ]
        self._members = members
        self._columns = columns
        self._atoms = {atom: index for index, atom in enumerate(parts)}
        self._possible = [member.decided() for member in members]
        self._weights = _mixed_radix([member.num_states for member in members])

    def explore(self) -> tuple[npt.NDArray[np.int32], Steps]:
        """The rows of the reachable states, and the steps between them.

        Row 0 represents all rows in which the expression can no longer hold; it is a sink.
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
            is_dead = ~np.broadcast_to(self._may_hold(fresh_rows), len(unique))
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
            if num_rows > MAX_STATES or num_rows * num_labels > MAX_STEPS:
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

    def _may_hold(self, rows: npt.NDArray[np.int32]) -> npt.NDArray[np.bool_]:
        possible = {
            atom: (
                self._possible[index][0][rows[:, index]],
                self._possible[index][1][rows[:, index]],
            )
            for atom, index in self._atoms.items()
        }
        return may_hold(self._expression, possible)

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
    weights = []
    weight = 1
    for size in sizes:
        weights.append(weight)
        weight *= size
    if weight >= 2**62:
        raise TooManyStates("too many automata")
    return np.array(weights, dtype=np.int64)
