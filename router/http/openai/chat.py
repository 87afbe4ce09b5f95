"""/v1/chat/completions: messages in, a message or its deltas out."""

import asyncio
from typing import Any

import orjson
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from router.errors import InvalidRequest, Unserved
from router.events import Finished, PromptScored, TokenGenerated
from router.http.exchange import Exchange
from router.http.openai.answers import CHAT_EVENTS, ChatCompletion
from router.http.openai.frames import OpenAiFrames
from router.http.openai.front import OpenAiFront
from router.http.openai.logprobs import ChatLogprobs, prompt_logprobs
from router.http.openai.reply import FINISH_REASONS, Envelope, RunningUsage, Usage
from router.http.openai.schema import ChatBody
from router.http.openapi import NO_MODEL, describe
from router.infer import Completion
from router.request import GenerateRequest
from router.text.chat_template import ChatTemplate

# Settings that a template may read, and the values that ask for nothing where it does not.
_SETTINGS = {"reasoning_effort": "none", "verbosity": "medium"}


class ChatRoutes:
    """The handler, over what it needs."""

    def __init__(self, front: OpenAiFront, template: ChatTemplate) -> None:
        self._front = front
        self._template = template

    def router(self) -> APIRouter:
        """The route, documented."""
        router = APIRouter(tags=["OpenAI"])
        told = describe(ChatBody, answer=ChatCompletion, events=CHAT_EVENTS, failures=NO_MODEL)
        router.add_api_route(
            "/v1/chat/completions",
            self.chat,
            methods=["POST"],
            **told,
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
            frames = self._frames(exchange, body, checked, usage)
            return await self._front.stream(exchange, draws, frames)
        completions = await self._front.complete(request, draws)
        for index, completion in enumerate(completions):
            usage.add(index, completion.finished)
        logprobs = self._logprobs(body)
        choices = [
            _choice(index, completion, body, logprobs)
            for index, completion in enumerate(completions)
        ]
        envelope = self._front.envelope(body, "chatcmpl", "chat.completion")
        more = _told_of_prompt(body, checked, completions[0])
        return self._front.reply(exchange, envelope, choices, usage, **more)

    async def check(self, exchange: Exchange, body: ChatBody) -> GenerateRequest:
        """The request for one answer. Raises InvalidRequest."""
        raw = body.to_raw(self._front.limits)
        prompt = await self.render(body)
        return await self._front.intake.check(
            exchange, prompt, raw, add_special_tokens=bool(body.add_special_tokens)
        )

    async def render(self, body: ChatBody) -> str:
        """The prompt. Raises TemplateFailed, and Unserved for what the template does not read."""
        # Off the event loop: a template is the model's program, and a chat may be long.
        return await asyncio.to_thread(self._render, body)

    def _render(self, body: ChatBody) -> str:
        self._check_template(body)
        tools = body.shown_tools
        variables = dict(body.chat_template_kwargs or {})
        given: dict[str, Any] = {
            "reasoning_effort": body.reasoning_effort,
            "verbosity": body.verbosity,
            "documents": body.documents,
        }
        for name, value in given.items():
            if value is None:
                continue
            if self._template.reads(name, name=body.chat_template, with_tools=tools is not None):
                variables[name] = value
            elif value != _SETTINGS.get(name):
                raise Unserved(f"`{name}` is nothing that this model's chat template reads", name)
        return self._template.render(
            [message.for_template() for message in body.messages],
            tools=tools,
            add_generation_prompt=not body.continues and body.add_generation_prompt is not False,
            continue_final_message=body.continues,
            name=body.chat_template,
            variables=variables,
        )

    def _check_template(self, body: ChatBody) -> None:
        name, names = body.chat_template, self._template.names
        if name is not None and name not in names:
            raise InvalidRequest(
                "`chat_template` must be the name of one of the model's templates, "
                f"{', '.join(names) or 'of which there are none'}; templates of clients are not "
                "run",
                "chat_template",
            )

    def _logprobs(self, body: ChatBody) -> ChatLogprobs | None:
        num_top = body.num_top_logprobs
        return None if num_top is None else ChatLogprobs(self._front.names(body), num_top)

    def _frames(
        self, exchange: Exchange, body: ChatBody, checked: GenerateRequest, usage: Usage
    ) -> OpenAiFrames:
        envelope = self._front.envelope(body, "chatcmpl", "chat.completion.chunk")
        logprobs = self._logprobs(body)
        prompt_ids = checked.prompt_ids if body.return_token_ids else None
        choices = [
            ChatChoiceFrames(
                envelope,
                index,
                logprobs,
                echoed=body.echoed,
                prompt_ids=prompt_ids,
                has_usage=body.includes_usage,
            )
            for index in range(body.num_draws)
        ]
        return OpenAiFrames(
            exchange,
            envelope,
            choices,
            usage,
            includes_usage=body.includes_usage,
            running=RunningUsage(len(checked.prompt_ids)) if body.counts_on else None,
        )


class ChatChoiceFrames:
    """The chunks of one choice: the role, deltas of text, the finish reason.

    With `prompt_ids` they go out with the role, and each token's id with the token. `echoed` is
    text that goes before the answer's.
    """

    def __init__(
        self,
        envelope: Envelope,
        index: int,
        logprobs: ChatLogprobs | None,
        *,
        echoed: str,
        prompt_ids: tuple[int, ...] | None,
        has_usage: bool,
    ) -> None:
        head = envelope.chunk_head() + b'{"index":%d,"delta":' % index
        end = b',"usage":null}\n\n' if has_usage else b"}\n\n"
        tail = b"]" + end
        plain = b',"logprobs":null,"finish_reason":null}'
        told = b"" if prompt_ids is None else b',"prompt_token_ids":' + orjson.dumps(prompt_ids)
        self._open = head + b'{"content":'
        self._plain = b"}" + plain + tail
        self._null_reason = b',"finish_reason":null'
        self._end = head + b'{},"logprobs":null,"finish_reason":'
        self._tail = b"}" + tail
        self._logprobs = logprobs
        self._tells_ids = prompt_ids is not None
        # Sent with the first token, so that a client's first chunk means a first token.
        role = b'{"role":"assistant","content":"","refusal":null}'
        self._role = head + role + plain + b"]" + told + end + self._text(echoed)

    def scored(self, event: PromptScored) -> bytes:
        """Nothing: streamed chats do not tell of their prompt."""
        return b""

    def token(self, event: TokenGenerated) -> bytes:
        """The text that may be shown now; nothing while it is held back."""
        if self._logprobs is None and not self._tells_ids:
            return self._begin() + self._text(event.text)
        logprobs = b"null"
        if self._logprobs is not None:
            logprobs = orjson.dumps(self._logprobs.of([event]))
        ids = b',"token_ids":[%d]' % event.token.token_id if self._tells_ids else b""
        text = orjson.dumps(event.text)
        chunk = self._open + text + b'},"logprobs":' + logprobs + self._null_reason + ids
        return self._begin() + chunk + self._tail

    def finished(self, event: Finished) -> bytes:
        """What was held back, then an empty delta with the reason."""
        reason = orjson.dumps(FINISH_REASONS[event.reason])
        return self._begin() + self._text(event.tail) + self._end + reason + self._tail

    def _begin(self) -> bytes:
        role, self._role = self._role, b""
        return role

    def _text(self, text: str) -> bytes:
        return self._open + orjson.dumps(text) + self._plain if text else b""


def _choice(
    index: int, completion: Completion, body: ChatBody, logprobs: ChatLogprobs | None
) -> dict[str, Any]:
    content = body.echoed + completion.finished.text
    choice = {
        "index": index,
        "message": {"role": "assistant", "content": content, "refusal": None},
        "logprobs": None if logprobs is None else logprobs.of(completion.tokens),
        "finish_reason": FINISH_REASONS[completion.finished.reason],
    }
    if body.return_token_ids:
        choice["token_ids"] = [event.token.token_id for event in completion.tokens]
    return choice


def _told_of_prompt(
    body: ChatBody, checked: GenerateRequest, completion: Completion
) -> dict[str, Any]:
    told: dict[str, Any] = {}
    if body.prompt_logprobs is not None and completion.prompt is not None:
        told["prompt_logprobs"] = prompt_logprobs(completion.prompt, body.prompt_logprobs)
    if body.return_token_ids:
        told["prompt_token_ids"] = checked.prompt_ids
    return told
