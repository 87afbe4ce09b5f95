"""Grammars in GBNF as llama.cpp's and xgrammar's users write it, for an engine with a lexer.

grammar:   rules; each one continues, also over line ends, until the next `name ::=`
rule:      name ::= options
options:   sequence | sequence | ...       a sequence may be empty
sequence:  items with repeats behind them: * + ? {m} {m,} {,n} {m,n}
item:      "text"  [set]  .  name  ( options )

text -> patterns with references -> loops and terminals -> the notation of the engine, same texts

The engine extends a terminal as long as any terminal that is legal there can continue, and never
backtracks. That loses no text if no terminal that has ended could also continue with a byte that
may follow it. So everything without recursion starts as one terminal, and greedy terminals are
split level by level; single characters are never greedy. If that is too much work, all are split.

First, rules with recursion at one end only become loops, which need no stack:

    ws ::= ([ \t] ws)?             is    ws ::= [ \t]*
    list ::= x | list "," x        is    list ::= x ("," x)*
"""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from constraints.definition_graph import check_depth, closure
from constraints.engine import HEADER
from constraints.errors import ConstraintError, Contradiction, NotEnforced, TooComplex, complaint
from constraints.regex.char_sets import (
    NUM_CODE_POINTS,
    SURROGATES,
    Partition,
    complement,
    encodable,
    first_bytes,
    join,
    united,
)
from constraints.regex.dfa import Nfa, NfaBuilder
from constraints.regex.limits import TooManyStates
from constraints.regex.syntax import (
    EMPTY,
    Chars,
    Choice,
    Concat,
    Empty,
    Pattern,
    Reference,
    Repeat,
    Terminal,
    children,
    choice,
    concat,
    mapped,
)
from constraints.regex.writing import bounds, written

ROOT = "root"
MAX_REPEAT = 1_000_000
_MAX_NESTING = 50
_WORDS = re.compile(
    r"""
    (?P<blank>   [ \t\r\n]+ | \#[^\n]* )
  | (?P<define>  (?P<defined>[A-Za-z0-9_][A-Za-z0-9_-]*) [ \t\r\n]* ::= )
  | (?P<macro>   (?:Tag|Token|Exclude)[A-Za-z]*(?=\() )
  | (?P<name>    [A-Za-z0-9_][A-Za-z0-9_-]* )
  | (?P<text>    "(?:\\.|[^"\\\n])*" )
  | (?P<set>     \[(?:\\.|[^\]\\\n])*\] )
  | (?P<repeat>  \{[^{}\n]*\} )
  | (?P<ahead>   \([=!] )
  | (?P<token>   !?<[^<>\s]*> )
  | (?P<sign>    [|()*+?.] )
    """,
    re.VERBOSE,
)
# It never begins within a name: a text of one long name takes linear time.
_DEFINED = re.compile(r"(?<![A-Za-z0-9_-])([A-Za-z0-9_][A-Za-z0-9_-]*+)[ \t\r\n]*::=")
_BOUNDS = re.compile(r"\{\s*(\d*)\s*(,?)\s*(\d*)\s*\}")
_SIGNS = {"*": (0, None), "+": (1, None), "?": (0, 1)}
_REFUSED = {
    "macro": "tokens and tags cannot be asked for; write their text",
    "ahead": "looking ahead is not supported",
    "token": "tokens that stand for no text cannot be asked for; write its text",
}
_ESCAPE = re.compile(
    r"\\(?:x([0-9A-Fa-f]{2})|u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})|u\{([0-9A-Fa-f]{1,6})\}|(.))"
)
_CONTROLS = {
    "n": 10,
    "t": 9,
    "r": 13,
    "f": 12,
    "v": 11,
    "a": 7,
    "b": 8,
    "e": 27,
    "0": 0,
    **{sign: ord(sign) for sign in "\"'\\[]-^?/.{}()|*+$# "},
}


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule. position: where it is defined."""

    pattern: Pattern
    position: int


@dataclass(frozen=True, slots=True)
class _Word:
    kind: str
    text: str
    start: int
    end: int


def read(text: str) -> dict[str, Rule]:
    """The rules by name; every name that is used is defined, and so is `root`.

    Raises Malformed, NotEnforced, TooComplex.
    """
    reader = _Reader(text)
    rules = reader.rules()
    if ROOT not in rules:
        raise complaint(text, 0, 1, f"there is no rule `{ROOT} ::= ...`, where a grammar begins")
    for name in reader.mentioned:
        if name.name not in rules:
            end = name.position + len(name.name)
            raise complaint(text, name.position, end, f"there is no rule `{name.name}`")
    return rules


class _Reader:
    """Reads one grammar from left to right."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._words = self._split()
        self._at = 0
        self._depth = 0
        self.mentioned: list[Reference] = []

    def rules(self) -> dict[str, Rule]:
        found: dict[str, Rule] = {}
        while self._at < len(self._words):
            word = self._words[self._at]
            if word.kind != "define":
                raise self._wrong(word, "a rule begins with `name ::=`")
            name = word.text[:-3].rstrip()
            if name in found:
                raise self._wrong(word, f"a second rule `{name}`")
            self._at += 1
            found[name] = Rule(self._options(), word.start)
            if self._sign() == ")":
                raise self._wrong(self._words[self._at], "a `)` that closes nothing")
        return found

    def _split(self) -> list[_Word]:
        found = []
        at = 0
        defined = set(_DEFINED.findall(self._text))
        while at < len(self._text):
            match = _WORDS.match(self._text, at)
            if match is None:
                raise complaint(self._text, at, at + 1, self._misfit(at))
            kind = "define" if match["define"] else str(match.lastgroup)
            if kind == "macro" and match.group() in defined:
                kind = "name"
            word = _Word(kind, match.group(), at, match.end())
            at = match.end()
            if kind in _REFUSED:
                wrong = self._wrong(word, _REFUSED[kind])
                raise NotEnforced(str(wrong), position=word.start)
            if kind != "blank":
                found.append(word)
        return found

    def _misfit(self, at: int) -> str:
        unclosed = {'"': "this text is never closed", "[": "this set is never closed"}
        unclosed["'"] = "texts stand in double quotes"
        return unclosed.get(self._text[at], "no word of a grammar begins like this")

    def _wrong(self, word: _Word, what: str) -> ConstraintError:
        return complaint(self._text, word.start, word.end, what)

    def _sign(self) -> str:
        """The next sign; "" if the next word is none."""
        if self._at == len(self._words) or self._words[self._at].kind != "sign":
            return ""
        return self._words[self._at].text

    def _options(self) -> Pattern:
        options = [self._sequence()]
        while self._sign() == "|":
            self._at += 1
            options.append(self._sequence())
        return choice(dict.fromkeys(options))

    def _sequence(self) -> Pattern:
        parts: list[Pattern] = []
        while self._at < len(self._words):
            word = self._words[self._at]
            if word.kind == "define" or word.text in ("|", ")"):
                break
            self._at += 1
            parts.append(self._repeated(self._item(word)))
        return concat(parts)

    def _item(self, word: _Word) -> Pattern:
        match word.kind:
            case "text":
                signs = self._signs(word, word.start + 1)
                return concat(Chars(((code, code),)) for code, _ in signs)
            case "set":
                return self._set(word)
            case "name":
                self.mentioned.append(Reference(word.text, word.start))
                return self.mentioned[-1]
        if word.text == "(":
            return self._group(word)
        if word.text == ".":
            return Chars(encodable(((0, NUM_CODE_POINTS - 1),)))
        raise self._wrong(word, f"nothing before `{word.text}` to repeat")

    def _group(self, word: _Word) -> Pattern:
        self._depth += 1
        if self._depth > _MAX_NESTING:
            raise TooComplex(f"groups in groups, more than {_MAX_NESTING} deep")
        inner = self._options()
        self._depth -= 1
        if self._sign() != ")":
            raise self._wrong(word, "this `(` is never closed")
        self._at += 1
        return inner

    def _repeated(self, term: Pattern) -> Pattern:
        while self._at < len(self._words):
            word = self._words[self._at]
            if word.kind == "repeat":
                min_count, max_count = self._bounds(word)
            elif word.text in _SIGNS:
                min_count, max_count = _SIGNS[word.text]
            else:
                break
            self._at += 1
            term = EMPTY if max_count == 0 else Repeat(term, min_count, max_count)
        return term

    def _bounds(self, word: _Word) -> tuple[int, int | None]:
        match = _BOUNDS.fullmatch(word.text)
        if match is None or not (match[1] or match[3]) or (match[3] and not match[2]):
            raise self._wrong(word, "a repeat is {m}, {m,}, {,n} or {m,n}")
        numbers = [int(number[:9]) for number in (match[1], match[3]) if number]
        if max(numbers) > MAX_REPEAT or max(map(len, match.groups())) > 9:
            raise self._wrong(word, f"a repeat of more than {MAX_REPEAT}")
        min_count = int(match[1] or 0)
        max_count = int(match[3]) if match[3] else None if match[2] else min_count
        if max_count is not None and min_count > max_count:
            raise self._wrong(word, "the least number of repeats is larger than the most")
        return min_count, max_count

    def _signs(self, word: _Word, at: int) -> list[tuple[int, bool]]:
        """Code points, each with whether it is written without an escape."""
        found: list[tuple[int, bool]] = []
        while at < word.end - 1:
            char = self._text[at]
            if char != "\\":
                code = ord(char)
                end = at + 1
            else:
                code, end = self._escape(at)
            if code >= NUM_CODE_POINTS or SURROGATES[0] <= code <= SURROGATES[1]:
                raise complaint(self._text, at, end, "no such character")
            found.append((code, char != "\\"))
            at = end
        return found

    def _escape(self, at: int) -> tuple[int, int]:
        match = _ESCAPE.match(self._text, at)
        if match is not None and match[5] is None:
            return int(next(group for group in match.groups() if group), 16), match.end()
        if match is None or match[5] not in _CONTROLS:
            raise complaint(self._text, at, at + 2, "an escape that stands for nothing")
        return _CONTROLS[match[5]], match.end()

    def _set(self, word: _Word) -> Pattern:
        is_negated = self._text[word.start + 1] == "^"
        signs = self._signs(word, word.start + 1 + is_negated)
        ranges: list[tuple[int, int]] = []
        at = 0
        while at < len(signs):
            low = high = signs[at][0]
            if at + 2 < len(signs) and signs[at + 1] == (ord("-"), True):
                high = signs[at + 2][0]
                at += 2
            if low > high:
                raise self._wrong(word, "a range whose end is before its beginning")
            ranges.append((low, high))
            at += 1
        named = united([tuple(ranges)])
        kept = encodable(complement(named) if is_negated else named)
        if not kept:
            raise self._wrong(word, "a set of no characters")
        return Chars(kept)


def to_grammar(text: str) -> str:
    """The grammar in the notation of the engine.

    Raises Malformed, NotEnforced, Contradiction, TooComplex.
    """
    read_rules = read(text)
    mentions = {
        name: [each.name for each in references(rule.pattern)] for name, rule in read_rules.items()
    }
    reached = check_depth([ROOT], mentions)
    ending = closure(mentions, lambda name, known: _ends(read_rules[name].pattern, known))
    unproductive = [name for name in read_rules if name in reached - ending]
    if unproductive:
        at = read_rules[unproductive[0]].position
        what = f"rule `{unproductive[0]}` never ends: no text follows it"
        wrong = complaint(text, at, at + len(unproductive[0]), what)
        raise Contradiction(str(wrong), tuple(unproductive))
    rules = {
        name: as_loop(name, rule.pattern) for name, rule in read_rules.items() if name in reached
    }
    return HEADER + _written(split_terminals(rules))


def references(pattern: Pattern) -> Iterator[Reference]:
    """All references to rules, in order, outside of terminals."""
    if isinstance(pattern, Reference):
        yield pattern
    for part in children(pattern):
        yield from references(part)


def _mentions(pattern: Pattern, name: str) -> bool:
    return any(each.name == name for each in references(pattern))


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


def as_loop(name: str, pattern: Pattern) -> Pattern:
    """The rule as a loop, if its own name occurs at one end only; else unchanged."""
    for is_right in (True, False) if _mentions(pattern, name) else ():
        split = _split_ends(name, pattern, is_right)
        if split is not None and split[0] and split[1]:
            loop = Repeat(choice(split[0]), 0, None)
            rest = choice(split[1])
            return concat((loop, rest) if is_right else (rest, loop))
    return pattern


def _split_ends(
    name: str, pattern: Pattern, is_right: bool
) -> tuple[list[Pattern], list[Pattern]] | None:
    """The options beside the name at that end, and those without; None: it is elsewhere."""
    if not _mentions(pattern, name):
        return [], [pattern]
    match pattern:
        case Reference():
            return [EMPTY], []
        case Concat(parts):
            edge = parts[-1] if is_right else parts[0]
            others = parts[:-1] if is_right else parts[1:]
            inner = _split_ends(name, edge, is_right)
            if inner is None or any(_mentions(part, name) for part in others):
                return None
            around, rest = (
                [concat((*others, each) if is_right else (each, *others)) for each in side]
                for side in inner
            )
            return around, rest
        case Repeat(part, 0, 1):
            return _split_ends(name, Choice((part, EMPTY)), is_right)
        case Choice(options):
            splits = [_split_ends(name, option, is_right) for option in options]
            found = [split for split in splits if split is not None]
            if len(found) == len(splits):
                return [each for split in found for each in split[0]], [
                    each for split in found for each in split[1]
                ]
    return None


# The most characters of a rule within a terminal, with all its rules written out.
_MAX_SIZE = 2000
_MAX_ROUNDS = 40
# The most states of all terminals, sets of states, and rows.
_MAX_STATES = 60_000
_MAX_SETS = 10_000
_MAX_ROWS = 500
# A repetition with more characters counts as unbounded.
_MAX_WRITTEN_OUT = 64


def split_terminals(rules: Mapping[str, Pattern]) -> dict[str, Pattern]:
    """The rules that the root needs, in terms of terminals and references."""
    whole = _written_out(rules)
    found = _reached(lambda name: _split(rules[name], whole))
    if isinstance(found[ROOT], Terminal):
        return found  # nothing follows it
    for _ in range(_MAX_ROUNDS):
        try:
            wrong = too_greedy(found)
        except TooManyStates:
            break
        if not wrong:
            return found

        def split_greedy(part: Pattern, wrong: Collection[Terminal] = wrong) -> Pattern:
            return _parts(part.part) if isinstance(part, Terminal) and part in wrong else part

        found = {name: mapped(pattern, split_greedy) for name, pattern in found.items()}
    return _reached(lambda name: mapped(rules[name], _as_terminal))


def _written_out(rules: Mapping[str, Pattern]) -> dict[str, Pattern]:
    """The rules that reach no recursive rule, without references, where that is not too large."""
    mentions = {
        name: list(dict.fromkeys(each.name for each in references(pattern)))
        for name, pattern in rules.items()
    }
    whole: dict[str, Pattern] = {}

    def is_whole(name: str, known: set[str]) -> bool:
        if not known.issuperset(mentions[name]):
            return False
        whole[name] = _without_references(rules[name], whole)
        return _size(whole[name]) <= _MAX_SIZE

    kept = closure(mentions, is_whole)
    return {name: pattern for name, pattern in whole.items() if name in kept}


def _without_references(pattern: Pattern, whole: Mapping[str, Pattern]) -> Pattern:
    return mapped(pattern, lambda part: whole[part.name] if isinstance(part, Reference) else part)


def _size(pattern: Pattern) -> int:
    is_leaf = isinstance(pattern, Chars | Reference | Terminal)
    return 1 if is_leaf else sum(map(_size, children(pattern)))


def _reached(made: Callable[[str], Pattern]) -> dict[str, Pattern]:
    """The rules that the root reaches, as they are made."""
    reached: dict[str, Pattern] = {}
    todo = [ROOT]
    while todo:
        name = todo.pop()
        if name not in reached:
            reached[name] = made(name)
            todo.extend(each.name for each in references(reached[name]))
    return reached


def _split(pattern: Pattern, whole: Mapping[str, Pattern]) -> Pattern:
    """What has no recursion as terminals, as large as can be."""
    if _is_whole(pattern, whole):
        return _as_terminal(_without_references(pattern, whole))
    match pattern:
        case Concat(parts):
            return concat(_with_joined_neighbours(parts, whole))
        case Choice(options):
            joined = [each for each in options if _is_whole(each, whole)]
            others = [_split(each, whole) for each in options if not _is_whole(each, whole)]
            return choice([*([_split(choice(joined), whole)] if joined else ()), *others])
        case Repeat(part, min_count, max_count):
            return Repeat(_split(part, whole), min_count, max_count)
    return pattern


def _is_whole(pattern: Pattern, whole: Mapping[str, Pattern]) -> bool:
    return all(each.name in whole for each in references(pattern))


def _with_joined_neighbours(
    parts: Iterable[Pattern], whole: Mapping[str, Pattern]
) -> Iterator[Pattern]:
    joined: list[Pattern] = []
    for part in parts:
        if _is_whole(part, whole):
            joined.append(part)
            continue
        yield _split(concat(joined), whole)
        joined.clear()
        yield _split(part, whole)
    yield _split(concat(joined), whole)


def _as_terminal(pattern: Pattern) -> Pattern:
    return pattern if isinstance(pattern, Empty | Reference) else Terminal(pattern)


def _parts(pattern: Pattern) -> Pattern:
    """The parts of a greedy terminal as terminals."""
    match pattern:
        case Concat(parts):
            return concat(map(_as_terminal, parts))
        case Choice(options):
            return choice(map(_as_terminal, options))
        case Repeat(part, min_count, max_count):
            return Repeat(_as_terminal(part), min_count, max_count)
    return Terminal(pattern)


class _Graph:
    """What may be read next in an NFA without conditions; sets of states are bits of integers."""

    def __init__(self, parts: Nfa) -> None:
        self._parts = parts
        self._closures: dict[int, int] = {}

    def closure(self, state: int) -> int:
        """The states that are reached without reading."""
        found = self._closures.get(state)
        if found is None:
            found = 1 << state
            todo = [state]
            while todo:
                for _, after in self._parts.epsilon_edges[todo.pop()]:
                    if not found >> after & 1:
                        found |= 1 << after
                        todo.append(after)
            self._closures[state] = found
        return found

    def edges(self, states: int) -> Iterator[tuple[int, int, int]]:
        """The states that read something, with what they read and where it leads."""
        for state in _bits(states):
            edge = self._parts.char_edges[state]
            if edge is not None:
                yield state, *edge


class _OrderBuilder(NfaBuilder):
    """The grammar as an NFA that reads terminals, and returns from a rule to all its uses."""

    def __init__(self, found: Mapping[str, Pattern]) -> None:
        super().__init__(_MAX_STATES)
        self.terminals: list[Terminal] = []
        self.rules = {name: (self.state(), self.state()) for name in found}
        for name, pattern in found.items():
            start, end = self.rules[name]
            self.link(self.add(_loosened(pattern), start), end)

    def add(self, pattern: Pattern, start: int) -> int:
        """Add a part behind `start`; returns the last state."""
        match pattern:
            case Reference(name):
                begin, end = self.rules[name]
                after = self.state()
                self.link(start, begin)
                self.link(end, after)
                return after
            case Terminal(inner):
                self.terminals.append(pattern)
                after = self.edge(len(self.terminals) - 1, start)
                if _is_nullable(inner):
                    self.link(start, after)
                return after
        return super().add(pattern, start)


def _loosened(pattern: Pattern) -> Pattern:
    """With large counts as loops, which have more texts and fewer states."""
    match pattern:
        case Concat(parts):
            return Concat(tuple(map(_loosened, parts)))
        case Choice(options):
            return Choice(tuple(map(_loosened, options)))
        case Repeat(part, min_count, max_count):
            times = max_count or min_count
            if max_count is None or times * _size(part) > _MAX_WRITTEN_OUT:
                return Repeat(_loosened(part), min(min_count, 1), None)
            return Repeat(_loosened(part), min_count, max_count)
    return pattern


def _is_nullable(pattern: Pattern) -> bool:
    match pattern:
        case Concat(parts):
            return all(map(_is_nullable, parts))
        case Choice(options):
            return any(map(_is_nullable, options))
        case Repeat(part, min_count):
            return min_count == 0 or _is_nullable(part)
    return isinstance(pattern, Empty)


def too_greedy(found: Mapping[str, Pattern]) -> set[Terminal]:
    """The greedy terminals. Raises TooManyStates.

    The terminals that may be next at one point of a text, a row, are followed together, as the
    engine follows them. Where one of them has ended and another could continue with a byte that may
    also begin the next row, the other one is too greedy. All sets are over-approximated, so no
    greedy terminal is missed.
    """
    order = _OrderBuilder(found)
    lexer = _Lexer(order.terminals)
    graph = _Graph(order.parts)
    after: list[int] = [0] * len(order.terminals)
    for _, terminal, end in graph.edges((1 << len(order.parts.char_edges)) - 1):
        after[terminal] = _row(graph, graph.closure(end))
    todo = [_row(graph, graph.closure(order.rules[ROOT][0]))]
    seen = set(todo)
    wrong = 0
    while todo:
        for ended, further in lexer.states(todo.pop()):
            row = 0
            for terminal in _bits(ended):
                row |= after[terminal]
            if row and row not in seen:
                seen.add(row)
                todo.append(row)
                if len(seen) > _MAX_ROWS:
                    raise TooManyStates("too many rows of terminals")
            wrong |= lexer.beginning_like(further, row)
    return {order.terminals[index] for index in _bits(wrong)}


def _row(graph: _Graph, states: int) -> int:
    found = 0
    for _, terminal, _ in graph.edges(states):
        found |= 1 << terminal
    return found


class _Lexer:
    """The characters of all terminals."""

    def __init__(self, terminals: Iterable[Terminal]) -> None:
        builder = NfaBuilder(_MAX_STATES)
        starts = []
        self._owner: dict[int, int] = {}  # of states that read
        self._final: dict[int, int] = {}
        for index, terminal in enumerate(terminals):
            begin = builder.state()
            final = builder.add(_loosened(terminal.part), begin)
            starts.append(begin)
            self._final[final] = index
            self._owner |= dict.fromkeys(range(begin, len(builder.parts.char_edges)), index)
        graph = _Graph(builder.parts)
        edges = list(graph.edges((1 << len(builder.parts.char_edges)) - 1))
        self._finals = sum(1 << state for state in self._final)
        kept = self._finals | sum(1 << state for state, _, _ in edges)
        self._first = [graph.closure(start) & kept for start in starts]
        self._edges = {state: (label, graph.closure(end) & kept) for state, label, end in edges}
        sets = list(builder.parts.sets)
        self._bytes = [first_bytes(ranges) for ranges in sets]
        # For each class of characters that sets distinguish, the states that read it.
        _, columns = join([Partition.of_sets([ranges]) for ranges in sets])
        readers = [0] * len(sets)
        for state, (label, _) in self._edges.items():
            readers[label] |= 1 << state
        self._readers = [
            sum(readers[index] for index in np.flatnonzero(column).tolist()) for column in columns.T
        ]

    def states(self, row: int) -> Iterator[tuple[int, int]]:
        """For each reachable set of states: the terminals that have ended, and the set.

        Raises TooManyStates.
        """
        start = 0
        for terminal in _bits(row):
            start |= self._first[terminal]
        seen = {start}
        todo = [start]
        while todo:
            states = todo.pop()
            for reader in self._readers:
                after = 0
                for state in _bits(states & reader):
                    after |= self._edges[state][1]
                if not after:
                    continue
                ended = 0
                for state in _bits(after & self._finals):
                    ended |= 1 << self._final[state]
                if ended:
                    yield ended, after
                if after not in seen:
                    seen.add(after)
                    todo.append(after)
                    if len(seen) > _MAX_SETS:
                        raise TooManyStates("too many sets of states")

    def beginning_like(self, states: int, row: int) -> int:
        """The terminals that can continue with a byte with which the row may begin."""
        begins = 0
        for terminal in _bits(row):
            for state in _bits(self._first[terminal]):
                if state in self._edges:
                    begins |= self._bytes[self._edges[state][0]]
        found = 0
        for state in _bits(states) if begins else ():
            if state in self._edges and self._bytes[self._edges[state][0]] & begins:
                found |= 1 << self._owner[state]
        return found


def _bits(number: int) -> Iterator[int]:
    while number:
        lowest = number & -number
        yield lowest.bit_length() - 1
        number ^= lowest


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
                return terminals.setdefault(written(part), f"T{len(terminals)}")
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
