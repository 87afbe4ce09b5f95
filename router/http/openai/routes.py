"""The way into and out of OpenAI's two routes: names, draws, answers whole and streamed.

It knows neither chats nor completions; their shapes are in `chat.py` and `completions.py`.
"""

import time
import uuid
from collections.abc import Sequence
from typing import Any, TypeVar

import orjson
from starlette.requests import Request
from starlette.responses import Response

from router.engine.infer import Completion, Infer
from router.http.body import parse
from router.http.logprobs import TokenNames
from router.http.openai.fields import OpenAiBody
from router.http.openai.reply import Envelope, Usage
from router.http.openai.stream import OpenAiFrames
from router.http.request_validator import RequestRecord, RequestValidator
from router.http.server.body import BodyReader, unless_disconnected
from router.http.server_info import ServerInfo, answer_headers, served_name, stream_headers
from router.http.sse import EventStream
from router.request.errors import InvalidRequest
from router.request.request import GenerateRequest
from router.request.validation import Limits
from router.text.tokenizer import Tokenizer

B = TypeVar("B", bound=OpenAiBody)


class OpenAiRoutes:
    """The way in and out of both routes."""

    def __init__(
        self,
        infer: Infer,
        validator: RequestValidator,
        bodies: BodyReader,
        info: ServerInfo,
        tokenizer: Tokenizer,
    ) -> None:
        self.validator = validator
        self.tokenizer = tokenizer
        self._infer = infer
        self._bodies = bodies
        self._info = info

    @property
    def limits(self) -> Limits:
        """The bounds of this server."""
        return self._info.limits

    async def read(self, request: Request, schema: type[B]) -> B:
        """The body, checked as far as both routes agree. Raises HttpError, InvalidRequest."""
        return self.admit(parse(await self._bodies.read(request), schema))

    def admit(self, body: B) -> B:
        """The body, if it asks for the served model and what is served. Raises as `read`."""
        served_name(self._info, body.model)
        body.check_supported()
        return body

    def envelope(self, body: OpenAiBody, id_prefix: str, kind: str) -> Envelope:
        """A new reply's envelope, with the name that the client used for the model."""
        return Envelope(
            reply_id=f"{id_prefix}-{uuid.uuid4().hex}",
            kind=kind,
            created_s=int(time.time()),
            model=served_name(self._info, body.model),
            system_fingerprint=self._info.system_fingerprint,
            service_tier=None if body.service_tier is None else "default",
        )

    def names(self, body: OpenAiBody) -> TokenNames:
        """What tokens are called in an answer to `body`."""
        return TokenNames(
            self.tokenizer,
            by_id=bool(body.return_tokens_as_token_ids),
            shows_special=body.skip_special_tokens is False,
        )

    def draws(
        self, requests: Sequence[GenerateRequest], num_draws: int, field: str = "n"
    ) -> list[GenerateRequest]:
        """`num_draws` of each request, prompt by prompt, each with a seed of its own.

        Raises InvalidRequest, which names `field`.
        """
        most = self._info.max_concurrent_requests // len(requests)
        if most < 1:
            raise InvalidRequest(
                f"`prompt` must have at most {self._info.max_concurrent_requests} prompts "
                f"(--max-concurrent-requests). Given: {len(requests)}",
                "prompt",
            )
        if not 1 <= num_draws <= most:
            raise InvalidRequest(
                f"`{field}` must be between 1 and {most} for this number of prompts. "
                f"Given: {num_draws}",
                field,
            )
        return [request.draw(index) for request in requests for index in range(num_draws)]

    async def complete(
        self, request: Request, draws: Sequence[GenerateRequest]
    ) -> list[Completion]:
        """All draws, in their order. Raises the first error, or ClientLeft."""
        completions = await unless_disconnected(request, self._infer.complete_all(draws))
        record = RequestRecord.of(request)
        for completion in completions:
            record.finished(completion.finished)
        return completions

    def reply(
        self,
        record: RequestRecord,
        envelope: Envelope,
        choices: list[dict[str, Any]],
        usage: Usage,
        **more: Any,
    ) -> Response:
        """A whole answer, with `more` fields behind OpenAI's."""
        answer = {**envelope.fields(), "choices": choices, "usage": usage.fields(), **more}
        headers = answer_headers(self._info, record, usage.num_generated_tokens)
        return Response(orjson.dumps(answer), headers=headers, media_type="application/json")

    async def stream(
        self, record: RequestRecord, draws: Sequence[GenerateRequest], frames: OpenAiFrames
    ) -> Response:
        """The draws' events as one stream. Raises Refused before anything is sent."""
        stream = EventStream(
            self._infer.generate_all(draws),
            frames,
            stream_headers(self._info, record.num_prompt_characters),
        )
        await stream.begin()
        return stream
