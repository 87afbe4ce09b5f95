"""Frames of LMTP: a type, a space and JSON; the fields of each type, and prompts.

A frame's stream id, numbers and error objects are read and written here; its fields have exact
types, unknown ones are ignored.
"""

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, TypeAlias

import orjson
from pydantic import BeforeValidator, Field, PlainValidator

from router.engine.beam_search import EarlyStopping
from router.http.bodies import (
    DEFAULT_BOUNDS,
    JsonBounds,
    MalformedJson,
    almost_json,
    check_shape,
    check_width,
)
from router.http.conversation import PartForm, Turn, images_in, read_parts
from router.http.errors import Dialect, HttpError, problem_of
from router.http.images import ImageSource, chat_image, joined
from router.http.schema import Grammar, LogitBias, SamplingFields, Schema, parse_part
from router.request.errors import (
    ConstraintRefused,
    FailedAlone,
    InvalidRequest,
    Refused,
    RouterError,
    RowFailed,
    Unsupported,
    WrongPart,
    check_unicode,
    wrong,
)
from router.request.parameters import Limits
from router.text.chat_template import ChatTemplate
from router.text.tokenizer import Tokenizer, check_fits, continuation_ids

# An object to be sent: the type of its frame, and its JSON.
Message: TypeAlias = tuple[str, str]
_PARTS = PartForm("part", ("text",), "image_url", chat_image)
_MAX_TYPE_LEN = 40
_UNSUPPORTED_DATA = 1003
_INVALID_DATA = 1007
# The log-probability of an impossible token. Clients of version 1 read Python's JSON; others may
# not know infinity.
_MINUS_INFINITY = "-Infinity"
_LEAST_FLOAT = repr(-sys.float_info.max)
_STREAM_ID_RULE = "must be a whole number of at most 64 bits"
# Beyond these bounds the scores of long traces are infinite.
_Count = Annotated[int, Field(ge=0, le=2**31)]
_Logprob = Annotated[float, Field(ge=-(2.0**31), le=2.0**31)]
_Penalty = Annotated[float, Field(ge=-32.0, le=32.0)]
# Fields of which exactly one is present.
_FIELDS = ("prompt", "text", "messages")


class SocketClose(Exception):
    """Why the server closes a socket: with `code`, and the text as the reason."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(reason)
        self.code = code


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame of a client: its type, its object, and the object's JSON.

    `fault` is why it is refused alone, though its stream is known: another frame is well formed.
    """

    command: str
    payload: Mapping[str, Any]
    text: bytes
    fault: HttpError | None = None


def read_frame(text: str | None, bounds: JsonBounds = DEFAULT_BOUNDS) -> Frame:
    """The frame of a text message; None stands for a binary one. Raises SocketClose."""
    if text is None:
        raise SocketClose(_UNSUPPORTED_DATA, "a frame is a text message: TYPE, a space, JSON")
    command, space, rest = text.partition(" ")
    if not space or not command.isascii() or not 1 <= len(command) <= _MAX_TYPE_LEN:
        raise SocketClose(_INVALID_DATA, "a frame is TYPE, a space, JSON")
    body = rest.encode()
    try:
        check_width(body, bounds)
        payload = orjson.loads(body)
        if not isinstance(payload, dict):
            raise SocketClose(_INVALID_DATA, "the JSON of a frame must be an object")
        check_shape(body, payload)
    except orjson.JSONDecodeError as error:
        fault = MalformedJson("the frame's JSON is malformed", body, error)
        almost = almost_json(body, "stream_id")
        if almost is None:
            raise SocketClose(_INVALID_DATA, str(fault)) from error
        return Frame(command, almost, body, fault)
    except HttpError as error:
        raise SocketClose(_INVALID_DATA, f"the frame's JSON: {error}") from error
    return Frame(command, payload, body)


def write_frame(command: str, objects: Sequence[str]) -> str:
    """The text message of `objects`, each of which is JSON."""
    return f"{command} [{','.join(objects)}]"


class _WithStreamId(Schema):
    stream_id: int


def stream_id_of(frame: Frame) -> int:
    """Raises InvalidRequest, which quotes a wrong value as the client wrote it."""
    stream_id = frame.payload.get("stream_id")
    if type(stream_id) is int:
        return stream_id
    try:
        exact_id = parse_part(frame.text, frame.payload, (), _WithStreamId).stream_id
    except InvalidRequest as error:
        if "stream_id" not in frame.payload:
            raise
        raise wrong("stream_id", _STREAM_ID_RULE, stream_id) from error
    # The JSON parser read a number above 64 bits as a float.
    raise wrong("stream_id", _STREAM_ID_RULE, exact_id)


def number(value: float, *, strictly: bool) -> str:
    """A log-probability as JSON; `strictly`: only numbers that any reader of JSON knows."""
    if math.isfinite(value):
        return repr(value)
    return _LEAST_FLOAT if strictly else _MINUS_INFINITY


def as_json(value: Mapping[str, object]) -> str:
    """An object without infinite numbers as JSON."""
    return orjson.dumps(value).decode()


def error_type_of(error: RouterError | HttpError) -> str:
    """The error type, as in logs, metrics and HTTP answers."""
    return problem_of(error, Dialect.TGI).error_type


def error_fields(error: RouterError | HttpError) -> dict[str, object]:
    """The fields of an error object, but for the stream's id."""
    problem = problem_of(error, Dialect.TGI)
    fields: dict[str, object] = {"error": str(error), "error_type": problem.error_type}
    if isinstance(error, InvalidRequest | HttpError) and error.field is not None:
        fields["field"] = error.field
    if isinstance(error, ConstraintRefused):
        fields["details"] = {"reason": error.reason, **error.details}
    if problem.retry_after_s is not None:
        fields["retry_after_s"] = problem.retry_after_s
    fields["retryable"] = _is_retryable(error)
    return fields


def _is_retryable(error: RouterError | HttpError) -> bool:
    """False for wrong requests, and for those that fail because of their own values."""
    if isinstance(error, HttpError):
        return error.status >= 500
    is_own_fault = isinstance(error, InvalidRequest | RowFailed | FailedAlone)
    return isinstance(error, Refused) or not is_own_fault


def _scored(value: Any) -> Any:
    """Token ids, lists of them, or texts, not mixed."""
    rule = "must be a list of token ids, of lists of them, or of strings"
    if not isinstance(value, list):
        raise WrongPart(rule, value)
    types = set(map(type, value))
    is_nested = types == {list} and all(set(map(type, each)) <= {int} for each in value)
    if not (is_nested or types <= {int} or types == {str}):
        raise WrongPart(rule, value)
    return value


def _content(value: Any) -> Any:
    if not isinstance(value, str | list):
        raise WrongPart("must be a string or a list of parts", value)
    return value


class ChatTurn(Schema):
    """A turn of a chat."""

    role: Annotated[str, Field(min_length=1, max_length=64)]
    content: Annotated[str | list[Any], PlainValidator(_content)]
    reasoning_content: str | None = None

    def turn(self, place: str) -> Turn:
        """What it says. Raises InvalidRequest for a part of the content that is none."""
        content = joined(read_parts(self.content, f"{place}.content", _PARTS))
        return Turn(self.role, content, thought=self.reasoning_content or "")


def _without_start(value: Any) -> Any:
    """lmql's prompt where nothing comes before a hole and its tokenizer has no first token."""
    return [] if value == [None] else value


class PromptFields(Schema):
    """A prompt: one of token ids, text and the turns of a chat."""

    model: str | None = None
    prompt: Annotated[list[int], Field(fail_fast=True), BeforeValidator(_without_start)] | None = (
        None
    )
    text: str | None = None
    messages: Annotated[list[ChatTurn], Field(min_length=1, fail_fast=True)] | None = None


class GenerateFields(SamplingFields, PromptFields):
    """GENERATE."""

    max_tokens: int | None = None
    top_logprobs: int | None = None
    typical_p: float | None = None
    constraint: Grammar | None = None
    stop: list[str] | None = Field(default=None, fail_fast=True)
    include_stop: bool | None = None
    stop_token_ids: list[int] | None = Field(default=None, fail_fast=True)
    ignore_eos: bool | None = None
    min_tokens: int | None = None
    output: list[int] | None = Field(default=None, fail_fast=True)
    timeout_s: float | None = None
    include_reasoning: bool | None = None


class ScoreFields(PromptFields):
    """SCORE: one continuation as ids, or several as ids or texts."""

    scored: Annotated[list[int] | list[list[int]] | list[str], PlainValidator(_scored)]

    @property
    def is_flat(self) -> bool:
        """Whether it is one continuation, as in version 1."""
        return not self.scored or type(self.scored[0]) is int

    @property
    def values(self) -> list[list[int] | str]:
        """The continuations."""
        if self.is_flat:
            return [self.scored]  # type: ignore[list-item]
        return self.scored  # type: ignore[return-value]


class HelloFields(Schema):
    """HELLO."""

    version: int | None = None


class ModelInfoFields(Schema):
    """MODEL_INFO."""

    model: str | None = None


def _token_ids(value: Any) -> tuple[int, ...]:
    """A list of token ids. A search sends many of them, so this is fast."""
    if not isinstance(value, list) or not set(map(type, value)) <= {int}:
        raise WrongPart("must be a list of token ids", value)
    return tuple(value)


def _early_stopping(value: Any) -> EarlyStopping:
    if isinstance(value, bool):
        return value
    if value == "never":
        return "never"
    raise WrongPart('must be true, false or "never"', value)


class HoleFields(PromptFields):
    """A hole: its prompt and constraints. `is_last`: the program ends with it."""

    max_tokens: int | None = None
    constraint: Grammar | None = None
    stop: list[str] | None = Field(default=None, fail_fast=True)
    include_stop: bool | None = None
    is_last: bool = False


class BeamFields(Schema):
    """A beam at the hole of this number, and its tokens there."""

    hole: _Count = 0
    output: Annotated[tuple[int, ...], PlainValidator(_token_ids)] = ()
    logprob: _Logprob = 0.0
    num_tokens: _Count = 0
    output_logprob: _Logprob = 0.0


class BeamsFields(Schema):
    """BEAMS."""

    model: str | None = None
    holes: Annotated[list[HoleFields], Field(min_length=1, fail_fast=True)]
    ended: list[float] = Field(default_factory=list, fail_fast=True)
    report_s: Annotated[float, Field(ge=0.0)] | None = None
    timeout_s: float | None = None
    logit_bias: LogitBias | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    width: Annotated[int, Field(ge=1)]
    beams: list[BeamFields] | None = Field(default=None, min_length=1, fail_fast=True)
    length_penalty: _Penalty = 0.0
    early_stopping: Annotated[EarlyStopping, PlainValidator(_early_stopping)] = False
    max_len: Annotated[int, Field(ge=1, le=2**31)] | None = None
    num_candidates: Annotated[int, Field(ge=1)] | None = None


@dataclass(frozen=True, slots=True)
class Prompt:
    """Text to be tokenized, or token ids. `field` is the field that it came from; `images` are for
    its markers.
    """

    content: str | tuple[int, ...]
    field: str
    add_special_tokens: bool = False
    images: tuple[ImageSource, ...] = ()

    def check_has_no_images(self) -> None:
        """Raises Unsupported where nothing but GENERATE takes them."""
        if self.images:
            place = self.images[0].place
            raise Unsupported(f"`{place}` is an image, which GENERATE alone takes", place)


class Prompts:
    """Reads prompts with the model's tokenizer and chat template."""

    def __init__(self, tokenizer: Tokenizer, template: ChatTemplate, limits: Limits) -> None:
        self.tokenizer = tokenizer
        self._limits = limits
        self._template = template
        self._bos_ids = _bos_ids(tokenizer)

    @property
    def takes_messages(self) -> bool:
        """Whether the model has a chat template."""
        return bool(self._template.names)

    async def read(self, body: PromptFields) -> Prompt:
        """The prompt of a frame. Raises InvalidRequest."""
        field = _field_of(body)
        content: str | tuple[int, ...] = body.text or tuple(body.prompt or ())
        turns = turns_of(body.messages or ())
        if turns:
            content = await self._render(turns)
        if not content:
            content = self._first_ids(field)
        return Prompt(content, field, add_special_tokens=field == "text", images=images_in(turns))

    async def ids(self, body: PromptFields) -> tuple[int, ...]:
        """The same as token ids, each of the model's vocabulary. Raises InvalidRequest."""
        prompt = await self.read(body)
        prompt.check_has_no_images()
        content = prompt.content
        if isinstance(content, str):
            await self._check(content, prompt.field)
            adds = prompt.add_special_tokens
            content = tuple(await self.tokenizer.encode_async(content, add_special_tokens=adds))
        self._check_ids(content, prompt.field)
        return content

    async def continuation_ids(self, text: str, field: str) -> tuple[int, ...]:
        """The tokens of a text behind another one. Raises InvalidRequest."""
        await self._check(text, field)
        return tuple(await continuation_ids(self.tokenizer, text))

    async def _check(self, text: str, field: str) -> None:
        check_unicode(text, field)
        await check_fits(self.tokenizer, text, self._limits.max_total_len, field)

    def _check_ids(self, token_ids: tuple[int, ...], field: str) -> None:
        if not token_ids:
            raise InvalidRequest(f"`{field}` must not be empty: its text has no tokens", field)
        # Checked first: there may be millions of them.
        max_len = self._limits.max_total_len
        if len(token_ids) > max_len:
            rule = f"must have at most {max_len} tokens"
            raise InvalidRequest(f"`{field}` {rule}. Given: {len(token_ids)}", field)
        for token_id in (min(token_ids), max(token_ids)):
            if not 0 <= token_id < self._limits.vocab_size:
                rule = f"must be made of token ids between 0 and {self._limits.vocab_size - 1}"
                raise wrong(field, rule, token_id)

    async def _render(self, turns: Sequence[Turn]) -> str:
        shown = [turn.for_template() for turn in turns]
        continues = turns[-1].role == "assistant"
        return await self._template.in_worker(
            lambda: self._template.render(
                shown, add_generation_prompt=not continues, continue_final_message=continues
            )
        )

    def _first_ids(self, field: str) -> tuple[int, ...]:
        """What stands for an empty prompt: the model's first token of a sequence, or where it has
        none the one that ends them, behind which the next text of its training began."""
        first_ids = self._bos_ids or self._limits.eos_token_ids[:1]
        if not first_ids:
            raise InvalidRequest(
                f"`{field}` must not be empty: this model has no token that begins a sequence",
                field,
            )
        return tuple(first_ids)


def turns_of(messages: Sequence[ChatTurn]) -> list[Turn]:
    """The turns of a chat. Raises InvalidRequest."""
    return [each.turn(f"messages[{index}]") for index, each in enumerate(messages)]


def _field_of(body: PromptFields) -> str:
    present = [field for field in _FIELDS if getattr(body, field) is not None]
    if not present:
        message = "`prompt` is required: token ids, or `text`, or `messages`"
        raise InvalidRequest(message, "prompt")
    if len(present) > 1:
        raise InvalidRequest(f"`{present[0]}` and `{present[1]}` exclude each other", present[1])
    return present[0]


def _bos_ids(tokenizer: Tokenizer) -> tuple[int, ...]:
    if tokenizer.bos_token is None:
        return ()
    ids = tokenizer.encode(tokenizer.bos_token, add_special_tokens=False)
    return tuple(ids) if len(ids) == 1 else ()
