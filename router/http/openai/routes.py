"""/v1/chat/completions: messages in, a message or its deltas out.

And what chats and completions share: draws, envelopes, names of tokens, answers.
"""

import time
import uuid
from collections.abc import Sequence
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import Response

from router.engine.infer import Completion
from router.http.conversation import AnswerService
from router.http.logprobs import ChatLogprobs, TokenNames
from router.http.openai.fields import OpenAiBody
from router.http.openai.reply import (
    FINISH_REASONS,
    Envelope,
    Usage,
    calls_message,
    calls_reason,
    prompt_fields,
)
from router.http.openai.schema import (
    LAST_EVENT,
    ChatBody,
    ChatCompletion,
    ChatCompletionChunk,
    OpenAiAnswer,
)
from router.http.openai.stream import ChatEncoder, ChoiceEncoder, ChunkFrames
from router.http.request_validator import RequestRecord
from router.http.server.docs import NO_MODEL, ApiRoute, RouteDocs
from router.http.server_info import constraint_fields
from router.http.tools.calls import CallFormat
from router.request.errors import InvalidRequest
from router.request.request import GenerateRequest

B = TypeVar("B", bound=OpenAiBody)


def openai_docs(
    body: type[OpenAiBody], answer: type[OpenAiAnswer], events: type[OpenAiAnswer]
) -> RouteDocs:
    """What the document says of a route."""
    return RouteDocs(
        tag="OpenAI",
        body=body,
        answer=answer,
        events=events,
        last_event=LAST_EVENT,
        generates=True,
        failures=NO_MODEL,
    )


class OpenAiRoutes:
    """The steps that both routes take."""

    def __init__(self, service: AnswerService) -> None:
        self.service = service

    async def read(self, request: Request, schema: type[B]) -> B:
        """The body, checked as far as both routes agree. Raises HttpError, InvalidRequest."""
        return await self.service.read(request, schema, self.admit)

    def admit(self, body: B) -> B:
        """The body, if its model and all its fields are served. Raises as `read`."""
        self.service.model_name(body.model)
        body.check_supported()
        return body

    def envelope(self, body: OpenAiBody, id_prefix: str, kind: str) -> Envelope:
        """A new reply's envelope, with the name that the client used for the model."""
        return Envelope(
            reply_id=f"{id_prefix}-{uuid.uuid4().hex}",
            kind=kind,
            created_s=int(time.time()),
            model=self.service.model_name(body.model),
            system_fingerprint=self.service.info.system_fingerprint,
            service_tier=None if body.service_tier is None else "default",
        )

    def names(self, body: OpenAiBody) -> TokenNames:
        """How the answer's log-probabilities name tokens."""
        return TokenNames(
            self.service.tokenizer,
            by_id=bool(body.return_tokens_as_token_ids),
            shows_special=body.skip_special_tokens is False,
        )

    def draws(
        self, requests: Sequence[GenerateRequest], num_draws: int, field: str = "n"
    ) -> list[GenerateRequest]:
        """`num_draws` of each request, prompt by prompt, each with a seed of its own.

        Raises InvalidRequest, which names `field`, or `prompt` if there are too many prompts.
        """
        max_requests = self.service.info.max_concurrent_requests
        most = max_requests // len(requests)
        if most < 1:
            raise InvalidRequest(
                f"`prompt` must have at most {max_requests} prompts "
                f"(--max-concurrent-requests). Given: {len(requests)}",
                "prompt",
            )
        if not 1 <= num_draws <= most:
            raise InvalidRequest(
                f"`{field}` must be between 1 and {most} for this number of prompts. "
                f"Given: {num_draws}",
                field,
            )
        return [request.draw(index) for request in requests for index in range(num_draws)]

    def reply(
        self,
        record: RequestRecord,
        body: OpenAiBody,
        envelope: Envelope,
        completions: Sequence[Completion],
        choices: list[dict[str, Any]],
        **more: Any,
    ) -> Response:
        """A whole answer, with `more` fields behind OpenAI's."""
        usage = _usage(body)
        for index, completion in enumerate(completions):
            usage.add(index, completion.finished)
        answer = {**envelope.fields(), "choices": choices, "usage": usage.fields(), **more}
        return self.service.reply(record, answer, usage.num_generated_tokens)

    async def stream(
        self,
        record: RequestRecord,
        body: OpenAiBody,
        envelope: Envelope,
        draws: Sequence[GenerateRequest],
        choices: Sequence[ChoiceEncoder],
    ) -> Response:
        """The draws' events as one stream. Raises Refused before anything is sent."""
        num_prompt_tokens = None
        if body.has_running_usage:
            num_prompt_tokens = sum(len(draw.prompt_ids) for draw in draws[:: body.num_draws])
        usage = _usage(body) if body.includes_usage else None
        frames = ChunkFrames(record, envelope, choices, usage, num_prompt_tokens)
        return await self.service.stream(record, draws, frames)


def _usage(body: OpenAiBody) -> Usage:
    return Usage(body.num_draws, counts_generated=not body.only_scores)


class ChatRoutes(OpenAiRoutes):
    """The route of chats."""

    def routes(self) -> list[ApiRoute]:
        """The route, documented."""
        docs = openai_docs(ChatBody, ChatCompletion, ChatCompletionChunk)
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
        raw, prompt = body.to_raw(self.service.limits), await self.render(record, body)
        return await self.service.check(
            record,
            prompt,
            raw,
            body.allowed_tools,
            template=body.chat_template,
            add_special_tokens=bool(body.add_special_tokens),
        )

    async def render(self, record: RequestRecord, body: ChatBody) -> str:
        """The prompt. Raises TemplateFailed, and Unsupported for what the template ignores."""
        return await self.service.render(record, lambda: body.chat_prompt)


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
