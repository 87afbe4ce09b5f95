"""The routes of cloud platforms: /invocations for SageMaker, /vertex for Google's Vertex AI.

The body of /invocations decides which other route answers:

    inputs -> POST /      messages -> /v1/chat/completions      prompt -> /v1/completions

/vertex answers each instance, a body of /generate or of a chat, with one text. All parameters of an
instance count, where TGI reads `max_new_tokens` and `seed` alone. What `details` and the like ask
for has no place in the answer. One instance that is refused or fails ends the whole call.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message

from router.engine.infer import Infer
from router.http.bodies import json_response, unless_disconnected
from router.http.openai.routes import ChatRoutes
from router.http.openai.schema import ChatBody, CompletionBody
from router.http.request_record import RequestRecord
from router.http.request_validator import RequestValidator
from router.http.schema import AnswerModel, Schema, SchemaReader, parse_part
from router.http.server.docs import NO_MODEL, ApiRoute, Handler, RouteDocs, Tag
from router.http.server_info import ServerInfo, answer_headers
from router.http.tgi import CompatBody, GenerateBody, to_raw
from router.request.errors import ConstraintRefused, InvalidRequest, Unsupported
from router.request.request import GenerateRequest


class InvocationBody(Schema):
    """The fields by which the kinds of bodies differ."""

    inputs: Any = None
    messages: Any = None
    prompt: Any = None

    @property
    def kind(self) -> str:
        """The field that is there. Raises InvalidRequest for none, or several."""
        found = [name for name in type(self).model_fields if getattr(self, name) is not None]
        if len(found) == 1:
            return found[0]
        names = " and ".join(f"`{name}`" for name in found) or "none of them"
        raise InvalidRequest(
            "the body must have `inputs` (as POST /), `messages` (as /v1/chat/completions) or "
            f"`prompt` (as /v1/completions), and only one of them. Given: {names}"
        )


class InvocationRoutes:
    """The handler, over those of other routes by the field that their bodies need."""

    def __init__(
        self,
        validator: RequestValidator,
        bodies: SchemaReader,
        handlers: Mapping[str, Handler],
    ) -> None:
        self._validator = validator
        self._bodies = bodies
        self._handlers = handlers

    def routes(self) -> list[ApiRoute]:
        docs = RouteDocs(
            tag=Tag.TGI,
            summary="Generate text on SageMaker",
            body=CompatBody | ChatBody | CompletionBody,
            answer=Any,
            events={},
            generates=True,
            failures=NO_MODEL,
        )
        return [ApiRoute("POST", "/invocations", self.invoke, docs)]

    async def invoke(self, request: Request) -> Response:
        """Generate text, for SageMaker: the body of POST /, of a chat or of a completion."""
        self._validator.begin(request)
        read, body = await self._bodies.read_with_bytes(request, InvocationBody)
        handler = self._handlers[read.kind]
        return await handler(_unread(request, body))


def _unread(request: Request, body: bytes) -> Request:
    """The request as it was before its body was read."""
    is_read = False

    async def receive() -> Message:
        nonlocal is_read
        if is_read:
            return await request.receive()
        is_read = True
        return {"type": "http.request", "body": body, "more_body": False}

    return Request(request.scope, receive)


_INSTANCE: dict[str, Any] = {
    "anyOf": [
        {"$ref": "#/components/schemas/GenerateBody"},
        {"$ref": "#/components/schemas/ChatBody"},
    ]
}


class VertexBody(Schema):
    """Body of /vertex."""

    instances: list[Any] = Field(min_length=1, json_schema_extra={"items": _INSTANCE})


class VertexResponse(AnswerModel):
    """One text for each instance, in their order."""

    predictions: list[str]


@dataclass(frozen=True, slots=True)
class _Instance:
    """An instance, checked. The best of `num_draws` answers is its prediction, behind `prefix`."""

    checked: GenerateRequest
    num_draws: int = 1
    prefix: str = ""


class VertexRoutes:
    def __init__(
        self,
        infer: Infer,
        validator: RequestValidator,
        bodies: SchemaReader,
        info: ServerInfo,
        chat: ChatRoutes,
    ) -> None:
        self._infer = infer
        self._validator = validator
        self._bodies = bodies
        self._info = info
        self._chat = chat

    def routes(self) -> list[ApiRoute]:
        docs = RouteDocs(
            tag=Tag.TGI,
            summary="Generate texts on Vertex AI",
            body=VertexBody,
            answer=VertexResponse,
            generates=True,
            failures=NO_MODEL,
        )
        return [ApiRoute("POST", "/vertex", self.predict, docs)]

    async def predict(self, request: Request) -> Response:
        """Generate a text for each instance, for Vertex AI."""
        record = self._validator.begin(request)
        read, body = await self._bodies.read_with_bytes(request, VertexBody)
        given = read.instances
        most = self._info.max_concurrent_requests
        if len(given) > most:
            message = f"`instances` must hold at most {most} prompts. Given: {len(given)}"
            raise InvalidRequest(message, "instances")
        instances = []
        for index, instance in enumerate(given):
            with _within(f"instances[{index}]"):
                instances.append(await self._check(record, body, index, instance))
        works = self._infer.best_of_each([(one.checked, one.num_draws) for one in instances])
        answers = await unless_disconnected(request, works)
        for completions in answers:
            for completion in completions:
                record.finished(completion.finished)
        best = [completions[0].finished for completions in answers]
        texts = [one.prefix + end.text for one, end in zip(instances, best, strict=True)]
        num_generated_tokens = sum(end.num_generated_tokens for end in best)
        headers = answer_headers(self._info, record, num_generated_tokens)
        return json_response({"predictions": texts}, headers)

    async def _check(
        self, record: RequestRecord, body: bytes, index: int, instance: object
    ) -> _Instance:
        place = ("instances", index)
        if isinstance(instance, dict) and "messages" in instance and "inputs" not in instance:
            chat = self._chat.admit(parse_part(body, instance, place, ChatBody))
            _check_whole(chat)
            model = self._chat.service.models.find(chat.model)
            checked, _ = await self._chat.check(record, chat, model)
            return _Instance(checked, prefix=chat.echoed)
        generate = _sampling(parse_part(body, instance, place, GenerateBody))
        parameters = generate.chosen
        raw = to_raw(parameters, self._chat.service.models)
        checked = await self._validator.check_inputs(record, generate.inputs, raw)
        return _Instance(checked, parameters.best_of or 1, generate.prefix)


def _check_whole(chat: ChatBody) -> None:
    for name, value, neutral in (("stream", chat.stream, False), ("n", chat.n, 1)):
        if value not in (None, neutral):
            raise InvalidRequest(
                f"`{name}` means nothing here: an instance has one whole prediction; leave it out",
                name,
            )
    if chat.allowed_tools is not None:
        raise Unsupported("`tools` cannot be called here: predictions are texts", "tools")


def _sampling(body: GenerateBody) -> GenerateBody:
    """Vertex' instances are sampled unless `do_sample` is false."""
    if body.parameters is None or body.parameters.do_sample is not None:
        return body
    sampling = body.parameters.model_copy(update={"do_sample": True})
    return body.model_copy(update={"parameters": sampling})


@contextmanager
def _within(place: str) -> Iterator[None]:
    """Adds the place of an instance to the errors about it."""
    try:
        yield
    except ConstraintRefused as error:
        message = f"`{place}`: {error}"  # whose last line may be a caret
        raise ConstraintRefused(message, error.reason, error.details, error.field) from error
    except InvalidRequest as error:
        raise type(error)(f"{error}, in `{place}`", error.field) from error
