"""/v1/completions: prompts in, texts or their pieces out, with OpenAI's old shape of logprobs."""

from collections.abc import Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from router.engine.infer import Completion, ranked
from router.http.logprobs import OldLogprobs, TokenNames, joined
from router.http.openai.reply import completion_reason, prompt_fields
from router.http.openai.routes import OpenAiRoutes, openai_docs
from router.http.openai.schema import CompletionBody, TextCompletion, TextCompletionChunk
from router.http.openai.stream import CompletionEncoder
from router.http.request_validator import RequestRecord
from router.http.server.docs import ApiRoute
from router.http.server_info import constraint_fields
from router.request.errors import InvalidRequest
from router.request.request import GenerateRequest, PromptScored

_NOTHING_SCORED = PromptScored(())


class CompletionRoutes(OpenAiRoutes):
    """The route of completions."""

    def routes(self) -> list[ApiRoute]:
        """The route, documented."""
        docs = openai_docs(CompletionBody, TextCompletion, TextCompletionChunk)
        return [ApiRoute("POST", "/v1/completions", self.completions, docs)]

    async def completions(self, request: Request) -> Response:
        """Complete one or several prompts, whole or as server-sent events."""
        record = self.service.validator.begin(request)
        body = await self.read(request, CompletionBody)
        requests = await self._check(record, body)
        field = "n" if body.best_of is None else "best_of"
        draws = self.draws(requests, body.num_draws, field)
        envelope = self.envelope(body, "cmpl", "text_completion")
        echoes = [self._echo(body, each) for each in requests]
        names = self.names(body)
        if body.stream:
            places = [index // body.num_draws for index in range(len(draws))]
            encoders = [
                CompletionEncoder(
                    envelope,
                    index,
                    body,
                    names,
                    echo=echoes[place],
                    prompt_ids=requests[place].prompt_ids,
                )
                for index, place in enumerate(places)
            ]
            return await self.stream(record, body, envelope, draws, encoders)
        completions = await self.service.complete(request, draws)
        choices = []
        for index, completion in enumerate(_best(completions, body.num_draws, body.num_choices)):
            place = index // body.num_choices
            choice = _choice(completion, body, echoes[place], names)
            fields = prompt_fields(body, requests[place], completion)
            if body.return_token_ids:
                tokens = () if body.only_scores else completion.tokens
                fields["token_ids"] = [event.token.token_id for event in tokens]
            choices.append({"index": index, **choice, **fields})
        return self.reply(record, body, envelope, completions, choices)

    async def _check(self, record: RequestRecord, body: CompletionBody) -> list[GenerateRequest]:
        limits, validator = self.service.limits, self.service.validator
        most = limits.max_client_batch_size
        if len(body.prompt) > most:
            raise InvalidRequest(
                f"`prompt` must hold at most {most} prompts. Given: {len(body.prompt)}",
                field="prompt",
            )
        raw = body.to_raw(limits)
        adds = body.add_special_tokens is not False
        return [
            await validator.check(record, prompt, raw, add_special_tokens=adds)
            for prompt in body.prompt
        ]

    def _echo(self, body: CompletionBody, request: GenerateRequest) -> str:
        """The prompt as it is shown before the answer: the part that was read."""
        if not body.echo:
            return ""
        if body.truncate_prompt_tokens is None:
            return request.prompt_text
        skips = body.skip_special_tokens is not False
        return self.service.tokenizer.decode(request.prompt_ids, skip_special_tokens=skips)


def _best(completions: Sequence[Completion], num_draws: int, num_choices: int) -> list[Completion]:
    """Of each prompt's draws the most probable ones, or all as they were drawn."""
    if num_choices == num_draws:
        return list(completions)
    kept: list[Completion] = []
    for start in range(0, len(completions), num_draws):
        kept += ranked(completions[start : start + num_draws])[:num_choices]
    return kept


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
        "finish_reason": completion_reason(completion.finished, only_scores=body.only_scores),
        **constraint_fields(completion.finished),
    }
