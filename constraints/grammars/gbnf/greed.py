"""Which terminals of a grammar would take characters that another text needs for what follows.

    place:  a character of a terminal, as Glushkov has them; sets of places are bits of an integer
    row:    the terminals that may stand at one point of a text; what ends there leads to the next

A row's terminals are followed all at once, as the engine follows them. Where one of them has ended
and another could go on with a byte that may also begin what comes next, the other one is too
greedy. Everything is taken for at least as large as it is, so nothing is missed.
"""

from collections.abc import Iterator, Mapping

import numpy as np

from constraints.grammars.gbnf.terms import (
    Chars,
    Choice,
    Name,
    Repeat,
    Sequence,
    Term,
    Terminal,
    Text,
)
from constraints.where.code_points import Partition, Ranges, first_bytes, join

# Places of all terminals, sets of places that are looked at, and rows.
_MAX_PLACES = 20_000
_MAX_SETS = 10_000
_MAX_ROWS = 500
# A repeat of more places is taken for one without end.
_MAX_WRITTEN_OUT = 64


class TooMuch(Exception):
    """The grammar has more in it than is looked through."""


def too_greedy(found: Mapping[str, Term], rules: Mapping[str, Term], root: str) -> set[Terminal]:
    """The terminals of `found` that are; `rules` are those inside of terminals. Raises TooMuch."""
    places = _Places(rules)
    order = _Order(found, places)
    row = order.first[root]
    seen, todo, wrong, num_sets = {row}, [row], 0, 0
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
                raise TooMuch
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
        """A terminal's number, and whether it may be empty."""
        index = len(self.terminals)
        self.terminals.append(terminal)
        begin = len(self._reads)
        first, last, is_empty = self._of(terminal.term)
        self._owner += [index] * (len(self._reads) - begin)
        self._first.append(first)
        self._last |= last
        return index, is_empty

    def states(self, row: int) -> Iterator[tuple[int, int]]:
        """The terminals that have ended and the places that may come next, wherever one may be."""
        start = 0
        for terminal in _bits(row):
            start |= self._first[terminal]
        by_label = self._by_label()
        seen, todo = {start}, [start]
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
                        raise TooMuch

    def beginning_like(self, further: int, row: int) -> int:
        """The terminals of those places that read a byte with which the row may begin."""
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
        """For each class of characters that places tell apart, the places that read it."""
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
        """First places, last places, and whether nothing may be read."""
        match term:
            case Chars(ranges):
                return self._read(ranges)
            case Text(text):
                return self._chain([Chars(((ord(char), ord(char)),)) for char in text])
            case Name(name):
                return self._of(self._rules[name])
            case Sequence(parts):
                return self._chain(parts)
            case Choice(options):
                first = last = 0
                is_empty = False
                for option in options:
                    begins, ends, may_be_empty = self._of(option)
                    first, last, is_empty = first | begins, last | ends, is_empty or may_be_empty
                return first, last, is_empty
            case Repeat(part, least, most):
                return self._repeat(part, least, most)
        raise AssertionError("no terminal stands in a terminal")

    def _read(self, ranges: Ranges) -> tuple[int, int, bool]:
        if len(self._reads) >= _MAX_PLACES:
            raise TooMuch
        place = 1 << len(self._reads)
        self._reads.append(ranges)
        self._after.append(0)
        return place, place, False

    def _chain(self, parts: "list[Term] | list[Chars] | tuple[Term, ...]") -> tuple[int, int, bool]:
        first, last, is_empty = 0, 0, True
        for part in parts:
            begins, ends, may_be_empty = self._of(part)
            self._join(last, begins)
            first |= begins if is_empty else 0
            last = ends | (last if may_be_empty else 0)
            is_empty = is_empty and may_be_empty
        return first, last, is_empty

    def _repeat(self, part: Term, least: int, most: int | None) -> tuple[int, int, bool]:
        begin = len(self._reads)
        first, last, is_empty = self._of(part)
        is_empty = is_empty or least == 0
        times = 0 if most is None else most
        if most is None or times * (len(self._reads) - begin) > _MAX_WRITTEN_OUT:
            self._join(last, first)
            return first, last, is_empty
        for index in range(1, times):
            begins, ends, may_be_empty = self._of(part)
            self._join(last, begins)
            is_optional = may_be_empty or index >= least
            last = ends | (last if is_optional else 0)
            first |= begins if is_empty else 0
        return first, last, is_empty

    def _join(self, before: int, after: int) -> None:
        for place in _bits(before):
            self._after[place] |= after


class _Order:
    """Which terminals may follow which, from rule to rule.

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
            case Choice(options):
                both = [self._begins(option) for option in options]
                return _united(first for first, _ in both), any(is_empty for _, is_empty in both)
            case Repeat(part, least):
                first, is_empty = self._begins(part)
                return first, is_empty or least == 0
            case _:
                return 0, True

    def _go(self, term: Term, after: int) -> None:
        """What may come after a term is `after`; what that says of its parts."""
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
            case Choice(options):
                for option in options:
                    self._go(option, after)
            case Repeat(part, _, most):
                again = self._begins(part)[0] if most is None or most > 1 else 0
                self._go(part, after | again)


def _terminals(term: Term) -> Iterator[Terminal]:
    match term:
        case Terminal():
            yield term
        case Sequence(parts) | Choice(parts):
            for part in parts:
                yield from _terminals(part)
        case Repeat(part):
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
