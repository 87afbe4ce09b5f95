"""Messages and system prompts as Anthropic's clients write them: strings, or blocks.

Of blocks this server reads those of text, of calls of tools and of their results; every other one
is refused by its place and type. A result is a turn by itself, as chat templates have it.
"""

from itertools import groupby
from typing import Annotated, Any

from pydantic import PlainValidator, WithJsonSchema

from router.http.conversation import Turn
from router.request.errors import InvalidRequest, quoted, wrong

_ROLES = ("user", "assistant", "system")
# Between turns of one side that are joined, which Anthropic promises and templates may need.
_JOINT = "\n\n"


def _read_text(value: Any, place: str) -> str:
    """A string, or the texts of blocks one behind the other."""
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise wrong(place, "must be a string or a list of blocks", value)
    return "".join(_block(block, f"{place}[{index}]") for index, block in enumerate(value))


def _block(block: Any, place: str) -> str:
    kind = block.get("type") if isinstance(block, dict) else None
    if kind == "text" and isinstance(block.get("text"), str):
        return str(block["text"])
    given = quoted(block)
    if kind is not None:
        given = f"the text {quoted(block.get('text'))}"
        given = given if kind == "text" else f"a block of type {quoted(kind)}"
    rule = 'must be a block like {"type": "text", "text": ...}; this model reads text'
    raise InvalidRequest(f"`{place}` {rule}. Given: {given}", place)


def _read_turns(value: Any) -> tuple[Turn, ...]:
    if not isinstance(value, list) or not value:
        raise wrong("messages", "must be a list of at least one message", value)
    turns = [
        turn
        for index, message in enumerate(value)
        for turn in _read_message(message, f"messages[{index}]")
    ]
    joined: list[Turn] = []
    for (role, is_text), neighbours in groupby(turns, key=lambda turn: (turn.role, _is_text(turn))):
        if is_text:
            joined.append(Turn(role, _JOINT.join(turn.text for turn in neighbours)))
        else:
            joined += neighbours
    return tuple(joined)


def _is_text(turn: Turn) -> bool:
    return not turn.calls and turn.call_id is None


def _read_message(message: Any, place: str) -> list[Turn]:
    if not isinstance(message, dict):
        raise wrong(place, "must be an object with `role` and `content`", message)
    role = message.get("role")
    if role not in _ROLES:
        words = ", ".join(f"`{word}`" for word in _ROLES)
        raise wrong(f"{place}.role", f"must be one of {words}", role)
    content, place = message.get("content"), f"{place}.content"
    if not isinstance(content, list):
        return [Turn(role, _read_text(content, place))]
    turns: list[Turn] = []
    calls: list[dict[str, Any]] = []
    text = ""
    for index, block in enumerate(content):
        kind = block.get("type") if isinstance(block, dict) else None
        if kind == "tool_use" and role == "assistant":
            calls.append(_read_call(block, f"{place}[{index}]"))
        elif kind == "tool_result" and role == "user":
            turns += [Turn(role, text)] if text else []
            turns.append(_read_result(block, f"{place}[{index}]"))
            text = ""
        else:
            text += _block(block, f"{place}[{index}]")
    return [*turns, Turn(role, text, tuple(calls))] if text or calls or not turns else turns


def _read_call(block: dict[str, Any], place: str) -> dict[str, Any]:
    """In OpenAI's words."""
    call_id, name, given = block.get("id"), block.get("name"), block.get("input")
    for field, value, kind, rule in (
        ("id", call_id, str, "must be a string"),
        ("name", name, str, "must be a string"),
        ("input", given, dict, "must be an object"),
    ):
        if not isinstance(value, kind):
            raise wrong(f"{place}.{field}", rule, value)
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": given}}


def _read_result(block: dict[str, Any], place: str) -> Turn:
    call_id, content = block.get("tool_use_id"), block.get("content")
    if not isinstance(call_id, str):
        raise wrong(f"{place}.tool_use_id", "must be a string", call_id)
    text = "" if content is None else _read_text(content, f"{place}.content")
    return Turn("tool", text, call_id=call_id)


def _read_system(value: Any) -> str:
    return _read_text(value, "system")


_BLOCKS_SCHEMA: dict[str, Any] = {
    "type": "array",
    "items": {
        "type": "object",
        "properties": {"type": {"const": "text"}, "text": {"type": "string"}},
        "required": ["type", "text"],
    },
}
_TEXT_SCHEMA: dict[str, Any] = {"anyOf": [{"type": "string"}, _BLOCKS_SCHEMA]}
_STRING: dict[str, Any] = {"type": "string"}
_CALL_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "type": {"const": "tool_use"},
        "id": _STRING,
        "name": _STRING,
        "input": {"type": "object"},
    },
    "required": ["type", "id", "name", "input"],
}
_RESULT_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "type": {"const": "tool_result"},
        "tool_use_id": _STRING,
        "content": {"anyOf": [_TEXT_SCHEMA, {"type": "null"}]},
    },
    "required": ["type", "tool_use_id"],
}
_CONTENT_SCHEMA: dict[str, Any] = {
    "anyOf": [
        _STRING,
        {
            "type": "array",
            "items": {"anyOf": [_BLOCKS_SCHEMA["items"], _CALL_SCHEMA, _RESULT_SCHEMA]},
        },
    ]
}
_TURNS_SCHEMA: dict[str, Any] = {
    "type": "array",
    "minItems": 1,
    "items": {
        "type": "object",
        "properties": {"role": {"enum": list(_ROLES)}, "content": _CONTENT_SCHEMA},
        "required": ["role", "content"],
    },
}

Turns = Annotated[tuple[Turn, ...], PlainValidator(_read_turns), WithJsonSchema(_TURNS_SCHEMA)]
System = Annotated[str, PlainValidator(_read_system), WithJsonSchema(_TEXT_SCHEMA)]
