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
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import compress, groupby
from operator import or_

from constraints.definition_graph import check_depth, closure
from constraints.engine import HEADER
from constraints.errors import ConstraintError, Contradiction, NotEnforced, TooComplex, complaint
from constraints.regex.char_sets import (
    NUM_CODE_POINTS,
    SURROGATES,
    complement,
    encodable,
    first_bytes,
    join,
    united,
)
from constraints.regex.dfa import Automaton, NfaBuilder, automaton_of
from constraints.regex.limits import OutOfReach, TooManyStates
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
        if isinstance(last, Reference) and last.name == name:
            loops.append(concat(before))
        else:
            rest.append(option)
    inside = (each.name for option in (*loops, *rest) for each in references(option))
    if not loops or not rest or name in inside:
        return pattern
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
_MAX_SIZE = 2000
_MAX_ROUNDS = 40


def _in_terminals(rules: Mapping[str, Pattern]) -> dict[str, Pattern]:
    """The rules that the root needs, in terms of terminals and references."""
    whole = _written_out(rules)
    found = _reached(lambda name: _split(rules[name], whole))
    if isinstance(found[ROOT], Terminal):
        return found  # nothing follows it
    automata: dict[Pattern, Automaton] = {}
    for _ in range(_MAX_ROUNDS):
        try:
            wrong = _greedy(found, automata)
        except OutOfReach:
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
    return sum(map(_size, children(pattern))) or 1


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

    def is_whole(part: Pattern) -> bool:
        return all(each.name in whole for each in references(part))

    def runs(
        parts: Iterable[Pattern], join: Callable[[Iterable[Pattern]], Pattern]
    ) -> Iterator[Pattern]:
        for is_one, run in groupby(parts, is_whole):
            yield from (_split(part, whole) for part in ([join(run)] if is_one else run))

    match pattern:
        case _ if is_whole(pattern):
            return _as_terminal(_without_references(pattern, whole))
        case Concat(parts):
            return concat(runs(parts, concat))
        case Choice(options):
            return choice(runs(sorted(options, key=is_whole), choice))
        case Repeat(part):
            return replace(pattern, part=_split(part, whole))
    return pattern


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
# The most terminals and places between them; each terminal may visit all.
_MAX_PLACES = 5_000
# The most states of all terminals, times the classes of characters; and sets of states.
_MAX_STEPS = 1_000_000
_MAX_SETS = 10_000


def _greedy(found: Mapping[str, Pattern], automata: dict[Pattern, Automaton]) -> set[Terminal]:
    """The greedy terminals. Raises OutOfReach.

    The terminals that may be next at one point of a text, a row, are followed together, as the
    engine follows them. Where one of them has ended and another could continue with a byte that may
    also begin the next row, the other one is too greedy. All sets are over-approximated, so no
    greedy terminal is missed.

    automata: of the terminals of earlier rounds; gets those of this one
    """
    order = _Order(found, automata)
    if not order.terminals:
        return set()  # of empty texts alone
    lexer = _Lexer([automata[terminal.part] for terminal in order.terminals])
    after = [order.row(end) for end in order.ends]
    todo = [order.row(order.start)]
    seen = set(todo)
    wrong: set[int] = set()
    while todo:
        for states in lexer.reached(todo.pop()):
            ended = [lexer.owners[state] for state in states if lexer.accepts[state]]
            row = frozenset().union(*(after[terminal] for terminal in ended))
            if row not in seen:
                seen.add(row)
                todo.append(row)
            begins = lexer.begins(row)
            wrong |= {lexer.owners[state] for state in states if lexer.continues[state] & begins}
    return {order.terminals[index] for index in wrong}


def _loosened(pattern: Pattern) -> Pattern:
    match pattern:
        case Concat(parts):
            return Concat(tuple(map(_loosened, parts)))
        case Choice(options):
            return Choice(tuple(map(_loosened, options)))
        case Repeat(part, min_count, max_count):
            times = max_count or min_count
            if max_count is None or times * _size(part) > _MAX_WRITTEN_OUT:
                return Repeat(_loosened(part), min(min_count, 1), None)
            return replace(pattern, part=_loosened(part))
    return pattern


class _Order(NfaBuilder):
    """The grammar as an NFA that reads terminals; a rule returns to all its uses.

    terminals: in the order of their numbers
    ends:      the state behind each
    start:     of the root
    """

    def __init__(self, found: Mapping[str, Pattern], automata: dict[Pattern, Automaton]) -> None:
        super().__init__(_MAX_PLACES)
        self.terminals: list[Terminal] = []
        self.ends: list[int] = []
        self._automata = automata
        self._rules = {name: (self.state(), self.state()) for name in found}
        self.start = self._rules[ROOT][0]
        for name, pattern in found.items():
            start, end = self._rules[name]
            self.link(self.add(_loosened(pattern), start), end)

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
                if part not in self._automata:
                    self._automata[part] = automaton_of(_loosened(part))
                after = self.edge(len(self.terminals), start)
                if self._automata[part].accepts[0]:
                    self.link(start, after)
                self.terminals.append(pattern)
                self.ends.append(after)
                return after
        return super().add(pattern, start)

    def row(self, state: int) -> frozenset[int]:
        """The terminals that may be next."""
        seen = {state}
        todo = [state]
        while todo:
            for _, after in self.parts.epsilon_edges[todo.pop()]:
                if after not in seen:
                    seen.add(after)
                    todo.append(after)
        edges = [self.parts.char_edges[each] for each in seen]
        return frozenset(edge[0] for edge in edges if edge is not None)


class _Lexer:
    """The states of all terminals.

    owners:    by state, the number of its terminal
    accepts:   by state
    continues: by state, the bytes with which it may continue, as bits
    """

    def __init__(self, automata: Sequence[Automaton]) -> None:
        """Raises TooManyStates."""
        partition, labels = join([each.partition for each in automata])
        if sum(each.num_states for each in automata) * partition.num_labels > _MAX_STEPS:
            raise TooManyStates("terminals of too many states")
        lasts = [*(partition.starts[1:] - 1), NUM_CODE_POINTS - 1]
        bytes_of = [0] * partition.num_labels
        for first, last, label in zip(partition.starts, lasts, partition.labels, strict=True):
            bytes_of[label] |= first_bytes(encodable(((int(first), int(last)),)))
        self.owners: list[int] = []
        self.accepts: list[bool] = []
        self._starts: list[int] = []
        # By state, the next one for each class of characters, which lives, or None.
        self._steps: list[list[int | None]] = []
        for owner, (automaton, own) in enumerate(zip(automata, labels, strict=True)):
            start = len(self._steps)
            lives = automaton.decided()[0].tolist()
            self._starts.append(start)
            self.accepts += automaton.accepts.tolist()
            self.owners += [owner] * len(lives)
            for steps in automaton.steps[:, own].tolist():
                self._steps.append([start + each if lives[each] else None for each in steps])
        self.continues = [
            reduce(or_, compress(bytes_of, (after is not None for after in steps)), 0)
            for steps in self._steps
        ]
        self._num_left = _MAX_SETS

    def reached(self, row: Collection[int]) -> Iterator[frozenset[int]]:
        """The sets of states to which texts lead from the start of a row. Raises TooManyStates."""
        todo = [frozenset(self._starts[terminal] for terminal in row)]
        seen = set()
        while todo:
            columns = set(zip(*(self._steps[state] for state in todo.pop()), strict=True))
            for states in {frozenset(column) - {None} for column in columns}:
                if states and states not in seen:
                    seen.add(states)
                    todo.append(states)
                    yield states
            if len(seen) > self._num_left:
                raise TooManyStates("too many sets of states")
        self._num_left -= len(seen)

    def begins(self, row: Collection[int]) -> int:
        """The bytes with which a row may begin, as bits."""
        return reduce(or_, (self.continues[self._starts[terminal]] for terminal in row), 0)


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
