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
class Piece:
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


Pieces = tuple[Piece, ...]


class Transcript:
    """Owner of one run's pieces."""

    def __init__(self) -> None:
        self._pieces: list[Piece] = []

    @property
    def pieces(self) -> Pieces:
        return tuple(self._pieces)

    @property
    def is_plain(self) -> bool:
        """No turn has begun."""
        return all(piece.role is None for piece in self._pieces)

    @property
    def has_holes(self) -> bool:
        return any(piece.hole is not None for piece in self._pieces)

    def say(self, text: str) -> None:
        if text:
            self._pieces.append(Piece(text))

    def turn(self, role: str) -> None:
        """What follows is a turn of `role`."""
        self._pieces.append(Piece(f"{{:{role}}}", role=role))

    def answer_now(self) -> None:
        """A hole comes: in a chat it belongs to the assistant, whose turn begins if need be."""
        roles = [piece.role for piece in self._pieces if piece.role is not None]
        if roles and roles[-1] != ASSISTANT:
            self.turn(ASSISTANT)

    def fill(self, hole: str, text: str) -> None:
        self._pieces.append(Piece(text, hole=hole))

    def mark(self) -> int:
        """A place to cut at later."""
        return len(self._pieces)

    def cut(self, mark: int) -> Pieces:
        """Drop all behind the mark, and return it."""
        dropped = tuple(self._pieces[mark:])
        del self._pieces[mark:]
        return dropped


def text_of(pieces: Sequence[Piece]) -> str:
    """The prompt for people: turns begin with their tags, as in the program."""
    return "".join(piece.text for piece in pieces)


def spans_of(pieces: Sequence[Piece]) -> tuple[Span, ...]:
    """Where in `text_of` the holes' texts stand."""
    spans, position = [], 0
    for piece in pieces:
        end = position + len(piece.text)
        if piece.hole is not None:
            spans.append(Span(piece.hole, position, end))
        position = end
    return tuple(spans)


def prompt_of(pieces: Sequence[Piece]) -> Prompt:
    """The prompt for the model: text, or turns if the program uses roles."""
    if all(piece.role is None for piece in pieces):
        return text_of(pieces)
    return messages_of(pieces)


def messages_of(pieces: Sequence[Piece]) -> tuple[Message, ...]:
    """The turns. White space around a turn is the program's layout and not part of it.

    Text before the first tag is a turn of system. A last turn of the assistant keeps the white
    space at its end, since the model goes on behind it; one that is empty is left to the template.
    """
    turns: list[tuple[str, str]] = [(SYSTEM, "")]
    for piece in pieces:
        if piece.role is not None:
            turns.append((piece.role, ""))
        else:
            role, text = turns[-1]
            turns[-1] = (role, text + piece.text)
    (lead_role, lead), *middle, (last_role, last) = turns
    messages = [Message(lead_role, lead.strip())] if lead.strip() else []
    messages += [Message(role, text.strip()) for role, text in middle]
    if last_role != ASSISTANT:
        messages.append(Message(last_role, last.strip()))
    elif last.strip():
        messages.append(Message(ASSISTANT, last.lstrip()))
    return tuple(messages)
