"""The objects of one GENERATE stream, as either version of the protocol writes them.

    version 1    TOKEN*, the last one with a finish reason, or an error object
    version 2    TOKEN* DONE, or TOKEN* and an error object

A client of version 1 does not see an error behind the fourth token: it waits for ever. So from the
fourth on each token is kept back until the next one is there, and a failure ends the stream with
the last good token and "length"; the client asks again, and then gets the error at once.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import orjson

from proto.contract import FinishReason
from router.http.lmtp.frames import Message, as_json, number
from router.http.lmtp.streams import StreamContext
from router.http.server.errors import HttpError
from router.request.errors import RouterError
from router.request.events import Event, Finished, TokenGenerated

# Tokens that version 1 sends at once: an error behind them is still seen.
_NUM_UNDELAYED = 3

# Finish reasons that are tokens of their own.
BY_TOKEN = (FinishReason.EOS, FinishReason.STOP_TOKEN)
_BY_LENGTH = (FinishReason.LENGTH, FinishReason.DEADLINE, FinishReason.PAUSED)


@dataclass(frozen=True, slots=True)
class TokenObject:
    """The JSON of a token, before and behind its finish reason, which may not be known yet."""

    head: str
    rest: str

    @classmethod
    def of(
        cls, stream_id: int, event: TokenGenerated, *, version: int, has_tops: bool, is_end: bool
    ) -> "TokenObject":
        """A generated token, with its alternatives and, in version 2, the text that it adds."""
        token, strictly = event.token, version > 1
        logprob = token.logprob if token.logprob is not None else 0.0
        head = (
            f'{{"token":{token.token_id},"stream_id":{stream_id},'
            f'"logprob":{number(logprob, strictly=strictly)},"finish_reason":'
        )
        rest = ""
        if has_tops:
            tops = {
                each.token_id: each.logprob for each in event.top_tokens if each.logprob is not None
            }
            tops.setdefault(token.token_id, logprob)
            entries = [f'"{key}":{number(tops[key], strictly=strictly)}' for key in tops]
            rest = f',"top_logprobs":{{{",".join(entries)}}}'
        if version > 1:
            text = orjson.dumps(event.text).decode()
            rest += f',"text":{text},"is_end":{"true" if is_end else "false"}'
        return cls(head, rest + "}")

    @classmethod
    def certain(cls, stream_id: int, token_id: int) -> "TokenObject":
        """A token of probability 1."""
        return cls(
            f'{{"token":{token_id},"stream_id":{stream_id},"logprob":0.0,"finish_reason":',
            f',"top_logprobs":{{"{token_id}":0.0}}}}',
        )

    def finished(self, reason: str | None) -> str:
        """The whole object; `reason` None: the stream goes on."""
        return self.head + ("null" if reason is None else f'"{reason}"') + self.rest


class EncoderV1:
    """Encodes the events of one stream for version 1."""

    def __init__(self, context: StreamContext) -> None:
        self._context = context
        self._stream_id = context.stream_id
        self._num_undelayed = _NUM_UNDELAYED
        self._kept: TokenObject | None = None
        self._messages: list[Message] = []
        self.stored: Mapping[str, object] | None = None

    def configure(self, *, has_tops: bool, has_deadline: bool) -> None:
        """Called before the first token. With a deadline the first ones are kept back as well."""
        if has_deadline:
            self._num_undelayed = 0

    def encode(self, burst: Sequence[Event]) -> list[Message]:
        """The messages of events, of which none is Failed, but for a token that is kept back."""
        for event in burst:
            if isinstance(event, TokenGenerated):
                self._release(None)
                self._kept = TokenObject.of(
                    self._stream_id, event, version=1, has_tops=True, is_end=False
                )
            elif isinstance(event, Finished):
                self._finish(event.reason)
        if self._num_undelayed > 0:
            self._release(None)
        return self._flush()

    def fail(self, error: RouterError | HttpError) -> list[Message]:
        """The kept token with "length"; the error where there is none."""
        if self._kept is None:
            return self._context.error(error)
        self._release("length")
        return self._flush()

    def cancelled(self, num_prompt_tokens: int, num_cached_tokens: int) -> list[Message]:
        """The kept token with "cancelled"; an error where there is none."""
        if self._kept is None:
            return self.fail(HttpError(499, "cancelled", "the stream was cancelled"))
        self._release("cancelled")
        return self._flush()

    def _finish(self, reason: FinishReason) -> None:
        word = _short_reason(reason)
        eos_id = self._context.services.eos_id
        # LMQL ends a hole by an end token alone.
        needs_end = reason is FinishReason.CONSTRAINT_COMPLETE or self._kept is None
        if needs_end and word == "stop" and eos_id is not None:
            self._release(None)
            self._kept = TokenObject.certain(self._stream_id, eos_id)
        if self._kept is None:
            message = f"the stream ended ({reason.value}) before another token was made"
            self._messages += self.fail(HttpError(504, reason.value, message))
        self._release(word)

    def _release(self, reason: str | None) -> None:
        if self._kept is not None:
            self._messages.append(("TOKEN", self._kept.finished(reason)))
            self._kept = None
            self._num_undelayed -= 1

    def _flush(self) -> list[Message]:
        messages, self._messages = self._messages, []
        return messages


class EncoderV2:
    """Encodes the events of one stream for version 2.

    `stored`: the fields of the buffer that was made of the output, for DONE.
    """

    def __init__(self, context: StreamContext) -> None:
        self._context = context
        self._stream_id = context.stream_id
        self._has_tops = False
        self._texts: list[str] = []
        self.stored: Mapping[str, object] | None = None

    def configure(self, *, has_tops: bool, has_deadline: bool) -> None:
        """Called before the first token. Alternatives are sent where they were requested."""
        self._has_tops = has_tops

    def encode(self, burst: Sequence[Event]) -> list[Message]:
        """The messages of events, of which none is Failed."""
        end = burst[-1] if burst and isinstance(burst[-1], Finished) else None
        tokens = [event for event in burst if isinstance(event, TokenGenerated)]
        messages: list[Message] = []
        for event in tokens:
            last = end if event is tokens[-1] else None
            is_end = last is not None and last.reason in BY_TOKEN and event.token.hidden
            fields = TokenObject.of(
                self._stream_id, event, version=2, has_tops=self._has_tops, is_end=is_end
            )
            reason = None if last is None else _short_reason(last.reason)
            messages.append(("TOKEN", fields.finished(reason)))
            self._texts.append(event.text)
        if end is not None:
            messages.append(("DONE", as_json(self._done(end))))
        return messages

    def fail(self, error: RouterError | HttpError) -> list[Message]:
        """An error object."""
        return self._context.error(error)

    def cancelled(self, num_prompt_tokens: int, num_cached_tokens: int) -> list[Message]:
        """A DONE with the text so far."""
        fields = {
            "stream_id": self._stream_id,
            "finish_reason": "cancelled",
            "text": "".join(self._texts),
            "tail": "",
            "usage": usage_fields(num_prompt_tokens, num_cached_tokens, len(self._texts)),
        }
        return [("DONE", as_json(fields))]

    def _done(self, end: Finished) -> dict[str, object]:
        usage = usage_fields(end.num_prompt_tokens, end.num_cached_tokens, end.num_generated_tokens)
        fields: dict[str, object] = {
            "stream_id": self._stream_id,
            "finish_reason": end.reason.value,
            "text": end.text,
            "tail": end.tail,
            "usage": usage,
        }
        # The text before a request that went on with a paused output.
        has_text_before = end.text_before or end.tail_before
        optional = {
            "stop_string": end.stop_string,
            "constraint_satisfied": end.constraint_satisfied,
            "violation": end.violation,
            "seed": end.seed,
            "stored": self.stored,
            "standing": {"text": end.text_before, "tail": end.tail_before}
            if has_text_before
            else None,
        }
        return fields | {key: value for key, value in optional.items() if value is not None}


StreamEncoder: TypeAlias = EncoderV1 | EncoderV2


def usage_fields(num_prompt: int, num_cached: int, num_output: int) -> dict[str, int]:
    """The tokens of a request: of the prompt, of these in the prefix cache, generated."""
    return {"prompt_tokens": num_prompt, "cached_tokens": num_cached, "output_tokens": num_output}


def _short_reason(reason: FinishReason) -> str:
    return "length" if reason in _BY_LENGTH else "stop"
