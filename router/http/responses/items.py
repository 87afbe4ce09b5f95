"""The items of a conversation: messages, calls of functions and what came of them.

As they are remembered, told back, and shown to the chat template. How clients write them is for
`input.py`.
"""

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from router.http.conversation import Turn


@dataclass(frozen=True, slots=True)
class Message:
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

    def fields(self) -> dict[str, Any]:
        """As OpenAI tells it."""
        if self.role == "assistant":
            parts = [output_part(text, []) for text in self.parts]
        else:
            parts = [input_part(text) for text in self.parts]
        return message_fields(self.item_id, self.role, self.status, parts)


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

    def fields(self) -> dict[str, Any]:
        """As OpenAI tells it."""
        output = self.output
        return {
            "id": self.item_id,
            "type": "function_call_output",
            "status": self.status,
            "call_id": self.call_id,
            "output": output if isinstance(output, str) else [input_part(text) for text in output],
        }


Item = Message | FunctionCall | FunctionOutput


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


def input_part(text: str) -> dict[str, Any]:
    """A part of what the model was told."""
    return {"type": "input_text", "text": text}


def output_part(text: str, logprobs: list[dict[str, Any]]) -> dict[str, Any]:
    """A part of what the model said."""
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}
