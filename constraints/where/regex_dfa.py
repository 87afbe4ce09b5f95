r"""Regular expressions in Python's syntax as DFAs: subset construction over `regex_nfa`.

    state of the DFA:   sets of the last character | lookbehind states | threads
    thread:             NFA states | lookaheads that must, that must not succeed

Sets of states are bits of integers. Conditions such as `\b` depend on the next character, so
epsilon edges are followed only when the next character, or the end, is known.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from constraints.where.automata import Automaton
from constraints.where.code_points import Partition, join
from constraints.where.limits import MAX_STEPS, TooManyStates
from constraints.where.regex_nfa import Boundary, Lookaround, Nfa, read

_MAX_STATES = 4000
_MAX_THREADS = 200
# The lookaheads of a thread: sets of states of which one must reach the end, and states of which
# none may.
_Duties = tuple[frozenset[int], int]
_NO_DUTIES: _Duties = (frozenset(), 0)
# By number of a condition, whether it holds; lookaheads are unknown yet.
_Situation = tuple[bool, ...]


def matches(pattern: str, max_states: int = _MAX_STATES) -> Automaton:
    """Accepts what re.fullmatch matches. Raises OutOfReach."""
    return _SubsetConstruction(read(pattern), max_states).automaton()


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
