"""Finds terminals of a grammar that would take characters which the text behind them needs.

    place:  a position of a terminal's Glushkov automaton; sets of places are bits of an integer
    row:    the terminals that may occur at one point of a text; those that end lead to the next row

The terminals of a row are followed together, as the engine follows them. Where one of them has
ended and another could continue with a byte that may also begin the next row, the other one is too
greedy. All sets are over-approximated, so no greedy terminal is missed.
"""

from collections.abc import Iterator, Mapping

import numpy as np

from constraints.grammars.gbnf.terms import (
    Alternation,
    CharSet,
    Name,
    Repetition,
    Sequence,
    Term,
    Terminal,
    Text,
)
from constraints.where.code_points import Partition, Ranges, first_bytes, join

# The most places of all terminals, sets of places, and rows.
_MAX_PLACES = 20_000
_MAX_SETS = 10_000
_MAX_ROWS = 500
# A repetition with more places counts as unbounded.
_MAX_WRITTEN_OUT = 64


class GrammarTooLarge(Exception):
    """The grammar is larger than the limits above."""


def too_greedy(found: Mapping[str, Term], rules: Mapping[str, Term], root: str) -> set[Terminal]:
    """The greedy terminals of `found`; terminals use `rules`. Raises GrammarTooLarge."""
    places = _Places(rules)
    order = _Order(found, places)
    row = order.first[root]
    seen = {row}
    todo = [row]
    wrong = 0
    num_sets = 0
    while todo:
        for ended, further in places.states(todo.pop()):
            num_sets += 1
            after = 0
            for terminal in _bits(ended):
                after |= order.after[terminal]
            if after and after not in seen:
                seen.add(after)
                todo.append(after)
            if num_sets > _MAX_SETS or len(seen) > _MAX_ROWS:
                raise GrammarTooLarge
            wrong |= places.beginning_like(further, after)
    return {terminal for index, terminal in enumerate(places.terminals) if wrong >> index & 1}


class _Places:
    """The places of all terminals."""

    def __init__(self, rules: Mapping[str, Term]) -> None:
        self._rules = rules
        self.terminals: list[Terminal] = []
        self._first: list[int] = []  # by terminal
        self._reads: list[Ranges] = []  # by place, as all below
        self._owner: list[int] = []
        self._after: list[int] = []
        self._last = 0
        self._labels: list[int] | None = None

    def add(self, terminal: Terminal) -> tuple[int, bool]:
        """Add a terminal; returns its number and whether it may be empty."""
        index = len(self.terminals)
        self.terminals.append(terminal)
        begin = len(self._reads)
        first, last, is_empty = self._of(terminal.term)
        self._owner += [index] * (len(self._reads) - begin)
        self._first.append(first)
        self._last |= last
        return index, is_empty

    def states(self, row: int) -> Iterator[tuple[int, int]]:
        """For each reachable set of places: the terminals that have ended, and the next places."""
        start = 0
        for terminal in _bits(row):
            start |= self._first[terminal]
        by_label = self._by_label()
        seen = {start}
        todo = [start]
        while todo:
            further = todo.pop()
            for label in by_label:
                read = further & label
                if not read:
                    continue
                after = ended = 0
                for place in _bits(read):
                    after |= self._after[place]
                for place in _bits(read & self._last):
                    ended |= 1 << self._owner[place]
                if ended:
                    yield ended, after
                if after not in seen:
                    seen.add(after)
                    todo.append(after)
                    if len(seen) > _MAX_SETS:
                        raise GrammarTooLarge

    def beginning_like(self, further: int, row: int) -> int:
        """The terminals of places that read a byte with which the row may begin."""
        begins = 0
        for terminal in _bits(row):
            begins |= self._first_bytes(terminal)
        found = 0
        if begins:
            for place in _bits(further):
                if first_bytes(self._reads[place]) & begins:
                    found |= 1 << self._owner[place]
        return found

    def _first_bytes(self, terminal: int) -> int:
        found = 0
        for place in _bits(self._first[terminal]):
            found |= first_bytes(self._reads[place])
        return found

    def _by_label(self) -> list[int]:
        """For each class of characters that places distinguish, the places that read it."""
        if self._labels is None:
            sets = list(dict.fromkeys(self._reads))
            _, columns = join([Partition.of_sets([ranges]) for ranges in sets])
            readers = dict.fromkeys(sets, 0)
            for place, ranges in enumerate(self._reads):
                readers[ranges] |= 1 << place
            self._labels = []
            for column in columns.T:
                label = 0
                for index in np.flatnonzero(column).tolist():
                    label |= readers[sets[index]]
                self._labels.append(label)
        return self._labels

    def _of(self, term: Term) -> tuple[int, int, bool]:
        """First places, last places, and whether the term may be empty."""
        match term:
            case CharSet(ranges):
                return self._read(ranges)
            case Text(text):
                return self._chain([CharSet(((ord(char), ord(char)),)) for char in text])
            case Name(name):
                return self._of(self._rules[name])
            case Sequence(parts):
                return self._chain(parts)
            case Alternation(options):
                first = last = 0
                is_empty = False
                for option in options:
                    begins, ends, may_be_empty = self._of(option)
                    first |= begins
                    last |= ends
                    is_empty = is_empty or may_be_empty
                return first, last, is_empty
            case Repetition(part, min_count, max_count):
                return self._repeat(part, min_count, max_count)
        raise AssertionError("no terminal stands in a terminal")

    def _read(self, ranges: Ranges) -> tuple[int, int, bool]:
        if len(self._reads) >= _MAX_PLACES:
            raise GrammarTooLarge
        place = 1 << len(self._reads)
        self._reads.append(ranges)
        self._after.append(0)
        return place, place, False

    def _chain(
        self, parts: "list[Term] | list[CharSet] | tuple[Term, ...]"
    ) -> tuple[int, int, bool]:
        first = 0
        last = 0
        is_empty = True
        for part in parts:
            begins, ends, may_be_empty = self._of(part)
            self._join(last, begins)
            first |= begins if is_empty else 0
            last = ends | (last if may_be_empty else 0)
            is_empty = is_empty and may_be_empty
        return first, last, is_empty

    def _repeat(self, part: Term, min_count: int, max_count: int | None) -> tuple[int, int, bool]:
        begin = len(self._reads)
        first, last, is_empty = self._of(part)
        is_empty = is_empty or min_count == 0
        times = 0 if max_count is None else max_count
        if max_count is None or times * (len(self._reads) - begin) > _MAX_WRITTEN_OUT:
            self._join(last, first)
            return first, last, is_empty
        for index in range(1, times):
            begins, ends, may_be_empty = self._of(part)
            self._join(last, begins)
            is_optional = may_be_empty or index >= min_count
            last = ends | (last if is_optional else 0)
            first |= begins if is_empty else 0
        return first, last, is_empty

    def _join(self, before: int, after: int) -> None:
        for place in _bits(before):
            self._after[place] |= after


class _Order:
    """Which terminals may follow which.

    first: by rule, the terminals that it may begin with
    after: by terminal, those that may follow it
    """

    def __init__(self, found: Mapping[str, Term], places: _Places) -> None:
        self._found = found
        self._terminals: dict[Terminal, tuple[int, bool]] = {}
        for term in found.values():
            for terminal in _terminals(term):
                self._terminals[terminal] = places.add(terminal)
        self._empty: set[str] = set()
        self.first = dict.fromkeys(found, 0)
        self._follow = dict.fromkeys(found, 0)
        self.after = [0] * len(self._terminals)
        self._settle()

    def _settle(self) -> None:
        is_known = False
        while not is_known:
            is_known = True
            for name, term in self._found.items():
                first, is_empty = self._begins(term)
                if first != self.first[name] or is_empty != (name in self._empty):
                    is_known = False
                    self.first[name] = first
                    self._empty |= {name} if is_empty else set()
        before = None
        while before != self._follow:
            before = dict(self._follow)
            for name, term in self._found.items():
                self._go(term, self._follow[name])

    def _begins(self, term: Term) -> tuple[int, bool]:
        """The terminals that a term may begin with, and whether it may be empty."""
        match term:
            case Terminal():
                index, is_empty = self._terminals[term]
                return 1 << index, is_empty
            case Name(name):
                return self.first[name], name in self._empty
            case Sequence(parts):
                first = 0
                for part in parts:
                    begins, is_empty = self._begins(part)
                    first |= begins
                    if not is_empty:
                        return first, False
                return first, True
            case Alternation(options):
                both = [self._begins(option) for option in options]
                return _united(first for first, _ in both), any(is_empty for _, is_empty in both)
            case Repetition(part, min_count):
                first, is_empty = self._begins(part)
                return first, is_empty or min_count == 0
            case _:
                return 0, True

    def _go(self, term: Term, after: int) -> None:
        """Propagate to the parts of a term that `after` may follow it."""
        match term:
            case Terminal():
                self.after[self._terminals[term][0]] |= after
            case Name(name):
                self._follow[name] |= after
            case Sequence(parts):
                for part in reversed(parts):
                    self._go(part, after)
                    first, is_empty = self._begins(part)
                    after = first | (after if is_empty else 0)
            case Alternation(options):
                for option in options:
                    self._go(option, after)
            case Repetition(part, _, max_count):
                again = self._begins(part)[0] if max_count is None or max_count > 1 else 0
                self._go(part, after | again)


def _terminals(term: Term) -> Iterator[Terminal]:
    match term:
        case Terminal():
            yield term
        case Sequence(parts) | Alternation(parts):
            for part in parts:
                yield from _terminals(part)
        case Repetition(part):
            yield from _terminals(part)


def _united(sets: Iterator[int]) -> int:
    found = 0
    for each in sets:
        found |= each
    return found


def _bits(number: int) -> Iterator[int]:
    while number:
        lowest = number & -number
        yield lowest.bit_length() - 1
        number ^= lowest
