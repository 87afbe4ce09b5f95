"""/v1/messages and /v1/messages/count_tokens: turns in, a message or its events out.

`anthropic-version` may say anything or be absent: there is one version so far.
"""

import uuid
from functools import partial

import orjson
from starlette.requests import Request
from starlette.responses import Response

from router.http.anthropic.reply import message, usage_of
from router.http.anthropic.schema import CountBody, MessagesBody
from router.http.anthropic.stream import MessageEncoder, ToolUseEncoder, calling_ending, content_of
from router.http.conversation import AnswerFrames, Conversations, EventEncoder
from router.http.request_validator import RequestRecord
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
    """The handlers, over what they need."""

    def __init__(self, conversations: Conversations) -> None:
        self._conversations = conversations

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
        talk = self._conversations
        record = talk.validator.begin(request)
        body = await talk.read(request, MessagesBody)
        model = talk.model_name(body.model)
        body.check()
        raw = body.to_raw(talk.limits)
        prompt = await self._prompt(body)
        offer, calling = body.offered.offer, None
        if offer is not None:
            raw, calling = await talk.offer(raw, offer, "tools")
        checked = await talk.check(record, prompt, raw)
        message_id = f"msg_{uuid.uuid4().hex}"
        if body.stream:
            words: EventEncoder = MessageEncoder(message_id, model, len(checked.prompt_ids))
            if calling is not None:
                words = ToolUseEncoder(message_id, model, len(checked.prompt_ids), calling)
            frames = AnswerFrames(record, words, Dialect.ANTHROPIC)
            return await talk.stream(record, checked, frames, _headers(record))
        end = (await talk.complete(request, checked)).finished
        content, num_calls = [{"type": "text", "text": end.text}], 0
        if calling is not None:
            content, num_calls = content_of(end.text, calling)
            end = calling.settled(end)
        stopped = calling_ending(end, num_calls)
        answer = message(message_id, model, content, stopped, usage_of(end))
        return talk.reply(record, answer, _headers(record))

    async def count_tokens(self, request: Request) -> Response:
        """How many tokens the same conversation would have as a prompt."""
        talk = self._conversations
        body = await talk.read(request, CountBody)
        talk.model_name(body.model)
        body.check()
        prompt = await self._prompt(body)
        answer = orjson.dumps({"input_tokens": await talk.count(prompt)})
        headers = _headers(RequestRecord.of(request))
        return Response(answer, headers=headers, media_type="application/json")

    async def _prompt(self, body: CountBody) -> str:
        return await self._conversations.render(
            body.turns,
            body.settings,
            continues=body.continues,
            tools=body.offered.shown,
            may_call=body.offered.offer is not None,
        )


def _headers(record: RequestRecord) -> dict[str, str]:
    """Where Anthropic's clients look for the request's id."""
    return {"request-id": record.request_id}
