"""The tools that an answer may call, and the grammar of such answers."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from constraints.grammars.schema.drafts import draft_of
from router.request.errors import wrong
from router.text.call_syntax import CallSyntax

# Where a root reference of a schema is moved to; longer where the schema has the key.
_MOVED = "arguments"


def arguments_schema(schema: Mapping[str, Any], place: str) -> dict[str, Any]:
    """The schema, that of an object in any case; it stands in the field `place`.

    Pointers into it stay valid. Raises InvalidRequest if its `type` is not `object`.
    """
    if schema.get("type", "object") != "object":
        raise wrong(f"{place}.type", "must be `object`", schema["type"])
    reference = schema.get("$ref")
    if not isinstance(reference, str) or not draft_of(schema).ref_is_alone:
        return {"type": "object", **schema}
    if _names_object(schema, reference):
        return dict(schema)
    # Drafts up to 7 ignore what stands beside a `$ref`, a `type` too.
    key = _MOVED
    while key in schema:
        key += "_"
    both = {"type": "object", "allOf": [{"$ref": reference}]}
    return {**schema, "$ref": f"#/{key}", key: both}


def _names_object(schema: Mapping[str, Any], reference: str) -> bool:
    """Whether a pointer leads straight to the schema of an object, as generated schemas have it."""
    target: Any = schema
    for key in reference.removeprefix("#/").split("/"):
        target = target.get(key) if isinstance(target, dict) else None
    return isinstance(target, dict) and target.get("type") == "object" and "$ref" not in target


_META = frozenset("\\.+*?()|[]{}^$#&-~/")


@dataclass(frozen=True, slots=True)
class AllowedTool:
    """A tool that may be called. `place` is the field of its parameters."""

    name: str
    parameters: Mapping[str, Any]
    place: str


@dataclass(frozen=True, slots=True)
class AllowedTools:
    """What an answer may consist of.

    allows_text: it may be text, before its calls or without any
    may_repeat: it may have several calls
    field: where the request lists the tools, `tools` or the old `functions`
    """

    tools: tuple[AllowedTool, ...]
    allows_text: bool
    may_repeat: bool
    field: str = "tools"


def tool_grammar(allowed: AllowedTools, syntax: CallSyntax, form: str | None = None) -> str:
    """The grammar of answers, in Lark. The whitespace of JSON is chosen by its compiler.

    `form` is the JSON schema of an answer that does not call, None: free text. Calls must not begin
    as JSON does.
    """
    begun, calls = syntax.opening + syntax.head, _calls(allowed, syntax)
    rules = [f"start: {_text(begun)} {calls}"]
    if allowed.allows_text and form is not None:
        rules = [f"start: answer | {_text(begun)} {calls}", f"answer: %json {form}"]
    elif allowed.allows_text:
        rules = [f"start: FREE | BEGIN {_text(begun.removeprefix(syntax.trigger))} {calls}"]
        rules += _free_text(syntax)
    alternatives = []
    for index, tool in enumerate(allowed.tools):
        alternatives.append(f"{_text(tool.name + syntax.middle)} arguments_{index}")
        rules.append(f"arguments_{index}: %json {orjson.dumps(tool.parameters).decode()}")
    rules.append("function: " + "\n    | ".join(alternatives))
    return "\n".join(rules) + "\n"


def _calls(allowed: AllowedTools, syntax: CallSyntax) -> str:
    """What follows the first call's head."""
    call = f"function {_text(syntax.tail)}"
    closing = _text(syntax.closing)
    if not allowed.may_repeat or syntax.separator is None:
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
