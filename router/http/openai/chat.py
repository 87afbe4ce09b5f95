"""/v1/chat/completions: messages in, a message or its deltas out."""

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from router.engine.infer import Completion
from router.http.logprobs import ChatLogprobs
from router.http.openai.reply import (
    FINISH_REASONS,
    calls_message,
    calls_reason,
    prompt_fields,
)
from router.http.openai.routes import OpenAiRoutes
from router.http.openai.schema import LAST_EVENT, ChatBody, ChatCompletion, ChatCompletionChunk
from router.http.openai.stream import ChatEncoder
from router.http.request_validator import RequestRecord
from router.http.server.docs import NO_MODEL, ApiRoute, RouteDocs
from router.http.server_info import constraint_fields
from router.http.tools.calls import CallFormat
from router.request.request import GenerateRequest


class ChatRoutes(OpenAiRoutes):
    """The route of chats."""

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
        record = self.service.validator.begin(request)
        body = await self.read(request, ChatBody)
        checked, calls = await self.check(record, body)
        draws = self.draws([checked], body.num_draws)
        logprobs, num_top = None, body.num_top_logprobs
        if num_top is not None:
            logprobs = ChatLogprobs(self.names(body), num_top)
        if body.stream:
            envelope = self.envelope(body, "chatcmpl", "chat.completion.chunk")
            encoders = [
                ChatEncoder(
                    envelope,
                    index,
                    calls,
                    logprobs,
                    echoed=body.echoed,
                    prompt_ids=checked.prompt_ids if body.return_token_ids else None,
                    has_usage=body.includes_usage,
                )
                for index in range(body.num_draws)
            ]
            return await self.stream(record, body, envelope, draws, encoders)
        completions = await self.service.complete(request, draws)
        choices = [
            {"index": index, **_choice(completion, body, logprobs, calls)}
            for index, completion in enumerate(completions)
        ]
        envelope = self.envelope(body, "chatcmpl", "chat.completion")
        more = prompt_fields(body, checked, completions[0])
        return self.reply(record, body, envelope, completions, choices, **more)

    async def check(
        self, record: RequestRecord, body: ChatBody
    ) -> tuple[GenerateRequest, CallFormat | None]:
        """The request for one answer, and how it calls; None: it is text. Raises InvalidRequest."""
        raw, prompt = body.to_raw(self.service.limits), await self.render(body)
        return await self.service.check(
            record,
            prompt,
            raw,
            body.allowed_tools,
            template=body.chat_template,
            add_special_tokens=bool(body.add_special_tokens),
        )

    async def render(self, body: ChatBody) -> str:
        """The prompt. Raises TemplateFailed, and Unsupported for what the template ignores."""
        return await self.service.render(body.chat_prompt)


def _choice(
    completion: Completion, body: ChatBody, logprobs: ChatLogprobs | None, calls: CallFormat | None
) -> dict[str, Any]:
    end = completion.finished
    reason = FINISH_REASONS[end.reason]
    message = {"role": "assistant", "content": body.echoed + end.text, "refusal": None}
    if calls is not None:
        message, num_calls = calls_message(calls, end.text, body.echoed)
        reason = calls_reason(calls.settled(end), num_calls)
    choice = {
        "message": message,
        "logprobs": None if logprobs is None else logprobs.of(completion.tokens),
        "finish_reason": reason,
        **constraint_fields(end),
    }
    if body.return_token_ids:
        choice["token_ids"] = [event.token.token_id for event in completion.tokens]
    return choice
