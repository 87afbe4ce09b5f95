"""One GENERATE stream, from its fields to its last object."""

from collections.abc import Sequence
from contextlib import aclosing

from router.http.body import parse_part
from router.http.lmtp.frames import Frame
from router.http.lmtp.notices import Queued
from router.http.lmtp.objects import error_type_of
from router.http.lmtp.prompts import Buffers, buffer_fields
from router.http.lmtp.requests import raw_of
from router.http.lmtp.schema import GenerateBody
from router.http.lmtp.services import LmtpServices
from router.http.lmtp.stream_encoder import BY_TOKEN, EncoderV1, EncoderV2, Message, StreamEncoder
from router.http.lmtp.streams import Notify, SendMessages
from router.http.request_validator import RequestRecord
from router.http.server.errors import HttpError
from router.http.server_info import served_name
from router.request.errors import RouterError
from router.request.events import Event, Failed, Finished, TokenGenerated
from router.request.request import GenerateRequest


class GenerateStream:
    """One stream of tokens. `notify` sends a system message about it."""

    def __init__(
        self,
        services: LmtpServices,
        buffers: Buffers,
        record: RequestRecord,
        stream_id: int,
        version: int,
        notify: Notify,
    ) -> None:
        self._services = services
        self._buffers = buffers
        self._record = record
        self._stream_id = stream_id
        self._version = version
        self._notify = notify
        self._words: StreamEncoder = (
            EncoderV2(stream_id) if version > 1 else EncoderV1(stream_id, services.eos_id)
        )
        self._num_cached_tokens = 0

    async def run(self, frame: Frame, send: SendMessages) -> list[Message]:
        """Answers the frame; its last burst is the end. Raises RouterError, HttpError."""
        body = parse_part(frame.text, frame.payload, (), GenerateBody)
        served_name(self._services.info, body.model)
        request = await self._request(body)
        self._words.expect(
            has_tops=bool(request.logprobs.num_top_tokens) or self._version == 1,
            has_deadline=request.deadline_s is not None,
        )
        accepted = self._services.infer.accept(request)
        queued = Queued(self._stream_id, lambda: accepted.place, self._notify)
        made: list[int] = []
        try:
            async with aclosing(accepted.events()) as events:
                async for burst in events:
                    queued.begun()
                    self._num_cached_tokens = accepted.num_cached_tokens
                    if body.store is not None:
                        made += _token_ids(burst)
                    fields = self._told(body, request, made, burst)
                    if isinstance(burst[-1], Finished | Failed):
                        return fields
                    await send(fields)
        finally:
            queued.close()
        raise AssertionError("the last burst has the end")

    def _told(
        self, body: GenerateBody, request: GenerateRequest, made: list[int], burst: Sequence[Event]
    ) -> list[Message]:
        end = burst[-1]
        if isinstance(end, Failed):
            self._record.error_type = error_type_of(end.error)
            return self._words.tell(burst[:-1]) + self._words.fail(end.error)
        if isinstance(end, Finished):
            self._record.finished(end)
            if body.store is not None:
                kept = made[:-1] if end.reason in BY_TOKEN else made
                token_ids = request.prompt_ids + request.output_ids + tuple(kept)
                ttl_s = self._buffers.put(body.store, token_ids, "store")
                self._words.stored = buffer_fields(body.store, len(token_ids), ttl_s)
        return self._words.tell(burst)

    def fail(self, error: RouterError | HttpError) -> list[Message]:
        """The bad end."""
        return self._words.fail(error)

    def cancelled(self) -> list[Message]:
        """The end that the client asked for."""
        return self._words.cancelled(self._record.num_prompt_tokens, self._num_cached_tokens)

    async def _request(self, body: GenerateBody) -> GenerateRequest:
        services = self._services
        prompt = await services.prompts.read(body, self._buffers)
        raw = raw_of(body, prompt, services.info.limits, version=self._version)
        request = await services.validator.check(
            self._record, prompt.content, raw, add_special_tokens=prompt.add_special_tokens
        )
        if body.store is not None:
            most = len(request.prompt_ids) + request.stop.max_new_tokens
            self._buffers.check(body.store, most, "store")
        return request


def _token_ids(burst: Sequence[Event]) -> list[int]:
    return [event.token.token_id for event in burst if isinstance(event, TokenGenerated)]
