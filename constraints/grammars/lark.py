"""Grammars in llguidance's dialect of Lark, limited to what masks can enforce.

Patterns have Python's syntax, as in Lark itself; embedded schemas are rewritten like all schemas.
What would need its own sampling, other tokens, or a second pass over the text is refused.

text -> words -> checks -> words that are replaced -> the text for the engine, which parses it

Only what the checks need is read here; the engine validates the notation.

A negated terminal is a set of texts: `~A` is every text that is not `A`. For the engine `~A` is all
bytes except those of `A`, including invalid UTF-8, and it has no `&` in rules. So `~A` is written
`~(A | ~/(?s:.*)/)`: neither `A` nor invalid.

A terminal that matches no text, such as A: /a/ & /b/, would allow texts that can never be
completed. So the engine is asked for each one that may be empty: where patterns are intersected or
negated (&, ~), or a set excludes categories of characters.

Terminals are greedy. In `start: A "ab" | "c"` with `A: /a+/` the terminal takes every `a`, so
nothing but another `a` can follow it: bytes are forced without end, and the engine would collect
them without end. This needs a loop that always continues with the same byte; a loop like `/[a-z]+/`
always has a choice. Unknown constructs count as such loops: forced bytes are then collected more
carefully, which costs time. That a whole grammar has no text for this reason is found by the search
for a first one.
"""

import json
import re
from collections.abc import Collection, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from time import thread_time

from constraints.definition_graph import check_depth, closure
from constraints.engine import HEADER, LIMITS, GrammarLanguage, Limits, error_of
from constraints.errors import (
    ConstraintError,
    Contradiction,
    Malformed,
    NotEnforced,
    TooComplex,
    complaint,
)
from constraints.guiding.alphabet import byte_vocabulary
from constraints.regex.char_sets import encodable, first_bytes
from constraints.regex.syntax import (
    Chars,
    Choice,
    Concat,
    Dialect,
    Pattern,
    Repeat,
    children,
    members,
    parse,
)
from constraints.regex.writing import translate_terminal
from constraints.schema import json_schema
from constraints.schema.grammar import json_literal
from constraints.schema.json_schema import RefusalLocator
from constraints.schema.reading import Json
from constraints.spec import Kind, Whitespace

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


_BROKEN = "~/(?s:.*)/"
_OPENING = ("(", "[")
_CLOSING = (")", "]")


def negations_as_texts(
    text: str, found: Sequence[Word], written: Mapping[int, str]
) -> dict[int, str]:
    """By place, the words of `text` that are replaced for the engine.

    written: replacements made before, which ignore negations
    """
    changed = dict(written)
    for line in lines(found):
        closed_by = _closed_by(line)
        # Inner negations come first, so that their brackets are closed first.
        for index in range(len(line) - 1, -1, -1):
            if not _negates(line, index) or (index and _negates(line, index - 1)):
                continue
            atom = _behind_signs(line, index)
            end = _end_of_atom(line, atom, closed_by)
            if end > len(line):
                continue
            # The engine allows no `~` before a `~`; two of them cancel out.
            changed.update({sign.start: "" for sign in line[index:atom]})
            if (atom - index) % 2:
                last = line[end - 1]
                inner = changed.get(last.start, text[last.start : last.end])
                changed[line[index].start] = "~("
                changed[last.start] = f"{inner} | {_BROKEN})"
    return changed


def _closed_by(line: Sequence[Word]) -> dict[int, int]:
    """Where each bracket is closed."""
    found: dict[int, int] = {}
    opened: list[int] = []
    for index, word in enumerate(line):
        if word.text in _OPENING:
            opened.append(index)
        elif word.text in _CLOSING and opened:
            found[opened.pop()] = index
    return found


def _negates(line: Sequence[Word], index: int) -> bool:
    """Whether a negation begins here: in `A~2..3` the sign is a repeat."""
    rest = line[index : index + 2]
    return len(rest) == 2 and rest[0].text == "~" and rest[1].kind != "number"


def _behind_signs(line: Sequence[Word], start: int) -> int:
    """The first word from here on that is no sign of a negation, or the line's last."""
    while line[start].text == "~" and start + 1 < len(line):
        start += 1
    return start


def _end_of_atom(line: Sequence[Word], start: int, closed_by: Mapping[int, int]) -> int:
    """The index behind the group, the range of characters or the single word that begins here."""
    if line[start].text in _OPENING:
        return closed_by.get(start, len(line)) + 1
    is_range = start + 1 < len(line) and line[start + 1].text == ".."
    return start + (3 if is_range else 1)


# The most terminals that are tried, and CPU seconds; one takes about a millisecond.
_MAX_TRIED = 64
_MAX_S = 0.2
_CUTS = re.compile(r"\[\^(?:[^\]\\]|\\.)*\\[sSdDwWpPxuU]")


def empty_terminals(text: str, found: Sequence[Word], written: Mapping[int, str]) -> list[Word]:
    """Names of terminals, and patterns in rules, that `start` reaches and that match no text.

    found: the words of the grammar
    written: by place, the words of `text` that are replaced for the engine
    """
    suspects = [word for word in _reached(found) if _may_be_empty(word, found)]
    if not suspects:
        return []
    shared = "".join(
        _as_rewritten(text, line, written) + "\n"
        for line in lines(found)
        if line[0].kind == "terminal" or line[0].text == "%import"
    )
    until = thread_time() + _MAX_S
    return [
        word
        for word in suspects[:_MAX_TRIED]
        if thread_time() < until
        and _is_empty(f"start: {_as_rewritten(text, [word], written)}\n{shared}")
    ]


def _reached(found: Sequence[Word]) -> list[Word]:
    """The names of reached terminals, and the patterns within rules."""
    bodies = {plain_name(each.name.text): each for each in definitions(found)}
    mentions = {
        name: [plain_name(word.text) for word in each.body] for name, each in bodies.items()
    }
    reached = check_depth(["start"], mentions)
    words: list[Word] = []
    for name, each in bodies.items():
        if name in reached and each.name.kind == "terminal":
            words.append(each.name)
        elif name in reached:
            words.extend(word for word in each.body if word.kind == "regexp")
    return words


def _may_be_empty(word: Word, found: Sequence[Word]) -> bool:
    if word.kind == "regexp":
        return _CUTS.search(word.text) is not None
    body = next(each.body for each in definitions(found) if each.name is word)
    return any(
        each.text in ("&", "~") or (each.kind == "regexp" and _CUTS.search(each.text))
        for each in body
    )


def _as_rewritten(text: str, words: Sequence[Word], written: Mapping[int, str]) -> str:
    pieces = []
    at = words[0].start
    for word in words:
        pieces += [text[at : word.start], written.get(word.start, text[word.start : word.end])]
        at = word.end
    return "".join(pieces)


def _is_empty(grammar: str) -> bool:
    try:
        GrammarLanguage(byte_vocabulary(), HEADER + grammar, Limits(), error_of)
    except Contradiction:
        return True
    except ConstraintError:
        return False  # the engine reports it for the whole grammar
    return False


# Keywords whose numbers may have any number of trailing zeros and nothing else.
_NUMBER_BOUNDS = ("multipleOf", "inimum", "aximum")
# Words of a terminal: loops outside of patterns, and operators that restrict a pattern.
_LOOPS = frozenset("+*{")
_EXCLUSIONS = frozenset("&~")


def may_run_on(found: Sequence[Word]) -> bool:
    """Whether bytes may be forced without end; for a grammar whose patterns are valid."""
    return any(map(_word_may_run_on, found)) or any(map(_terminal_may_run_on, _terminals(found)))


def _terminals(found: Sequence[Word]) -> Iterator[tuple[Word, ...]]:
    """The bodies of terminals; rules with attributes count as terminals."""
    for definition in definitions(found):
        if definition.name.kind == "terminal" or definition.has_attributes:
            yield definition.body


def _terminal_may_run_on(body: Sequence[Word]) -> bool:
    texts = {word.text for word in body}
    return not texts.isdisjoint(_LOOPS) or not texts.isdisjoint(_EXCLUSIONS)


def _word_may_run_on(word: Word) -> bool:
    if word.text == "%json":
        return any(keyword in json.dumps(word.value) for keyword in _NUMBER_BOUNDS)
    if word.kind == "regexp":
        pattern, _, flags = word.text[1:].rpartition("/")
        return _is_narrow(parse((f"(?{flags})" if flags else "") + pattern, Dialect.LARK))
    return word.text == "%regex"


def _is_narrow(pattern: Pattern) -> bool:
    """Whether some loop in it may continue with one byte only."""
    match pattern:
        case Chars():
            return not _first_bytes(pattern)
        case Repeat(part, _, None) if _begins(part).bit_count() < 2:
            return True
    return any(map(_is_narrow, children(pattern)))


def _begins(pattern: Pattern) -> int:
    """Bytes with which it can begin, as bits; possibly not all of them."""
    match pattern:
        case Chars():
            return _first_bytes(pattern)
        case Concat(parts):
            return _begins(parts[0]) if parts else 0
        case Choice(options):
            found = 0
            for option in options:
                found |= _begins(option)
            return found
        case Repeat(part, _, max_count) if max_count != 0:
            return _begins(part)
        case _:
            return 0


def _first_bytes(chars: Chars) -> int:
    try:
        return first_bytes(encodable(members(chars)))
    except NotEnforced:
        return 0  # a property that only the engine knows


_REFUSED_STATEMENTS = {
    "%llguidance": "options of the engine cannot be set",
    "%lark": "a grammar inside of a grammar is not supported; write its rules out",
    "%declare": "terminals without a pattern are not supported",
    "%override": "nothing is imported that could be overridden",
    "%extend": "nothing is imported that could be extended",
}
_REFUSED_ATTRIBUTES = {
    "max_tokens": "it would end a terminal in the middle; bound its pattern instead",
    "temperature": "it is the request's, and the same for the whole output",
    "stop": "it would hide text that was generated; let a rule end with the text instead",
    "stop_capture": "captures are not returned",
    "suffix": "write `lazy` and put the suffix into the pattern",
}
# Beside the message that no text was found: for an output's first search.
HINT_WITHOUT_TEXT = (
    ". Terminals are greedy: one that can continue takes what would have to follow it, as in"
    ' `/a+/ "ab"`'
)
_PLACE = re.compile(r"(?:at )?(\d+)\((\d+)\): (.*)", re.DOTALL)
_UNKNOWN = re.compile(r'unknown name: "(\w+)"')


@dataclass(frozen=True, slots=True)
class LarkGrammar:
    """A grammar in the notation of the engine; `may_run_on`: see `lark_greed`."""

    text: str
    may_run_on: bool


def to_grammar(
    text: str,
    whitespace: Whitespace = Whitespace.FLEXIBLE,
    special_ids: Container[int | None] = (),
    *,
    lenient: bool = False,
) -> LarkGrammar:
    """The grammar in the notation of the engine.

    whitespace:  of embedded JSON
    lenient:     of embedded schemas, see `ConstraintSpec`
    special_ids: tokens that stand for no text, and may be asked for as `<[ID]>`
    Each of them gets a line of its own, see `constraints.guiding.alphabet`.
    Raises Malformed, NotEnforced, Contradiction.
    """
    found = words(text)
    check_nesting(found)
    _check(text, found, special_ids)
    unproductive = unproductive_rules(found)
    if unproductive:
        names = tuple(dict.fromkeys(word.text for word in unproductive))
        wrong = misplaced(
            text, unproductive[0], f"rule `{names[0]}` never ends: no text follows it"
        )
        raise Contradiction(str(wrong), names)
    written = negations_as_texts(
        text, found, dict(_rewritten(text, found, whitespace, lenient=lenient))
    )
    pieces = [HEADER]
    at = 0
    for word in found:
        if word.start in written:
            pieces += [text[at : word.start], written[word.start]]
            at = word.end
    _check_terminals(text, found, written)
    pieces.append(text[at:])
    named = {special_id(word) for word in found if word.kind == "special"}
    pieces += [
        f"\nspecial-{each}: <[{each}]>"
        for each in sorted(each for each in named if each is not None)
    ]
    return LarkGrammar("".join(pieces), may_run_on(found))


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
    end = start + 1
    # The engine points at the option that contains the name.
    unknown = _UNKNOWN.match(what)
    for word in words(text):
        wrong = _wrong_schema(word) if word.text == "%json" and word.start >= start else None
        if wrong is not None:
            return _in_schema(text, word, wrong)
        if unknown and word.text == unknown[1] and word.start >= start:
            start = word.start
            end = word.end
            break
    placed = complaint(text, start, end, what)
    if isinstance(error, NotEnforced):
        return NotEnforced(str(placed), position=start)
    return placed if isinstance(error, Malformed) else type(error)(str(placed))


def _check(text: str, found: list[Word], special_ids: Container[int | None]) -> None:
    in_attributes = False
    for index, word in enumerate(found):
        if word.text in _REFUSED_STATEMENTS:
            raise _refused(text, word, f"{word.text}: {_REFUSED_STATEMENTS[word.text]}")
        if word.kind == "special" and special_id(word) not in special_ids:
            raise _refused(
                text, word, "a special token is written as `<[ID]>`, and others as their text"
            )
        if word.kind == "reference":
            raise _refused(text, word, "there are no other grammars to refer to")
        if word.text == "[" and _begins_attributes(found, index):
            in_attributes = True
        elif word.text == "]":
            in_attributes = False
        elif in_attributes and word.text in _REFUSED_ATTRIBUTES:
            raise _refused(text, word, f"{word.text}: {_REFUSED_ATTRIBUTES[word.text]}")


def _check_terminals(text: str, found: list[Word], written: Mapping[int, str]) -> None:
    """Raises Contradiction."""
    empty = empty_terminals(text, found, written)
    if not empty:
        return
    known = {word.start if word.kind == "regexp" else word.text for word in empty}
    rules = [word.text for word in unproductive_rules(found, known)]
    first = empty[0]
    what = f"no text satisfies {'this pattern' if first.kind == 'regexp' else 'this terminal'}"
    if rules:
        what += f", and without it rule `{rules[-1]}` cannot be completed"
    parts = tuple(dict.fromkeys([*(word.text for word in empty), *rules]))
    raise Contradiction(str(misplaced(text, first, what)), parts)


def special_id(word: Word) -> int | None:
    """The id in `<[ID]>`."""
    match = re.fullmatch(r"<\[(\d+)\]>", word.text)
    return None if match is None else int(match[1])


def _begins_attributes(found: list[Word], index: int) -> bool:
    """Whether attributes begin: they are between a rule's name at the line start and its colon."""
    before = [word.kind for word in found[max(0, index - 2) : index]]
    return before[-1:] == ["rule"] and before[:-1] in ([], ["newline"])


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
        wrong = complaint(text, start, start + 1 if place is not None else word.end, what)
        if isinstance(error, Malformed):
            raise wrong from None
        raise NotEnforced(str(wrong), position=start) from None


def _wrong_schema(word: Word) -> ConstraintError | None:
    """The error of the engine about an embedded schema, if there is one."""
    locator = RefusalLocator(json_schema.checked(word.value, watches=False), LIMITS[Kind.LARK])
    message = locator.message(locator.rewritten.root)
    return locator.error(message) if message else None


def _in_schema(text: str, word: Word, error: ConstraintError) -> ConstraintError:
    """The error of an embedded schema, with its place in the grammar."""
    message = f"{misplaced(text, word, 'in this schema')}\n{error}"
    match error:
        case NotEnforced():
            return NotEnforced(message, error.pointer, word.start)
        case Malformed():
            return Malformed(message, word.start, error.pointer)
        case Contradiction():
            return Contradiction(message, error.parts)
    return type(error)(message)


def _schema(text: str, word: Word, whitespace: Whitespace, *, lenient: bool) -> str:
    try:
        if lenient:
            rewritten = json_schema.relaxed(word.value, LIMITS[Kind.LARK], watches=False)
        else:
            rewritten = json_schema.checked(word.value, watches=False)
    except ConstraintError as error:
        raise _in_schema(text, word, error) from None
    literal = json_literal(rewritten.root, rewritten.definitions, whitespace)
    # As many lines as before, so that line numbers stay the same.
    return literal[:-1] + "\n" * text.count("\n", word.start, word.end) + literal[-1]
