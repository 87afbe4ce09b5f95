"""One GENERATE stream, from the fields of its frame to its last object."""

from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import replace

from router.http.body import parse_part
from router.http.lmtp.frames import Frame, Message, error_type_of
from router.http.lmtp.prompts import Prompt, buffer_fields
from router.http.lmtp.schema import GenerateFields
from router.http.lmtp.stream_encoder import BY_TOKEN, EncoderV1, EncoderV2, StreamEncoder
from router.http.lmtp.streams import QueueNotices, SendMessages, StreamContext
from router.http.request_validator import normalize
from router.http.server.errors import HttpError
from router.http.server_info import served_name
from router.request.errors import RouterError
from router.request.events import Event, Failed, Finished, TokenGenerated
from router.request.request import GenerateRequest
from router.request.validation import Limits, RawParams

MAX_TOP_LOGPROBS = 256
MAX_STOPS = 64
# The default of LMQL's own server.
_DEFAULT_MAX_TOKENS = 32

# The protocol's names of `RawParams`' fields, for errors.
_NAMES = {
    "max_new_tokens": "max_tokens",
    "min_new_tokens": "min_tokens",
    "top_n_tokens": "top_logprobs",
    "grammar": "constraint",
    "max_time": "timeout_s",
    "output_ids": "output",
    "pause_after": "num_steps",
    "keep_stop_string": "include_stop",
}


class GenerateStream:
    """One stream of tokens."""

    def __init__(self, context: StreamContext) -> None:
        self._context = context
        self._services = context.services
        self._encoder: StreamEncoder = (
            EncoderV2(context) if context.version > 1 else EncoderV1(context)
        )
        self._num_cached_tokens = 0

    async def run(self, frame: Frame, send: SendMessages) -> list[Message]:
        """Streams tokens; returns the last messages. Raises RouterError, HttpError."""
        body = parse_part(frame.text, frame.payload, (), GenerateFields)
        served_name(self._services.info, body.model)
        request = await self._request(body)
        self._encoder.configure(
            has_tops=bool(request.logprobs.num_top_tokens) or self._context.version == 1,
            has_deadline=request.deadline_s is not None,
        )
        accepted = self._services.infer.accept(request)
        notices = QueueNotices(self._context, lambda: accepted.place)
        output_ids: list[int] = []
        try:
            async with aclosing(accepted.events()) as events:
                async for burst in events:
                    notices.started()
                    self._num_cached_tokens = accepted.num_cached_tokens
                    if body.store is not None:
                        output_ids += _token_ids(burst)
                    messages = self._encoded(body, request, output_ids, burst)
                    if isinstance(burst[-1], Finished | Failed):
                        return messages
                    await send(messages)
        finally:
            notices.close()
        raise AssertionError("the last burst has the end")

    def fail(self, error: RouterError | HttpError) -> list[Message]:
        """The last objects of a stream that fails."""
        return self._encoder.fail(error)

    def cancelled(self) -> list[Message]:
        """The last objects of a stream that its client cancelled."""
        num_prompt_tokens = self._context.record.num_prompt_tokens
        return self._encoder.cancelled(num_prompt_tokens, self._num_cached_tokens)

    def _encoded(
        self,
        body: GenerateFields,
        request: GenerateRequest,
        output_ids: list[int],
        burst: Sequence[Event],
    ) -> list[Message]:
        end = burst[-1]
        if isinstance(end, Failed):
            self._context.record.error_type = error_type_of(end.error)
            return self._encoder.encode(burst[:-1]) + self._encoder.fail(end.error)
        if isinstance(end, Finished):
            self._context.record.finished(end)
            if body.store is not None:
                kept_ids = output_ids[:-1] if end.reason in BY_TOKEN else output_ids
                token_ids = request.prompt_ids + request.output_ids + tuple(kept_ids)
                ttl_s = self._context.buffers.put(body.store, token_ids, "store")
                self._encoder.stored = buffer_fields(body.store, len(token_ids), ttl_s)
        return self._encoder.encode(burst)

    async def _request(self, body: GenerateFields) -> GenerateRequest:
        services = self._services
        prompt = await services.prompts.read(body, self._context.buffers)
        raw = raw_params(body, prompt, services.info.limits, version=self._context.version)
        request = await services.validator.check(
            self._context.record, prompt.content, raw, add_special_tokens=prompt.add_special_tokens
        )
        if body.store is not None:
            max_len = len(request.prompt_ids) + request.stop.max_new_tokens
            self._context.buffers.check(body.store, max_len, "store")
        return request


def _token_ids(burst: Sequence[Event]) -> list[int]:
    return [event.token.token_id for event in burst if isinstance(event, TokenGenerated)]


def raw_params(body: GenerateFields, prompt: Prompt, limits: Limits, *, version: int) -> RawParams:
    """GENERATE's fields as unchecked parameters. Raises InvalidRequest."""
    tops = body.top_logprobs
    # A mask may be large: only validation reads it, once.
    sampling = {**body.sampling(), "logit_bias": None}
    if body.temperature is None:
        sampling["temperature"] = 0.0
    raw = RawParams(
        **sampling,
        typical_p=body.typical_p,
        max_new_tokens=_max_new_tokens(body, prompt, limits, version),
        min_new_tokens=body.min_tokens,
        stop=tuple(body.stop or ()),
        max_stop_sequences=MAX_STOPS,
        top_n_tokens=(1 if version == 1 else 0) if tops is None else tops,
        max_top_n_tokens=MAX_TOP_LOGPROBS,
        stop_token_ids=tuple(body.stop_token_ids or ()),
        ignore_eos=bool(body.ignore_eos),
        keep_stop_string=body.include_stop is not False,
        grammar=body.constraint,
        max_time=body.timeout_s,
        output_ids=tuple(body.output or ()),
        pause_after=body.num_steps,
        names={**_NAMES, "inputs": prompt.field},
    )
    return replace(normalize(raw, limits), logit_bias=body.logit_bias)


def _max_new_tokens(
    body: GenerateFields, prompt: Prompt, limits: Limits, version: int
) -> int | None:
    """In version 1 the default is LMQL's, or the room that is left; else None: all the room."""
    if body.max_tokens is not None or version > 1:
        return body.max_tokens
    if isinstance(prompt.content, str):
        return _DEFAULT_MAX_TOKENS
    return max(1, min(_DEFAULT_MAX_TOKENS, limits.max_total_len - len(prompt.content)))
