"""Tools and the choice among them as a grammar of what the model may write.

    start: free text | free text, trigger, calls      (auto)
    start: JSON of a schema | calls                   (auto, where text has a form)
    start: calls                                      (required, named)

Arguments are JSON of each tool's own schema, whose pointers stay what they are: every schema is a
document by itself inside of the grammar. It knows no requests, no tokens and no answers.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from router.text.call_syntax import CallSyntax

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
