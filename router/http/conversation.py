"""What OpenAI's, Responses' and Anthropic's routes share: prompts, answers whole and streamed.

    ChatPrompt -> ChatTemplate -> Rendered -> RequestValidator -> request -> Infer -> answer

It imports no API; each API encodes the events of a stream itself (`EventEncoder`).
"""

from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol, TypeVar

from starlette.requests import Request
from starlette.responses import Response

from constraints.spec import Kind, ThoughtRule
from router.engine.infer import Completion, Infer
from router.engine.validation import Limits, RawParams
from router.http.answers import READS_ALL, Reading, ReadingRules, SchemasOfAnswer
from router.http.bodies import json_response, unless_disconnected
from router.http.errors import Dialect, Problem, problem_of
from router.http.images import ImageSource, Part, images_of, shown_content
from router.http.marked_content import constrain_between_marks
from router.http.request_record import RequestRecord
from router.http.request_validator import RequestValidator
from router.http.schema import Schema, SchemaReader
from router.http.served_models import ServedModels
from router.http.server_info import ServerInfo, answer_headers, stream_headers
from router.http.sse import EventStream, Frames, Source
from router.http.thinking import NO_WISHES, Thinking
from router.http.tools import AllowedTools, add_tools, constrain_to_tools
from router.request.errors import (
    InvalidRequest,
    RouterError,
    TemplateFailed,
    ToolsRefused,
    Unsupported,
    quoted,
    wrong,
)
from router.request.request import (
    Event,
    Failed,
    Finished,
    GenerateRequest,
    PromptScored,
    TokenGenerated,
)
from router.text.answer_format import GENERIC_CALLS, AnswerFormat, ThoughtForm
from router.text.answer_grammar import marks_of, without_unmarked
from router.text.chat_template import ChatTemplate
from router.text.control_tokens import visible
from router.text.template_traits import THOUGHT_KEY
from router.text.tokenizer import Tokenizer, check_fits

S = TypeVar("S", bound=Schema)

# Tokens, unless the model's context is larger.
_MAX_COUNTED = 1 << 18
# As many places of ignored thoughts are named; a conversation may have any number.
_MAX_NAMED = 16


@dataclass(frozen=True, slots=True)
class Turn:
    """What one side said. `role` is the chat template's word.

    `content` is a text, or parts where there are images among them. `calls` are what it called, in
    OpenAI's words; `call_id` the call whose result the content is. `thought` is what the model
    thought before it said so.
    """

    role: str
    content: str | tuple[Part, ...]
    calls: tuple[Mapping[str, Any], ...] = ()
    call_id: str | None = None
    thought: str = ""

    @property
    def parts(self) -> tuple[Part, ...]:
        return (self.content,) if isinstance(self.content, str) else self.content

    def for_template(self) -> dict[str, Any]:
        """As chat templates have it."""
        content = shown_content(self.parts)
        shown: dict[str, Any] = {"role": self.role, "content": content}
        if self.calls:
            shown["tool_calls"] = list(self.calls)
            shown["content"] = content or None
        if self.call_id is not None:
            shown["tool_call_id"] = self.call_id
        if self.thought:
            shown[THOUGHT_KEY] = self.thought
        return shown


def images_in(turns: Iterable[Turn]) -> tuple[ImageSource, ...]:
    """Those of a conversation, in its order."""
    return tuple(image for turn in turns for image in images_of(turn.parts))


@dataclass(frozen=True, slots=True)
class PartForm:
    """How an API writes parts of a content: what it calls them, and the types of texts.

    `image` is the type of an image, which `read_image` reads; None: there may be none.
    """

    noun: str
    types: tuple[str, ...]
    image: str | None = None
    read_image: Callable[[Mapping[str, Any], str], ImageSource] | None = None


def read_parts(value: Any, place: str, form: PartForm) -> str | tuple[Part, ...]:
    """A string, or parts. Raises InvalidRequest with the part's place and type."""
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise wrong(place, f"must be a string or a list of {form.noun}s", value)
    return tuple(read_part(part, f"{place}[{index}]", form) for index, part in enumerate(value))


def read_part(part: Any, place: str, form: PartForm) -> Part:
    """One part. Raises as `read_parts`."""
    types = form.types
    noun = form.noun
    kind = part.get("type") if isinstance(part, dict) else None
    if kind in types and isinstance(part.get("text"), str):
        return str(part["text"])
    if kind is not None and kind == form.image and form.read_image is not None:
        return form.read_image(part, place)
    given = quoted(part)
    if kind is not None:
        given = f"the text {quoted(part.get('text'))}"
        given = given if kind in types else f"a {noun} of type {quoted(kind)}"
    rule = f'must be a {noun} like {{"type": "{types[0]}", "text": ...}}'
    rule += "" if form.image is None else f", or of type `{form.image}`"
    raise InvalidRequest(f"`{place}` {rule}. Given: {given}", place)


def read_role(message: Mapping[str, Any], place: str, roles: tuple[str, ...]) -> str:
    """The role of a message. Raises InvalidRequest for any other than `roles`."""
    role = message.get("role")
    if role not in roles:
        words = ", ".join(f"`{word}`" for word in roles)
        raise wrong(f"{place}.role", f"must be one of {words}", role)
    return str(role)


@dataclass(frozen=True, slots=True)
class Setting:
    """A variable of the chat template.

    `name` is the template's word, `field` the client's; a value of None is absent. A template
    without the variable ignores what `is_hint`; the answer's header names it.
    """

    name: str
    field: str
    value: Any
    is_hint: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatPrompt:
    """What a chat template renders. `messages` and `tools` are in OpenAI's form.

    A template that shows no tools gets them in the last message, if the answer `may_call` them.
    `continues`: the answer goes on with the last message. `thought_places` are where the client
    has thoughts of earlier turns. `images` are those of the messages, in their order.
    """

    messages: Sequence[Mapping[str, Any]]
    settings: Sequence[Setting] = ()
    variables: Mapping[str, Any] = field(default_factory=dict)
    tools: Sequence[Mapping[str, Any]] = ()
    may_call: bool = False
    tool_prompt: str | None = None
    continues: bool = False
    add_generation_prompt: bool = True
    template: str | None = None
    thinking: Thinking = NO_WISHES
    thought_places: tuple[str, ...] = ()
    images: tuple[ImageSource, ...] = ()


@dataclass(frozen=True, slots=True)
class Rendered:
    """A prompt as text, and how an answer to it is read.

    in_thought: it ends within a thought
    may_think:  else the answer is what follows a thought, or goes on with a text
    num_calls:  of the conversation so far
    images:     for the markers in the text
    """

    text: str
    answer_format: AnswerFormat
    in_thought: bool
    may_think: bool
    num_calls: int
    thinking: Thinking
    images: tuple[ImageSource, ...] = ()


class EventEncoder(Protocol):
    """Encodes the events of one answer for an API; empty bytes when there is nothing to send."""

    def opening(self) -> bytes:
        """What is known before the first token."""

    def token(self, event: TokenGenerated, /) -> bytes:
        """A token."""

    def finished(self, event: Finished, /) -> bytes:
        """The end of a complete answer."""

    def failed(self, error: RouterError, problem: Problem, /) -> bytes:
        """The end of a stream that fails."""


class AnswerFrames:
    """Frames of a stream of one answer; the opening goes out before the first token is there."""

    def __init__(self, record: RequestRecord, encoder: EventEncoder, dialect: Dialect) -> None:
        self._record = record
        self._encoder = encoder
        self._dialect = dialect

    def render(self, index: int, burst: Sequence[Event]) -> bytes:
        """The frames of a burst; an empty burst is the beginning."""
        if len(burst) == 1:
            return self._frames(burst[0])
        if not burst:
            return self._encoder.opening()
        return b"".join([self._frames(event) for event in burst])

    def fail(self, error: RouterError) -> bytes:
        """The last frames of a stream that fails."""
        problem = problem_of(error, self._dialect, self._record.request_id)
        self._record.error_type = problem.error_type
        return self._encoder.failed(error, problem)

    def end(self) -> bytes:
        """Nothing: the finish event has sent it."""
        return b""

    def _frames(self, event: Event) -> bytes:
        if isinstance(event, TokenGenerated):
            return self._encoder.token(event)
        if isinstance(event, Finished):
            self._record.finished(event)
            return self._encoder.finished(event)
        if isinstance(event, Failed):
            raise event.error
        assert isinstance(event, PromptScored)
        return b""


class AnswerService:
    """Reads bodies, renders prompts and generates answers for every chat API."""

    def __init__(
        self,
        infer: Infer,
        validator: RequestValidator,
        bodies: SchemaReader,
        template: ChatTemplate,
        tokenizer: Tokenizer,
        info: ServerInfo,
        models: ServedModels,
        rules: ReadingRules = READS_ALL,
    ) -> None:
        self._rules = rules
        self.models = models
        self.validator = validator
        self.tokenizer = tokenizer
        self.info = info
        self._infer = infer
        self._bodies = bodies
        self._template = template

    @property
    def limits(self) -> Limits:
        return self.info.limits

    @property
    def _special_tokens(self) -> dict[str, int]:
        """Those that may be marks of a format: ends are none, wherever a template writes them."""
        ends = self.limits.eos_token_ids
        known = self.tokenizer.special_tokens
        return {name: token_id for name, token_id in known.items() if token_id not in ends}

    @property
    def raw_thought(self) -> ThoughtForm | None:
        """The form of thoughts behind raw prompts; None: none is known, or they are no part."""
        try:
            answer_format = self._template.verdict().answer_format
        except TemplateFailed:
            return None
        return self._rules.plain(answer_format).thought

    async def read(self, request: Request, schema: type[S], check: Callable[[S], object]) -> S:
        """The body, which `check` has accepted. Raises HttpError, InvalidRequest."""
        return await self._bodies.read(request, schema, check)

    async def render(self, record: RequestRecord, prompt: Callable[[], ChatPrompt]) -> Rendered:
        """The prompt of a request.

        Raises TemplateFailed, ToolsRefused where the model's form of calls is not known,
        Unsupported for a setting that the template does not read, and InvalidRequest for an image
        where the model does not see.
        """
        rendered, ignored = await self._template.in_worker(
            lambda: self._render(prompt(), record.asked_s)
        )
        record.ignore(ignored)
        return rendered

    def _render(self, prompt: ChatPrompt, asked_s: float) -> tuple[Rendered, list[str]]:
        """The prompt, and the fields that have no effect on it."""
        template = self._template
        name = prompt.template
        if prompt.images:
            self.info.check_sees(prompt.images[0].place)
        if name is not None and name not in template.names:
            raise wrong(
                "chat_template",
                "must be the name of one of the model's templates, "
                f"{', '.join(template.names) or 'of which there are none'}; templates of clients "
                "are not run",
                name,
            )
        with_tools = bool(prompt.tools)
        settings, ignored = self._read_settings(prompt)
        switches = prompt.thinking.switches(template, name, with_tools=with_tools)
        variables = {**switches, **prompt.variables, **settings}
        verdict = template.verdict(name, with_tools=with_tools)
        answer_format = self._rules.plain(verdict.answer_format)
        thought = answer_format.thought
        ignored += prompt.thinking.ignored(
            is_switched=bool(switches), may_think=verdict.answer_format.thought is not None
        )
        if not template.thought_key(name, with_tools=with_tools):
            ignored += prompt.thought_places[:_MAX_NAMED]
        messages = prompt.messages
        if prompt.may_call and not verdict.calls.is_on:
            answer_format = self._generic(answer_format, verdict.calls.reason)
        if prompt.may_call and not verdict.calls.is_proven:
            reads_tools = template.reads("tools", name=name, with_tools=True)
            shown = () if reads_tools else prompt.tools
            messages = add_tools(messages, shown, GENERIC_CALLS, prompt.tool_prompt)
        render = partial(
            template.render,
            messages,
            tools=prompt.tools or None,
            continue_final_message=prompt.continues,
            name=name,
            variables=variables,
            asked_s=asked_s,
        )
        generates = prompt.add_generation_prompt and not prompt.continues
        text = render(add_generation_prompt=generates)
        end = visible(text).rstrip()
        in_thought = thought is not None and end.endswith(thought.opener)
        has_thought = thought is not None and generates and end.endswith(thought.closer)
        if thought is not None and has_thought:
            # A closer may end in what begins every answer: then the prompt has no thought.
            history = visible(render(add_generation_prompt=False))
            has_thought = thought.closer in end.removeprefix(history.rstrip())
        rendered = Rendered(
            text,
            answer_format,
            in_thought=in_thought,
            may_think=in_thought or not (prompt.continues or has_thought),
            num_calls=sum(len(message.get("tool_calls") or ()) for message in prompt.messages),
            thinking=prompt.thinking,
            images=prompt.images,
        )
        return rendered, ignored

    def _generic(self, answer_format: AnswerFormat, reason: str) -> AnswerFormat:
        """With the generic calls, where those of the template could not be read.

        Raises ToolsRefused.
        """
        if not self._rules.takes_unproven_tools:
            raise ToolsRefused(
                "Tool error: `tools` cannot be called: this model's chat template shows calls that "
                f"could not be read back ({reason}); with --unproven-tools generic the server "
                "takes a generic form",
                "tools",
            )
        return replace(answer_format, calls=GENERIC_CALLS, other_calls=())

    def _read_settings(self, prompt: ChatPrompt) -> tuple[dict[str, Any], list[str]]:
        """The settings that the template reads, and the hints that it does not.

        Raises Unsupported for others.
        """
        variables: dict[str, Any] = {}
        ignored: list[str] = []
        name = prompt.template
        with_tools = bool(prompt.tools)
        for setting in prompt.settings:
            if setting.value is None:
                continue
            if self._template.reads(setting.name, name=name, with_tools=with_tools):
                variables[setting.name] = setting.value
            elif setting.is_hint:
                ignored.append(setting.field)
            else:
                raise Unsupported(
                    f"`{setting.field}` is nothing that this model's chat template reads",
                    setting.field,
                )
        return variables, ignored

    async def check(
        self,
        record: RequestRecord,
        rendered: Rendered,
        raw: RawParams,
        allowed: AllowedTools | None,
        *,
        add_special_tokens: bool = False,
    ) -> tuple[GenerateRequest, Reading | None]:
        """The request for an answer to a rendered prompt, and how it is read; None: it is text.

        Raises InvalidRequest, ToolsRefused.
        """
        answer_format = rendered.answer_format
        thought = answer_format.thought
        if thought is not None and rendered.may_think:
            budget = rendered.thinking.budget
            rule = ThoughtRule(thought.opener, thought.closer, rendered.in_thought, budget)
            raw = replace(raw, thought=rule)
        parameters: Mapping[str, Mapping[str, Any]] = {}
        form = raw.grammar
        reads = thought is not None or answer_format.content_opening != ""
        marks = marks_of(answer_format, self._special_tokens)
        answer_format = without_unmarked(answer_format, marks)
        if allowed is not None:
            parameters = {tool.name: tool.parameters for tool in allowed.tools}
            given = raw
            raw = await self._template.in_worker(
                lambda: constrain_to_tools(given, allowed, answer_format, marks)
            )
        elif reads:
            raw = constrain_between_marks(raw, answer_format, marks)
            raw = replace(raw, shown_ids=frozenset(marks.values()))
        reading = None
        if reads or allowed is not None:
            reading = Reading(
                answer_format,
                in_thought=rendered.in_thought,
                may_call=allowed is not None,
                calls_first=form is not None,
                parameters_by_tool=parameters,
                num_calls_before=rendered.num_calls,
                shows_thought=rendered.thinking.is_shown,
                hidden=tuple(marks),
            )
            if raw.grammar is not None:
                is_json = form is not None and form.kind is Kind.JSON_SCHEMA
                text = form.constraint("").spec if form is not None and is_json else None
                parts = SchemasOfAnswer(reading, text)
                raw = replace(raw, grammar=replace(raw.grammar, parts=parts))
        adds = add_special_tokens
        checked = await self.validator.check(
            record, rendered.text, raw, add_special_tokens=adds, images=rendered.images
        )
        return checked, reading

    async def count(self, record: RequestRecord, prompt: Rendered, field: str) -> int:
        """The number of tokens of a prompt. Raises InvalidRequest for far too many, and as
        `RequestValidator.check` for images.
        """
        most = max(_MAX_COUNTED, self.limits.max_total_len)
        await check_fits(self.tokenizer, prompt.text, most, field, chars_per_token=1, margin=1)
        num_tokens = await self.tokenizer.count(prompt.text)
        return num_tokens + await self.validator.count_images(record, prompt.images)

    async def complete(
        self, request: Request, draws: Sequence[GenerateRequest]
    ) -> list[Completion]:
        """Whole answers in the order of `draws`. Raises the first RouterError, or ClientLeft."""
        completions = await unless_disconnected(request, self._infer.complete_all(draws))
        record = RequestRecord.of(request)
        for completion in completions:
            record.finished(completion.finished)
        return completions

    def reply(
        self,
        record: RequestRecord,
        answer: Mapping[str, Any],
        num_generated_tokens: int,
        headers: Mapping[str, str] | None = None,
    ) -> Response:
        timing = answer_headers(self.info, record, num_generated_tokens)
        return json_response(answer, {**timing, **(headers or {})})

    async def stream(
        self,
        record: RequestRecord,
        draws: Sequence[GenerateRequest],
        frames: Frames[Event],
        headers: Mapping[str, str] | None = None,
    ) -> EventStream[Event]:
        """The answers' events as one stream. Raises Refused before anything is sent."""
        moving = record.moving
        accepted = (
            self._infer.submit(draws) if moving is None else moving.submit(self._infer, draws)
        )
        sources: list[Source[Event]] = [*accepted]
        if isinstance(frames, AnswerFrames):
            sources.insert(0, _opening())
        if moving is not None:
            frames = moving.around(frames)
        shared = stream_headers(self.info, record.num_prompt_characters)
        stream = EventStream(sources, frames, {**shared, **(headers or {})})
        await stream.begin()
        return stream


async def _opening() -> AsyncGenerator[Sequence[Event], None]:
    """One empty burst: it lets the frames send their opening before the first token is there."""
    yield ()
