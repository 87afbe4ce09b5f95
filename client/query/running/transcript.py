"""A trace's prompt: its parts, with the holes that made them and the turns of a chat.

"{:user}Hi. {:assistant}[X]"  ->  |user| Hi. |assistant| Hello! (X) |
without roles a prompt is plain text; with roles it is a list of turns for the chat template
"""

from collections.abc import Sequence
from dataclasses import dataclass

from client.calls import Message, Prompt

ASSISTANT = "assistant"
SYSTEM = "system"


@dataclass(frozen=True, slots=True)
class PromptPart:
    """A part of a prompt: fixed text, the text of `hole`, or the start of a turn of `role`."""

    text: str
    hole: str | None = None
    role: str | None = None


@dataclass(frozen=True, slots=True)
class Span:
    """The place of a hole's text in a prompt: characters, the end exclusive."""

    hole: str
    start: int
    end: int


PromptParts = tuple[PromptPart, ...]


class Transcript:
    """Owner of one run's prompt parts."""

    def __init__(self) -> None:
        self._parts: list[PromptPart] = []

    @property
    def prompt_parts(self) -> PromptParts:
        return tuple(self._parts)

    @property
    def is_plain(self) -> bool:
        """Whether no turn has begun."""
        return all(part.role is None for part in self._parts)

    @property
    def has_holes(self) -> bool:
        return any(part.hole is not None for part in self._parts)

    def say(self, text: str) -> None:
        if text:
            self._parts.append(PromptPart(text))

    def turn(self, role: str) -> None:
        self._parts.append(PromptPart(f"{{:{role}}}", role=role))

    def answer_now(self) -> None:
        """Prepare for a hole: in a chat, begin a turn of the assistant if necessary."""
        roles = [part.role for part in self._parts if part.role is not None]
        if roles and roles[-1] != ASSISTANT:
            self.turn(ASSISTANT)

    def fill(self, hole: str, text: str) -> None:
        self._parts.append(PromptPart(text, hole=hole))

    def mark(self) -> int:
        """A position for `truncate`."""
        return len(self._parts)

    def truncate(self, mark: int) -> PromptParts:
        """Remove the parts behind the mark, and return them."""
        dropped = tuple(self._parts[mark:])
        del self._parts[mark:]
        return dropped


def text_of(prompt_parts: Sequence[PromptPart]) -> str:
    """The prompt for people: turns begin with their tags, as in the program."""
    return "".join(part.text for part in prompt_parts)


def spans_of(prompt_parts: Sequence[PromptPart]) -> tuple[Span, ...]:
    """The places of the holes' texts in `text_of`."""
    spans = []
    position = 0
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
    """The turns, without surrounding white space, which is layout of the program.

    Text before the first tag is a system turn. A last turn of the assistant keeps its trailing
    white space, since the model continues it; an empty one is left to the template.
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
