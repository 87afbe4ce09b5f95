"""/invocations, SageMaker's one route: the body decides which other route answers.

inputs -> POST /        messages -> /v1/chat/completions        prompt -> /v1/completions
"""

from collections.abc import Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message

from router.http.body import Schema, parse
from router.http.openai.schema import ChatBody, CompletionBody
from router.http.request_validator import RequestValidator
from router.http.server.body import BodyReader
from router.http.server.docs import NO_MODEL, ApiRoute, Handler, RouteDocs
from router.http.tgi.schema import CompatBody
from router.request.errors import InvalidRequest


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
        bodies: BodyReader,
        handlers: Mapping[str, Handler],
    ) -> None:
        self._validator = validator
        self._bodies = bodies
        self._handlers = handlers

    def routes(self) -> list[ApiRoute]:
        """The route, documented."""
        docs = RouteDocs(
            tag="Text Generation Inference",
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
        body = await self._bodies.read(request)
        handler = self._handlers[parse(body, InvocationBody).kind]
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
