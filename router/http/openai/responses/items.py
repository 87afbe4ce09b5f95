"""The items of a conversation: messages as they are given, remembered and told back.

Of items this server reads messages, of their parts those of text; every other one is refused by
its place and type.
"""

import uuid
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import PlainValidator, WithJsonSchema

from router.errors import InvalidRequest, Unserved
from router.http.conversation import Turn

_ROLES = ("user", "assistant", "system", "developer")
_INPUT_PARTS = ("input_text",)
# What an assistant said comes back as it went out; some clients write it as input all the same.
_OUTPUT_PARTS = ("output_text", "input_text")


@dataclass(frozen=True, slots=True)
class Item:
    """One message. `parts` are the texts of its parts, `status` is OpenAI's word for its end."""

    item_id: str
    role: str
    parts: tuple[str, ...]
    status: str = "completed"

    @property
    def turn(self) -> Turn:
        """What the chat template sees."""
        return Turn(self.role, "".join(self.parts))

    def fields(self) -> dict[str, Any]:
        """As OpenAI tells it."""
        parts: list[dict[str, Any]]
        if self.role == "assistant":
            parts = [output_part(text, []) for text in self.parts]
        else:
            parts = [{"type": "input_text", "text": text} for text in self.parts]
        return message_fields(self.item_id, self.role, self.status, parts)


def new_item_id() -> str:
    """An id that no other item has."""
    return f"msg_{uuid.uuid4().hex}"


def message_fields(
    item_id: str, role: str, status: str, parts: list[dict[str, Any]]
) -> dict[str, Any]:
    """A message item."""
    return {"id": item_id, "type": "message", "status": status, "role": role, "content": parts}


def output_part(text: str, logprobs: list[dict[str, Any]]) -> dict[str, Any]:
    """A part of what the model said."""
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}


def _read_items(value: Any) -> tuple[Item, ...]:
    if isinstance(value, str):
        return (Item(new_item_id(), "user", (value,)),)
    if not isinstance(value, list) or not value:
        raise InvalidRequest("`input` must be a string or a list of at least one item", "input")
    return tuple(_read_item(item, f"input[{index}]") for index, item in enumerate(value))


def _read_item(item: Any, place: str) -> Item:
    if not isinstance(item, dict):
        raise InvalidRequest(f"`{place}` must be an object", place)
    kind = item.get("type") or ("message" if "role" in item else None)
    if kind != "message":
        shown = f" Given: `{kind[:60]}`" if isinstance(kind, str) else ""
        raise Unserved(
            f"`{place}` must be an item of type `message`; others are not served yet.{shown}", place
        )
    role = item.get("role")
    if role not in _ROLES:
        words = ", ".join(f"`{word}`" for word in _ROLES)
        raise InvalidRequest(f"`{place}.role` must be one of {words}", f"{place}.role")
    item_id = item.get("id")
    if item_id is not None and not (isinstance(item_id, str) and 0 < len(item_id) <= 128):
        rule = "must be a string of 1 to 128 characters, or absent"
        raise InvalidRequest(f"`{place}.id` {rule}", f"{place}.id")
    parts = _read_content(item.get("content"), role, f"{place}.content")
    return Item(item_id or new_item_id(), role, parts, _read_status(item, place))


def _read_status(item: dict[str, Any], place: str) -> str:
    status = item.get("status")
    if status is None:
        return "completed"
    if status not in ("completed", "incomplete", "in_progress"):
        rule = "must be `completed`, `incomplete` or `in_progress`"
        raise InvalidRequest(f"`{place}.status` {rule}", f"{place}.status")
    return str(status)


def _read_content(content: Any, role: str, place: str) -> tuple[str, ...]:
    if isinstance(content, str):
        return (content,)
    if not isinstance(content, list):
        raise InvalidRequest(f"`{place}` must be a string or a list of parts", place)
    kinds = _OUTPUT_PARTS if role == "assistant" else _INPUT_PARTS
    return tuple(_read_part(part, kinds, f"{place}[{i}]") for i, part in enumerate(content))


def _read_part(part: Any, kinds: tuple[str, ...], place: str) -> str:
    kind = part.get("type") if isinstance(part, dict) else None
    if kind in kinds and isinstance(part.get("text"), str):
        return str(part["text"])
    given = f" Given: a part of type `{kind[:60]}`" if isinstance(kind, str) else ""
    raise InvalidRequest(
        f'`{place}` must be a part like {{"type": "{kinds[0]}", "text": ...}}; '
        f"this model reads text.{given}",
        place,
    )


_TEXT: dict[str, Any] = {"type": "string"}
_PART_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"type": {"enum": ["input_text", "output_text"]}, "text": _TEXT},
    "required": ["type", "text"],
}
_ITEM_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "type": {"const": "message"},
        "role": {"enum": list(_ROLES)},
        "content": {"anyOf": [_TEXT, {"type": "array", "items": _PART_SCHEMA}]},
    },
    "required": ["role", "content"],
}
_ITEMS_SCHEMA: dict[str, Any] = {
    "anyOf": [_TEXT, {"type": "array", "minItems": 1, "items": _ITEM_SCHEMA}]
}

Items = Annotated[tuple[Item, ...], PlainValidator(_read_items), WithJsonSchema(_ITEMS_SCHEMA)]
