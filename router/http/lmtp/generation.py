"""One GENERATE: from its fields to its last object."""

from collections.abc import Sequence
from contextlib import aclosing

from router.errors import RouterError
from router.events import Event, Finished, FinishReason, TokenGenerated
from router.http.body import parse_part
from router.http.errors import HttpError
from router.http.exchange import Exchange
from router.http.lmtp.buffers import Buffers
from router.http.lmtp.frames import Frame
from router.http.lmtp.requests import raw_of
from router.http.lmtp.schema import GenerateBody
from router.http.lmtp.services import LmtpServices
from router.http.lmtp.words import FirstVersion, Said, SecondVersion, Words, failure_of
from router.http.lmtp.work import Say
from router.http.model_name import served_name
from router.request import GenerateRequest

_BY_TOKEN = (FinishReason.EOS, FinishReason.STOP_TOKEN)


class Generation:
    """One stream of tokens."""

    def __init__(
        self,
        services: LmtpServices,
        buffers: Buffers,
        exchange: Exchange,
        stream_id: int,
        version: int,
    ) -> None:
        self._services = services
        self._buffers = buffers
        self._exchange = exchange
        self._stream_id = stream_id
        self._version = version
        self._words: Words = (
            SecondVersion(stream_id) if version > 1 else FirstVersion(stream_id, services.eos_id)
        )
        self._made: list[int] = []

    async def run(self, frame: Frame, say: Say) -> None:
        """Answers the frame. Raises RouterError, HttpError for `fail`."""
        body = parse_part(frame.text, frame.payload, (), GenerateBody)
        served_name(self._services.info, body.model)
        request = await self._request(body)
        self._words.expect(
            has_tops=bool(request.logprobs.num_top_tokens) or self._version == 1,
            has_deadline=request.deadline_s is not None,
        )
        events = self._services.infer.generate(request)
        async with aclosing(events):
            async for burst in events:
                self._made += [
                    event.token.token_id for event in burst if isinstance(event, TokenGenerated)
                ]
                error = failure_of(burst)
                if error is not None:
                    await say(self._words.tell(burst[:-1]))
                    raise error
                if isinstance(burst[-1], Finished):
                    self._finish(body, request, burst)
                await say(self._words.tell(burst))

    def fail(self, error: RouterError | HttpError) -> list[Said]:
        """The bad end."""
        return self._words.fail(error)

    def cancelled(self) -> list[Said]:
        """The end that the client asked for."""
        return self._words.cancelled(self._exchange.num_prompt_tokens)

    async def _request(self, body: GenerateBody) -> GenerateRequest:
        services = self._services
        prompt = await services.prompts.read(body, self._buffers)
        raw = raw_of(body, prompt, services.info.limits, version=self._version)
        request = await services.intake.check(
            self._exchange, prompt.content, raw, add_special_tokens=prompt.add_special_tokens
        )
        if body.store is not None:
            most = len(request.prompt_ids) + request.stop.max_new_tokens
            self._buffers.check(body.store, most, "store")
        return request

    def _finish(self, body: GenerateBody, request: GenerateRequest, burst: Sequence[Event]) -> None:
        end = burst[-1]
        assert isinstance(end, Finished)
        self._exchange.finished(end)
        if body.store is None:
            return
        made = self._made
        if end.reason in _BY_TOKEN:
            made = made[:-1]
        token_ids = request.prompt_ids + request.output_ids + tuple(made)
        ttl_s = self._buffers.put(body.store, token_ids, "store")
        self._words.stored = {"name": body.store, "num_tokens": len(token_ids), "ttl_s": ttl_s}
