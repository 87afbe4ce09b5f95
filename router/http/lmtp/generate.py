"""One GENERATE stream, from the fields of its frame to its last object."""

from contextlib import aclosing
from dataclasses import replace

from router.engine.validation import Limits, RawParams
from router.http.lmtp.frames import Frame, Message
from router.http.lmtp.prompts import Prompt
from router.http.lmtp.schema import GenerateFields
from router.http.lmtp.stream_encoder import EncoderV1, EncoderV2, StreamEncoder
from router.http.lmtp.streams import QueueNotices, SendMessages, StreamContext
from router.http.request_validator import normalize
from router.http.server.errors import HttpError
from router.http.server_info import served_name
from router.request.errors import RouterError
from router.request.request import Failed, Finished, GenerateRequest

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
        body = await self._services.read(frame, GenerateFields)
        served_name(self._services.info, body.model)
        request = await self._request(body)
        self._encoder.configure(
            has_tops=bool(request.logprobs.num_top_tokens) or self._context.version == 1,
            has_deadline=request.deadline_s is not None,
        )
        accepted = self._services.infer.accept(request)
        notices = QueueNotices(self._context, lambda: accepted.place)
        try:
            async with aclosing(accepted.events()) as events:
                async for burst in events:
                    notices.started()
                    self._num_cached_tokens = accepted.num_cached_tokens
                    end = burst[-1]
                    if isinstance(end, Failed):
                        await send(self._encoder.encode(burst[:-1]))
                        raise end.error
                    messages = self._encoder.encode(burst)
                    if isinstance(end, Finished):
                        self._context.record.finished(end)
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

    async def _request(self, body: GenerateFields) -> GenerateRequest:
        services, context = self._services, self._context
        prompt = await services.prompts.read(body)
        raw = raw_params(body, prompt, services.info.limits, version=context.version)
        adds = prompt.add_special_tokens
        return await services.validator.check(
            context.record, prompt.content, raw, add_special_tokens=adds
        )


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
