"""TGI's routes: /generate, /generate_stream, POST /, /tokenize and /chat_tokenize.

A stream's body begins before its request is validated, as with TGI: what goes wrong then is an
event in it.
"""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from functools import partial

import orjson
from starlette.requests import Request
from starlette.responses import Response

from router.engine.infer import Infer
from router.http.openai.routes import ChatRoutes
from router.http.openai.schema import ChatBody
from router.http.request_validator import RequestRecord, RequestValidator
from router.http.schema_reader import SchemaReader
from router.http.server.body import json_response, unless_disconnected
from router.http.server.docs import NO_MODEL, ApiRoute, RouteDocs
from router.http.server_info import ServerInfo, answer_headers, stream_headers
from router.http.sse import EventStream
from router.http.tgi.reply import reply, spans_json
from router.http.tgi.schema import (
    ChatTokenizeResponse,
    CompatBody,
    GenerateBody,
    GenerateResponse,
    Parameters,
    SimpleToken,
    StreamResponse,
    TokenizeBody,
    to_raw,
)
from router.http.tgi.stream import GenerateFrames
from router.request.errors import InvalidRequest
from router.request.request import Event
from router.text.control_tokens import visible
from router.text.tokenizer import Tokenizer, check_fits

# Tokens that are shown at once, unless the model's context is larger.
_MAX_SPANS = 1 << 16


class TgiRoutes:
    """The handlers."""

    def __init__(
        self,
        infer: Infer,
        validator: RequestValidator,
        tokenizer: Tokenizer,
        bodies: SchemaReader,
        info: ServerInfo,
        chat: ChatRoutes,
    ) -> None:
        """`chat` reads the chats of /chat_tokenize."""
        self._infer = infer
        self._validator = validator
        self._tokenizer = tokenizer
        self._bodies = bodies
        self._info = info
        self._chat = chat
        self._max_spans = max(_MAX_SPANS, info.limits.max_total_len)

    def routes(self) -> list[ApiRoute]:
        """The routes, documented."""
        docs = partial(RouteDocs, tag="Text Generation Inference")
        generates = partial(docs, body=GenerateBody, generates=True)
        compat = generates(body=CompatBody, answer=list[GenerateResponse], events=StreamResponse)
        stream = generates(events=StreamResponse)
        tokenize = docs(body=TokenizeBody, answer=list[SimpleToken])
        chat = docs(body=ChatBody, answer=ChatTokenizeResponse, failures=NO_MODEL)
        return [
            ApiRoute("POST", "/", self.compat, compat, "compat_generate"),
            ApiRoute(
                "POST", "/generate", self.generate, generates(answer=GenerateResponse), "generate"
            ),
            ApiRoute("POST", "/generate_stream", self.generate_stream, stream, "generate_stream"),
            ApiRoute("POST", "/tokenize", self.tokenize, tokenize, "tokenize"),
            ApiRoute("POST", "/chat_tokenize", self.chat_tokenize, chat, "get_chat_tokenize"),
        ]

    async def generate(self, request: Request) -> Response:
        """Generate text and answer when it is complete."""
        record = self._validator.begin(request)
        body = await self._bodies.read(request, GenerateBody)
        answer, headers = await self._answer(request, record, body)
        return json_response(answer, headers)

    async def generate_stream(self, request: Request) -> Response:
        """Generate text and stream its tokens as server-sent events."""
        record = self._validator.begin(request)
        body = await self._bodies.read(request, GenerateBody)
        return self._stream(record, body)

    async def compat(self, request: Request) -> Response:
        """Generate text: a list of one answer, or with `stream` the events of /generate_stream."""
        record = self._validator.begin(request)
        body = await self._bodies.read(request, CompatBody)
        if body.stream:
            return self._stream(record, body)
        answer, headers = await self._answer(request, record, body)
        return json_response([answer], headers)

    async def tokenize(self, request: Request) -> Response:
        """Tokenize `inputs`; `start` and `stop` are byte offsets."""
        body = await self._bodies.read(request, TokenizeBody)
        spans = await self._spans(body.inputs, "inputs", add_special_tokens=True)
        return Response(spans, media_type="application/json")

    async def chat_tokenize(self, request: Request) -> Response:
        """Template and tokenize a chat; `start` and `stop` are byte offsets."""
        body = await self._chat.read(request, ChatBody)
        text = await self._chat.render(RequestRecord.of(request), body)
        # The template has put the special tokens where they belong.
        tokens = await self._spans(text, "messages", add_special_tokens=False)
        answer = b'{"tokenize_response":%b,"templated_text":%b}' % (
            tokens,
            orjson.dumps(visible(text)),
        )
        return Response(answer, media_type="application/json")

    async def _spans(self, text: str, field: str, *, add_special_tokens: bool) -> bytes:
        tokenizer, most = self._tokenizer, self._max_spans
        await check_fits(tokenizer, text, most, field, chars_per_token=4, margin=1)
        spans = await tokenizer.spans(
            text, add_special_tokens=add_special_tokens, field=field, max_len=most
        )
        return await spans_json(spans)

    async def _answer(
        self, request: Request, record: RequestRecord, body: GenerateBody
    ) -> tuple[dict[str, object], dict[str, str]]:
        parameters = body.chosen
        checked = await self._validator.check(record, body.inputs, to_raw(parameters))
        num_draws = parameters.best_of or 1
        works = self._infer.best_of_each([(checked, num_draws)])
        (completions,) = await unless_disconnected(request, works)
        for completion in completions:
            record.finished(completion.finished)
        answer = reply(
            completions,
            with_details=bool(parameters.details or parameters.decoder_input_details),
            prefix=body.prefix,
        )
        num_generated_tokens = completions[0].finished.num_generated_tokens
        return answer, answer_headers(self._info, record, num_generated_tokens)

    def _stream(self, record: RequestRecord, body: GenerateBody) -> EventStream[Event]:
        frames = GenerateFrames(
            record,
            with_details=bool(body.chosen.details),
            prefix=body.prefix,
        )
        headers = stream_headers(self._info, len(body.inputs))
        return EventStream([self._events(record, body)], frames, headers)

    async def _events(
        self, record: RequestRecord, body: GenerateBody
    ) -> AsyncGenerator[Sequence[Event], None]:
        _check_streamable(body.chosen)
        checked = await self._validator.check(record, body.inputs, to_raw(body.chosen))
        async with aclosing(self._infer.generate(checked)) as bursts:
            async for burst in bursts:
                yield burst


def _check_streamable(parameters: Parameters) -> None:
    if parameters.best_of not in (None, 1):
        raise InvalidRequest(
            f"`best_of` must be 1 when tokens are streamed. Given: `{parameters.best_of}`",
            field="best_of",
        )
    if parameters.decoder_input_details:
        raise InvalidRequest(
            "`decoder_input_details` must be false when tokens are streamed. Given: `true`",
            field="decoder_input_details",
        )
