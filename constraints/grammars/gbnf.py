"""Grammars in GBNF as llama.cpp's and xgrammar's users write it, for an engine with a lexer.

grammar:   rules; each one continues, also over line ends, until the next `name ::=`
rule:      name ::= options
options:   sequence | sequence | ...       a sequence may be empty
sequence:  items with repeats behind them: * + ? {m} {m,} {,n} {m,n}
item:      "text"  [set]  .  name  ( options )

Term = CharSet | Text | Name | Sequence | Alternation | Repetition | Terminal

text -> terms -> loops and terminals (`gbnf_terminals`) -> the notation of the engine, same texts
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from constraints.definition_graph import check_depth, closure
from constraints.engine import HEADER
from constraints.errors import ConstraintError, Contradiction, NotEnforced, TooComplex, complaint
from constraints.grammars.gbnf_terminals import (
    EMPTY,
    Alternation,
    CharSet,
    Name,
    Repetition,
    Sequence,
    Term,
    Terminal,
    Text,
    as_loop,
    choice,
    names,
    rules_without_stack,
    sequence,
    split_terminals,
)
from constraints.regex import syntax
from constraints.regex.char_sets import (
    NUM_CODE_POINTS,
    SURROGATES,
    complement,
    encodable,
    united,
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
    """A rule: the term of its name. position: where it is defined."""

    term: Term
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
        self.mentioned: list[Name] = []

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

    def _options(self) -> Term:
        options = [self._sequence()]
        while self._sign() == "|":
            self._at += 1
            options.append(self._sequence())
        return choice(dict.fromkeys(options))

    def _sequence(self) -> Term:
        parts: list[Term] = []
        while self._at < len(self._words):
            word = self._words[self._at]
            if word.kind == "define" or word.text in ("|", ")"):
                break
            self._at += 1
            parts.append(self._repeated(self._item(word)))
        return sequence(parts)

    def _item(self, word: _Word) -> Term:
        match word.kind:
            case "text":
                return Text("".join(map(chr, self._codes(word))))
            case "set":
                return self._set(word)
            case "name":
                self.mentioned.append(Name(word.text, word.start))
                return self.mentioned[-1]
        if word.text == "(":
            return self._group(word)
        if word.text == ".":
            return CharSet(encodable(((0, NUM_CODE_POINTS - 1),)))
        raise self._wrong(word, f"nothing before `{word.text}` to repeat")

    def _group(self, word: _Word) -> Term:
        self._depth += 1
        if self._depth > _MAX_NESTING:
            raise TooComplex(f"groups in groups, more than {_MAX_NESTING} deep")
        inner = self._options()
        self._depth -= 1
        if self._sign() != ")":
            raise self._wrong(word, "this `(` is never closed")
        self._at += 1
        return inner

    def _repeated(self, term: Term) -> Term:
        while self._at < len(self._words):
            word = self._words[self._at]
            if word.kind == "repeat":
                min_count, max_count = self._bounds(word)
            elif word.text in _SIGNS:
                min_count, max_count = _SIGNS[word.text]
            else:
                break
            self._at += 1
            term = EMPTY if max_count == 0 else Repetition(term, min_count, max_count)
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

    def _codes(self, word: _Word) -> list[int]:
        """The code points between quotes or brackets."""
        return [code for code, _ in self._signs(word, word.start + 1)]

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

    def _set(self, word: _Word) -> Term:
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
        return CharSet(kept)


# The engine counts symbols in 16 bits.
_MAX_TERMS = 60_000


def write(found: Mapping[str, Term], rules: Mapping[str, Term], root: str) -> str:
    """The grammar text from `start` on; `rules`: those that terminals use."""
    return _Writer(found, rules).all(root)


class _Writer:
    """Writes the rules, and each terminal once."""

    def __init__(self, found: Mapping[str, Term], rules: Mapping[str, Term]) -> None:
        self._found = found
        self._rules = rules
        self._names = {name: f"r{index}" for index, name in enumerate(found)}
        self._terminals: dict[str, str] = {}
        self._num_terms = 0

    def all(self, root: str) -> str:
        lines = [f"start: {self._names[root]}"]
        for name, term in self._found.items():
            lines.append(f"{self._names[name]}: {self._rule(term)}")
        for pattern, name in self._terminals.items():
            lines.append(f"{name}: /{pattern}/")
        return "\n".join(lines) + "\n"

    def _rule(self, term: Term) -> str:
        self._num_terms += 1
        if self._num_terms > _MAX_TERMS:
            raise TooComplex(f"a grammar of more than {_MAX_TERMS} parts that are followed apart")
        match term:
            case Terminal():
                return self._terminal(term)
            case Name(name):
                return self._names[name]
            case Sequence(parts):
                return f"({' '.join(map(self._rule, parts))})"
            case Alternation(options):
                return f"({' | '.join(map(self._rule, options))})"
            case Repetition(part, min_count, max_count):
                return f"({self._rule(part)}){bounds(min_count, max_count)}"
            case _:
                return '""'

    def _terminal(self, terminal: Terminal) -> str:
        """The name of a terminal; a nullable one is optional: the engine allows no empty ones."""
        inner, is_empty = self._filled(terminal.term)
        if inner is None:
            return '""'
        pattern = written(self._pattern(inner))
        name = self._terminals.setdefault(pattern, f"T{len(self._terminals)}")
        return f"{name}?" if is_empty else name

    def _filled(self, term: Term) -> tuple[Term | None, bool]:
        """The non-empty texts of a term (None: there are none), and whether it is nullable."""
        match term:
            case Text(text):
                return term if text else None, not text
            case Name(name):
                return self._filled(self._rules[name])
            case Alternation(options):
                both = [self._filled(option) for option in options]
                kept = [part for part, _ in both if part is not None]
                return choice(kept) if kept else None, any(is_empty for _, is_empty in both)
            case Sequence(parts):
                return self._filled_sequence(parts)
            case Repetition(part, min_count, max_count):
                filled, is_empty = self._filled(part)
                is_empty = is_empty or min_count == 0
                if filled is None:
                    return None, True
                min_count = 1 if is_empty else min_count
                is_once = min_count == max_count == 1
                return filled if is_once else Repetition(filled, min_count, max_count), is_empty
            case _:
                return term, False

    def _filled_sequence(self, parts: tuple[Term, ...]) -> tuple[Term | None, bool]:
        """A sequence without its empty text: one part is not empty, those behind it are free."""
        options: list[Term] = []
        for index, part in enumerate(parts):
            filled, is_empty = self._filled(part)
            if filled is not None:
                options.append(sequence((filled, *parts[index + 1 :])))
            if not is_empty:
                return choice(options), False
        return choice(options) if options else None, True

    def _pattern(self, term: Term) -> syntax.Pattern:
        match term:
            case CharSet(ranges):
                return syntax.Chars(ranges)
            case Text(text):
                return syntax.Concat(
                    tuple(syntax.Chars(((ord(char), ord(char)),)) for char in text)
                )
            case Name(name):
                return self._pattern(self._rules[name])
            case Sequence(parts):
                return syntax.Concat(tuple(map(self._pattern, parts)))
            case Alternation(options):
                return syntax.Choice(tuple(map(self._pattern, options)))
            case Repetition(part, min_count, max_count):
                return syntax.Repeat(self._pattern(part), min_count, max_count)
        raise AssertionError("no terminal stands in a terminal")


def to_grammar(text: str) -> str:
    """The grammar in the notation of the engine.

    Raises Malformed, NotEnforced, Contradiction, TooComplex.
    """
    read_rules = read(text)
    mentions = {name: [each.name for each in names(rule.term)] for name, rule in read_rules.items()}
    reached = check_depth([ROOT], mentions)
    terms = {name: rule.term for name, rule in read_rules.items() if name in reached}
    ending = closure(mentions, lambda name, known: _ends(read_rules[name].term, known))
    unproductive = [name for name in terms if name not in ending]
    if unproductive:
        at = read_rules[unproductive[0]].position
        what = f"rule `{unproductive[0]}` never ends: no text follows it"
        wrong = complaint(text, at, at + len(unproductive[0]), what)
        raise Contradiction(str(wrong), tuple(unproductive))
    rules = {name: as_loop(name, term) for name, term in terms.items()}
    found = split_terminals(rules, rules_without_stack(rules), ROOT)
    return HEADER + write(found, rules, ROOT)


def _ends(term: Term, known: set[str]) -> bool:
    """Whether the term has a finite text, given that the known rules have one."""
    match term:
        case Name(name):
            return name in known
        case Sequence(parts):
            return all(_ends(part, known) for part in parts)
        case Alternation(options):
            return any(_ends(option, known) for option in options)
        case Repetition(part, min_count):
            return min_count == 0 or _ends(part, known)
        case _:
            return True
