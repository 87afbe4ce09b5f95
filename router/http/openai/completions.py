"""/v1/completions: prompts in, texts or their pieces out, with OpenAI's old shape of logprobs."""

from collections.abc import Sequence
from typing import Any

import orjson
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from router.errors import InvalidRequest
from router.events import Finished, PromptScored, TokenGenerated, TokenLogprob
from router.http.exchange import Exchange
from router.http.openai.frames import OpenAiFrames
from router.http.openai.front import OpenAiFront
from router.http.openai.reply import FINISH_REASONS, Envelope, Usage, logprob
from router.http.openai.schema import CompletionBody
from router.http.openapi import describe
from router.infer import Completion
from router.request import GenerateRequest

_KIND = "text_completion"


class CompletionRoutes:
    """The handler, over what it needs."""

    def __init__(self, front: OpenAiFront) -> None:
        self._front = front

    def router(self) -> APIRouter:
        """The route, documented."""
        router = APIRouter(tags=["OpenAI"])
        router.add_api_route(
            "/v1/completions", self.completions, methods=["POST"], **describe(CompletionBody)
        )
        return router

    async def completions(self, request: Request) -> Response:
        """Complete one or several prompts, whole or as server-sent events."""
        exchange = self._front.intake.begin(request)
        body = await self._front.read(request, CompletionBody)
        requests = await self._check(exchange, body)
        draws = self._front.draws(requests, body.num_draws)
        if body.stream:
            frames = _frames(exchange, body, draws, self._front.envelope(body, "cmpl", _KIND))
            return await self._front.stream(exchange, draws, frames)
        completions = await self._front.complete(request, draws)
        usage = _usage(body)
        for index, completion in enumerate(completions):
            usage.add(index, completion.finished)
        kept = _best(completions, body.num_draws, body.num_choices)
        choices = [
            _choice(index, requests[index // body.num_choices], completion, body)
            for index, completion in enumerate(kept)
        ]
        envelope = self._front.envelope(body, "cmpl", _KIND)
        return self._front.reply(exchange, envelope, choices, usage)

    async def _check(self, exchange: Exchange, body: CompletionBody) -> list[GenerateRequest]:
        most = self._front.limits.max_client_batch_size
        if len(body.prompt) > most:
            raise InvalidRequest(
                f"`prompt` must hold at most {most} prompts. Given: {len(body.prompt)}",
                field="prompt",
            )
        raw = body.to_raw(self._front.limits)
        return [await self._front.intake.check(exchange, prompt, raw) for prompt in body.prompt]


def _usage(body: CompletionBody) -> Usage:
    return Usage(body.num_draws, counts_generated=not body.only_scores)


def _frames(
    exchange: Exchange, body: CompletionBody, draws: Sequence[GenerateRequest], envelope: Envelope
) -> OpenAiFrames:
    choices = [
        CompletionChoiceFrames(envelope, index, draw, body) for index, draw in enumerate(draws)
    ]
    return OpenAiFrames(
        exchange, envelope, choices, _usage(body), includes_usage=body.includes_usage
    )


def _best(completions: Sequence[Completion], num_draws: int, num_choices: int) -> list[Completion]:
    """Of each prompt's draws the most probable ones, or all as they were drawn."""
    if num_choices == num_draws:
        return list(completions)
    kept: list[Completion] = []
    for start in range(0, len(completions), num_draws):
        ranked = sorted(
            completions[start : start + num_draws], key=lambda completion: -completion.mean_logprob
        )
        kept += ranked[:num_choices]
    return kept


class CompletionChoiceFrames:
    """The chunks of one choice: the prompt if it is echoed, pieces of text, the finish reason."""

    def __init__(
        self, envelope: Envelope, index: int, draw: GenerateRequest, body: CompletionBody
    ) -> None:
        self._head = envelope.chunk_head() + b'{"index":%d,"text":' % index
        self._tail = b'],"usage":null}\n\n' if body.includes_usage else b"]}\n\n"
        self._plain = b',"logprobs":null,"finish_reason":null}' + self._tail
        self._echo = draw.prompt_text if body.echo else ""
        self._only_scores = body.only_scores
        self._logprobs = None if body.logprobs is None else OldLogprobs(body.logprobs)

    def scored(self, event: PromptScored) -> bytes:
        """The prompt with its log-probabilities."""
        if self._logprobs is None:
            return b""
        echo, self._echo = self._echo, ""
        return self._scored(echo, self._logprobs.of(event.tokens, _tops(event)))

    def token(self, event: TokenGenerated) -> bytes:
        """The text that may be shown now; nothing while it is held back."""
        if self._only_scores:
            return self._text("")
        if self._logprobs is None:
            return self._text(event.text)
        logprobs = self._logprobs.of((event.token,), (event.top_tokens,))
        return self._scored(event.text, logprobs)

    def finished(self, event: Finished) -> bytes:
        """What was held back, then an empty text with the reason."""
        reason = orjson.dumps(FINISH_REASONS[event.reason])
        end = self._head + b'"","logprobs":null,"finish_reason":' + reason + b"}" + self._tail
        return self._text("" if self._only_scores else event.tail) + end

    def _text(self, text: str) -> bytes:
        if self._echo:
            text, self._echo = self._echo + text, ""
        return self._head + orjson.dumps(text) + self._plain if text else b""

    def _scored(self, text: str, logprobs: dict[str, Any]) -> bytes:
        return (
            self._head
            + orjson.dumps(text)
            + b',"logprobs":'
            + orjson.dumps(logprobs)
            + b',"finish_reason":null}'
            + self._tail
        )


class OldLogprobs:
    """OpenAI's first shape of log-probabilities: parallel lists, offsets into the text.

    `num_top` 0 reports the tokens alone. The offset of each token counts characters from the
    beginning of the choice's text.
    """

    def __init__(self, num_top: int) -> None:
        self._num_top = num_top
        self._offset = 0

    def of(
        self, tokens: Sequence[TokenLogprob], top_tokens: Sequence[Sequence[TokenLogprob]]
    ) -> dict[str, Any]:
        """The lists for the next tokens of the choice."""
        offsets = []
        for token in tokens:
            offsets.append(self._offset)
            self._offset += 0 if token.special else len(token.text)
        tops: list[dict[str, float | None] | None] | None = None
        if self._num_top > 0:
            tops = [_top(token, top) for token, top in zip(tokens, top_tokens, strict=True)]
        return {
            "text_offset": offsets,
            "token_logprobs": [logprob(token.logprob) for token in tokens],
            "tokens": [token.text for token in tokens],
            "top_logprobs": tops,
        }


def _top(token: TokenLogprob, top: Sequence[TokenLogprob]) -> dict[str, float | None] | None:
    """Alternatives by their text, the chosen token among them; None for a first token."""
    if token.logprob is None:
        return None
    by_text: dict[str, float | None] = {}
    for candidate in (*top, token):
        by_text.setdefault(candidate.text, logprob(candidate.logprob))
    return by_text


def _tops(prompt: PromptScored) -> Sequence[Sequence[TokenLogprob]]:
    return prompt.top_tokens or ((),) * len(prompt.tokens)


def _choice(
    index: int, request: GenerateRequest, completion: Completion, body: CompletionBody
) -> dict[str, Any]:
    tokens = () if body.only_scores else completion.tokens
    logprobs = None
    if body.logprobs is not None:
        prompt = completion.prompt if body.echo and completion.prompt else PromptScored(())
        logprobs = OldLogprobs(body.logprobs).of(
            (*prompt.tokens, *(event.token for event in tokens)),
            (*_tops(prompt), *(event.top_tokens for event in tokens)),
        )
    return {
        "index": index,
        "text": (request.prompt_text if body.echo else "")
        + ("" if body.only_scores else completion.finished.text),
        "logprobs": logprobs,
        "finish_reason": FINISH_REASONS[completion.finished.reason],
    }
