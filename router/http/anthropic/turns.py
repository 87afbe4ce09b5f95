"""Messages and system prompts as Anthropic's clients write them: strings, or blocks of text.

Of blocks this server reads those of text; every other one is refused by its place and type.
"""

from itertools import groupby
from typing import Annotated, Any

from pydantic import PlainValidator, WithJsonSchema

from router.errors import InvalidRequest
from router.http.conversation import Turn

_ROLES = ("user", "assistant", "system")
# Between turns of one side that are told as one, which Anthropic promises and templates may need.
_JOINT = "\n\n"


def _read_text(value: Any, place: str) -> str:
    """A string, or the texts of blocks one behind the other."""
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise InvalidRequest(f"`{place}` must be a string or a list of blocks", place)
    return "".join(_block(block, f"{place}[{index}]") for index, block in enumerate(value))


def _block(block: Any, place: str) -> str:
    kind = block.get("type") if isinstance(block, dict) else None
    if kind == "text" and isinstance(block.get("text"), str):
        return str(block["text"])
    given = f" Given: a block of type `{kind[:60]}`" if isinstance(kind, str) else ""
    raise InvalidRequest(
        f'`{place}` must be a block like {{"type": "text", "text": ...}}; this model reads text.'
        + given,
        place,
    )


def _read_turns(value: Any) -> tuple[Turn, ...]:
    if not isinstance(value, list) or not value:
        raise InvalidRequest("`messages` must be a list of at least one message", "messages")
    turns = [_read_turn(message, f"messages[{index}]") for index, message in enumerate(value)]
    return tuple(
        Turn(role, _JOINT.join(turn.text for turn in neighbours))
        for role, neighbours in groupby(turns, key=lambda turn: turn.role)
    )


def _read_turn(message: Any, place: str) -> Turn:
    if not isinstance(message, dict):
        raise InvalidRequest(f"`{place}` must be an object with `role` and `content`", place)
    role = message.get("role")
    if role not in _ROLES:
        words = ", ".join(f"`{word}`" for word in _ROLES)
        raise InvalidRequest(f"`{place}.role` must be one of {words}", f"{place}.role")
    return Turn(role, _read_text(message.get("content"), f"{place}.content"))


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
_TURNS_SCHEMA: dict[str, Any] = {
    "type": "array",
    "minItems": 1,
    "items": {
        "type": "object",
        "properties": {"role": {"enum": list(_ROLES)}, "content": _TEXT_SCHEMA},
        "required": ["role", "content"],
    },
}

Turns = Annotated[tuple[Turn, ...], PlainValidator(_read_turns), WithJsonSchema(_TURNS_SCHEMA)]
System = Annotated[str, PlainValidator(_read_system), WithJsonSchema(_TEXT_SCHEMA)]
