"""Grammars in llguidance's dialect of Lark, limited to what masks can enforce.

Patterns have Python's syntax, as in Lark itself; embedded schemas are rewritten like all schemas.
What would need its own sampling, other tokens, or a second pass over the text is refused.
"""

import re
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass
from itertools import zip_longest

from constraints.errors import ConstraintError, Contradiction, Malformed, NotEnforced
from constraints.grammars import engine_messages, json_schema
from constraints.grammars.engine import HEADER
from constraints.grammars.lark_greed import rules_without_text
from constraints.grammars.lark_loops import may_run_on
from constraints.grammars.lark_negation import negations_as_texts
from constraints.grammars.lark_reader import (
    Word,
    check_nesting,
    misplaced,
    unproductive_rules,
    words,
)
from constraints.grammars.lark_terminals import empty_terminals
from constraints.grammars.limits import LIMITS
from constraints.grammars.regex import translate_terminal
from constraints.grammars.schema.engine_options import json_literal
from constraints.grammars.schema.locate_refusal import RefusalLocator
from constraints.spec import Kind, Whitespace
from constraints.where.error_position import complaint

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
_PLACE = re.compile(r"(?:at )?(\d+)\((\d+)\): (.*)", re.DOTALL)
_UNKNOWN = re.compile(r'unknown name: "(\w+)"')


@dataclass(frozen=True, slots=True)
class LarkGrammar:
    """A grammar in the notation of the engine; `may_run_on`: see `lark_loops`."""

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
    _check_greed(text, found)
    _check_terminals(text, found, written)
    pieces.append(text[at:])
    named = {_special_id(word) for word in found if word.kind == "special"}
    pieces += [
        f"\nspecial-{each}: <[{each}]>"
        for each in sorted(each for each in named if each is not None)
    ]
    return LarkGrammar("".join(pieces), may_run_on(found))


def explain(text: str, message: str) -> ConstraintError:
    """The error for a message of the engine, with a place in the client's grammar text."""
    error = engine_messages.explain(message)
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
        if word.kind == "special" and _special_id(word) not in special_ids:
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


def _check_greed(text: str, found: list[Word]) -> None:
    """Raises Contradiction."""
    starved = rules_without_text(found)
    if starved:
        names = tuple(dict.fromkeys(word.text for word in starved))
        what = (
            f"rule `{names[-1]}` has no text: terminals are greedy, and one of them always takes"
            " what would have to follow it"
        )
        raise Contradiction(str(misplaced(text, starved[-1], what)), names)


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


def _special_id(word: Word) -> int | None:
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
            yield word.start, f"special-{_special_id(word)}"
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
