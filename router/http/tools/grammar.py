"""The tools that an answer may call, as a grammar of what may be written."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from constraints.errors import ConstraintError
from constraints.grammars.schema.drafts import draft_of
from constraints.grammars.schema.reading import at
from constraints.grammars.schema.references import References
from router.request.errors import wrong
from router.text.call_syntax import CallSyntax

# Where there is room for it; a pointer may lead to any place of a document.
_PLACE = "arguments"


def arguments_schema(schema: Mapping[str, Any], place: str) -> dict[str, Any]:
    """What is both an object and of this schema, which stands in the field `place`.

    All pointers into the schema lead where they led before. Raises InvalidRequest for one whose
    `type` is another.
    """
    if schema.get("type", "object") != "object":
        raise wrong(f"{place}.type", "must be `object`", schema["type"])
    given = dict(schema)
    reference = given.get("$ref")
    if isinstance(reference, str) and draft_of(given).ref_is_alone:
        return _referring(given, reference)
    return {"type": "object", **given}


def _referring(schema: dict[str, Any], reference: str) -> dict[str, Any]:
    """A schema of a draft that ignores what stands beside a `$ref`, a `type` too.

    The reference is led through a place of ours, where both hold, and nothing that the draft
    ignores comes into force.
    """
    try:
        if _is_object(schema):
            return schema  # errors name the places that its author knows
    except (ConstraintError, RecursionError, TypeError, ValueError):
        return schema  # it leads nowhere, and is refused for that in the words of who compiles it
    place = _PLACE
    while place in schema:
        place += "_"
    both = {"type": "object", "allOf": [{"$ref": reference}]}
    return {**schema, "$ref": f"#/{place}", place: both}


def _is_object(schema: dict[str, Any]) -> bool:
    """Whether what references lead to, one after the other, says that it is an object."""
    references, pointer = References(schema), ""
    seen: set[str] = set()
    while pointer not in seen:
        seen.add(pointer)
        target = at(schema, pointer)
        if not isinstance(target, dict):
            return False
        target = references.draft(pointer).read(target)
        if "$ref" not in target or "type" in target:
            return bool(target.get("type") == "object")
        if not isinstance(target["$ref"], str):
            raise TypeError("a reference is a string")
        pointer = references.resolve(target["$ref"], pointer)
    return False


_META = frozenset("\\.+*?()|[]{}^$#&-~/")


@dataclass(frozen=True, slots=True)
class OfferedTool:
    """A tool that may be called. `place` is the field of its parameters."""

    name: str
    parameters: Mapping[str, Any]
    place: str


@dataclass(frozen=True, slots=True)
class AllowedTools:
    """What an answer may consist of.

    allows_text: it may be text, before its calls or without any
    may_repeat: it may have several calls
    """

    tools: tuple[OfferedTool, ...]
    allows_text: bool
    may_repeat: bool


def tool_grammar(offer: AllowedTools, syntax: CallSyntax, form: str | None = None) -> str:
    """The grammar, in Lark. The whitespace of JSON is for who compiles it.

    `form` is the JSON schema of an answer that does not call, None: free text. Calls must not begin
    as JSON does.
    """
    begun, calls = syntax.opening + syntax.head, _calls(offer, syntax)
    rules = [f"start: {_text(begun)} {calls}"]
    if offer.allows_text and form is not None:
        rules = [f"start: answer | {_text(begun)} {calls}", f"answer: %json {form}"]
    elif offer.allows_text:
        rules = [f"start: FREE | BEGIN {_text(begun.removeprefix(syntax.trigger))} {calls}"]
        rules += _free_text(syntax)
    alternatives = []
    for index, tool in enumerate(offer.tools):
        alternatives.append(f"{_text(tool.name + syntax.middle)} arguments_{index}")
        rules.append(f"arguments_{index}: %json {orjson.dumps(tool.parameters).decode()}")
    rules.append("function: " + "\n    | ".join(alternatives))
    return "\n".join(rules) + "\n"


def _calls(offer: AllowedTools, syntax: CallSyntax) -> str:
    """What follows the first call's head."""
    call = f"function {_text(syntax.tail)}"
    closing = _text(syntax.closing)
    if not offer.may_repeat or syntax.separator is None:
        return f"{call} {closing}"
    # No literal may begin with another that is legal in its place.
    if syntax.closing and syntax.separator.startswith(syntax.closing):
        more = syntax.separator.removeprefix(syntax.closing)
        return f"{call} {closing} ({_text(more + syntax.head)} {call} {closing})*"
    return f"{call} ({_text(syntax.separator + syntax.head)} {call})* {closing}"


def _free_text(syntax: CallSyntax) -> list[str]:
    """Text without a trigger, and text with one at its end.

    They cannot be mistaken for each other: where BEGIN is whole neither goes on.
    """
    trigger = _pattern(syntax.trigger)
    if syntax.only_at_start:
        return [f"FREE: /(?s:.*)/ & ~/{trigger}(?s:.*)/", f"BEGIN: /{trigger}/"]
    return [
        f"FREE: /(?s:.*)/ & ~/(?s:.*){trigger}(?s:.*)/",
        f"BEGIN: /(?s:.*){trigger}/ & ~/(?s:.*){trigger}(?s:.+)/",
    ]


def _text(text: str) -> str:
    """A literal; nothing for an empty one."""
    return orjson.dumps(text).decode() if text else ""


def _pattern(text: str) -> str:
    return "".join(f"\\{char}" if char in _META else char for char in text)
