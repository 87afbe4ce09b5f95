"""/vertex, for Google's Vertex AI: instances in, one text for each out.

An instance is a body of /generate or of a chat. Its parameters all count, where TGI reads
`max_new_tokens` and `seed` alone. What `details` and the like ask for
has no place in the answer.
"""

from typing import Any

from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from router.http.body import AnswerModel, Schema, parse, parse_part
from router.http.openai.chat import ChatRoutes
from router.http.openai.schema import ChatBody
from router.http.platforms.batches import Batches, Draw, within
from router.http.request_validator import RequestRecord, RequestValidator
from router.http.server.body import BodyReader, json_response
from router.http.server.docs import NO_MODEL, ApiRoute, RouteDocs
from router.http.tgi.schema import GenerateBody
from router.request.errors import InvalidRequest, Unsupported

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


class VertexRoutes:
    """The handler, over what it needs."""

    def __init__(
        self,
        validator: RequestValidator,
        bodies: BodyReader,
        batches: Batches,
        chat: ChatRoutes,
    ) -> None:
        self._validator = validator
        self._bodies = bodies
        self._batches = batches
        self._chat = chat

    def routes(self) -> list[ApiRoute]:
        """The route, documented."""
        docs = RouteDocs(
            tag="Text Generation Inference",
            body=VertexBody,
            answer=VertexResponse,
            generates=True,
            failures=NO_MODEL,
        )
        return [ApiRoute("POST", "/vertex", self.predict, docs)]

    async def predict(self, request: Request) -> Response:
        """Generate a text for each instance, for Vertex AI."""
        record = self._validator.begin(request)
        body = await self._bodies.read(request)
        instances = parse(body, VertexBody).instances
        self._batches.check_size("instances", len(instances))
        draws = []
        for index, instance in enumerate(instances):
            with within(f"instances[{index}]"):
                draws.append(await self._draw(record, body, index, instance))
        texts, headers = await self._batches.texts(request, draws)
        return json_response({"predictions": texts}, headers)

    async def _draw(self, record: RequestRecord, body: bytes, index: int, instance: object) -> Draw:
        place = ("instances", index)
        if isinstance(instance, dict) and "messages" in instance and "inputs" not in instance:
            chat = self._chat.admit(parse_part(body, instance, place, ChatBody))
            _check_whole(chat)
            return Draw(await self._chat.check(record, chat), prefix=chat.echoed)
        generate = parse_part(body, instance, place, GenerateBody)
        return await self._batches.prepare(record, _sampling(generate))


def _check_whole(chat: ChatBody) -> None:
    for name, value, neutral in (("stream", chat.stream, False), ("n", chat.n, 1)):
        if value not in (None, neutral):
            raise InvalidRequest(
                f"`{name}` means nothing here: an instance has one whole prediction; leave it out",
                name,
            )
    if chat.allowed_tools is not None:
        field = chat.allowed_tools.field
        raise Unsupported(f"`{field}` cannot be called here: predictions are texts", field)


def _sampling(body: GenerateBody) -> GenerateBody:
    """Vertex' instances are sampled unless `do_sample` is false."""
    if body.parameters is None or body.parameters.do_sample is not None:
        return body
    sampling = body.parameters.model_copy(update={"do_sample": True})
    return body.model_copy(update={"parameters": sampling})
