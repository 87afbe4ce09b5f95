"""Tokenizes grammars in Lark's notation and finds their definitions.

It reads only what the checks here need; the engine validates the notation.
"""

import json
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from constraints.definition_graph import check_depth, closure
from constraints.errors import Malformed, TooComplex, complaint
from constraints.schema.reading import Json

_WORDS = re.compile(
    r"""
    (?P<blank>      [ \t]+ | (?:\#|//)[^\n]* )
  | (?P<newline>    (?:\r?\n)+[ \t]* )
  | (?P<regexp>     /(?:\\.|[^/\\\n])+/[imslux]* )
  | (?P<string>     "(?:\\.|[^"\\\n])*"i? )
  | (?P<statement>  %[a-z]+ )
  | (?P<special>    <[^<>\s]+> )
  | (?P<reference>  @[a-zA-Z0-9_-]+ )
  | (?P<rule>       !?[_?]?[a-z][_a-z0-9-]* )
  | (?P<terminal>   _?[A-Z][_A-Z0-9-]* )
  | (?P<number>     0[xX][0-9a-fA-F]+ | [+-]?[0-9]+(?:\.(?!\.)[0-9]*)?(?:[eE][+-]?[0-9]+)? )
  | (?P<sign>       -> | :: | \.\. | [:,.(){}\[\]~|&=_+*?] )
    """,
    re.VERBOSE,
)
_MAX_NESTING = 30
# Statements with a JSON value.
_WITH_JSON = ("%json", "%regex", "%llguidance")


@dataclass(frozen=True, slots=True)
class Word:
    """A word of the grammar: text[start:end].

    kind:   the name of its group above
    value:  the JSON after a statement that has one, in text[start:end] as well
    """

    kind: str
    text: str
    start: int
    end: int
    value: Json = None


def words(text: str) -> list[Word]:
    """The words without blanks and comments. Raises Malformed."""
    found: list[Word] = []
    at = 0
    while at < len(text):
        match = _WORDS.match(text, at)
        if match is None:
            raise complaint(text, at, at + 1, "no word of a grammar begins like this")
        kind = str(match.lastgroup)
        word = match.group()
        at = match.end()
        if kind == "blank":
            continue
        if word in _WITH_JSON:
            value, at = _json(text, at, match.start())
            found.append(Word(kind, word, match.start(), at, value))
        else:
            found.append(Word(kind, word, match.start(), at))
    return found


def _json(text: str, at: int, start: int) -> tuple[Json, int]:
    while at < len(text) and text[at].isspace():
        at += 1
    try:
        return json.JSONDecoder().raw_decode(text, at)
    except json.JSONDecodeError as error:
        raise complaint(text, error.pos, error.pos + 1, f"not JSON: {error.msg}") from None
    except (RecursionError, ValueError) as error:
        raise complaint(text, start, at, f"not JSON: {error}") from None


@dataclass(frozen=True, slots=True)
class Definition:
    """A rule or terminal: its name and the words after the colon."""

    name: Word
    body: tuple[Word, ...]
    has_attributes: bool


def definitions(found: Sequence[Word]) -> Iterator[Definition]:
    """The rules and terminals of a grammar: all lines that look like a definition."""
    for line in lines(found):
        if line[0].kind not in ("rule", "terminal"):
            continue
        for index, word in enumerate(line):
            if word.text == ":" and _is_outside(line[:index]):
                yield Definition(line[0], tuple(line[index + 1 :]), index > 1)
                break


def _is_outside(before: Sequence[Word]) -> bool:
    """Whether no bracket of the attributes is open."""
    texts = [word.text for word in before]
    return texts.count("[") == texts.count("]")


def lines(found: Sequence[Word]) -> Iterator[list[Word]]:
    """Statements and definitions; a line that begins with `|` continues the one before."""
    line: list[Word] = []
    for index, word in enumerate(found):
        if word.kind != "newline":
            line.append(word)
        elif line and not (index + 1 < len(found) and found[index + 1].text == "|"):
            yield line
            line = []
    if line:
        yield line


def plain_name(name: str) -> str:
    """A rule's name without the prefixes that concern parse trees."""
    return name.lstrip("!?")


def unproductive_rules(found: Sequence[Word], empty: Collection[str | int] = ()) -> list[Word]:
    """Rules without a finite text, in order, among those that `start` reaches.

    empty: names of terminals and places of patterns that match no text
    """
    rules = {
        plain_name(definition.name.text): definition
        for definition in definitions(found)
        if definition.name.kind == "rule"
    }
    mentions = {
        name: list(dict.fromkeys(plain_name(word.text) for word in rule.body))
        for name, rule in rules.items()
    }
    reached = check_depth(["start"], mentions)
    ending = closure(
        mentions, lambda name, known: _Body(rules[name].body, rules.keys(), known, empty).ends()
    )
    return [rule.name for name, rule in rules.items() if name in reached - ending]


def check_nesting(found: Sequence[Word]) -> None:
    """Raises TooComplex for brackets that are nested too deeply."""
    depth = 0
    for word in found:
        depth += (word.text in ("(", "[")) - (word.text in (")", "]"))
        if depth > _MAX_NESTING:
            raise TooComplex(f"brackets in brackets, more than {_MAX_NESTING} deep")


class _Body:
    """Decides whether a rule's body has a finite text, given the rules known to have one."""

    def __init__(
        self,
        body: Sequence[Word],
        names: Collection[str],
        ending: set[str],
        empty: Collection[str | int],
    ) -> None:
        self._body = body
        self._names = names
        self._ending = ending
        self._empty = empty
        self._at = 0

    def ends(self) -> bool:
        found = self._alternatives()
        # Constructs that are not recognised are left to the engine.
        return found or self._at < len(self._body)

    def _peek(self) -> str:
        return self._body[self._at].text if self._at < len(self._body) else ""

    def _alternatives(self) -> bool:
        found = self._sequence()
        while self._peek() == "|":
            self._at += 1
            found = self._sequence() or found
        return found

    def _sequence(self) -> bool:
        found = True
        while self._at < len(self._body) and self._peek() not in ("|", ")", "]"):
            ends = self._atom()
            found = (ends or self._may_be_left_out()) and found
        return found

    def _atom(self) -> bool:
        word = self._body[self._at]
        self._at += 1
        if word.text in ("(", "["):
            found = self._alternatives()
            self._at += 1
            return found or word.text == "["
        if word.text in self._empty or word.start in self._empty:
            return False
        name = plain_name(word.text)
        return word.kind != "rule" or name not in self._names or name in self._ending

    def _may_be_left_out(self) -> bool:
        """Whether a repeat follows that begins at 0."""
        texts = [word.text for word in self._body[self._at : self._at + 2]]
        if texts[:1] in (["*"], ["?"]):
            return True
        return texts in (["~", "0"], ["{", "0"], ["{", ","])


def misplaced(text: str, word: Word, what: str) -> Malformed:
    """The error that a word is not allowed."""
    return complaint(text, word.start, word.end, what)
