"""Grammars in llguidance's dialect of Lark, limited to what masks can enforce.

Patterns have Python's syntax, as in Lark itself; embedded schemas are rewritten like all schemas.
What would need its own sampling, other tokens, or a second pass over the text is refused.

text -> words -> checks -> words that are replaced -> the text for the engine, which parses it

Only what the checks need is read here; the engine validates the notation.

A negated terminal is a set of texts: `~A` is every text that is not `A`. For the engine `~A` is all
bytes except those of `A`, including invalid UTF-8, and it has no `&` in rules. So `~A` is written
`~(A | ~/(?s:.*)/)`: neither `A` nor invalid.

Terminals are greedy: in `start: A "ab" | "c"` with `A: /a+/` the terminal takes every `a`, so that
nothing but another `a` can follow it. So bytes may be forced without end, and are collected up to a
limit. What has no text, for this reason or because a rule never ends or a terminal is empty, is not
proven: the search for an output's first completion finds none.
"""

import json
import re
from collections.abc import Container, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from itertools import takewhile, zip_longest

from constraints.definition_graph import check_depth
from constraints.engine import HEADER, error_of
from constraints.errors import ConstraintError, Malformed, NotEnforced, TooComplex, complaint
from constraints.regex.writing import translate_terminal
from constraints.schema import json_schema
from constraints.schema.grammar import json_literal
from constraints.schema.reading import Json
from constraints.spec import Whitespace

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


def _check_depth(found: Sequence[Word]) -> None:
    """Raises TooComplex where brackets, or rules and terminals, are too deep in each other."""
    depth = 0
    for word in found:
        depth += (word.text in ("(", "[")) - (word.text in (")", "]"))
        if depth > _MAX_NESTING:
            raise TooComplex(f"brackets in brackets, more than {_MAX_NESTING} deep")
    # The prefixes of names concern parse trees.
    named = [
        [word.text.lstrip("!?") for word in line]
        for line in lines(found)
        if line[0].kind in ("rule", "terminal")
    ]
    check_depth(["start"], {name: mentioned for name, *mentioned in named})


def misplaced(text: str, word: Word, what: str) -> Malformed:
    """The error that a word is not allowed."""
    return complaint(text, word.start, word.end, what)


_BROKEN = "~/(?s:.*)/"


def negations_as_texts(
    text: str, found: Sequence[Word], written: Mapping[int, str]
) -> dict[int, str]:
    """By place, the words of `text` that are replaced for the engine.

    written: replacements made before, which ignore negations
    """
    changed = dict(written)
    sign: Word | None = None  # of the negation of what begins here
    opened: list[Word | None] = []
    for word, following in zip_longest(found, found[1:]):
        is_range = word.text == ".." or (following is not None and following.text == "..")
        if word.text == "~" and (following is None or following.kind != "number"):
            if sign is None:
                sign = word
                continue
            # The engine allows no `~` before a `~`; two of them cancel out.
            changed |= {sign.start: "", word.start: ""}
            sign = None
        elif word.text in ("(", "["):
            opened.append(sign)
            sign = None
        elif not is_range:
            if word.text in (")", "]") and opened:
                sign = opened.pop()
            if sign is not None:
                changed[sign.start] = "~("
                inner = changed.get(word.start, text[word.start : word.end])
                changed[word.start] = f"{inner} | {_BROKEN})"
            sign = None
    return changed


_REFUSED_STATEMENTS = {
    "%llguidance": "options of the engine cannot be set",
    "%lark": "a grammar inside of a grammar is not supported; write its rules out",
}
_REFUSED_ATTRIBUTES = {
    "max_tokens": "it would end a terminal in the middle; bound its pattern instead",
    "temperature": "it is the request's, and the same for the whole output",
    "stop": "it would hide text that was generated; let a rule end with the text instead",
    "suffix": "write `lazy` and put the suffix into the pattern",
}
# Beside the message that no text was found: for an output's first search.
HINT_WITHOUT_TEXT = (
    ". Terminals are greedy: one that can continue takes what would have to follow it, as in"
    ' `/a+/ "ab"`; a rule that always needs itself never ends; and `/a/ & /b/` is no text'
)
_PLACE = re.compile(r"(?:at )?(\d+)\((\d+)\): (.*)", re.DOTALL)
_UNKNOWN = re.compile(r'unknown name: "(\w+)"')


def to_grammar(
    text: str,
    whitespace: Whitespace = Whitespace.FLEXIBLE,
    special_ids: Container[int | None] = (),
    *,
    lenient: bool = False,
) -> str:
    """The grammar in the notation of the engine.

    whitespace:  of embedded JSON
    lenient:     of embedded schemas, see `ConstraintSpec`
    special_ids: tokens that stand for no text, and may be asked for as `<[ID]>`
    Each of them gets a line of its own, see `constraints.guiding.alphabet`.
    Raises Malformed, NotEnforced, Contradiction, TooComplex.
    """
    found = words(text)
    _check_depth(found)
    _check(text, found, special_ids)
    written = negations_as_texts(
        text, found, dict(_rewritten(text, found, whitespace, lenient=lenient))
    )
    pieces = [HEADER]
    at = 0
    for word in found:
        if word.start in written:
            pieces += [text[at : word.start], written[word.start]]
            at = word.end
    pieces.append(text[at:])
    named = {special_id(word) for word in found if word.kind == "special"}
    pieces += [
        f"\nspecial-{each}: <[{each}]>"
        for each in sorted(each for each in named if each is not None)
    ]
    return "".join(pieces)


def explain(text: str, message: str) -> ConstraintError:
    """The error for a message of the engine, with a place in the client's grammar text."""
    error = error_of(message)
    match = _PLACE.match(str(error))
    if match is None:
        return error
    line = int(match[1]) - 1
    column = int(match[2])
    what = match[3].strip()
    # The engine quotes lines of its own input, which are not the client's lines.
    what = re.split(r"\n +\d+ \| ", what, maxsplit=1)[0]
    what = re.sub(r" \(at .*\)$", "", what).replace("%llguidance", "").strip()
    lines = text.split("\n")
    if not 1 <= line <= len(lines):
        return type(error)(what)
    start = sum(len(each) + 1 for each in lines[: line - 1])
    start += min(max(column - 1, 0), max(len(lines[line - 1]) - 1, 0))
    # The engine points at the option that contains the name.
    unknown = _UNKNOWN.match(what)
    for word in words(text):
        if unknown and word.text == unknown[1] and word.start >= start:
            return _placed(error, str(misplaced(text, word, what)), word.start)
    return _placed(error, str(complaint(text, start, start + 1, what)), start)


def _placed(error: ConstraintError, message: str, position: int) -> ConstraintError:
    """The same error about the grammar, and not about a part of it."""
    placed = copy(error)
    placed.args = (message,)
    if isinstance(placed, Malformed | NotEnforced):
        placed.position = position
    return placed


def _check(text: str, found: list[Word], special_ids: Container[int | None]) -> None:
    for word in found:
        if word.text in _REFUSED_STATEMENTS:
            raise _refused(text, word, f"{word.text}: {_REFUSED_STATEMENTS[word.text]}")
        if word.kind == "special" and special_id(word) not in special_ids:
            raise _refused(
                text, word, "a special token is written as `<[ID]>`, and others as their text"
            )
        if word.kind == "reference":
            raise _refused(text, word, "there are no other grammars to refer to")
    for line in lines(found):
        is_attributed = line[0].kind == "rule" and line[1:2] and line[1].text == "["
        for word in takewhile(lambda word: word.text != "]", line if is_attributed else ()):
            if word.text in _REFUSED_ATTRIBUTES:
                raise _refused(text, word, f"{word.text}: {_REFUSED_ATTRIBUTES[word.text]}")


def special_id(word: Word) -> int | None:
    """The id in `<[ID]>`."""
    match = re.fullmatch(r"<\[(\d+)\]>", word.text)
    return None if match is None else int(match[1])


def _refused(text: str, word: Word, what: str) -> NotEnforced:
    return NotEnforced(str(misplaced(text, word, what)), position=word.start)


def _rewritten(
    text: str, found: list[Word], whitespace: Whitespace, *, lenient: bool
) -> Iterator[tuple[int, str]]:
    """By place, the words that are replaced for the engine."""
    for word, following in zip_longest(found, found[1:]):
        if word.text == "~" and following is not None and following.kind == "number":
            # The engine misreads `~1..2` in some places, such as behind `"a"i`.
            yield word.start, "~ "
        elif word.kind == "special":
            yield word.start, f"special-{special_id(word)}"
        elif word.kind == "regexp":
            yield word.start, f"/{_pattern(text, word)}/"
        elif word.text == "%json":
            yield word.start, _schema(text, word, whitespace, lenient=lenient)


def _pattern(text: str, word: Word) -> str:
    pattern, _, flags = word.text[1:].rpartition("/")
    if "l" in flags:
        raise _refused(text, word, "the flag l is not supported")
    prefix = f"(?{flags})" if flags else ""
    try:
        return translate_terminal(prefix + pattern)
    except (Malformed, NotEnforced) as error:
        # The place of the pattern within the grammar.
        place = error.position
        what = str(error).partition("\n")[0].partition(": ")[2]
        start = word.start + 1 + max(0, (place or 0) - len(prefix))
        end = word.end if place is None else start + 1
        raise _placed(error, str(complaint(text, start, end, what)), start) from None


def _schema(text: str, word: Word, whitespace: Whitespace, *, lenient: bool) -> str:
    rewrite = json_schema.relaxed if lenient else json_schema.checked
    try:
        rewritten = rewrite(word.value, watches=False)
    except ConstraintError as error:
        message = f"{misplaced(text, word, 'in this schema')}\n{error}"
        raise _placed(error, message, word.start) from None
    literal = json_literal(rewritten.root, rewritten.definitions, whitespace)
    # As many lines as before, so that line numbers stay the same.
    return literal[:-1] + "\n" * text.count("\n", word.start, word.end) + literal[-1]
