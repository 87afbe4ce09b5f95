"""How an answer is read: what was thought, what was said, what is called.

    tokens as they come --TokenReader--> pieces, in their order
    a whole answer --Reading.read--> Answer

The answer's tokens are counted as they are read: those of the thought are the tokens that came
until it ended, its marks among them.
"""

import string
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from types import MappingProxyType
from typing import Any

import orjson

from constraints.spec import ConstraintSpec, Kind
from router.engine.infer import Completion
from router.request.request import Finished, JudgedPart, TokenGenerated
from router.text.answer_format import AnswerFormat, CallForm, ThoughtForm
from router.text.answer_reader import (
    AnswerReader,
    CallArguments,
    CallBegun,
    Piece,
    TextPiece,
    ThoughtPiece,
)
from router.text.control_tokens import visible

_LETTERS = string.ascii_letters + string.digits
_ID_LEN = 24
_NO_TOOLS: Mapping[str, Mapping[str, Any]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Thought:
    """What was thought before something was said or called."""

    text: str


@dataclass(frozen=True, slots=True)
class Said:
    """Text for the reader."""

    text: str


@dataclass(frozen=True, slots=True)
class Call:
    """A call. Without `is_whole` its arguments are the beginning of an object."""

    call_id: str
    name: str
    arguments: str
    is_whole: bool = True


Part = Thought | Said | Call


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer. `end` is its end as clients see it."""

    parts: tuple[Part, ...]
    end: Finished
    num_thought_tokens: int = 0

    @property
    def thought(self) -> str:
        return "".join(part.text for part in self.parts if isinstance(part, Thought))

    @property
    def text(self) -> str:
        """What is said beside thoughts and calls."""
        return "".join(part.text for part in self.parts if isinstance(part, Said))

    @property
    def calls(self) -> tuple[Call, ...]:
        return tuple(part for part in self.parts if isinstance(part, Call))


@dataclass(frozen=True, slots=True)
class ReadingRules:
    """What the operator says of answers.

    separates_thoughts:   thoughts are told apart; else all is content, with its marks
    takes_unproven_tools: where the template's calls cannot be read back, models call in the generic
                          form; else tools are refused
    """

    separates_thoughts: bool = True
    takes_unproven_tools: bool = False

    def plain(self, answer_format: AnswerFormat) -> AnswerFormat:
        """The format with the parts that are told apart."""
        if self.separates_thoughts:
            return answer_format
        return replace(answer_format, thought=None, content_opening="", content_closing="")


READS_ALL = ReadingRules()


class TokenReader:
    """Reads one answer, token by token. Owner of the count of its thought's tokens."""

    def __init__(self, reader: AnswerReader) -> None:
        self._reader = reader
        self._num_tokens = 0
        self.num_thought_tokens = 0

    def skip(self, text: str) -> None:
        """Read the text of an answer that goes on, of which nothing is sent again."""
        self._reader.push(text)

    def token(self, event: TokenGenerated) -> list[Piece]:
        """What a token tells, with what was kept of those before it."""
        was_in_thought = self._reader.in_thought
        pieces = self._reader.push(event.text)
        self._num_tokens += 1
        if was_in_thought or self._reader.in_thought:
            self.num_thought_tokens = self._num_tokens
        return pieces

    def finish(self, end: Finished) -> list[Piece]:
        """What was held back until the end."""
        return self._reader.push(end.tail) + self._reader.finish()

    def settled(self, end: Finished) -> Finished:
        """The end as clients see it, once all is read: see `AnswerReader.settled`."""
        return self._reader.settled(end)

    @property
    def is_thought(self) -> bool:
        """Whether the last token is one of the thought."""
        return 0 < self.num_thought_tokens == self._num_tokens

    @property
    def num_calls(self) -> int:
        return self._reader.num_calls

    @property
    def has_begun_calls(self) -> bool:
        """Whether calls have begun, if only with what stands before the first one's name."""
        return self._reader.has_begun

    @property
    def in_thought(self) -> bool:
        return self._reader.in_thought

    @property
    def is_cut(self) -> bool:
        """Whether the last call's arguments are not whole."""
        return self._reader.is_cut


@dataclass(frozen=True, slots=True)
class Reading:
    """How one answer is read.

    in_thought:       the prompt ends within a thought
    may_call:         else what looks like a call is text
    calls_first:      what looks like a call behind a text is a part of it
    num_calls_before: in the conversation so far, for templates that count their calls
    shows_thought:    the client wants to see it
    hidden:           special tokens that are shown to the reader alone
    """

    answer_format: AnswerFormat
    in_thought: bool = False
    may_call: bool = False
    calls_first: bool = False
    parameters_by_tool: Mapping[str, Mapping[str, Any]] = field(default_factory=lambda: _NO_TOOLS)
    num_calls_before: int = 0
    shows_thought: bool = True
    hidden: tuple[str, ...] = ()

    def reader(self) -> TokenReader:
        """For one answer."""
        return TokenReader(self.text_reader())

    def text_reader(self) -> AnswerReader:
        """For one answer, of which only the text counts."""
        return AnswerReader(
            self.answer_format,
            self.parameters_by_tool,
            in_thought=self.in_thought,
            may_call=self.may_call,
            calls_first=self.calls_first,
            hidden=self.hidden,
        )

    def call_id(self, prefix: str, begun: CallBegun, ids: Random) -> str:
        """A new call's id; without the API's prefix where the template insists on its own form."""
        calls = self.answer_format.calls
        return new_call_id(calls, prefix, begun.name, self.num_calls_before + begun.index, ids)

    def read(self, completion: Completion, prefix: str, ids: Random) -> Answer:
        """A whole answer; `prefix` begins the ids of its calls, which are drawn from `ids`."""
        reader = self.reader()
        pieces: list[Piece] = []
        for event in completion.tokens:
            pieces += reader.token(event)
        pieces += reader.finish(completion.finished)
        parts: list[Part] = []
        for piece in pieces:
            self._add(parts, piece, prefix, ids)
        if reader.is_cut:
            last = parts[-1]
            assert isinstance(last, Call)
            parts[-1] = Call(last.call_id, last.name, last.arguments, is_whole=False)
        end = reader.settled(completion.finished)
        return Answer(tuple(parts), end, reader.num_thought_tokens)

    def _add(self, parts: list[Part], piece: Piece, prefix: str, ids: Random) -> None:
        """A piece, as one more part or in the one that it continues."""
        last = parts[-1] if parts else None
        if isinstance(piece, CallBegun):
            parts.append(Call(self.call_id(prefix, piece, ids), piece.name, ""))
        elif isinstance(piece, CallArguments):
            assert isinstance(last, Call)
            parts[-1] = Call(last.call_id, last.name, last.arguments + piece.text)
        elif isinstance(piece, ThoughtPiece):
            if isinstance(last, Thought):
                parts[-1] = Thought(last.text + piece.text)
            else:
                parts.append(Thought(piece.text))
        else:
            assert isinstance(piece, TextPiece)
            if isinstance(last, Said):
                parts[-1] = Said(last.text + piece.text)
            else:
                parts.append(Said(piece.text))


class RawThought:
    """What of a text behind a raw prompt is a thought. Marks may be tokens that no text shows."""

    def __init__(self, form: ThoughtForm, prompt: str) -> None:
        in_thought = form.opener != "" and visible(prompt).rstrip().endswith(form.opener)
        self._reader = Reading(AnswerFormat(thought=form), in_thought=in_thought).reader()
        self._marks = form.opening + form.closing
        self._text = ""

    def token(self, event: TokenGenerated) -> None:
        token = event.token
        if token.hidden and token.text in self._marks:
            event = event._replace(text=token.text + event.text)
        self._add(self._reader.token(event))

    def fields(self, end: Finished) -> dict[str, Any]:
        """The thought and its tokens, at the end; nothing where there is none."""
        self._add(self._reader.finish(end))
        if not self._text:
            return {}
        return {"reasoning": self._text, "reasoning_tokens": self._reader.num_thought_tokens}

    def _add(self, pieces: Sequence[Piece]) -> None:
        self._text += "".join(piece.text for piece in pieces if isinstance(piece, ThoughtPiece))


@dataclass(frozen=True, slots=True)
class SchemasOfAnswer:
    """What of an answer has a schema: the arguments of its calls, or its text if it calls nothing.

    `text` is the schema of that; None: it has none.
    """

    reading: Reading
    text: ConstraintSpec | None

    def of(self, text: str) -> Sequence[JudgedPart]:
        """The parts of a finished answer."""
        answer = self.reading.text_reader().read(text)
        if not answer.calls and self.text is not None:
            return [JudgedPart(self.text, answer.text)]
        return [
            JudgedPart(self._arguments(call.name), call.arguments, call.name)
            for call in answer.calls
            if call.is_whole
        ]

    def _arguments(self, name: str) -> ConstraintSpec:
        schema = self.reading.parameters_by_tool[name]
        return ConstraintSpec(Kind.JSON_SCHEMA, orjson.dumps(schema).decode())


def new_id(ids: Random) -> str:
    """Of an answer, or of a part of it."""
    return uuid.UUID(int=ids.getrandbits(128), version=4).hex


def new_call_id(form: CallForm | None, prefix: str, name: str, number: int, ids: Random) -> str:
    """An id for the call of a tool, the chat's `number`-th, counted from 0."""
    if form is not None and form.name_in_id:
        return f"functions.{name}:{number}"
    if form is not None and form.id_len is not None:
        return _letters(form.id_len, ids)
    return prefix + _letters(_ID_LEN, ids)


def _letters(length: int, ids: Random) -> str:
    return "".join(ids.choices(_LETTERS, k=length))
