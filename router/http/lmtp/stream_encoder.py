"""What a stream of generated tokens says, in either version of the protocol.

    version 1    TOKEN*, the last one with a finish reason, or an error object while that is seen
    version 2    TOKEN* DONE, or TOKEN* and an error object

A client of version 1 does not see an error that comes behind four tokens: it waits for ever. So
from the fourth on each token is kept back until there is another, and a failure ends the stream
with the last good one, by "length"; the client asks again, and then gets the error at once.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Protocol

from proto.contract import FinishReason
from router.http.lmtp.objects import TokenObject, as_json, error_fields
from router.http.server.errors import HttpError
from router.request.errors import RouterError
from router.request.events import Event, Finished, TokenGenerated

Message = tuple[str, str]

# Tokens behind which a client of version 1 still sees an error.
_NUM_SEEN = 3

_REASONS: Mapping[FinishReason, str] = MappingProxyType(
    {
        FinishReason.LENGTH: "length",
        FinishReason.DEADLINE: "length",
        FinishReason.PAUSED: "length",
    }
)
# Ends that are a token of their own.
BY_TOKEN = (FinishReason.EOS, FinishReason.STOP_TOKEN)


class StreamEncoder(Protocol):
    """A stream's voice. Each answer is a list of (type, object), in order.

    `stored` tells of a buffer that was made of the output.
    """

    stored: Mapping[str, object] | None

    def expect(self, *, has_tops: bool, has_deadline: bool) -> None:
        """What is known before the first token: are there alternatives, may time end it."""

    def tell(self, burst: Sequence[Event]) -> list[Message]:
        """What happened. A Failed is for `fail`."""

    def fail(self, error: RouterError | HttpError) -> list[Message]:
        """The bad end."""

    def cancelled(self, num_prompt_tokens: int, num_cached_tokens: int) -> list[Message]:
        """The end that the client asked for."""


class EncoderV1:
    """Version 1. `eos_id` ends what ends without an end token: nothing else ends a hole."""

    def __init__(self, stream_id: int, eos_id: int | None) -> None:
        self._stream_id = stream_id
        self._eos_id = eos_id
        self._num_free = _NUM_SEEN
        self._kept: TokenObject | None = None
        self._messages: list[Message] = []
        self.stored: Mapping[str, object] | None = None

    def expect(self, *, has_tops: bool, has_deadline: bool) -> None:
        """Where time may end the stream, the first tokens are kept back as well."""
        if has_deadline:
            self._num_free = 0

    def tell(self, burst: Sequence[Event]) -> list[Message]:
        """The tokens but for the one that is kept."""
        for event in burst:
            if isinstance(event, TokenGenerated):
                self._let_go(None)
                self._kept = TokenObject.of(
                    self._stream_id, event, version=1, has_tops=True, is_end=False
                )
            elif isinstance(event, Finished):
                self._finish(event.reason)
        if self._num_free > 0:
            self._let_go(None)
        return self._take()

    def fail(self, error: RouterError | HttpError) -> list[Message]:
        """The last good token by "length", or the error if it is seen."""
        if self._kept is None:
            fields = {"stream_id": self._stream_id, **error_fields(error)}
            return [("TOKEN", as_json(fields))]
        self._let_go("length")
        return self._take()

    def cancelled(self, num_prompt_tokens: int, num_cached_tokens: int) -> list[Message]:
        """The last token with a reason of its own."""
        if self._kept is None:
            return self.fail(HttpError(499, "cancelled", "the stream was cancelled"))
        self._let_go("cancelled")
        return self._take()

    def _finish(self, reason: FinishReason) -> None:
        word = _REASONS.get(reason, "stop")
        needs_end = reason is FinishReason.CONSTRAINT_COMPLETE or self._kept is None
        if needs_end and word == "stop" and self._eos_id is not None:
            self._let_go(None)
            self._kept = TokenObject.certain(self._stream_id, self._eos_id)
        if self._kept is None:
            message = f"the stream ended ({reason.value}) before another token was made"
            self._messages += self.fail(HttpError(504, reason.value, message))
        self._let_go(word)

    def _let_go(self, reason: str | None) -> None:
        if self._kept is not None:
            self._messages.append(("TOKEN", self._kept.ending(reason)))
            self._kept = None
            self._num_free -= 1

    def _take(self) -> list[Message]:
        messages, self._messages = self._messages, []
        return messages


class EncoderV2:
    """Version 2."""

    def __init__(self, stream_id: int) -> None:
        self._stream_id = stream_id
        self._has_tops = False
        self._texts: list[str] = []
        self.stored: Mapping[str, object] | None = None

    def expect(self, *, has_tops: bool, has_deadline: bool) -> None:
        """Alternatives are sent where they were requested."""
        self._has_tops = has_tops

    def tell(self, burst: Sequence[Event]) -> list[Message]:
        """The tokens, and in the end what became of them."""
        end = burst[-1] if burst and isinstance(burst[-1], Finished) else None
        tokens = [event for event in burst if isinstance(event, TokenGenerated)]
        messages: list[Message] = []
        for event in tokens:
            is_last = end is not None and event is tokens[-1]
            is_end = is_last and end is not None and end.reason in BY_TOKEN and event.token.hidden
            fields = TokenObject.of(
                self._stream_id, event, version=2, has_tops=self._has_tops, is_end=is_end
            )
            reason = None if end is None else _REASONS.get(end.reason, "stop")
            messages.append(("TOKEN", fields.ending(reason if is_last else None)))
            self._texts.append(event.text)
        if end is not None:
            messages.append(("DONE", as_json(self._done(end))))
        return messages

    def fail(self, error: RouterError | HttpError) -> list[Message]:
        """An error object."""
        return [("TOKEN", as_json({"stream_id": self._stream_id, **error_fields(error)}))]

    def cancelled(self, num_prompt_tokens: int, num_cached_tokens: int) -> list[Message]:
        """Its DONE."""
        fields = {
            "stream_id": self._stream_id,
            "finish_reason": "cancelled",
            "text": "".join(self._texts),
            "tail": "",
            "usage": {
                "prompt_tokens": num_prompt_tokens,
                "cached_tokens": num_cached_tokens,
                "output_tokens": len(self._texts),
            },
        }
        return [("DONE", as_json(fields))]

    def _done(self, end: Finished) -> dict[str, object]:
        fields: dict[str, object] = {
            "stream_id": self._stream_id,
            "finish_reason": end.reason.value,
            "text": end.text,
            "tail": end.tail,
            "usage": {
                "prompt_tokens": end.num_prompt_tokens,
                "cached_tokens": end.num_cached_tokens,
                "output_tokens": end.num_generated_tokens,
            },
        }
        optional = {
            "stop_string": end.stop_string,
            "constraint_satisfied": end.constraint_satisfied,
            "violation": end.violation,
            "seed": end.seed,
            "stored": self.stored,
            "standing": _standing(end),
        }
        return fields | {key: value for key, value in optional.items() if value is not None}


def _standing(end: Finished) -> dict[str, str] | None:
    """Of a paused stream: the text of the output before it."""
    if not (end.text_before or end.tail_before):
        return None
    return {"text": end.text_before, "tail": end.tail_before}
