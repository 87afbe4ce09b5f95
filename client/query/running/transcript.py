"""A trace's prompt as it grows: pieces of text, which hole made which, and whose turn it is.

"{:user}Hi. {:assistant}[X]"  ->  |user| Hi. |assistant| Hello! (X) |
without roles a prompt is plain text; with them it is turns for the model's chat template
"""

from collections.abc import Sequence
from dataclasses import dataclass

from client.calls import Message, Prompt

ASSISTANT = "assistant"
SYSTEM = "system"


@dataclass(frozen=True, slots=True)
class PromptPart:
    """A stretch of a prompt: fixed text, what `hole` made, or the beginning of `role`'s turn."""

    text: str
    hole: str | None = None
    role: str | None = None


@dataclass(frozen=True, slots=True)
class Span:
    """Where in a prompt's text a hole's text stands: characters, the end exclusive."""

    hole: str
    start: int
    end: int


PromptParts = tuple[PromptPart, ...]


class Transcript:
    """Owner of one run's pieces."""

    def __init__(self) -> None:
        self._parts: list[PromptPart] = []

    @property
    def prompt_parts(self) -> PromptParts:
        return tuple(self._parts)

    @property
    def is_plain(self) -> bool:
        """No turn has begun."""
        return all(part.role is None for part in self._parts)

    @property
    def has_holes(self) -> bool:
        return any(part.hole is not None for part in self._parts)

    def say(self, text: str) -> None:
        if text:
            self._parts.append(PromptPart(text))

    def turn(self, role: str) -> None:
        """What follows is a turn of `role`."""
        self._parts.append(PromptPart(f"{{:{role}}}", role=role))

    def answer_now(self) -> None:
        """A hole comes: in a chat it belongs to the assistant, whose turn begins if need be."""
        roles = [part.role for part in self._parts if part.role is not None]
        if roles and roles[-1] != ASSISTANT:
            self.turn(ASSISTANT)

    def fill(self, hole: str, text: str) -> None:
        self._parts.append(PromptPart(text, hole=hole))

    def mark(self) -> int:
        """A place to cut at later."""
        return len(self._parts)

    def truncate(self, mark: int) -> PromptParts:
        """Drop all behind the mark, and return it."""
        dropped = tuple(self._parts[mark:])
        del self._parts[mark:]
        return dropped


def text_of(prompt_parts: Sequence[PromptPart]) -> str:
    """The prompt for people: turns begin with their tags, as in the program."""
    return "".join(part.text for part in prompt_parts)


def spans_of(prompt_parts: Sequence[PromptPart]) -> tuple[Span, ...]:
    """Where in `text_of` the holes' texts stand."""
    spans, position = [], 0
    for part in prompt_parts:
        end = position + len(part.text)
        if part.hole is not None:
            spans.append(Span(part.hole, position, end))
        position = end
    return tuple(spans)


def prompt_of(prompt_parts: Sequence[PromptPart]) -> Prompt:
    """The prompt for the model: text, or turns if the program uses roles."""
    if all(part.role is None for part in prompt_parts):
        return text_of(prompt_parts)
    return messages_of(prompt_parts)


def messages_of(prompt_parts: Sequence[PromptPart]) -> tuple[Message, ...]:
    """The turns. White space around a turn is the program's layout and not part of it.

    Text before the first tag is a turn of system. A last turn of the assistant keeps the white
    space at its end, since the model goes on behind it; one that is empty is left to the template.
    """
    turns: list[tuple[str, str]] = [(SYSTEM, "")]
    for part in prompt_parts:
        if part.role is not None:
            turns.append((part.role, ""))
        else:
            role, text = turns[-1]
            turns[-1] = (role, text + part.text)
    (lead_role, lead), *middle, (last_role, last) = turns
    messages = [Message(lead_role, lead.strip())] if lead.strip() else []
    messages += [Message(role, text.strip()) for role, text in middle]
    if last_role != ASSISTANT:
        messages.append(Message(last_role, last.strip()))
    elif last.strip():
        messages.append(Message(ASSISTANT, last.lstrip()))
    return tuple(messages)
