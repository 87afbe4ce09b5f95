"""Regular expressions in Python's syntax, as automata: Python's own reader, then subsets.

    pattern -> parts of an automaton without order -> sets of its states, as bits of an integer

References back, look-around, atomic groups, word boundaries and anchors of lines are out of reach.
"""

import re
from collections.abc import Iterable, Sequence
from re import _constants as ops
from re import _parser as reader
from typing import Any

import numpy as np

from constraints.where.automata import Automaton
from constraints.where.code_points import Partition, Ranges, join
from constraints.where.limits import MAX_STEPS, OutOfReach
from constraints.where.pattern_sets import matched

# Parts of a pattern once its repeats are written out, and states of its automaton.
_MAX_PARTS = 4000
_MAX_STATES = 4000
# Flags that say which characters an item matches, or how a pattern is written.
_SERVED_FLAGS = (
    re.UNICODE | re.IGNORECASE | re.ASCII | re.DOTALL | re.VERBOSE | re.MULTILINE
).value
# What holds where a part is passed without a character.
_ANYWHERE, _AT_START, _AT_END = range(3)
# Every kind of thing that is passed at a state.
_Passes = list[tuple[int, int]]


def matches(pattern: str) -> Automaton:
    """Accepts what re.fullmatch matches. Raises OutOfReach."""
    try:
        parsed = reader.parse(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        raise OutOfReach(f"pattern {pattern!r}: {error}") from error
    flags = int(parsed.state.flags)
    if flags & ~_SERVED_FLAGS:
        raise OutOfReach(f"flags in the pattern {pattern!r}")
    parts = _Parts()
    parts.final = parts.sequence(parsed, 0, flags)
    parts.check_line_ends()
    return _Subsets(parts).automaton()


class _Parts:
    """States joined by characters of a set, or by nothing; state 0 is the start."""

    def __init__(self) -> None:
        self.final = 0
        self.passes: list[_Passes] = [[]]  # by state: (where it holds, state)
        self.reads: list[tuple[int, int] | None] = [None]  # by state: (set, state)
        self.sets: dict[Ranges, int] = {}
        self._line_ends: list[int] = []

    def _state(self) -> int:
        if len(self.passes) > _MAX_PARTS:
            raise OutOfReach("a pattern of too many parts")
        self.passes.append([])
        self.reads.append(None)
        return len(self.passes) - 1

    def _read(self, ranges: Ranges, start: int) -> int:
        end = self._state()
        known = self.sets.setdefault(ranges, len(self.sets))
        # A state reads one set: what reads another begins in a state of its own.
        begin = self._state()
        self.passes[start].append((_ANYWHERE, begin))
        self.reads[begin] = (known, end)
        return end

    def sequence(self, items: Iterable[Any], start: int, flags: int) -> int:
        """What follows `start`, one item after the other; answers the last state."""
        for op, argument in items:
            start = self._item(op, argument, start, flags)
        return start

    def _item(self, op: Any, argument: Any, start: int, flags: int) -> int:
        if op is ops.SUBPATTERN:
            _, on, off, items = argument
            # `(?a:...)` takes the place of Unicode's rules, and the other way round.
            if on & (re.ASCII | re.UNICODE):
                off |= re.ASCII | re.UNICODE
            return self.sequence(items, start, flags & ~off | on)
        if op is ops.BRANCH:
            return self._branch(argument[1], start, flags)
        if op in (ops.MAX_REPEAT, ops.MIN_REPEAT):
            return self._repeat(argument, start, flags)
        if op is ops.AT:
            return self._at(argument, start, flags)
        return self._read(matched(op, argument, flags), start)

    def _branch(self, options: Sequence[Iterable[Any]], start: int, flags: int) -> int:
        ends = []
        for option in options:
            begin = self._state()
            self.passes[start].append((_ANYWHERE, begin))
            ends.append(self.sequence(option, begin, flags))
        joined = self._state()
        for end in ends:
            self.passes[end].append((_ANYWHERE, joined))
        return joined

    def _repeat(self, argument: Any, start: int, flags: int) -> int:
        least, most, items = argument
        for _ in range(least):
            start = self.sequence(items, start, flags)
        if most is ops.MAXREPEAT:
            loop = self._state()
            self.passes[start].append((_ANYWHERE, loop))
            self.passes[self.sequence(items, loop, flags)].append((_ANYWHERE, loop))
            after = self._state()
            self.passes[loop].append((_ANYWHERE, after))
            return after
        end = self._state()
        for _ in range(int(most) - least):
            self.passes[start].append((_ANYWHERE, end))
            # Each time in a state of its own, or the loops of one would be entered by the next.
            begin = self._state()
            self.passes[start].append((_ANYWHERE, begin))
            start = self.sequence(items, begin, flags)
        self.passes[start].append((_ANYWHERE, end))
        return end

    def _at(self, where: Any, start: int, flags: int) -> int:
        end = self._state()
        if flags & re.MULTILINE and where in (ops.AT_BEGINNING, ops.AT_END):
            raise OutOfReach("`^` or `$` of a line in a pattern")
        if where in (ops.AT_BEGINNING, ops.AT_BEGINNING_STRING):
            self.passes[start].append((_AT_START, end))
        elif where in (ops.AT_END, ops.AT_END_STRING):
            self.passes[start].append((_AT_END, end))
            if where is ops.AT_END:
                self._line_ends.append(end)
        else:
            raise OutOfReach(f"{where} in a pattern")
        return end

    def check_line_ends(self) -> None:
        """`$` also holds before a last newline: not reached if anything is read behind it."""
        for end in self._line_ends:
            if any(self.reads[state] for state in _bits(self.closed(1 << end, _AT_START, _AT_END))):
                raise OutOfReach("`$` in a pattern before its end")

    def closed(self, states: int, *where: int) -> int:
        """All states that can be passed to, besides anywhere also where it is said."""
        queue = _bits(states)
        while queue:
            state = queue.pop()
            for condition, after in self.passes[state]:
                if (condition == _ANYWHERE or condition in where) and not states >> after & 1:
                    states |= 1 << after
                    queue.append(after)
        return states


class _Subsets:
    """The automaton whose states are sets of states."""

    def __init__(self, parts: _Parts) -> None:
        self._parts = parts
        self._partition, self._columns = join(
            [Partition.of_sets([ranges]) for ranges in parts.sets]
        )
        # By label, the sets that its characters are in.
        self._holds = [set(np.flatnonzero(column).tolist()) for column in self._columns.T]
        self._after: dict[int, int] = {}

    def automaton(self) -> Automaton:
        """Raises OutOfReach where there are too many sets."""
        # The start stands alone: only there a pattern's beginning holds.
        queue = [self._parts.closed(1, _AT_START)]
        known: dict[int, int] = {}
        rows, accepts = [], []
        for place, states in enumerate(queue):
            row = []
            for after in self._steps(states):
                if after not in known:
                    known[after] = len(queue)
                    queue.append(after)
                row.append(known[after])
            rows.append(row)
            accepts.append(self._accepts(states, is_start=place == 0))
            if len(queue) > _MAX_STATES or len(queue) * len(row) > MAX_STEPS:
                raise OutOfReach("a pattern of too many states")
        return Automaton(self._partition, np.array(rows, dtype=np.int32), np.array(accepts))

    def _steps(self, states: int) -> list[int]:
        """The sets after each label."""
        by_set: dict[int, int] = {}
        for state in _bits(states):
            read = self._parts.reads[state]
            if read is not None:
                known, after = read
                by_set[known] = by_set.get(known, 0) | self._closure(after)
        steps = []
        for holds in self._holds:
            after = 0
            for known in by_set.keys() & holds:
                after |= by_set[known]
            steps.append(after)
        return steps

    def _closure(self, state: int) -> int:
        if state not in self._after:
            self._after[state] = self._parts.closed(1 << state)
        return self._after[state]

    def _accepts(self, states: int, *, is_start: bool) -> bool:
        where = (_AT_START, _AT_END) if is_start else (_AT_END,)
        return bool(self._parts.closed(states, *where) >> self._parts.final & 1)


def _bits(states: int) -> list[int]:
    found = []
    while states:
        lowest = states & -states
        found.append(lowest.bit_length() - 1)
        states ^= lowest
    return found
