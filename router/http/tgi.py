"""TGI's routes: /generate, /generate_stream, POST /, /tokenize and /chat_tokenize.

    body --to_raw--> RawParams --RequestValidator--> request --Infer--> reply | GenerateFrames

Names of fields, the order of keys and the texts of errors are TGI's. Every optional field takes an
explicit null for its absence. A stream's body begins before its request is validated, as with TGI:
what goes wrong then is an event in it. There is one event for each token, and no `[DONE]`:

    data: {"index", "token", "top_tokens"?, "generated_text": null, "details": null}     each token
    data: {"index", "token", "top_tokens"?, "generated_text": str, "details": {...}}     the last
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, Literal, Self

import orjson
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from proto.contract import FinishReason
from router.engine.infer import Accepted, Completion, Infer
from router.engine.stream import Sink
from router.engine.validation import RawParams
from router.http.answers import RawThought
from router.http.bodies import json_response, unless_disconnected
from router.http.errors import Dialect, problem_of
from router.http.openai.routes import ChatRoutes
from router.http.openai.schema import ChatBody
from router.http.request_record import RequestRecord
from router.http.request_validator import RequestValidator
from router.http.schema import (
    AnswerModel,
    ConstrainedAnswer,
    Grammar,
    SamplingFields,
    Schema,
    SchemaReader,
    bounded,
)
from router.http.served_models import ServedModels
from router.http.server.docs import NO_MODEL, ApiRoute, RouteDocs, Tag
from router.http.server_info import ServerInfo, answer_headers, constraint_fields, stream_headers
from router.http.sse import EventStream
from router.request.errors import InvalidRequest, RouterError
from router.request.request import Event, Failed, Finished, TokenGenerated, TokenLogprob
from router.text.answer_format import ThoughtForm
from router.text.control_tokens import visible
from router.text.tokenizer import Tokenizer, TokenSpan, check_fits

TgiFinishReason = Literal["length", "eos_token", "stop_sequence", "deadline"]
FINISH_REASONS: Mapping[FinishReason, str] = MappingProxyType(
    {
        FinishReason.LENGTH: "length",
        FinishReason.EOS: "eos_token",
        FinishReason.STOP_TOKEN: "stop_sequence",
        FinishReason.STOP_STRING: "stop_sequence",
        FinishReason.CONSTRAINT_COMPLETE: "eos_token",
        FinishReason.DEADLINE: "deadline",
        # No request of TGI's can ask for a pause; it would be a limit on tokens.
        FinishReason.PAUSED: "length",
    }
)
_SPANS_AT_ONCE = 2000
_FRAME = (
    b'data: {"index":%d,"token":{"id":%d,"text":%b,"logprob":%b,"special":%b}%b,'
    b'"generated_text":%b,"details":%b}\n\n'
)
# A sequence can end without a token of its own, by its deadline; clients still look for one.
_NO_TOKEN = TokenGenerated(TokenLogprob(0, "", None, special=True), "")
# Tokens that are shown at once, unless the model's context is larger.
_MAX_SPANS = 1 << 16


class Parameters(SamplingFields):
    """`parameters` of a request, with the names, types and defaults of TGI; and ours."""

    names_unknown = True

    best_of: int | None = bounded(minimum=1)
    temperature: float | None = bounded(exclusiveMinimum=0)
    top_k: int | None = bounded(minimum=1)
    top_p: float | None = bounded(exclusiveMinimum=0, exclusiveMaximum=1)
    typical_p: float | None = bounded(exclusiveMinimum=0, exclusiveMaximum=1)
    do_sample: bool | None = None
    max_new_tokens: int | None = bounded(minimum=1)
    return_full_text: bool | None = None
    stop: list[str] | None = Field(default=None, fail_fast=True)
    truncate: int | None = bounded(minimum=1)
    watermark: bool | None = None
    details: bool | None = None
    decoder_input_details: bool | None = None
    seed: int | None = bounded(minimum=0, maximum=2**64 - 1)
    top_n_tokens: int | None = bounded(minimum=0)
    grammar: Grammar | None = None
    adapter_id: str | None = None
    # Ours, under the names that vLLM's users know where it has them.
    min_new_tokens: int | None = bounded(minimum=0)
    ignore_eos: bool | None = None
    stop_token_ids: list[int] | None = Field(default=None, fail_fast=True)
    include_stop_str_in_output: bool | None = None
    # Seconds, from the request's arrival.
    max_time: float | None = None


class TokenizeBody(Schema):
    """Body of /tokenize: that of /generate, of which only the prompt is read."""

    inputs: str
    parameters: dict[str, Any] | None = None


class GenerateBody(Schema):
    """Body of /generate and /generate_stream.

    Without `parameters` a request is sampled; with them, only if one of them asks for it.
    """

    names_unknown = True
    # The hub's and some clients'; `stream` belongs to POST /.
    known_fields = frozenset({"model", "stream"})

    inputs: str = Field(json_schema_extra={"minLength": 1})
    parameters: Parameters | None = None

    @property
    def chosen(self) -> Parameters:
        """The parameters, or the defaults where there are none."""
        return self.parameters or Parameters(do_sample=True)

    @property
    def prefix(self) -> str:
        """The text before the generated one: the prompt, where the full text is asked for."""
        return self.inputs if self.chosen.return_full_text else ""


class CompatBody(GenerateBody):
    """Body of POST /."""

    stream: bool | None = None

    @property
    def prefix(self) -> str:
        """As GenerateBody, but that the full text is the default."""
        return "" if self.chosen.return_full_text is False else self.inputs


class Token(AnswerModel):
    """A generated token. `logprob` is null where it is not a number of JSON."""

    id: int
    text: str
    logprob: float | None
    special: bool


class PrefillToken(AnswerModel):
    """A token of the prompt; the first one has no log-probability."""

    id: int
    text: str
    logprob: float | None


class EndDetails(ConstrainedAnswer):
    """`reasoning`: what the model thought, where its chat template shows how it does."""

    reasoning: str | None = None
    reasoning_tokens: int | None = None


class BestOfSequence(EndDetails):
    """One of the answers that `best_of` did not choose."""

    generated_text: str
    finish_reason: TgiFinishReason
    generated_tokens: int
    seed: int | None
    prefill: list[PrefillToken]
    tokens: list[Token]
    top_tokens: list[list[Token]] | None = None


class Details(EndDetails):
    """The `details` of an answer."""

    finish_reason: TgiFinishReason
    generated_tokens: int
    seed: int | None
    prefill: list[PrefillToken]
    tokens: list[Token]
    best_of_sequences: list[BestOfSequence] | None = None
    top_tokens: list[list[Token]] | None = None


class GenerateResponse(AnswerModel):
    """A whole answer."""

    generated_text: str
    details: Details | None = None


class StreamDetails(EndDetails):
    """The `details` of a stream's last event."""

    finish_reason: TgiFinishReason
    generated_tokens: int
    seed: int | None
    input_length: int


class StreamResponse(AnswerModel):
    """One event of a stream; only the last one has a text and details."""

    index: int
    token: Token
    top_tokens: list[Token] | None = None
    generated_text: str | None
    details: StreamDetails | None


class SimpleToken(AnswerModel):
    """A token of a text; `start` and `stop` are byte offsets."""

    id: int
    text: str
    start: int
    stop: int


class ChatTokenizeResponse(AnswerModel):
    """A chat as the model reads it."""

    tokenize_response: list[SimpleToken]
    templated_text: str


def to_raw(parameters: Parameters, models: ServedModels) -> RawParams:
    """Raises InvalidRequest for an adapter that is not loaded."""
    return RawParams(
        adapter_id=models.adapter_id(parameters.adapter_id),
        best_of=parameters.best_of,
        **parameters.sampling(),
        typical_p=parameters.typical_p,
        do_sample=parameters.do_sample or False,
        max_new_tokens=parameters.max_new_tokens,
        stop=tuple(parameters.stop or ()),
        truncate=parameters.truncate,
        top_n_tokens=parameters.top_n_tokens,
        decoder_input_details=parameters.decoder_input_details or False,
        keep_stop_string=parameters.include_stop_str_in_output is not False,
        min_new_tokens=parameters.min_new_tokens,
        ignore_eos=parameters.ignore_eos or False,
        stop_token_ids=tuple(parameters.stop_token_ids or ()),
        max_time=parameters.max_time,
        grammar=parameters.grammar,
        watermark=parameters.watermark or False,
    )


def reply(
    completions: Sequence[Completion],
    body: GenerateBody,
    form: ThoughtForm | None,
    *,
    with_details: bool,
) -> dict[str, Any]:
    """The answer to a request that does not stream; `completions` are best first."""
    prefix = body.prefix
    best, *others = completions
    answer: dict[str, Any] = {"generated_text": prefix + best.finished.text}
    if with_details:
        details = _details(best, body, form)
        if others:
            details["best_of_sequences"] = [
                {"generated_text": prefix + other.finished.text, **_details(other, body, form)}
                for other in others
            ]
        # TGI writes its optional lists last.
        top_tokens = details.pop("top_tokens", None)
        answer["details"] = details if top_tokens is None else {**details, "top_tokens": top_tokens}
    return answer


def _details(
    completion: Completion, body: GenerateBody, form: ThoughtForm | None
) -> dict[str, Any]:
    end = completion.finished
    reasoning: Mapping[str, Any] = {}
    if form is not None:
        thought = RawThought(form, body.inputs)
        for event in completion.tokens:
            thought.token(event)
        reasoning = thought.fields(end)
    prefill = completion.prompt.tokens if completion.prompt is not None else ()
    details: dict[str, Any] = {
        "finish_reason": FINISH_REASONS[end.reason],
        "generated_tokens": end.num_generated_tokens,
        "seed": end.seed,
        **constraint_fields(end),
        **reasoning,
        "prefill": [
            {"id": token.token_id, "text": token.text, "logprob": token.logprob}
            for token in prefill
        ],
        "tokens": _whole_tokens(completion),
    }
    if any(event.top_tokens for event in completion.tokens):
        details["top_tokens"] = [
            [token_fields(token) for token in event.top_tokens] for event in completion.tokens
        ]
    return details


def _whole_tokens(completion: Completion) -> list[dict[str, Any]]:
    """The tokens with the texts that a stream has."""
    tokens = [
        {**token_fields(event.token), "text": _shown(event.token)} for event in completion.tokens
    ]
    num_shown = sum(_shown_len(event.token) for event in completion.tokens)
    if rest := completion.finished.text[num_shown:]:
        last = tokens[-1]
        text = rest if last["special"] else last["text"] + rest
        tokens[-1] = {**last, "text": text, "special": False}
    return tokens


def token_fields(token: TokenLogprob) -> dict[str, Any]:
    return {
        "id": token.token_id,
        "text": token.text,
        "logprob": token.logprob,
        "special": token.special,
    }


async def spans_json(spans: Sequence[TokenSpan]) -> bytes:
    """The tokens of a text as JSON, for the routes that tokenize."""
    if len(spans) <= _SPANS_AT_ONCE:
        return _spans_json(spans)
    # A body can hold a million tokens: they are written in pieces, beside the event loop.
    return await asyncio.to_thread(_many_spans_json, spans)


def _many_spans_json(spans: Sequence[TokenSpan]) -> bytes:
    starts = range(0, len(spans), _SPANS_AT_ONCE)
    pieces = (_spans_json(spans[start : start + _SPANS_AT_ONCE])[1:-1] for start in starts)
    return b"[" + b",".join(pieces) + b"]"


def _spans_json(spans: Sequence[TokenSpan]) -> bytes:
    return orjson.dumps(
        [
            {"id": span.token_id, "text": span.text, "start": span.start, "stop": span.stop}
            for span in spans
        ]
    )


class GenerateFrames:
    """Frames of one stream. `prefix` is the prompt if the whole text was asked for, else "".

    `thought` is for the details; None: there is none to look for.
    """

    def __init__(
        self,
        record: RequestRecord,
        *,
        with_details: bool,
        prefix: str,
        thought: RawThought | None = None,
    ) -> None:
        self._record = record
        self._with_details = with_details
        self._prefix = prefix
        self._thought = thought
        self._num_tokens = 0
        # Characters of the answer that the tokens so far have shown.
        self._num_shown = 0

    def render(self, index: int, burst: Sequence[Event]) -> bytes:
        """One frame for each token; a Finished joins the token before it in the burst."""
        if len(burst) == 1 and self._thought is None:
            # Nearly always.
            (event,) = burst
            if isinstance(event, TokenGenerated):
                return self._frame(event)
        return b"".join(self._frames(burst))

    def fail(self, error: RouterError) -> bytes:
        problem = problem_of(error, Dialect.TGI)
        self._record.error_type = problem.error_type
        return problem.frame()

    def end(self) -> bytes:
        """Nothing: TGI's streams just end."""
        return b""

    def _frames(self, burst: Sequence[Event]) -> Iterator[bytes]:
        held: TokenGenerated | None = None
        for event in burst:
            if isinstance(event, TokenGenerated):
                if self._thought is not None:
                    self._thought.token(event)
                if held is not None:
                    yield self._frame(held)
                held = event
            elif isinstance(event, Finished):
                yield self._last_frame(held or _NO_TOKEN, event)
                held = None
            elif isinstance(event, Failed):
                raise event.error
        if held is not None:
            yield self._frame(held)

    def _frame(
        self, event: TokenGenerated, rest: str = "", text: bytes = b"null", details: bytes = b"null"
    ) -> bytes:
        """A token; the last one ends with the `rest` of the text, which no token has."""
        self._num_tokens += 1
        token_id, shown, logprob, special, hidden = event.token
        if special or hidden:
            self._num_shown += _shown_len(event.token)
            shown = _shown(event.token)
            # Clients skip the texts of special tokens, so what is left of the answer must not be
            # one.
            if special and rest:
                shown, special = "", False
        else:
            self._num_shown += len(shown)
        return _FRAME % (
            self._num_tokens,
            token_id,
            orjson.dumps(shown + rest),
            orjson.dumps(logprob),
            b"true" if special else b"false",
            _top_tokens_field(event.top_tokens) if event.top_tokens else b"",
            text,
            details,
        )

    def _last_frame(self, event: TokenGenerated, end: Finished) -> bytes:
        self._record.finished(end)
        details = {
            "finish_reason": FINISH_REASONS[end.reason],
            "generated_tokens": end.num_generated_tokens,
            "seed": end.seed,
            "input_length": end.num_prompt_tokens,
            **constraint_fields(end),
            **({} if self._thought is None else self._thought.fields(end)),
        }
        return self._frame(
            event,
            end.text[self._num_shown + _shown_len(event.token) :],
            orjson.dumps(self._prefix + end.text),
            orjson.dumps(details) if self._with_details else b"null",
        )


def _shown(token: TokenLogprob) -> str:
    """A token's text: special ones included, nothing past a stop string."""
    return "" if token.hidden and not token.special else token.text


def _shown_len(token: TokenLogprob) -> int:
    """Characters that the token has in the answer."""
    return 0 if token.hidden else len(token.text)


def _top_tokens_field(top_tokens: Sequence[TokenLogprob]) -> bytes:
    return b',"top_tokens":' + orjson.dumps([token_fields(token) for token in top_tokens])


class _LateEvents:
    """The events of a request that is checked and submitted when they are asked for."""

    def __init__(self, submit: Callable[[], Awaitable[Accepted]]) -> None:
        self._submit = submit
        self._accepted: Accepted | None = None
        self._sink: Sink | None = None

    def push_to(self, sink: Sink) -> None:
        """See PushingSource."""
        self._sink = sink
        if self._accepted is not None:
            self._accepted.push_to(sink)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Sequence[Event]:
        if self._accepted is None:
            self._accepted = await self._submit()
            if self._sink is not None:
                self._accepted.push_to(self._sink)
        return await self._accepted.__anext__()

    async def aclose(self) -> None:
        """Cancels what has not ended."""
        if self._accepted is not None:
            await self._accepted.aclose()


class TgiRoutes:
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
        docs = partial(RouteDocs, tag=Tag.TGI)
        generates = partial(docs, body=GenerateBody, generates=True)
        compat = generates(
            summary="Generate text, whole or streamed",
            body=CompatBody,
            answer=list[GenerateResponse],
            events=StreamResponse,
        )
        whole = generates(summary="Generate text", answer=GenerateResponse)
        stream = generates(summary="Generate text, streamed", events=StreamResponse)
        tokenize = docs(summary="Tokenize a text", body=TokenizeBody, answer=list[SimpleToken])
        chat = docs(
            summary="Tokenize a chat",
            body=ChatBody,
            answer=ChatTokenizeResponse,
            failures=NO_MODEL,
        )
        return [
            ApiRoute("POST", "/", self.compat, compat, "compat_generate"),
            ApiRoute("POST", "/generate", self.generate, whole, "generate"),
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
        text = (await self._chat.render(RequestRecord.of(request), body)).text
        # The template has put the special tokens where they belong.
        tokens = await self._spans(text, "messages", add_special_tokens=False)
        answer = b'{"tokenize_response":%b,"templated_text":%b}' % (
            tokens,
            orjson.dumps(visible(text)),
        )
        return Response(answer, media_type="application/json")

    async def _spans(self, text: str, field: str, *, add_special_tokens: bool) -> bytes:
        tokenizer = self._tokenizer
        most = self._max_spans
        await check_fits(tokenizer, text, most, field, chars_per_token=4, margin=1)
        spans = await tokenizer.spans(
            text, add_special_tokens=add_special_tokens, field=field, max_len=most
        )
        return await spans_json(spans)

    def _raw(self, parameters: Parameters) -> RawParams:
        return to_raw(parameters, self._chat.service.models)

    async def _answer(
        self, request: Request, record: RequestRecord, body: GenerateBody
    ) -> tuple[dict[str, object], dict[str, str]]:
        parameters = body.chosen
        checked = await self._validator.check_inputs(record, body.inputs, self._raw(parameters))
        num_draws = parameters.best_of or 1
        works = self._infer.best_of_each([(checked, num_draws)])
        (completions,) = await unless_disconnected(request, works)
        for completion in completions:
            record.finished(completion.finished)
        answer = reply(
            completions,
            body,
            self._chat.service.raw_thought,
            with_details=bool(parameters.details or parameters.decoder_input_details),
        )
        num_generated_tokens = completions[0].finished.num_generated_tokens
        return answer, answer_headers(self._info, record, num_generated_tokens)

    def _stream(self, record: RequestRecord, body: GenerateBody) -> EventStream[Event]:
        with_details = bool(body.chosen.details)
        form = self._chat.service.raw_thought if with_details else None
        thought = None if form is None else RawThought(form, body.inputs)
        frames = GenerateFrames(
            record, with_details=with_details, prefix=body.prefix, thought=thought
        )
        headers = stream_headers(self._info, len(body.inputs))
        written = frames if record.moving is None else record.moving.around(frames)
        events = _LateEvents(partial(self._submit, record, body))
        return EventStream([events], written, headers)

    async def _submit(self, record: RequestRecord, body: GenerateBody) -> Accepted:
        parameters = body.chosen
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
        checked = await self._validator.check_inputs(record, body.inputs, self._raw(parameters))
        moving = record.moving
        (accepted,) = (
            self._infer.submit([checked])
            if moving is None
            else moving.submit(self._infer, [checked])
        )
        return accepted
