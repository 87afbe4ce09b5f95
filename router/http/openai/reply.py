"""OpenAI's answers, whole or as chunks that `[DONE]` ends, and their models in the document."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from types import MappingProxyType
from typing import Any, Literal

import orjson

from proto.contract import FinishReason
from router.engine.infer import Completion
from router.http.answers import Answer, Reading
from router.http.errors import Dialect, problem_of
from router.http.logprobs import ChatLogprobs, OldLogprobs, TokenNames, prompt_logprobs
from router.http.openai.schema import CompletionBody, OpenAiBody
from router.http.request_record import RequestRecord
from router.http.schema import AnswerModel, ConstrainedAnswer
from router.http.server_info import constraint_fields
from router.request.errors import RouterError
from router.request.request import (
    NO_WORK,
    Event,
    Failed,
    Finished,
    GenerateRequest,
    PromptScored,
    TokenGenerated,
)
from router.text.answer_reader import CallArguments, CallBegun, Piece, ThoughtPiece

FINISH_REASONS: Mapping[FinishReason, str] = MappingProxyType(
    {
        FinishReason.LENGTH: "length",
        FinishReason.EOS: "stop",
        FinishReason.STOP_TOKEN: "stop",
        FinishReason.STOP_STRING: "stop",
        FinishReason.CONSTRAINT_COMPLETE: "stop",
        FinishReason.DEADLINE: "deadline",
        # Nobody can ask for a pause here; it would be a limit on tokens.
        FinishReason.PAUSED: "length",
    }
)
# A stream's last event is this, and no JSON.
LAST_EVENT = "[DONE]"
CALL_ID_PREFIX = "call_"
_DONE = b"data: [DONE]\n\n"
# The end of a chunk, and of nothing else: JSON's texts hold no line breaks.
_NO_USAGE = b'"usage":null}\n\n'
_NULL = b"null"


@dataclass(frozen=True, slots=True)
class Envelope:
    """What every reply or chunk of one record repeats. `created_s` is in Unix time.

    `service_tier` is the one that served, shown to clients that chose one.
    """

    reply_id: str
    kind: str
    created_s: int
    model: str
    system_fingerprint: str
    service_tier: str | None = None

    def fields(self) -> dict[str, Any]:
        """The envelope's own fields, in OpenAI's order."""
        tier = {} if self.service_tier is None else {"service_tier": self.service_tier}
        return {
            "id": self.reply_id,
            "object": self.kind,
            "created": self.created_s,
            "model": self.model,
            "system_fingerprint": self.system_fingerprint,
            **tier,
        }

    def chunk_head(self) -> bytes:
        """The beginning of a chunk's frame, up to where its choices go."""
        return b"data: " + orjson.dumps(self.fields())[:-1] + b',"choices":['


class Usage:
    """Counts tokens over the draws of one call: a prompt once, however many its draws are.

    Without `counts_generated` the drawn tokens are dropped, and do not count.
    """

    def __init__(self, num_draws: int, *, counts_generated: bool = True) -> None:
        self._num_draws = num_draws
        self.counts_generated = counts_generated
        self._num_prompt_tokens = 0
        self._num_cached_tokens = 0
        self._num_generated_tokens = 0
        self._num_thought_tokens = 0
        self._work = NO_WORK

    @property
    def num_generated_tokens(self) -> int:
        """The drawn tokens that count."""
        return self._num_generated_tokens

    def add(self, index: int, end: Finished, num_thought_tokens: int = 0) -> None:
        """A draw's end; draws are numbered prompt by prompt."""
        if index % self._num_draws == 0:
            self._num_prompt_tokens += end.num_prompt_tokens
            self._num_cached_tokens += end.num_cached_tokens
        self._work = self._work.plus(end.work)
        if self.counts_generated:
            self._num_generated_tokens += end.num_generated_tokens
            self._num_thought_tokens += num_thought_tokens

    def fields(self) -> dict[str, Any]:
        """OpenAI's fields, and ours. There is no audio and no prediction."""
        return {
            **token_counts(self._num_prompt_tokens, self._num_generated_tokens),
            "prompt_tokens_details": {"cached_tokens": self._num_cached_tokens, "audio_tokens": 0},
            "completion_tokens_details": {
                "reasoning_tokens": self._num_thought_tokens,
                "audio_tokens": 0,
                "accepted_prediction_tokens": 0,
                "rejected_prediction_tokens": 0,
            },
            "work_details": self._work.fields(),
        }


def token_counts(num_prompt_tokens: int, num_generated_tokens: int) -> dict[str, Any]:
    """The usage without details, as vLLM has it in each chunk."""
    return {
        "prompt_tokens": num_prompt_tokens,
        "completion_tokens": num_generated_tokens,
        "total_tokens": num_prompt_tokens + num_generated_tokens,
    }


def prompt_fields(
    body: OpenAiBody, request: GenerateRequest, completion: Completion
) -> dict[str, Any]:
    """vLLM's fields about the prompt, as far as `body` asks for them."""
    fields: dict[str, Any] = {}
    if body.prompt_logprobs is not None and completion.prompt is not None:
        fields["prompt_logprobs"] = prompt_logprobs(completion.prompt, body.prompt_logprobs)
    if body.return_token_ids:
        fields["prompt_token_ids"] = request.prompt_ids
    return fields


def completion_reason(end: Finished, *, only_scores: bool) -> str:
    """The finish reason of a completion; where only the prompt is scored, its token is dropped."""
    if only_scores and end.reason is not FinishReason.DEADLINE:
        return FINISH_REASONS[FinishReason.LENGTH]
    return FINISH_REASONS[end.reason]


def ending_fields(end: Finished, reason: str) -> dict[str, Any]:
    """The fields of a choice's end. `stop_reason` is vLLM's: the stop string, or the id of the stop
    token, that ended it; null where nothing was given to stop at."""
    stopped_by = end.stop_token_id if end.stop_string is None else end.stop_string
    is_stopped = reason != FINISH_REASONS[FinishReason.LENGTH]
    return {
        "finish_reason": reason,
        "stop_reason": stopped_by if is_stopped else None,
        **constraint_fields(end),
    }


def answer_reason(end: Finished, num_calls: int) -> str:
    """The finish reason: that of calls, unless they were cut. `end` is settled."""
    reason = FINISH_REASONS[end.reason]
    return "tool_calls" if num_calls and reason == "stop" else reason


def answer_message(answer: Answer, echoed: str, *, shows_thought: bool) -> dict[str, Any]:
    """The message of a whole answer that was read."""
    content = echoed + answer.text
    calls = answer.calls
    thought = answer.thought if shows_thought else ""
    message: dict[str, Any] = {
        "role": "assistant",
        "content": content or (None if calls else ""),
        "refusal": None,
        **(_thought_fields(thought) if thought else {}),
    }
    if calls:
        message["tool_calls"] = [
            {
                "id": call.call_id,
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for call in calls
        ]
    return message


def _thought_fields(text: str) -> dict[str, str]:
    """vLLM's name, and the one that DeepSeek gave it: clients read the one or the other."""
    return {"reasoning": text, "reasoning_content": text}


def piece_delta(reading: Reading, piece: Piece, ids: Random) -> dict[str, Any]:
    """The delta of a piece of an answer that is read."""
    if isinstance(piece, ThoughtPiece):
        return _thought_fields(piece.text)
    if isinstance(piece, CallArguments):
        return {"tool_calls": [{"index": piece.index, "function": {"arguments": piece.text}}]}
    if not isinstance(piece, CallBegun):
        return {"content": piece.text}
    call = {
        "index": piece.index,
        "id": reading.call_id(CALL_ID_PREFIX, piece, ids),
        "type": "function",
        "function": {"name": piece.name, "arguments": ""},
    }
    return {"tool_calls": [call]}


class ChoiceEncoder(ABC):
    """Encodes the chunks of one choice; empty bytes when there is nothing to send.

    `field` holds what a chunk adds: `delta` or `text`.
    """

    def __init__(self, envelope: Envelope, index: int, field: str, *, has_usage: bool) -> None:
        self._head = envelope.chunk_head() + b'{"index":%d,"%b":' % (index, field.encode())
        self._end = b',"usage":null}\n\n' if has_usage else b"}\n\n"

    @property
    def num_thought_tokens(self) -> int:
        """Tokens of the thought so far."""
        return 0

    @abstractmethod
    def scored(self, event: PromptScored) -> bytes:
        """The prompt's log-probabilities."""

    @abstractmethod
    def token(self, event: TokenGenerated) -> bytes:
        """The text that may be shown now; nothing while it is held back."""

    @abstractmethod
    def finished(self, event: Finished) -> bytes:
        """What was held back, then nothing more, with the finish reason."""

    def _chunk(
        self, added: bytes, logprobs: bytes = _NULL, ids: bytes = b"", after: bytes = b""
    ) -> bytes:
        """A chunk with `ids` fields in its choice and `after` fields behind its choices."""
        return (
            self._head
            + added
            + b',"logprobs":'
            + logprobs
            + b',"finish_reason":null'
            + ids
            + b"}]"
            + after
            + self._end
        )

    def _last(self, added: bytes, reason: str, event: Finished) -> bytes:
        fields = orjson.dumps(ending_fields(event, reason))[1:-1]
        return self._head + added + b',"logprobs":null,' + fields + b"}]" + self._end


class ChatEncoder(ChoiceEncoder):
    """The chunks of a chat's choice: the role, deltas of thought, text and calls, the reason.

    With `prompt_ids` they go out with the role, and each token's id with the token. `echoed` is
    text that goes before the answer's. Without `reading` the answer is text.
    """

    def __init__(
        self,
        envelope: Envelope,
        index: int,
        reading: Reading | None,
        logprobs: ChatLogprobs | None,
        ids: Random,
        *,
        echoed: str,
        prompt_ids: tuple[int, ...] | None,
        has_usage: bool,
    ) -> None:
        super().__init__(envelope, index, "delta", has_usage=has_usage)
        self._reading = reading
        self._reader = None if reading is None else reading.reader()
        self._logprobs = logprobs
        self._ids = ids
        self._has_ids = prompt_ids is not None
        role = {"role": "assistant", "content": "" if reading is None else None, "refusal": None}
        after = b"" if prompt_ids is None else b',"prompt_token_ids":' + orjson.dumps(prompt_ids)
        # Sent with the first token, so that a client's first chunk means a first token.
        self._role = self._chunk(orjson.dumps(role), after=after)
        if echoed:
            self._role += self._chunk(_text_delta(echoed))

    def scored(self, event: PromptScored) -> bytes:
        """Nothing: streamed chats have no log-probabilities of their prompt."""
        return b""

    @property
    def num_thought_tokens(self) -> int:
        return 0 if self._reader is None else self._reader.num_thought_tokens

    def token(self, event: TokenGenerated) -> bytes:
        """The deltas; the token's own fields go with the first, an empty one if there is none."""
        if self._reader is None:
            deltas = [_text_delta(event.text)] if event.text else []
        else:
            deltas = self._deltas(self._reader.token(event))
        logprobs = _NULL
        ids = b""
        if self._logprobs is not None:
            logprobs = orjson.dumps(self._logprobs.of([event]))
        if self._has_ids:
            ids = b',"token_ids":[%d]' % event.token.token_id
        if not deltas and (self._has_ids or self._logprobs is not None):
            deltas = [_text_delta("") if self._reader is None else b"{}"]
        chunks = [self._chunk(delta) for delta in deltas[1:]]
        first = self._chunk(deltas[0], logprobs, ids) if deltas else b""
        return b"".join([self._opening(), first, *chunks])

    def finished(self, event: Finished) -> bytes:
        """What was held back, then an empty delta with the reason."""
        if self._reader is None:
            deltas = [_text_delta(event.tail)] if event.tail else []
            reason = FINISH_REASONS[event.reason]
        else:
            deltas = self._deltas(self._reader.finish(event))
            reason = answer_reason(self._reader.settled(event), self._reader.num_calls)
        chunks = [self._chunk(delta) for delta in deltas]
        return b"".join([self._opening(), *chunks, self._last(b"{}", reason, event)])

    def _opening(self) -> bytes:
        role = self._role
        self._role = b""
        return role

    def _deltas(self, pieces: Sequence[Piece]) -> list[bytes]:
        assert self._reading is not None
        shown = pieces
        if not self._reading.shows_thought:
            shown = [piece for piece in pieces if not isinstance(piece, ThoughtPiece)]
        return [orjson.dumps(piece_delta(self._reading, piece, self._ids)) for piece in shown]


def _text_delta(text: str) -> bytes:
    return b'{"content":' + orjson.dumps(text) + b"}"


class CompletionEncoder(ChoiceEncoder):
    """The chunks of a text: the prompt if it is echoed, pieces of text, the finish reason."""

    def __init__(
        self,
        envelope: Envelope,
        index: int,
        body: CompletionBody,
        names: TokenNames,
        *,
        echo: str,
        prompt_ids: Sequence[int],
    ) -> None:
        super().__init__(envelope, index, "text", has_usage=body.includes_usage)
        self._echo = echo
        self._only_scores = body.only_scores
        self._logprobs = None if body.logprobs is None else OldLogprobs(names, body.logprobs)
        self._has_ids = bool(body.return_token_ids)
        # Sent once, with the first chunk.
        self._prompt_ids = b""
        if self._has_ids:
            self._prompt_ids = b',"prompt_token_ids":' + orjson.dumps(list(prompt_ids))

    def scored(self, event: PromptScored) -> bytes:
        """The prompt with its log-probabilities."""
        if self._logprobs is None:
            return b""
        echo = self._echo
        self._echo = ""
        return self._detailed(echo, orjson.dumps(self._logprobs.prompt(echo, event)), [])

    def token(self, event: TokenGenerated) -> bytes:
        """The text that may be shown now; nothing while it is held back."""
        if self._only_scores:
            return self._text("")
        if self._logprobs is None and not self._has_ids:
            return self._text(event.text)
        echo = self._echo
        self._echo = ""
        logprobs = _NULL
        if self._logprobs is not None:
            logprobs = orjson.dumps(self._logprobs.of([event]))
        return self._detailed(echo + event.text, logprobs, [event.token.token_id])

    def finished(self, event: Finished) -> bytes:
        """What was held back, then an empty text with the reason."""
        reason = completion_reason(event, only_scores=self._only_scores)
        text = self._text("" if self._only_scores else event.tail)
        return text + self._last(b'""', reason, event)

    def _text(self, text: str) -> bytes:
        text = self._echo + text
        self._echo = ""
        if self._prompt_ids and text:
            return self._detailed(text, _NULL, [])
        return self._chunk(orjson.dumps(text)) if text else b""

    def _detailed(self, text: str, logprobs: bytes, token_ids: list[int]) -> bytes:
        ids = self._prompt_ids
        self._prompt_ids = b""
        if self._has_ids:
            ids += b',"token_ids":' + orjson.dumps(token_ids)
        return self._chunk(orjson.dumps(text), logprobs, ids)


class ChunkFrames:
    """Frames of one stream. `choices` are in the order of the draws.

    `usage` is sent at the end. With `num_prompt_tokens` each chunk holds the counts so far, in the
    place of null.
    """

    def __init__(
        self,
        record: RequestRecord,
        envelope: Envelope,
        choices: Sequence[ChoiceEncoder],
        usage: Usage | None,
        num_prompt_tokens: int | None,
    ) -> None:
        self._record = record
        self._envelope = envelope
        self._choices = choices
        self._usage = usage
        self._num_prompt_tokens = num_prompt_tokens
        self._num_generated_tokens = 0

    def render(self, index: int, burst: Sequence[Event]) -> bytes:
        """The chunks of a choice's events."""
        if self._num_prompt_tokens is not None:
            num_prompt = self._num_prompt_tokens
            return b"".join([self._counted(index, event, num_prompt) for event in burst])
        if len(burst) == 1:
            return self._chunks(index, burst[0])
        return b"".join([self._chunks(index, event) for event in burst])

    def fail(self, error: RouterError) -> bytes:
        """An error event, then the end."""
        problem = problem_of(error, Dialect.OPENAI)
        self._record.error_type = problem.error_type
        return problem.frame() + _DONE

    def end(self) -> bytes:
        """The usage, if it was asked for, and the end."""
        if self._usage is None:
            return _DONE
        usage = orjson.dumps(self._usage.fields())
        return self._envelope.chunk_head() + b'],"usage":' + usage + b"}\n\n" + _DONE

    def _counted(self, index: int, event: Event, num_prompt_tokens: int) -> bytes:
        if isinstance(event, TokenGenerated) and self._usage and self._usage.counts_generated:
            self._num_generated_tokens += 1
        counts = token_counts(num_prompt_tokens, self._num_generated_tokens)
        usage = b'"usage":' + orjson.dumps(counts) + b"}\n\n"
        return self._chunks(index, event).replace(_NO_USAGE, usage)

    def _chunks(self, index: int, event: Event) -> bytes:
        choice = self._choices[index]
        if isinstance(event, TokenGenerated):
            return choice.token(event)
        if isinstance(event, Finished):
            self._record.finished(event)
            last = choice.finished(event)
            if self._usage is not None:
                self._usage.add(index, event, choice.num_thought_tokens)
            return last
        if isinstance(event, Failed):
            raise event.error
        return choice.scored(event)


TextFinishReason = Literal["stop", "length", "deadline"]
ChatFinishReason = Literal["stop", "length", "tool_calls", "deadline"]


class CompletionUsage(AnswerModel):
    """Tokens of the call; the details come at its end."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: dict[str, int] | None = None
    completion_tokens_details: dict[str, int] | None = None
    work_details: dict[str, float] | None = None


ConstraintEffect = Literal["free", "steered", "forced"]


class TopLogprob(AnswerModel):
    """A token that could have been; `bytes` is null where it is no text."""

    token: str
    logprob: float
    bytes: list[int] | None


class ChatTokenLogprob(TopLogprob):
    """A token of the answer. `constraint`: what it did to the choice, if there is one."""

    top_logprobs: list[TopLogprob]
    constraint: ConstraintEffect | None = None


class ChatChoiceLogprobs(AnswerModel):
    """`logprobs` of a chat's choice."""

    content: list[ChatTokenLogprob]
    refusal: None


class PromptLogprob(AnswerModel):
    """vLLM's: a token of the prompt, or one that could have been."""

    logprob: float
    rank: int | None
    decoded_token: str


PromptLogprobs = list[dict[str, PromptLogprob] | None]


class CalledFunction(AnswerModel):
    """A tool's name and what it is called with, an object as JSON text."""

    name: str
    arguments: str


class ChatToolCall(AnswerModel):
    """A call of a tool."""

    id: str
    type: Literal["function"]
    function: CalledFunction


class ChatMessage(AnswerModel):
    """The model's turn; without text its content is null where it calls.

    `reasoning` and `reasoning_content` are the same text: what it thought before.
    """

    role: Literal["assistant"]
    content: str | None
    refusal: None
    reasoning: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[ChatToolCall] | None = None


class ChatChoice(ConstrainedAnswer):
    """One answer to a chat."""

    index: int
    message: ChatMessage
    logprobs: ChatChoiceLogprobs | None
    finish_reason: ChatFinishReason
    stop_reason: str | int | None
    token_ids: list[int] | None = None


class CalledFunctionDelta(AnswerModel):
    """A call's name, which comes whole, or a piece of its arguments."""

    name: str | None = None
    arguments: str


class ChatToolCallDelta(AnswerModel):
    """What a chunk adds to a call; id, type and name come with the first."""

    index: int
    id: str | None = None
    type: Literal["function"] | None = None
    function: CalledFunctionDelta


class ChatDelta(AnswerModel):
    """What a chunk adds to a turn."""

    role: Literal["assistant"] | None = None
    content: str | None = None
    refusal: None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[ChatToolCallDelta] | None = None


class ChatChunkChoice(ConstrainedAnswer):
    """What a chunk adds to an answer."""

    index: int
    delta: ChatDelta
    logprobs: ChatChoiceLogprobs | None
    finish_reason: ChatFinishReason | None
    stop_reason: str | int | None = None
    token_ids: list[int] | None = None


class OpenAiAnswer(AnswerModel):
    """What all answers and chunks of a call begin with. `created` is in Unix time."""

    id: str
    created: int
    model: str
    system_fingerprint: str
    service_tier: str | None = None


class ChatCompletion(OpenAiAnswer):
    """A whole answer to a chat."""

    object: Literal["chat.completion"]
    choices: list[ChatChoice]
    usage: CompletionUsage
    prompt_logprobs: PromptLogprobs | None = None
    prompt_token_ids: list[int] | None = None


class ChatCompletionChunk(OpenAiAnswer):
    """A chunk of the answers to a chat."""

    object: Literal["chat.completion.chunk"]
    choices: list[ChatChunkChoice]
    usage: CompletionUsage | None = None
    prompt_token_ids: list[int] | None = None


class CompletionLogprobs(AnswerModel):
    """Parallel lists; a first token of a prompt has no log-probability."""

    text_offset: list[int]
    token_logprobs: list[float | None]
    tokens: list[str]
    top_logprobs: list[dict[str, float] | None] | None
    constraint: list[ConstraintEffect | None] | None = None


class CompletionChunkChoice(ConstrainedAnswer):
    """What a chunk adds to a text."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: TextFinishReason | None
    stop_reason: str | int | None = None
    prompt_token_ids: list[int] | None = None
    token_ids: list[int] | None = None


class CompletionChoice(CompletionChunkChoice):
    """One text."""

    finish_reason: TextFinishReason
    stop_reason: str | int | None
    prompt_logprobs: PromptLogprobs | None = None


class TextCompletion(OpenAiAnswer):
    """The whole texts to one or several prompts."""

    object: Literal["text_completion"]
    choices: list[CompletionChoice]
    usage: CompletionUsage


class TextCompletionChunk(OpenAiAnswer):
    """A chunk of texts."""

    object: Literal["text_completion"]
    choices: list[CompletionChunkChoice]
    usage: CompletionUsage | None = None
