"""/v1/chat/completions: messages in, a message or its deltas out."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from router.engine.infer import Completion
from router.http.logprobs import ChatLogprobs, prompt_logprobs
from router.http.openai.answers import LAST_EVENT, ChatCompletion, ChatCompletionChunk
from router.http.openai.reply import FINISH_REASONS, RunningUsage, Usage
from router.http.openai.routes import OpenAiRoutes
from router.http.openai.schema import ChatBody
from router.http.openai.stream import CallingFrames, ChatCalling, ChatChoiceFrames, OpenAiFrames
from router.http.request_validator import RequestRecord
from router.http.server.docs import NO_MODEL, ApiRoute, RouteDocs
from router.http.server_info import constraint_fields
from router.http.tools.functions import OfferedFunctions
from router.http.tools.tool_prompt import add_tools, offering
from router.request.errors import Unsupported, wrong
from router.request.request import GenerateRequest
from router.request.validation import RawParams
from router.text.chat_template import ChatTemplate

# Settings that a template may read, and the values that ask for nothing where it does not.
_SETTINGS = {"reasoning_effort": "none", "verbosity": "medium"}


@dataclass(frozen=True, slots=True)
class _Checked:
    """A chat in order. `calling`: how its answers call; None: they are text."""

    request: GenerateRequest
    calling: ChatCalling | None


class ChatRoutes:
    """The handler, over what it needs."""

    def __init__(self, front: OpenAiRoutes, template: ChatTemplate) -> None:
        self._front = front
        self._template = template

    def routes(self) -> list[ApiRoute]:
        """The route, documented."""
        docs = RouteDocs(
            tag="OpenAI",
            body=ChatBody,
            answer=ChatCompletion,
            events=ChatCompletionChunk,
            last_event=LAST_EVENT,
            generates=True,
            failures=NO_MODEL,
        )
        return [ApiRoute("POST", "/v1/chat/completions", self.chat, docs)]

    async def chat(self, request: Request) -> Response:
        """Answer a chat, whole or as server-sent events."""
        record = self._front.validator.begin(request)
        body = await self._front.read(request, ChatBody)
        checked = await self._check(record, body)
        draws = self._front.draws([checked.request], body.num_draws)
        usage = Usage(body.num_draws)
        if body.stream:
            frames = self._frames(record, body, checked, usage)
            return await self._front.stream(record, draws, frames)
        completions = await self._front.complete(request, draws)
        for index, completion in enumerate(completions):
            usage.add(index, completion.finished)
        logprobs = self._logprobs(body)
        choices = [
            _choice(index, completion, body, logprobs, checked.calling)
            for index, completion in enumerate(completions)
        ]
        envelope = self._front.envelope(body, "chatcmpl", "chat.completion")
        more = _told_of_prompt(body, checked.request, completions[0])
        return self._front.reply(record, envelope, choices, usage, **more)

    async def check(self, record: RequestRecord, body: ChatBody) -> GenerateRequest:
        """The request for one answer, which is text. Raises InvalidRequest."""
        return (await self._check(record, body)).request

    async def _check(self, record: RequestRecord, body: ChatBody) -> _Checked:
        raw, offered, calling = body.to_raw(self._front.limits), body.offered, None
        prompt = await self.render(body)
        if offered is not None:
            raw, calling = await asyncio.to_thread(self._offer, body, raw, offered)
        request = await self._front.validator.check(
            record, prompt, raw, add_special_tokens=bool(body.add_special_tokens)
        )
        return _Checked(request, calling)

    def _offer(
        self, body: ChatBody, raw: RawParams, offered: OfferedFunctions
    ) -> tuple[RawParams, ChatCalling]:
        """The parameters with the grammar of what may be called, and how calls are reported."""
        syntax = self._template.call_syntax(body.chat_template)
        raw, calling = offering(raw, offered.offer, syntax, offered.field)
        return raw, ChatCalling(calling, is_old=offered.field == "functions")

    async def render(self, body: ChatBody) -> str:
        """The prompt. Raises TemplateFailed, and Unsupported for what the template ignores."""
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
                raise Unsupported(
                    f"`{name}` is nothing that this model's chat template reads", name
                )
        messages: list[Mapping[str, Any]]
        messages = [message.for_template() for message in body.messages]
        if body.offered is not None and not self._template.reads(
            "tools", name=body.chat_template, with_tools=True
        ):
            syntax = self._template.call_syntax(body.chat_template)
            messages = add_tools(messages, tools or (), syntax, body.tool_prompt)
        return self._template.render(
            messages,
            tools=tools,
            add_generation_prompt=not body.continues and body.add_generation_prompt is not False,
            continue_final_message=body.continues,
            name=body.chat_template,
            variables=variables,
        )

    def _check_template(self, body: ChatBody) -> None:
        name, names = body.chat_template, self._template.names
        if name is not None and name not in names:
            raise wrong(
                "chat_template",
                "must be the name of one of the model's templates, "
                f"{', '.join(names) or 'of which there are none'}; templates of clients are not "
                "run",
                name,
            )

    def _logprobs(self, body: ChatBody) -> ChatLogprobs | None:
        num_top = body.num_top_logprobs
        return None if num_top is None else ChatLogprobs(self._front.names(body), num_top)

    def _frames(
        self, record: RequestRecord, body: ChatBody, checked: _Checked, usage: Usage
    ) -> OpenAiFrames:
        envelope = self._front.envelope(body, "chatcmpl", "chat.completion.chunk")
        logprobs = self._logprobs(body)
        prompt_ids = checked.request.prompt_ids
        fields: dict[str, Any] = {
            "echoed": body.echoed,
            "prompt_ids": prompt_ids if body.return_token_ids else None,
            "has_usage": body.includes_usage,
        }
        calling = checked.calling
        choices = [
            ChatChoiceFrames(envelope, index, logprobs, **fields)
            if calling is None
            else CallingFrames(envelope, index, calling, logprobs, **fields)
            for index in range(body.num_draws)
        ]
        return OpenAiFrames(
            record,
            envelope,
            choices,
            usage,
            includes_usage=body.includes_usage,
            running=RunningUsage(len(prompt_ids)) if body.counts_on else None,
        )


def _choice(
    index: int,
    completion: Completion,
    body: ChatBody,
    logprobs: ChatLogprobs | None,
    calling: ChatCalling | None,
) -> dict[str, Any]:
    end = completion.finished
    reason = FINISH_REASONS[end.reason]
    if calling is None:
        message = {"role": "assistant", "content": body.echoed + end.text, "refusal": None}
    else:
        message, num_calls = calling.message(end.text, body.echoed)
        reason = calling.reason(calling.calling.settled(end), num_calls)
    choice = {
        "index": index,
        "message": message,
        "logprobs": None if logprobs is None else logprobs.of(completion.tokens),
        "finish_reason": reason,
        **constraint_fields(end),
    }
    if body.return_token_ids:
        choice["token_ids"] = [event.token.token_id for event in completion.tokens]
    return choice


def _told_of_prompt(
    body: ChatBody, checked: GenerateRequest, completion: Completion
) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    if body.prompt_logprobs is not None and completion.prompt is not None:
        fields["prompt_logprobs"] = prompt_logprobs(completion.prompt, body.prompt_logprobs)
    if body.return_token_ids:
        fields["prompt_token_ids"] = checked.prompt_ids
    return fields
