"""/v1/chat/completions: messages in, a message or its deltas out."""

import asyncio
from typing import Any

import orjson
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from router.events import Finished, PromptScored, TokenGenerated, TokenLogprob
from router.http.exchange import Exchange
from router.http.openai.frames import OpenAiFrames
from router.http.openai.front import OpenAiFront
from router.http.openai.reply import FINISH_REASONS, Envelope, Usage, logprob
from router.http.openai.schema import ChatBody
from router.http.openapi import describe
from router.infer import Completion
from router.request import GenerateRequest
from router.text.chat_template import ChatTemplate


class ChatRoutes:
    """The handler, over what it needs."""

    def __init__(self, front: OpenAiFront, template: ChatTemplate) -> None:
        self._front = front
        self._template = template

    def router(self) -> APIRouter:
        """The route, documented."""
        router = APIRouter(tags=["OpenAI"])
        router.add_api_route(
            "/v1/chat/completions", self.chat, methods=["POST"], **describe(ChatBody)
        )
        return router

    async def chat(self, request: Request) -> Response:
        """Answer a chat, whole or as server-sent events."""
        exchange = self._front.intake.begin(request)
        body = await self._front.read(request, ChatBody)
        checked = await self.check(exchange, body)
        draws = self._front.draws([checked], body.num_draws)
        usage = Usage(body.num_draws)
        if body.stream:
            frames = self._frames(exchange, body, usage)
            return await self._front.stream(exchange, draws, frames)
        completions = await self._front.complete(request, draws)
        for index, completion in enumerate(completions):
            usage.add(index, completion.finished)
        choices = [
            _choice(index, completion, has_logprobs=bool(body.logprobs))
            for index, completion in enumerate(completions)
        ]
        envelope = self._front.envelope(body, "chatcmpl", "chat.completion")
        return self._front.reply(exchange, envelope, choices, usage)

    async def check(self, exchange: Exchange, body: ChatBody) -> GenerateRequest:
        """The request for one answer. Raises InvalidRequest."""
        raw = body.to_raw(self._front.limits)
        prompt = await self.render(body)
        return await self._front.intake.check(exchange, prompt, raw, add_special_tokens=False)

    async def render(self, body: ChatBody) -> str:
        """The prompt. Raises TemplateFailed."""
        # Off the event loop: a template is the model's program, and a chat may be long.
        return await asyncio.to_thread(
            self._template.render,
            [message.for_template() for message in body.messages],
            add_generation_prompt=not body.continues and body.add_generation_prompt is not False,
            continue_final_message=body.continues,
        )

    def _frames(self, exchange: Exchange, body: ChatBody, usage: Usage) -> OpenAiFrames:
        envelope = self._front.envelope(body, "chatcmpl", "chat.completion.chunk")
        choices = [
            ChatChoiceFrames(
                envelope, index, has_logprobs=bool(body.logprobs), has_usage=body.includes_usage
            )
            for index in range(body.num_draws)
        ]
        return OpenAiFrames(exchange, envelope, choices, usage, includes_usage=body.includes_usage)


class ChatChoiceFrames:
    """The chunks of one choice: the role, deltas of text, the finish reason."""

    def __init__(
        self, envelope: Envelope, index: int, *, has_logprobs: bool, has_usage: bool
    ) -> None:
        head = envelope.chunk_head() + b'{"index":%d,"delta":' % index
        tail = b'],"usage":null}\n\n' if has_usage else b"]}\n\n"
        plain = b',"logprobs":null,"finish_reason":null}' + tail
        # Sent with the first token, so that a client's first chunk means a first token.
        self._role = head + b'{"role":"assistant","content":""}' + plain
        self._open = head + b'{"content":'
        self._plain = b"}" + plain
        self._null_reason = b',"finish_reason":null}' + tail
        self._end = head + b'{},"logprobs":null,"finish_reason":'
        self._tail = b"}" + tail
        self._has_logprobs = has_logprobs

    def scored(self, event: PromptScored) -> bytes:
        """Nothing: chats do not tell of their prompt."""
        return b""

    def token(self, event: TokenGenerated) -> bytes:
        """The text that may be shown now; nothing while it is held back."""
        if self._has_logprobs:
            logprobs = orjson.dumps({"content": [_logprob(event)]})
            text = orjson.dumps(event.text)
            chunk = self._open + text + b'},"logprobs":' + logprobs + self._null_reason
        else:
            chunk = self._text(event.text)
        return self._begin() + chunk

    def finished(self, event: Finished) -> bytes:
        """What was held back, then an empty delta with the reason."""
        reason = orjson.dumps(FINISH_REASONS[event.reason])
        return self._begin() + self._text(event.tail) + self._end + reason + self._tail

    def _begin(self) -> bytes:
        role, self._role = self._role, b""
        return role

    def _text(self, text: str) -> bytes:
        return self._open + orjson.dumps(text) + self._plain if text else b""


def _choice(index: int, completion: Completion, *, has_logprobs: bool) -> dict[str, Any]:
    logprobs = None
    if has_logprobs:
        logprobs = {"content": [_logprob(event) for event in completion.tokens]}
    return {
        "index": index,
        "message": {"role": "assistant", "content": completion.finished.text},
        "logprobs": logprobs,
        "finish_reason": FINISH_REASONS[completion.finished.reason],
    }


def _logprob(event: TokenGenerated) -> dict[str, Any]:
    return {**_token(event.token), "top_logprobs": [_token(token) for token in event.top_tokens]}


def _token(token: TokenLogprob) -> dict[str, Any]:
    return {
        "token": token.text,
        "logprob": logprob(token.logprob),
        "bytes": list(token.text.encode()),
    }
