"""Items of a conversation: messages, calls and their outputs, as clients write them."""

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

from pydantic import PlainValidator, WithJsonSchema

from router.http.conversation import Turn, read_role, read_texts
from router.http.schema import object_schema
from router.request.errors import InvalidRequest, Unsupported, quoted, wrong


@dataclass(frozen=True, slots=True)
class MessageItem:
    """What one side said: the texts of its parts. `status` is OpenAI's word for its end."""

    item_id: str
    role: str
    parts: tuple[str, ...]
    status: str = "completed"

    @property
    def texts(self) -> tuple[str, ...]:
        """All that it holds."""
        return self.parts

    @property
    def turn(self) -> Turn:
        """What the chat template sees."""
        return Turn(self.role, "".join(self.parts))


@dataclass(frozen=True, slots=True)
class FunctionCall:
    """A call that the model made. `arguments` are JSON text, whose end is missing if it was cut."""

    item_id: str
    call_id: str
    name: str
    arguments: str
    status: str = "completed"

    @property
    def texts(self) -> tuple[str, ...]:
        """All that it holds."""
        return (self.call_id, self.name, self.arguments)

    @property
    def turn(self) -> Turn:
        """What the chat template sees, which knows calls as parts of what the assistant said."""
        function = {"name": self.name, "arguments": self.arguments}
        call = {"id": self.call_id, "type": "function", "function": function}
        return Turn("assistant", "", (call,))

    def fields(self) -> dict[str, Any]:
        """As OpenAI tells it."""
        return {
            "id": self.item_id,
            "type": "function_call",
            "status": self.status,
            "arguments": self.arguments,
            "call_id": self.call_id,
            "name": self.name,
        }


@dataclass(frozen=True, slots=True)
class FunctionOutput:
    """What came of a call: a text, or the texts of its parts."""

    item_id: str
    call_id: str
    output: str | tuple[str, ...]
    status: str = "completed"

    @property
    def texts(self) -> tuple[str, ...]:
        """All that it holds."""
        output = (self.output,) if isinstance(self.output, str) else self.output
        return (self.call_id, *output)

    @property
    def turn(self) -> Turn:
        """What the chat template sees."""
        return Turn("tool", "".join(self.output), call_id=self.call_id)


Item = MessageItem | FunctionCall | FunctionOutput


def turns_of(items: Sequence[Item]) -> list[Turn]:
    """What the chat template sees: the calls of one answer, and its text, are one turn."""
    turns: list[Turn] = []
    for item in items:
        turn = item.turn
        if turn.calls and turns and turns[-1].role == "assistant":
            turns[-1] = replace(turns[-1], calls=(*turns[-1].calls, *turn.calls))
        else:
            turns.append(turn)
    return turns


def new_item_id(kind: str) -> str:
    """An id that no other item has; `kind` is what OpenAI's begin with."""
    return f"{kind}_{uuid.uuid4().hex}"


def message_fields(
    item_id: str, role: str, status: str, parts: list[dict[str, Any]]
) -> dict[str, Any]:
    """A message item."""
    return {"id": item_id, "type": "message", "status": status, "role": role, "content": parts}


def output_part(text: str, logprobs: list[dict[str, Any]]) -> dict[str, Any]:
    """A part of what the model said."""
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}


_ROLES = ("user", "assistant", "system", "developer")
_STATUSES = ("completed", "incomplete", "in_progress")
_INPUT_PARTS = ("input_text",)
# What an assistant said comes back as it went out; some clients write it as input all the same.
_OUTPUT_PARTS = ("output_text", "input_text")
_MAX_ID_LEN = 128


@dataclass(frozen=True, slots=True)
class Reference:
    """An item that is remembered, by its id."""

    item_id: str


def check_outputs(before: Sequence[Item], given: Sequence[Item]) -> None:
    """Raises InvalidRequest for an output of no call; `given` is what the request has as input."""
    called = {item.call_id for item in before if isinstance(item, FunctionCall)}
    for index, item in enumerate(given):
        if isinstance(item, FunctionCall):
            called.add(item.call_id)
        elif isinstance(item, FunctionOutput) and item.call_id not in called:
            place = f"input[{index}].call_id"
            raise InvalidRequest(
                f"`{place}` must be the `call_id` of a function call before it. "
                f"Given: `{item.call_id[:60]}`",
                place,
            )


def _read_items(value: Any) -> tuple[Item | Reference, ...]:
    if isinstance(value, str):
        return (MessageItem(new_item_id("msg"), "user", (value,)),)
    if not isinstance(value, list) or not value:
        raise wrong("input", "must be a string or a list of at least one item", value)
    return tuple(_read_item(item, f"input[{index}]") for index, item in enumerate(value))


def _read_item(item: Any, place: str) -> Item | Reference:
    if not isinstance(item, dict):
        raise wrong(place, "must be an object", item)
    # Both are known by what they have, where their type is not said.
    kind = item.get("type") or (
        "item_reference" if "id" in item and "role" not in item else "message"
    )
    if kind == "message":
        return _read_message(item, place)
    if kind == "function_call":
        return _read_call(item, place)
    if kind == "function_call_output":
        return _read_output(item, place)
    if kind == "item_reference":
        return Reference(_read_string(item, "id", place))
    raise Unsupported(
        f"`{place}` must be an item of type `message`, `function_call`, `function_call_output` or "
        f"`item_reference`; others are not served yet. Given: {quoted(kind)}",
        place,
    )


def _read_message(item: dict[str, Any], place: str) -> MessageItem:
    role = read_role(item, place, _ROLES)
    item_id = _read_id(item, "msg", place)
    types = _OUTPUT_PARTS if role == "assistant" else _INPUT_PARTS
    parts = read_texts(item.get("content"), f"{place}.content", types, "part")
    texts = (parts,) if isinstance(parts, str) else parts
    return MessageItem(item_id, role, texts, _read_status(item, place))


def _read_call(item: dict[str, Any], place: str) -> FunctionCall:
    call_id, name, arguments = (
        _read_string(item, field, place) for field in ("call_id", "name", "arguments")
    )
    item_id, status = _read_id(item, "fc", place), _read_status(item, place)
    return FunctionCall(item_id, call_id, name, arguments, status)


def _read_output(item: dict[str, Any], place: str) -> FunctionOutput:
    call_id = _read_string(item, "call_id", place)
    output = read_texts(item.get("output"), f"{place}.output", _INPUT_PARTS, "part")
    item_id, status = _read_id(item, "fco", place), _read_status(item, place)
    return FunctionOutput(item_id, call_id, output, status)


def _read_string(item: dict[str, Any], field: str, place: str) -> str:
    value = item.get(field)
    if not isinstance(value, str):
        raise wrong(f"{place}.{field}", "must be a string", value)
    return value


def _read_id(item: dict[str, Any], kind: str, place: str) -> str:
    item_id = item.get("id")
    if item_id is not None and not (isinstance(item_id, str) and 0 < len(item_id) <= _MAX_ID_LEN):
        rule = f"must be a string of 1 to {_MAX_ID_LEN} characters, or absent"
        raise wrong(f"{place}.id", rule, item_id)
    return item_id or new_item_id(kind)


def _read_status(item: dict[str, Any], place: str) -> str:
    status = item.get("status")
    if status is None:
        return "completed"
    if status not in _STATUSES:
        rule = "must be `completed`, `incomplete` or `in_progress`"
        raise wrong(f"{place}.status", rule, status)
    return str(status)


_TEXT: dict[str, Any] = {"type": "string"}
_PART_SCHEMA = object_schema({"type": {"enum": ["input_text", "output_text"]}, "text": _TEXT})
_TEXTS_SCHEMA: dict[str, Any] = {"anyOf": [_TEXT, {"type": "array", "items": _PART_SCHEMA}]}
_CALL_SCHEMA = {"type": {"const": "function_call"}, "call_id": _TEXT, "name": _TEXT}
_OUTPUT_SCHEMA = {"type": {"const": "function_call_output"}, "call_id": _TEXT}
_ITEM_SCHEMA: dict[str, Any] = {
    "anyOf": [
        object_schema(
            {"role": {"enum": [*_ROLES]}, "content": _TEXTS_SCHEMA}, type={"const": "message"}
        ),
        object_schema({**_CALL_SCHEMA, "arguments": _TEXT}),
        object_schema({**_OUTPUT_SCHEMA, "output": _TEXTS_SCHEMA}),
        object_schema({"type": {"const": "item_reference"}, "id": _TEXT}),
    ]
}
_ITEMS_SCHEMA: dict[str, Any] = {
    "anyOf": [_TEXT, {"type": "array", "minItems": 1, "items": _ITEM_SCHEMA}]
}

Items = Annotated[
    tuple[Item | Reference, ...], PlainValidator(_read_items), WithJsonSchema(_ITEMS_SCHEMA)
]
