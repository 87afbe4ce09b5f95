r"""Grammars in GBNF as llama.cpp's and xgrammar's users write it, for an engine with a lexer.

grammar:   rules; each one continues, also over line ends, until the next `name ::=`
rule:      name ::= options
options:   sequence | sequence | ...       a sequence may be empty
sequence:  items with repeats behind them: * + ? {m} {m,} {,n} {m,n}
item:      "text"  [set]  .  name  ( options )

text -> patterns with references -> terminals -> the notation of the engine, same texts

The engine extends a terminal as long as any terminal that is legal there can continue, and never
backtracks. That loses no text if no terminal that has ended could also continue with a byte that
may follow it. So everything without recursion starts as one terminal, and greedy terminals are
split level by level; single characters are never greedy. If that is too much work, all are split.

First, rules with recursion at their end only become loops: `ws ::= ([ \t] ws)?` is `[ \t]*`.
"""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import reduce
from itertools import groupby
from operator import or_
from typing import NoReturn

from constraints.definition_graph import check_depth, closure
from constraints.engine import HEADER
from constraints.errors import Contradiction, OutOfReach, TooComplex, TooManyStates, complaint
from constraints.regex.char_sets import (
    NUM_CODE_POINTS,
    SURROGATES,
    Partition,
    encodable,
    first_bytes,
    join,
)
from constraints.regex.dfa import NfaBuilder
from constraints.regex.syntax import (
    EMPTY,
    MAX_REPEAT,
    Chars,
    Choice,
    Concat,
    Dialect,
    Empty,
    Parser,
    Pattern,
    Reference,
    Repeat,
    Terminal,
    children,
    choice,
    concat,
    flat,
    mapped,
    options_of,
)
from constraints.regex.writing import bounds, followed, written

ROOT = "root"
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]*+")
_DEFINED = re.compile(rf"({_NAME.pattern})[ \t\r\n]*+::=")
_BLANK = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*+")
_TOKEN = re.compile(r"!?<[^<>\s]*+>")
_MISFITS = {"'": "texts stand in double quotes", "{": "a repeat is {m}, {m,}, {,n} or {m,n}"}
_NO_WORD = "no word of a grammar begins like this"


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule. position: where it is defined."""

    pattern: Pattern
    position: int


def read(text: str) -> dict[str, Rule]:
    """The rules by name; every name that is used is defined, and so is `root`.

    Raises Malformed, NotEnforced.
    """
    reader = _Reader(text)
    rules = reader.rules()
    if ROOT not in rules:
        raise complaint(text, 0, 1, f"there is no rule `{ROOT} ::= ...`, where a grammar begins")
    for used in reader.used:
        if used.name not in rules:
            reader.refuse(used)
    return rules


class _Reader(Parser):
    """Reads one grammar; characters, sets and counts are written as in Python's patterns."""

    def __init__(self, text: str) -> None:
        super().__init__(text, Dialect.PYTHON)
        self.used: list[Reference] = []

    def rules(self) -> dict[str, Rule]:
        found: dict[str, Rule] = {}
        while not self._is_over():
            start = self._at
            head = _DEFINED.match(self._text, start)
            if head is None:
                raise self._wrong(start, "a rule begins with `name ::=`")
            self._at = head.end()
            if head[1] in found:
                raise self._wrong(start, f"a second rule `{head[1]}`")
            found[head[1]] = Rule(self._choice(), start)
            if self._peek() == ")":
                raise self._wrong(self._at, "a `)` that closes nothing")
        return found

    def refuse(self, used: Reference) -> NoReturn:
        """Raises the error that there is no such rule."""
        self._at = used.position + len(used.name)
        raise self._wrong(used.position, f"there is no rule `{used.name}`")

    def _is_over(self) -> bool:
        """Skip blanks; whether nothing follows them."""
        blank = _BLANK.match(self._text, self._at)
        self._at = blank.end() if blank else self._at
        return self._at == len(self._text)

    def _concat(self) -> Pattern:
        parts: list[Pattern] = []
        while not (self._is_over() or self._peek() in "|)" or _DEFINED.match(self._text, self._at)):
            start = self._at
            parts.append(self._repeated(self._atom(), start))
        return concat(parts)

    def _atom(self) -> Pattern:
        start = self._at
        if self._take('"'):
            return self._literal(start)
        name = _NAME.match(self._text, start)
        if name is not None:
            self._at = name.end()
            self.used.append(Reference(name[0], start))
            return self.used[-1]
        if _TOKEN.match(self._text, start):
            raise self._unsupported(start, "a token without text")
        atom = super()._atom() if self._peek() in "([.*+?" else None
        if atom is None:
            raise self._wrong(start, _MISFITS.get(self._peek(), _NO_WORD))
        return atom

    def _literal(self, start: int) -> Pattern:
        codes = []
        while not self._take('"'):
            if self._peek() in ("", "\n"):
                self._at = start
                raise self._wrong(start, "this text is never closed")
            codes.append(self._set_item())
        return concat(Chars(((code, code),)) for code in codes)

    def _set_item(self) -> int:
        start = self._at
        item = super()._set_item()
        if not isinstance(item, int) or SURROGATES[0] <= item <= SURROGATES[1]:
            raise self._wrong(start, "no such character")
        return item

    def _numbered(self, start: int, char: str) -> Chars | int:
        return 27 if char == "e" else super()._numbered(start, char)

    def _set(self, start: int) -> Chars:
        kept = encodable(super()._set(start).ranges)
        if not kept:
            raise self._wrong(start, "a set of no characters")
        return Chars(kept)

    def _dot(self) -> Chars:
        return Chars(encodable(((0, NUM_CODE_POINTS - 1),)))

    def _repeated(self, part: Pattern, start: int) -> Pattern:
        while not self._is_over():
            at = self._at
            bounds = self._repeat_bounds()
            if bounds is None:
                break
            min_count, max_count = bounds
            if max(min_count, max_count or 0) > MAX_REPEAT:
                raise self._wrong(at, f"a repeat of more than {MAX_REPEAT}")
            if max_count is not None and min_count > max_count:
                raise self._wrong(at, "the least number of repeats is larger than the most")
            part = EMPTY if max_count == 0 else Repeat(part, min_count, max_count)
        return part

    def _group(self, start: int) -> Pattern:
        if self._peek() in ("=", "!"):
            raise self._unsupported(start, "looking ahead")
        pattern = self._choice()
        if not self._take(")"):
            raise self._wrong(start, "this `(` is never closed")
        return pattern


def to_grammar(text: str) -> str:
    """The grammar in the notation of the engine.

    Raises Malformed, NotEnforced, Contradiction, TooComplex.
    """
    rules = read(text)
    mentions = {
        name: [each.name for each in references(rule.pattern)] for name, rule in rules.items()
    }
    reached = check_depth([ROOT], mentions)
    ending = closure(mentions, lambda name, known: _ends(rules[name].pattern, known))
    unproductive = [name for name in rules if name in reached - ending]
    if unproductive:
        at = rules[unproductive[0]].position
        what = f"rule `{unproductive[0]}` never ends: no text follows it"
        wrong = complaint(text, at, at + len(unproductive[0]), what)
        raise Contradiction(str(wrong), tuple(unproductive))
    loops = {name: _as_loop(name, rule.pattern) for name, rule in rules.items() if name in reached}
    return HEADER + _written(_in_terminals(loops))


def references(pattern: Pattern) -> Iterator[Reference]:
    """All references to rules, in order, outside of terminals."""
    if isinstance(pattern, Reference):
        yield pattern
    for part in children(pattern):
        yield from references(part)


def _ends(pattern: Pattern, known: Collection[str]) -> bool:
    """Whether it has a finite text, given that the known rules have one."""
    match pattern:
        case Reference(name):
            return name in known
        case Concat(parts):
            return all(_ends(part, known) for part in parts)
        case Choice(options):
            return any(_ends(option, known) for option in options)
        case Repeat(part, min_count):
            return min_count == 0 or _ends(part, known)
    return True


def _as_loop(name: str, pattern: Pattern) -> Pattern:
    """The rule without recursion, if that is at the end of options only; else unchanged."""
    loops = []
    rest = []
    for option in _options(pattern):
        *before, last = option.parts if isinstance(option, Concat) else (option,)
        match last:
            case Reference(each) | Repeat(Reference(each), 0, 1) if each == name:
                loops.append(concat(before))
                rest += [concat(before)] if isinstance(last, Repeat) else []
            case _:
                rest.append(option)
    inside = (each.name for option in (*loops, *rest) for each in references(option))
    if not loops or not rest or name in inside:
        return pattern
    if loops == rest:
        return Repeat(choice(loops), 1, None)
    return concat((Repeat(choice(loops), 0, None), choice(rest)))


def _options(pattern: Pattern) -> Iterator[Pattern]:
    match pattern:
        case Choice(options):
            for option in options:
                yield from _options(option)
        case Repeat(part, 0, 1):
            yield from _options(part)
            yield EMPTY
        case _:
            yield pattern


# The most characters of a rule within a terminal, with all its rules written out.
_MAX_SIZE = 2_000
# The same of all rules that stay.
_MAX_WHOLE = 1_000_000
_MAX_ROUNDS = 40
# The most characters of a rule that is shown in a loop, and the most loops.
_MAX_SHOWN = 200
_MAX_LOOPS = 100


def _in_terminals(rules: Mapping[str, Pattern]) -> dict[str, Pattern]:
    """The rules that the root needs, in terms of terminals and references."""
    found = {name: _split(pattern) for name, pattern in _written_out(rules).items()}
    if isinstance(found[ROOT], Terminal):
        return found  # nothing follows it
    for _ in range(_MAX_ROUNDS):
        try:
            wrong = _greedy(found)
        except OutOfReach:
            break
        if not wrong:
            return found

        def split_greedy(part: Pattern, wrong: Collection[Terminal] = wrong) -> Pattern:
            return _parts(part.part) if isinstance(part, Terminal) and part in wrong else part

        found = {name: mapped(pattern, split_greedy) for name, pattern in found.items()}
    return {name: mapped(pattern, _as_terminal) for name, pattern in rules.items()}


def _written_out(rules: Mapping[str, Pattern]) -> dict[str, Pattern]:
    """The root and recursive rules, with the others in their places where these are not too large.

    Raises TooComplex.
    """
    mentions = {name: {each.name for each in references(rules[name])} for name in rules}
    whole: dict[str, Pattern] = {}
    sizes: dict[str, int] = {}

    def in_place(part: Pattern) -> Pattern:
        return whole.get(part.name, part) if isinstance(part, Reference) else part

    def is_whole(name: str, known: set[str]) -> bool:
        size = _size(rules[name], sizes)
        if mentions[name] <= known and size <= _MAX_SIZE:
            sizes[name] = size
            whole[name] = mapped(rules[name], in_place)
        return name in whole

    closure(mentions, is_whole)
    kept = {name: rules[name] for name in rules if name == ROOT or name not in whole}
    if sum(_size(pattern, sizes) for pattern in kept.values()) > _MAX_WHOLE:
        raise TooComplex(f"a grammar of more than {_MAX_WHOLE} characters, all rules written out")
    found = {name: mapped(pattern, in_place) for name, pattern in kept.items()}
    small = {name: each for name, each in found.items() if _size(each, {}) <= _MAX_SHOWN}
    names: dict[Pattern, str] = {}
    loops: dict[str, Pattern] = {}

    def with_loops(pattern: Pattern) -> Pattern:
        """With a rule for each loop over rules, which shows what is repeated: where `x ::= a+ | b`
        the loop `x*` is `(a+ | b)*`."""
        match pattern:
            case Concat(parts):
                return concat(map(with_loops, parts))
            case Choice(options):
                return choice(map(with_loops, options))
            case Repeat(part, (0 | 1), None) if pattern in names or len(names) < _MAX_LOOPS:
                options = options_of(part)
                shown = [
                    small.get(each.name, each) if isinstance(each, Reference) else each
                    for each in options
                ]
                if shown == [*options]:
                    return replace(pattern, part=with_loops(part))
                if pattern not in names:
                    names[pattern] = f"loop {len(names)}"
                    loops[names[pattern]] = replace(pattern, part=with_loops(choice(shown)))
                return Reference(names[pattern], 0)
            case Repeat(part):
                return replace(pattern, part=with_loops(part))
        return pattern

    in_loops = {name: with_loops(pattern) for name, pattern in found.items()}
    return {name: flat(pattern) for name, pattern in (in_loops | loops).items()}


def _size(pattern: Pattern, sizes: Mapping[str, int]) -> int:
    """The number of characters. sizes: of rules"""
    if isinstance(pattern, Reference):
        return sizes.get(pattern.name, 1)
    return sum(_size(part, sizes) for part in children(pattern)) or 1


def _split(pattern: Pattern) -> Pattern:
    """What has no references as terminals, as large as can be."""
    match pattern:
        case _ if not _refers(pattern):
            return _as_terminal(pattern)
        case Concat(parts):
            return concat(_runs(parts, concat))
        case Choice(options):
            return choice(_runs(sorted(options, key=_refers), choice))
        case Repeat(Choice(options), 0, None) if not all(map(_refers, options)):
            # `(a | b x)*` is `a* (b x a*)*`, and a* one terminal.
            between = Repeat(choice(each for each in options if not _refers(each)), 0, None)
            others = choice(filter(_refers, options))
            return concat(
                (_as_terminal(between), Repeat(_split(concat((others, between))), 0, None))
            )
        case Repeat(part):
            return replace(pattern, part=_split(part))
    return pattern


def _refers(pattern: Pattern) -> bool:
    return any(references(pattern))


def _runs(
    parts: Iterable[Pattern], join: Callable[[Iterable[Pattern]], Pattern]
) -> Iterator[Pattern]:
    """Neighbours without references joined, and the others split."""
    for refers, run in groupby(parts, _refers):
        if refers:
            yield from map(_split, run)
        else:
            yield _as_terminal(join(run))


def _as_terminal(pattern: Pattern) -> Pattern:
    return pattern if isinstance(pattern, Empty | Reference) else Terminal(pattern)


def _parts(pattern: Pattern) -> Pattern:
    """The parts of a greedy terminal as terminals."""
    match pattern:
        case Concat(parts):
            return concat(map(_as_terminal, parts))
        case Choice(options):
            return choice(map(_as_terminal, options))
        case Repeat(part):
            return replace(pattern, part=_as_terminal(part))
    return Terminal(pattern)


# A repetition of more characters counts as unbounded, which has more texts and fewer states.
_MAX_WRITTEN_OUT = 8
# The most states of the grammar, and the most that are visited in one round.
_MAX_STATES = 20_000
_MAX_VISITS = 300_000


def _greedy(found: Mapping[str, Pattern]) -> set[Terminal]:
    """The greedy terminals. Raises OutOfReach.

    The terminals that may be next at one point of a text, a row, are followed together, as the
    engine follows them. Where one of them has ended and another could continue with a byte that may
    also begin the next row, the other one is too greedy. All sets are over-approximated, so no
    greedy terminal is missed.
    """
    lexer = _Lexer(found)
    todo = [lexer.first_row]
    seen = set(todo)
    wrong: set[Terminal] = set()
    while todo:
        for states in lexer.steps(todo.pop()) - seen:
            row = lexer.row_behind(states)
            begins = reduce(or_, lexer.nexts(row).values(), 0)
            wrong |= {each for each, nexts in lexer.nexts(states).items() if nexts & begins}
            todo += {states, row} - seen
            seen |= {states, row}
    return wrong


class _Lexer(NfaBuilder):
    """The grammar as an NFA over characters, apart where a terminal ends; a rule returns to all its
    uses.

    first_row: the states where a text begins
    """

    def __init__(self, found: Mapping[str, Pattern]) -> None:
        super().__init__(_MAX_STATES)
        self._owners: dict[int, Terminal] = {}
        # By the last state of a terminal, what is behind it.
        self._behind: dict[int, int] = {}
        self._closures: dict[int, frozenset[int]] = {}
        self._num_left = _MAX_VISITS
        self._rules = {name: (self.state(), self.state()) for name in found}
        for name, pattern in found.items():
            start, end = self._rules[name]
            self.link(self.add(pattern, start), end)
        self.first_row = self._closed(self._rules[ROOT][0])
        self._bytes = [first_bytes(encodable(ranges)) for ranges in self.parts.sets]
        # The states that read a character, for each class of characters.
        _, columns = join([Partition.of_sets([ranges]) for ranges in self.parts.sets])
        self._readers = {
            frozenset(
                state
                for state, edge in enumerate(self.parts.char_edges)
                if edge is not None and column[edge[0]]
            )
            for column in columns.T
        }

    def add(self, pattern: Pattern, start: int) -> int:
        """Add a part behind `start`; returns the last state."""
        match pattern:
            case Reference(name):
                begin, end = self._rules[name]
                after = self.state()
                self.link(start, begin)
                self.link(end, after)
                return after
            case Terminal(part):
                begin = self.state()
                self.link(start, begin)
                last = super().add(part, begin)
                after = self._behind[last] = self.state()
                self._owners |= dict.fromkeys(range(begin, after), pattern)
                if last in self._closed(begin):
                    self.link(start, after)
                return after
            case Repeat(part, min_count, max_count):
                times = max_count or min_count
                if max_count is None or times * _size(part, {}) > _MAX_WRITTEN_OUT:
                    return super().add(Repeat(part, min(min_count, 1), None), start)
        return super().add(pattern, start)

    def _closed(self, state: int) -> frozenset[int]:
        """The states to which no character leads, of those that read or end a terminal."""
        if state not in self._closures:
            seen = {state}
            todo = [state]
            while todo:
                for _, after in self.parts.epsilon_edges[todo.pop()]:
                    if after not in seen:
                        seen.add(after)
                        todo.append(after)
            self._closures[state] = frozenset(
                each for each in seen if self.parts.char_edges[each] or each in self._behind
            )
        return self._closures[state]

    def steps(self, states: frozenset[int]) -> set[frozenset[int]]:
        """The sets of states to which characters lead. Raises TooManyStates."""
        found = set()
        for moving in {states & readers for readers in self._readers} - {frozenset()}:
            edges = [edge for each in moving if (edge := self.parts.char_edges[each]) is not None]
            after = [self._closed(end) for _, end in edges]
            found.add(frozenset().union(*after))
            self._num_left -= sum(map(len, after))
        if self._num_left < 0:
            raise TooManyStates("too many sets of states")
        return found

    def row_behind(self, states: frozenset[int]) -> frozenset[int]:
        """The states at the beginnings of all terminals that may follow those that have ended."""
        ended = [self._behind[each] for each in states if each in self._behind]
        return frozenset().union(*map(self._closed, ended))

    def nexts(self, states: frozenset[int]) -> dict[Terminal, int]:
        """By terminal, the bytes with which it may continue, as bits."""
        found: dict[Terminal, int] = {}
        for each in states:
            edge = self.parts.char_edges[each]
            if edge is not None:
                owner = self._owners[each]
                found[owner] = found.get(owner, 0) | self._bytes[edge[0]]
        return found


# The engine counts symbols in 16 bits.
_MAX_TERMS = 60_000


def _written(found: Mapping[str, Pattern]) -> str:
    """The grammar text from `start` on."""
    names = {name: f"r{index}" for index, name in enumerate(found)}
    terminals: dict[str, str] = {}
    num_parts = 0

    def rule(pattern: Pattern) -> str:
        nonlocal num_parts
        num_parts += 1
        if num_parts > _MAX_TERMS:
            raise TooComplex(f"a grammar of more than {_MAX_TERMS} parts that are followed apart")
        match pattern:
            case Terminal(part):
                return terminals.setdefault(followed(written(part)), f"T{len(terminals)}")
            case Reference(name):
                return names[name]
            case Concat(parts):
                return f"({' '.join(map(rule, parts))})"
            case Choice(options):
                return f"({' | '.join(map(rule, options))})"
            case Repeat(part, min_count, max_count):
                return f"({rule(part)}){bounds(min_count, max_count)}"
        return '""'

    lines = [f"start: {names[ROOT]}"]
    lines += [f"{names[name]}: {rule(pattern)}" for name, pattern in found.items()]
    lines += [f"{name}: /{pattern}/" for pattern, name in terminals.items()]
    return "\n".join(lines) + "\n"
