"""/v1/messages and /v1/messages/count_tokens: turns in, a message or its events out.

`anthropic-version` may say anything or be absent: there is one version so far.
"""

import uuid
from functools import partial

from starlette.requests import Request
from starlette.responses import Response

from router.http.anthropic.reply import content_of, ending, message, usage_of
from router.http.anthropic.schema import CountBody, MessagesBody
from router.http.anthropic.stream import MessageEncoder
from router.http.conversation import AnswerFrames, AnswerService
from router.http.request_validator import RequestRecord
from router.http.server.body import json_response
from router.http.server.docs import NO_MODEL, ApiRoute, RouteDocs
from router.http.server.errors import Dialect

_MESSAGE = {
    "type": "object",
    "description": "Anthropic's Message",
    "required": ["id", "type", "role", "model", "content", "stop_reason", "usage"],
}
_EVENT = {
    "type": "object",
    "description": "An event of Anthropic's, by its type",
    "required": ["type"],
}
_COUNT = {"type": "object", "required": ["input_tokens"]}


class MessageRoutes:
    """The routes of Messages."""

    def __init__(self, service: AnswerService) -> None:
        self._service = service

    def routes(self) -> list[ApiRoute]:
        """The routes, documented."""
        docs = partial(RouteDocs, tag="Anthropic", failures=NO_MODEL)
        messages = docs(body=MessagesBody, answer=_MESSAGE, events=_EVENT, generates=True)
        count = docs(body=CountBody, answer=_COUNT)
        return [
            ApiRoute("POST", "/v1/messages", self.messages, messages),
            ApiRoute("POST", "/v1/messages/count_tokens", self.count_tokens, count),
        ]

    async def messages(self, request: Request) -> Response:
        """Answer a conversation, whole or as server-sent events."""
        service = self._service
        record = service.validator.begin(request)
        body = await service.read(request, MessagesBody, self._admit)
        model = service.model_name(body.model)
        raw = body.to_raw(service.limits)
        prompt = await service.render(record, lambda: body.chat_prompt)
        checked, calls = await service.check(record, prompt, raw, body.allowed_tools)
        message_id = f"msg_{uuid.uuid4().hex}"
        if body.stream:
            encoder = MessageEncoder(message_id, model, len(checked.prompt_ids), calls)
            frames = AnswerFrames(record, encoder, Dialect.ANTHROPIC)
            return await service.stream(record, [checked], frames, _headers(record))
        (completion,) = await service.complete(request, [checked])
        end = completion.finished
        content, num_calls = content_of(end.text, calls)
        stopped = ending(end if calls is None else calls.settled(end), num_calls)
        answer = message(message_id, model, content, stopped, usage_of(end))
        return service.reply(record, answer, record.num_generated_tokens, _headers(record))

    async def count_tokens(self, request: Request) -> Response:
        """How many tokens the same conversation would have as a prompt."""
        body = await self._service.read(request, CountBody, self._admit)
        record = RequestRecord.of(request)
        prompt = await self._service.render(record, lambda: body.chat_prompt)
        num_tokens = await self._service.count(prompt, "messages")
        return json_response({"input_tokens": num_tokens}, _headers(record))

    def _admit(self, body: CountBody) -> None:
        """Raises HttpError for another model, InvalidRequest for what cannot be served."""
        self._service.model_name(body.model)
        body.check()


def _headers(record: RequestRecord) -> dict[str, str]:
    """The header in which Anthropic's clients find the request's id."""
    return {"request-id": record.request_id}
