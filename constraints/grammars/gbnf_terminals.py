r"""Splits a grammar of characters into terminals; the engine reads them greedily and loses no text.

The engine extends a terminal as long as any terminal that is legal there can continue, and never
backtracks. That loses no text if no terminal that has ended could also continue with a byte that
may follow it. So everything without recursion starts as one terminal, and greedy terminals are
split level by level; single characters are never greedy. If that is too much work, all are split.

First, rules without recursion, or with recursion at one end only, are loops that need no stack:

    ws ::= ([ \t] ws)?             is    ws ::= [ \t]*
    list ::= x | list "," x        is    list ::= x ("," x)*

Then greedy terminals are found:

    place:  a position of a terminal's Glushkov automaton; sets of places are bits of an integer
    row:    the terminals that may occur at one point of a text; those that end lead to the next row

The terminals of a row are followed together, as the engine follows them. Where one of them has
ended and another could continue with a byte that may also begin the next row, the other one is too
greedy. All sets are over-approximated, so no greedy terminal is missed.
"""

import contextlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from constraints.definition_graph import closure
from constraints.regex.char_sets import Partition, Ranges, first_bytes, join


@dataclass(frozen=True, slots=True)
class CharSet:
    """One character of a set, which is not empty and has no surrogates."""

    ranges: Ranges


@dataclass(frozen=True, slots=True)
class Text:
    """Exactly these characters; may be empty."""

    text: str


@dataclass(frozen=True, slots=True)
class Name:
    """A reference to a rule. position: where it is written."""

    name: str
    position: int


@dataclass(frozen=True, slots=True)
class Sequence:
    """One after the other."""

    parts: tuple["Term", ...]


@dataclass(frozen=True, slots=True)
class Alternation:
    """One of them."""

    options: tuple["Term", ...]


@dataclass(frozen=True, slots=True)
class Repetition:
    """From `min_count` to `max_count` times, None: unbounded."""

    part: "Term"
    min_count: int
    max_count: int | None


@dataclass(frozen=True, slots=True, eq=False)
class Terminal:
    """A part of a grammar that the lexer reads as one token; compared by identity."""

    term: "Term"


Term = CharSet | Text | Name | Sequence | Alternation | Repetition | Terminal

EMPTY = Text("")


def sequence(parts: Iterable[Term]) -> Term:
    """The parts one after the other, without those that are empty."""
    kept = tuple(part for part in parts if part != EMPTY)
    return kept[0] if len(kept) == 1 else Sequence(kept) if kept else EMPTY


def choice(options: Iterable[Term]) -> Term:
    """One of the options, of which there is at least one."""
    kept = tuple(options)
    return kept[0] if len(kept) == 1 else Alternation(kept)


def children(term: Term) -> tuple[Term, ...]:
    """The direct parts of a term; a terminal has none."""
    match term:
        case Sequence(parts):
            return parts
        case Alternation(options):
            return options
        case Repetition(part):
            return (part,)
        case _:
            return ()


def names(term: Term) -> Iterator[Name]:
    """All references to rules in a term, in order, outside of terminals."""
    if isinstance(term, Name):
        yield term
    for child in children(term):
        yield from names(child)


# The term beside the rule's own name, and the term without the name; None: there is none.
_Split = tuple[Term | None, Term | None]
# The most characters of a rule within a terminal, with all its rules written out.
_MAX_SIZE = 2000


def as_loop(name: str, term: Term) -> Term:
    """The rule's term as a loop, if its own name occurs at one end only; else unchanged."""
    if all(each.name != name for each in names(term)):
        return term
    for is_right in (True, False):
        split = _split_ends(name, term, is_right)
        if split is None:
            continue
        around, rest = split
        if around is not None and rest is not None:
            loop = Repetition(around, 0, None)
            return sequence((loop, rest) if is_right else (rest, loop))
    return term


def _split_ends(name: str, term: Term, is_right: bool) -> _Split | None:
    """None if the name occurs elsewhere than at that end."""
    if all(each.name != name for each in names(term)):
        return None, term
    match term:
        case Name():
            return EMPTY, None
        case Sequence(parts):
            edge, others = (parts[-1], parts[:-1]) if is_right else (parts[0], parts[1:])
            if any(each.name == name for part in others for each in names(part)):
                return None
            inner = _split_ends(name, edge, is_right)
            if inner is None:
                return None
            around, rest = (_beside(others, part, is_right) for part in inner)
            return around, rest
        case Alternation(options):
            return _split_end_options(name, options, is_right)
        case Repetition(part, 0, 1):
            return _split_end_options(name, (part, EMPTY), is_right)
        case _:
            return None


def _split_end_options(name: str, options: tuple[Term, ...], is_right: bool) -> _Split | None:
    splits = [_split_ends(name, option, is_right) for option in options]
    found = [split for split in splits if split is not None]
    if len(found) < len(splits):
        return None
    around = [part for part, _ in found if part is not None]
    rest = [part for _, part in found if part is not None]
    return choice(around) if around else None, choice(rest) if rest else None


def _beside(others: tuple[Term, ...], part: Term | None, is_right: bool) -> Term | None:
    if part is None:
        return None
    return sequence((*others, part) if is_right else (part, *others))


def rules_without_stack(rules: Mapping[str, Term]) -> set[str]:
    """The rules that reach no recursive rule and are not too large when written out."""
    mentions = {
        name: list(dict.fromkeys(each.name for each in names(term))) for name, term in rules.items()
    }
    sizes: dict[str, int] = {}

    def is_flat(name: str, known: set[str]) -> bool:
        if not known.issuperset(mentions[name]):
            return False
        sizes[name] = _size(rules[name], sizes)
        return sizes[name] <= _MAX_SIZE

    return closure(mentions, is_flat)


def _size(term: Term, sizes: Mapping[str, int]) -> int:
    match term:
        case Name(name):
            return sizes[name]
        case Sequence(parts) | Alternation(parts):
            return sum(_size(part, sizes) for part in parts)
        case Repetition(part):
            return _size(part, sizes)
        case _:
            return len(getattr(term, "text", "."))


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


_MAX_ROUNDS = 40


def split_terminals(rules: Mapping[str, Term], flat: Collection[str], root: str) -> dict[str, Term]:
    """The rules that `root` needs, in terms of terminals and names.

    flat: rules without recursion, which terminals may contain
    """
    found = _completed({}, rules, flat, root)
    if isinstance(found[root], Terminal):
        return found  # a single terminal: nothing follows it
    # If the search for greedy terminals is too expensive, every terminal becomes one character.
    with contextlib.suppress(GrammarTooLarge):
        for _ in range(_MAX_ROUNDS):
            wrong = too_greedy(found, rules, root)
            if not wrong:
                return found
            apart = {name: _split_greedy(term, wrong) for name, term in found.items()}
            found = _completed(apart, rules, flat, root)
    return _in_characters(rules, root)


def _completed(
    found: dict[str, Term], rules: Mapping[str, Term], flat: Collection[str], root: str
) -> dict[str, Term]:
    """`found` with the rules that are used outside of terminals, split as coarsely as possible."""
    return _reached(found, root, lambda name: _split(rules[name], flat))


def _in_characters(rules: Mapping[str, Term], root: str) -> dict[str, Term]:
    return _reached({}, root, lambda name: _split_characters(rules[name]))


def _reached(found: dict[str, Term], root: str, made: Callable[[str], Term]) -> dict[str, Term]:
    """The rules that `root` reaches; `made` makes those that are missing in `found`."""
    reached: dict[str, Term] = {}
    todo = [root]
    while todo:
        name = todo.pop()
        if name not in reached:
            reached[name] = found[name] if name in found else made(name)
            todo.extend(each.name for each in names(reached[name]))
    return reached


def _split(term: Term, flat: Collection[str]) -> Term:
    if all(each.name in flat for each in names(term)):
        return _terminal(term)
    match term:
        case Sequence(parts):
            return sequence(_join_neighbours(parts, flat))
        case Alternation(options):
            whole = [each for each in options if _is_whole(each, flat)]
            others = [_split(each, flat) for each in options if not _is_whole(each, flat)]
            return choice([*([_terminal(choice(whole))] if whole else ()), *others])
        case Repetition(part, min_count, max_count):
            return Repetition(_split(part, flat), min_count, max_count)
        case _:
            return term


def _is_whole(term: Term, flat: Collection[str]) -> bool:
    return all(each.name in flat for each in names(term))


def _join_neighbours(parts: Iterable[Term], flat: Collection[str]) -> Iterator[Term]:
    """The parts, with neighbours without recursion joined to one terminal."""
    whole: list[Term] = []
    for part in parts:
        if _is_whole(part, flat):
            whole.append(part)
            continue
        yield _terminal(sequence(whole))
        whole.clear()
        yield _split(part, flat)
    yield _terminal(sequence(whole))


def _terminal(term: Term) -> Term:
    return term if term == EMPTY else Terminal(term)


def _split_greedy(term: Term, wrong: Collection[Terminal]) -> Term:
    """The term with these terminals split into their parts."""
    match term:
        case Terminal():
            return _parts(term.term) if term in wrong else term
        case Sequence(parts):
            return sequence(_split_greedy(part, wrong) for part in parts)
        case Alternation(options):
            return choice(_split_greedy(option, wrong) for option in options)
        case Repetition(part, min_count, max_count):
            return Repetition(_split_greedy(part, wrong), min_count, max_count)
        case _:
            return term


def _parts(term: Term) -> Term:
    match term:
        case Sequence(parts):
            return sequence(map(_terminal, parts))
        case Alternation(options):
            return choice(map(_terminal, options))
        case Repetition(part, min_count, max_count):
            return Repetition(_terminal(part), min_count, max_count)
        case Text(text):
            return sequence(Terminal(Text(char)) for char in text)
        case _:
            return term


def _split_characters(term: Term) -> Term:
    """The term with every character as a terminal of its own."""
    match term:
        case CharSet():
            return Terminal(term)
        case Text(text):
            return sequence(Terminal(Text(char)) for char in text)
        case Sequence(parts):
            return sequence(map(_split_characters, parts))
        case Alternation(options):
            return choice(map(_split_characters, options))
        case Repetition(part, min_count, max_count):
            return Repetition(_split_characters(part), min_count, max_count)
        case _:
            return term
