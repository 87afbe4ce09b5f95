"""OpenAI's event streams: chunks of chats and of completions, ended by `[DONE]`."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

import orjson

from router.http.errors import problem_of
from router.http.logprobs import ChatLogprobs, OldLogprobs, TokenNames
from router.http.openai.reply import (
    FINISH_REASONS,
    Envelope,
    Usage,
    calls_delta,
    calls_reason,
    completion_reason,
    token_counts,
)
from router.http.openai.schema import CompletionBody
from router.http.request_validator import RequestRecord
from router.http.server.errors import Dialect
from router.http.server_info import constraint_fields
from router.http.tools.calls import CallFormat
from router.request.errors import RouterError
from router.request.request import Event, Failed, Finished, PromptScored, TokenGenerated

_DONE = b"data: [DONE]\n\n"
# The end of a chunk, and of nothing else: JSON's texts hold no line breaks.
_NO_USAGE = b'"usage":null}\n\n'
_NULL = b"null"


class ChoiceEncoder(ABC):
    """Encodes the chunks of one choice; empty bytes when there is nothing to send.

    `field` holds what a chunk adds: `delta` or `text`.
    """

    def __init__(self, envelope: Envelope, index: int, field: str, *, has_usage: bool) -> None:
        self._head = envelope.chunk_head() + b'{"index":%d,"%b":' % (index, field.encode())
        self._end = b',"usage":null}\n\n' if has_usage else b"}\n\n"

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
        fields = orjson.dumps({"finish_reason": reason, **constraint_fields(event)})[1:-1]
        return self._head + added + b',"logprobs":null,' + fields + b"}]" + self._end


class ChatEncoder(ChoiceEncoder):
    """The chunks of a chat's choice: the role, deltas of text and calls, the finish reason.

    With `prompt_ids` they go out with the role, and each token's id with the token. `echoed` is
    text that goes before the answer's. Without `calls` the answer is text.
    """

    def __init__(
        self,
        envelope: Envelope,
        index: int,
        calls: CallFormat | None,
        logprobs: ChatLogprobs | None,
        *,
        echoed: str,
        prompt_ids: tuple[int, ...] | None,
        has_usage: bool,
    ) -> None:
        super().__init__(envelope, index, "delta", has_usage=has_usage)
        self._calls = calls
        self._reader = None if calls is None else calls.reader()
        self._logprobs = logprobs
        self._has_ids = prompt_ids is not None
        role = {"role": "assistant", "content": "" if calls is None else None, "refusal": None}
        ids = b"" if prompt_ids is None else b',"prompt_token_ids":' + orjson.dumps(prompt_ids)
        # Sent with the first token, so that a client's first chunk means a first token.
        self._role = self._chunk(orjson.dumps(role), after=ids)
        if echoed:
            self._role += self._chunk(_text_delta(echoed))

    def scored(self, event: PromptScored) -> bytes:
        """Nothing: streamed chats have no log-probabilities of their prompt."""
        return b""

    def token(self, event: TokenGenerated) -> bytes:
        """The deltas; the token's own fields go with the first, an empty one if there is none."""
        deltas, logprobs, ids = self._deltas(event.text), _NULL, b""
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
        deltas, reason = self._deltas(event.tail), FINISH_REASONS[event.reason]
        if self._calls is not None and self._reader is not None:
            pieces = self._reader.finish()
            deltas += [orjson.dumps(calls_delta(self._calls, piece)) for piece in pieces]
            reason = calls_reason(self._reader.settled(event), self._reader.num_calls)
        chunks = [self._chunk(delta) for delta in deltas]
        return b"".join([self._opening(), *chunks, self._last(b"{}", reason, event)])

    def _opening(self) -> bytes:
        role, self._role = self._role, b""
        return role

    def _deltas(self, text: str) -> list[bytes]:
        if self._calls is None or self._reader is None:
            return [_text_delta(text)] if text else []
        return [orjson.dumps(calls_delta(self._calls, piece)) for piece in self._reader.push(text)]


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
        echo, self._echo = self._echo, ""
        return self._detailed(echo, orjson.dumps(self._logprobs.prompt(echo, event)), [])

    def token(self, event: TokenGenerated) -> bytes:
        """The text that may be shown now; nothing while it is held back."""
        if self._only_scores:
            return self._text("")
        if self._logprobs is None and not self._has_ids:
            return self._text(event.text)
        echo, self._echo = self._echo, ""
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
        text, self._echo = self._echo + text, ""
        if self._prompt_ids and text:
            return self._detailed(text, _NULL, [])
        return self._chunk(orjson.dumps(text)) if text else b""

    def _detailed(self, text: str, logprobs: bytes, token_ids: list[int]) -> bytes:
        ids, self._prompt_ids = self._prompt_ids, b""
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
            if self._usage is not None:
                self._usage.add(index, event)
            self._record.finished(event)
            return choice.finished(event)
        if isinstance(event, Failed):
            raise event.error
        return choice.scored(event)
