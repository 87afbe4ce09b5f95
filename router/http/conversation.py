"""A conversation to one answer: the way in and out of the routes that take turns and give text.

    turns -> ChatTemplate -> prompt -> RequestValidator -> request -> Infer -> Completion or stream

It knows neither OpenAI's words nor Anthropic's; what a stream looks like, `EventEncoder` says.
"""

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import orjson
from starlette.requests import Request
from starlette.responses import Response

from router.engine.infer import Completion, Infer
from router.http.body import Schema, parse
from router.http.errors import problem_of
from router.http.request_validator import RequestRecord, RequestValidator
from router.http.server.body import BodyReader, unless_disconnected
from router.http.server.errors import Dialect, Problem
from router.http.server_info import ServerInfo, answer_headers, served_name, stream_headers
from router.http.sse import EventStream
from router.http.tools.calls import Calling
from router.http.tools.grammar import AllowedTools
from router.http.tools.tool_prompt import add_tools, offering
from router.request.errors import RouterError, Unsupported
from router.request.events import Event, Failed, Finished, PromptScored, TokenGenerated
from router.request.request import GenerateRequest
from router.request.validation import Limits, RawParams
from router.text.chat_template import ChatTemplate
from router.text.tokenizer import Tokenizer

S = TypeVar("S", bound=Schema)


@dataclass(frozen=True, slots=True)
class Turn:
    """What one side said. `role` is the chat template's word.

    `calls` are what it called, in OpenAI's words; `call_id` the call whose result the text is.
    """

    role: str
    text: str
    calls: tuple[Mapping[str, Any], ...] = ()
    call_id: str | None = None

    def for_template(self) -> dict[str, Any]:
        """As chat templates have it."""
        shown: dict[str, Any] = {"role": self.role, "content": self.text}
        if self.calls:
            shown["tool_calls"] = list(self.calls)
            shown["content"] = self.text or None
        if self.call_id is not None:
            shown["tool_call_id"] = self.call_id
        return shown


@dataclass(frozen=True, slots=True)
class Setting:
    """What a chat template may read beside the turns.

    `name` is the template's word, `field` the client's; a value of None is none. `neutral` asks
    for nothing where the template does not read it.
    """

    name: str
    field: str
    value: str | None
    neutral: str | None = None


class EventEncoder(Protocol):
    """How an API tells of an answer as it comes; empty bytes when there is nothing to say."""

    def opening(self) -> bytes:
        """What is known before the first token."""

    def token(self, event: TokenGenerated, /) -> bytes:
        """A token."""

    def finished(self, event: Finished, /) -> bytes:
        """The good end."""

    def failed(self, error: RouterError, problem: Problem, /) -> bytes:
        """The bad end."""


class AnswerFrames:
    """Frames of a stream of one answer; the opening goes out before the first token is there."""

    def __init__(self, record: RequestRecord, words: EventEncoder, dialect: Dialect) -> None:
        self._exchange = record
        self._words = words
        self._dialect = dialect

    def render(self, index: int, burst: Sequence[Event]) -> bytes:
        """What happened; an empty burst is the beginning."""
        if len(burst) == 1:
            return self._frames(burst[0])
        if not burst:
            return self._words.opening()
        return b"".join([self._frames(event) for event in burst])

    def fail(self, error: RouterError) -> bytes:
        """The last words of a stream that ends badly."""
        problem = problem_of(error, self._dialect, self._exchange.request_id)
        self._exchange.error_type = problem.error_type
        return self._words.failed(error, problem)

    def end(self) -> bytes:
        """Nothing: the good end is sent as it happens."""
        return b""

    def _frames(self, event: Event) -> bytes:
        if isinstance(event, TokenGenerated):
            return self._words.token(event)
        if isinstance(event, Finished):
            self._exchange.finished(event)
            return self._words.finished(event)
        if isinstance(event, Failed):
            raise event.error
        assert isinstance(event, PromptScored)
        return b""


class Conversations:
    """Answers conversations, one text for each."""

    def __init__(
        self,
        infer: Infer,
        validator: RequestValidator,
        bodies: BodyReader,
        template: ChatTemplate,
        tokenizer: Tokenizer,
        info: ServerInfo,
    ) -> None:
        self.validator = validator
        self._infer = infer
        self._bodies = bodies
        self._template = template
        self._tokenizer = tokenizer
        self._info = info

    @property
    def limits(self) -> Limits:
        """The bounds of this server."""
        return self._info.limits

    async def read(self, request: Request, schema: type[S]) -> S:
        """The body. Raises HttpError, InvalidRequest."""
        return parse(await self._bodies.read(request), schema)

    def model_name(self, asked: str | None) -> str:
        """The name to tell back. Raises HttpError (404) for another model."""
        return served_name(self._info, asked)

    async def render(
        self,
        turns: Sequence[Turn],
        settings: Sequence[Setting] = (),
        *,
        continues: bool = False,
        tools: Sequence[Mapping[str, Any]] = (),
        may_call: bool = False,
    ) -> str:
        """The prompt; `continues` lets the answer go on with the last turn.

        `tools` are in OpenAI's words; a template that shows none gets them in the last turn, if
        they may be called.

        Raises TemplateFailed, and Unsupported for a setting that the template does not read.
        """
        # Off the event loop: a template is the model's program, and a conversation may be long.
        return await asyncio.to_thread(self._render, turns, settings, continues, tools, may_call)

    def _render(
        self,
        turns: Sequence[Turn],
        settings: Sequence[Setting],
        continues: bool,
        tools: Sequence[Mapping[str, Any]],
        may_call: bool,
    ) -> str:
        variables = {}
        for setting in settings:
            if setting.value is None:
                continue
            if self._template.reads(setting.name):
                variables[setting.name] = setting.value
            elif setting.value != setting.neutral:
                raise Unsupported(
                    f"`{setting.field}` is nothing that this model's chat template reads",
                    setting.field,
                )
        messages: list[Mapping[str, Any]] = [turn.for_template() for turn in turns]
        if may_call and not self._template.reads("tools", with_tools=True):
            messages = add_tools(messages, tools, self._template.call_syntax())
        return self._template.render(
            messages,
            tools=list(tools) or None,
            add_generation_prompt=not continues,
            continue_final_message=continues,
            variables=variables,
        )

    async def offer(
        self, raw: RawParams, offer: AllowedTools, field: str
    ) -> tuple[RawParams, Calling]:
        """The parameters with the grammar of what may be called, and how it is called.

        Raises TemplateFailed.
        """

        def offered() -> tuple[RawParams, Calling]:
            syntax = self._template.call_syntax()
            return offering(raw, offer, syntax, field)

        return await asyncio.to_thread(offered)

    async def count(self, prompt: str) -> int:
        """How many tokens a rendered prompt has."""
        return len(await self._tokenizer.encode_async(prompt, add_special_tokens=False))

    async def check(self, record: RequestRecord, prompt: str, raw: RawParams) -> GenerateRequest:
        """The request for a rendered prompt. Raises InvalidRequest."""
        return await self.validator.check(record, prompt, raw, add_special_tokens=False)

    async def complete(self, request: Request, checked: GenerateRequest) -> Completion:
        """The whole answer. Raises RouterError, and ClientLeft if the client leaves."""
        completion = await unless_disconnected(request, self._infer.complete(checked))
        RequestRecord.of(request).finished(completion.finished)
        return completion

    def reply(
        self, record: RequestRecord, answer: Mapping[str, Any], headers: Mapping[str, str]
    ) -> Response:
        """A whole answer as JSON."""
        timing = answer_headers(self._info, record, record.num_generated_tokens)
        return Response(
            orjson.dumps(answer), headers={**timing, **headers}, media_type="application/json"
        )

    async def stream(
        self,
        record: RequestRecord,
        checked: GenerateRequest,
        frames: AnswerFrames,
        headers: Mapping[str, str],
    ) -> Response:
        """The answer as it comes. Raises Refused before anything is sent."""
        stream = EventStream(
            [_opening(), self._infer.generate(checked)],
            frames,
            {**stream_headers(self._info, record.num_prompt_characters), **headers},
        )
        await stream.begin()
        return stream


async def _opening() -> AsyncGenerator[Sequence[Event], None]:
    """Nothing, once: it lets the frames speak before the first token is there."""
    yield ()
