"""What OpenAI's chats and completions share: draws, envelopes, names of tokens, answers."""

import time
import uuid
from collections.abc import Sequence
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import Response

from router.engine.infer import Completion
from router.http.conversation import AnswerService
from router.http.logprobs import TokenNames
from router.http.openai.fields import OpenAiBody
from router.http.openai.reply import Envelope, RunningUsage, Usage
from router.http.openai.stream import ChoiceEncoder, ChunkFrames
from router.http.request_validator import RequestRecord
from router.request.errors import InvalidRequest
from router.request.request import GenerateRequest

B = TypeVar("B", bound=OpenAiBody)


class OpenAiRoutes:
    """The steps that both routes take."""

    def __init__(self, service: AnswerService) -> None:
        self.service = service

    async def read(self, request: Request, schema: type[B]) -> B:
        """The body, checked as far as both routes agree. Raises HttpError, InvalidRequest."""
        return self.admit(await self.service.read(request, schema))

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
        running = None
        if body.has_running_usage:
            num_prompt_tokens = sum(len(draw.prompt_ids) for draw in draws[:: body.num_draws])
            running = RunningUsage(num_prompt_tokens, counts_generated=not body.only_scores)
        has_usage = body.includes_usage
        frames = ChunkFrames(record, envelope, choices, _usage(body), running, has_usage=has_usage)
        return await self.service.stream(record, draws, frames)


def _usage(body: OpenAiBody) -> Usage:
    return Usage(body.num_draws, counts_generated=not body.only_scores)
