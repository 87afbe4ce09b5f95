"""/v1/completions: prompts in, texts or their pieces out, with OpenAI's old shape of logprobs."""

from collections.abc import Sequence
from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import Response

from proto.contract import FinishReason
from router.engine.infer import Completion, ranked
from router.http.logprobs import OldLogprobs, TokenNames, joined, prompt_logprobs
from router.http.openai.answers import LAST_EVENT, TextCompletion, TextCompletionChunk
from router.http.openai.reply import (
    FINISH_REASONS,
    Envelope,
    RunningUsage,
    Usage,
)
from router.http.openai.routes import OpenAiRoutes
from router.http.openai.schema import CompletionBody
from router.http.openai.stream import OpenAiFrames
from router.http.request_validator import RequestRecord
from router.http.server.docs import NO_MODEL, ApiRoute, RouteDocs
from router.http.server_info import constraint_fields
from router.request.errors import InvalidRequest
from router.request.events import Finished, PromptScored, TokenGenerated
from router.request.request import GenerateRequest

_KIND = "text_completion"
_NOTHING_SCORED = PromptScored(())


class CompletionRoutes:
    """The handler, over what it needs."""

    def __init__(self, front: OpenAiRoutes) -> None:
        self._front = front

    def routes(self) -> list[ApiRoute]:
        """The route, documented."""
        docs = RouteDocs(
            tag="OpenAI",
            body=CompletionBody,
            answer=TextCompletion,
            events=TextCompletionChunk,
            last_event=LAST_EVENT,
            generates=True,
            failures=NO_MODEL,
        )
        return [ApiRoute("POST", "/v1/completions", self.completions, docs)]

    async def completions(self, request: Request) -> Response:
        """Complete one or several prompts, whole or as server-sent events."""
        record = self._front.validator.begin(request)
        body = await self._front.read(request, CompletionBody)
        requests = await self._check(record, body)
        field = "n" if body.best_of is None else "best_of"
        draws = self._front.draws(requests, body.num_draws, field)
        echoes = [self._echo(body, one) for one in requests]
        if body.stream:
            frames = self._frames(record, body, requests, echoes)
            return await self._front.stream(record, draws, frames)
        completions = await self._front.complete(request, draws)
        usage = _usage(body)
        for index, completion in enumerate(completions):
            usage.add(index, completion.finished)
        kept = _best(completions, body.num_draws, body.num_choices)
        names = self._front.names(body)
        choices = []
        for index, completion in enumerate(kept):
            place = index // body.num_choices
            choice = _choice(completion, body, echoes[place], names)
            fields = _id_fields(body, requests[place], completion)
            choices.append({"index": index, **choice, **fields})
        envelope = self._front.envelope(body, "cmpl", _KIND)
        return self._front.reply(record, envelope, choices, usage)

    async def _check(self, record: RequestRecord, body: CompletionBody) -> list[GenerateRequest]:
        most = self._front.limits.max_client_batch_size
        if len(body.prompt) > most:
            raise InvalidRequest(
                f"`prompt` must hold at most {most} prompts. Given: {len(body.prompt)}",
                field="prompt",
            )
        raw = body.to_raw(self._front.limits)
        adds = body.add_special_tokens is not False
        return [
            await self._front.validator.check(record, prompt, raw, add_special_tokens=adds)
            for prompt in body.prompt
        ]

    def _echo(self, body: CompletionBody, request: GenerateRequest) -> str:
        """The prompt as it is shown before the answer: what was read of it."""
        if not body.echo:
            return ""
        if body.truncate_prompt_tokens is None:
            return request.prompt_text
        skips = body.skip_special_tokens is not False
        return self._front.tokenizer.decode(request.prompt_ids, skip_special_tokens=skips)

    def _frames(
        self,
        record: RequestRecord,
        body: CompletionBody,
        requests: Sequence[GenerateRequest],
        echoes: Sequence[str],
    ) -> OpenAiFrames:
        envelope = self._front.envelope(body, "cmpl", _KIND)
        names = self._front.names(body)
        choices = [
            CompletionChoiceFrames(
                envelope,
                index,
                body,
                names,
                echo=echoes[index // body.num_draws],
                prompt_ids=requests[index // body.num_draws].prompt_ids,
            )
            for index in range(len(requests) * body.num_draws)
        ]
        num_prompt_tokens = sum(len(request.prompt_ids) for request in requests)
        counts_generated = not body.only_scores
        return OpenAiFrames(
            record,
            envelope,
            choices,
            _usage(body),
            includes_usage=body.includes_usage,
            running=RunningUsage(num_prompt_tokens, counts_generated=counts_generated)
            if body.counts_on
            else None,
        )


def _usage(body: CompletionBody) -> Usage:
    return Usage(body.num_draws, counts_generated=not body.only_scores)


def _best(completions: Sequence[Completion], num_draws: int, num_choices: int) -> list[Completion]:
    """Of each prompt's draws the most probable ones, or all as they were drawn."""
    if num_choices == num_draws:
        return list(completions)
    kept: list[Completion] = []
    for start in range(0, len(completions), num_draws):
        kept += ranked(completions[start : start + num_draws])[:num_choices]
    return kept


class CompletionChoiceFrames:
    """The chunks of one choice: the prompt if it is echoed, pieces of text, the finish reason."""

    def __init__(
        self,
        envelope: Envelope,
        index: int,
        body: CompletionBody,
        names: TokenNames,
        *,
        echo: str,
        prompt_ids: Sequence[int],
    ) -> None:
        self._head = envelope.chunk_head() + b'{"index":%d,"text":' % index
        self._tail = b'}],"usage":null}\n\n' if body.includes_usage else b"}]}\n\n"
        self._plain = b',"logprobs":null,"finish_reason":null' + self._tail
        self._echo = echo
        self._only_scores = body.only_scores
        self._logprobs = None if body.logprobs is None else OldLogprobs(names, body.logprobs)
        self._tells_ids = bool(body.return_token_ids)
        # Sent once, with the first chunk.
        self._prompt_ids = b""
        if self._tells_ids:
            self._prompt_ids = b',"prompt_token_ids":' + orjson.dumps(list(prompt_ids))

    def scored(self, event: PromptScored) -> bytes:
        """The prompt with its log-probabilities."""
        if self._logprobs is None:
            return b""
        echo, self._echo = self._echo, ""
        return self._chunk(echo, orjson.dumps(self._logprobs.prompt(echo, event)))

    def token(self, event: TokenGenerated) -> bytes:
        """The text that may be shown now; nothing while it is held back."""
        if self._only_scores:
            return self._text("")
        if self._logprobs is None and not self._tells_ids:
            return self._text(event.text)
        echo, self._echo = self._echo, ""
        logprobs = b"null"
        if self._logprobs is not None:
            logprobs = orjson.dumps(self._logprobs.of([event]))
        return self._chunk(echo + event.text, logprobs, event.token.token_id)

    def finished(self, event: Finished) -> bytes:
        """What was held back, then an empty text with the reason."""
        reason = _reason(event, only_scores=self._only_scores)
        fields = orjson.dumps({"finish_reason": reason, **constraint_fields(event)})[1:-1]
        text = self._text("" if self._only_scores else event.tail)
        return text + self._head + b'"","logprobs":null,' + fields + self._tail

    def _text(self, text: str) -> bytes:
        if self._echo:
            text, self._echo = self._echo + text, ""
        if self._prompt_ids and text:
            return self._chunk(text, b"null")
        return self._head + orjson.dumps(text) + self._plain if text else b""

    def _chunk(self, text: str, logprobs: bytes, token_id: int | None = None) -> bytes:
        fields, self._prompt_ids = self._prompt_ids, b""
        if self._tells_ids:
            fields += b',"token_ids":' + orjson.dumps([] if token_id is None else [token_id])
        return (
            self._head
            + orjson.dumps(text)
            + b',"logprobs":'
            + logprobs
            + b',"finish_reason":null'
            + fields
            + self._tail
        )


def _choice(
    completion: Completion, body: CompletionBody, echo: str, names: TokenNames
) -> dict[str, Any]:
    tokens = () if body.only_scores else completion.tokens
    logprobs = None
    if body.logprobs is not None:
        shape = OldLogprobs(names, body.logprobs)
        scored = completion.prompt if body.echo and completion.prompt else _NOTHING_SCORED
        logprobs = joined(shape.prompt(echo, scored), shape.of(tokens))
    return {
        "text": echo + ("" if body.only_scores else completion.finished.text),
        "logprobs": logprobs,
        "finish_reason": _reason(completion.finished, only_scores=body.only_scores),
        **constraint_fields(completion.finished),
    }


def _reason(end: Finished, *, only_scores: bool) -> str:
    """Where nothing was to be generated, what the dropped token was says nothing."""
    if only_scores and end.reason is not FinishReason.DEADLINE:
        return FINISH_REASONS[FinishReason.LENGTH]
    return FINISH_REASONS[end.reason]


def _id_fields(
    body: CompletionBody, request: GenerateRequest, completion: Completion
) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    if body.prompt_logprobs is not None and completion.prompt is not None:
        fields["prompt_logprobs"] = prompt_logprobs(completion.prompt, body.prompt_logprobs)
    if body.return_token_ids:
        tokens = () if body.only_scores else completion.tokens
        fields["prompt_token_ids"] = request.prompt_ids
        fields["token_ids"] = [event.token.token_id for event in tokens]
    return fields
