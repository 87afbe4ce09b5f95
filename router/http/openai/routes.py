"""/v1/chat/completions and /v1/completions: messages or prompts in, choices or their chunks out."""

from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import Response

from router.engine.infer import Completion, ranked
from router.http.answers import Reading, new_id
from router.http.conversation import AnswerService, Rendered
from router.http.logprobs import ChatLogprobs, OldLogprobs, TokenNames, joined
from router.http.openai.reply import (
    CALL_ID_PREFIX,
    FINISH_REASONS,
    LAST_EVENT,
    ChatCompletion,
    ChatCompletionChunk,
    ChatEncoder,
    ChoiceEncoder,
    ChunkFrames,
    CompletionEncoder,
    Envelope,
    OpenAiAnswer,
    TextCompletion,
    TextCompletionChunk,
    Usage,
    answer_message,
    answer_reason,
    completion_reason,
    ending_fields,
    prompt_fields,
)
from router.http.openai.schema import ChatBody, CompletionBody, OpenAiBody
from router.http.request_record import RequestRecord
from router.http.served_models import ServedModel
from router.http.server.docs import NO_MODEL, ApiRoute, RouteDocs, Tag
from router.request.errors import InvalidRequest
from router.request.request import GenerateRequest, PromptScored

B = TypeVar("B", bound=OpenAiBody)
_NOTHING_SCORED = PromptScored(())


def openai_docs(
    summary: str, body: type[OpenAiBody], answer: type[OpenAiAnswer], events: type[OpenAiAnswer]
) -> RouteDocs:
    return RouteDocs(
        tag=Tag.OPENAI,
        summary=summary,
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
        self.service.models.find(body.model)
        body.check_supported()
        return body

    def envelope(
        self, record: RequestRecord, body: OpenAiBody, model: ServedModel, id_prefix: str, kind: str
    ) -> Envelope:
        """A new reply's envelope, with the name that the client used for the model."""
        return Envelope(
            reply_id=f"{id_prefix}-{new_id(record.ids)}",
            kind=kind,
            created_s=int(record.asked_s),
            model=model.name,
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
        num_thought_tokens: Sequence[int] = (),
        **more: Any,
    ) -> Response:
        """A whole answer, with `more` fields behind OpenAI's.

        `num_thought_tokens` are those of each completion; none: nothing was thought.
        """
        usage = _usage(body)
        for index, completion in enumerate(completions):
            num_thought = num_thought_tokens[index] if num_thought_tokens else 0
            usage.add(index, completion.finished, num_thought)
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
    def routes(self) -> list[ApiRoute]:
        docs = openai_docs("Answer a chat", ChatBody, ChatCompletion, ChatCompletionChunk)
        return [ApiRoute("POST", "/v1/chat/completions", self.chat, docs)]

    async def chat(self, request: Request) -> Response:
        """Answer a chat, whole or as server-sent events."""
        record = self.service.validator.begin(request)
        body = await self.read(request, ChatBody)
        model = self.service.models.find(body.model)
        checked, reading = await self.check(record, body, model)
        draws = self.draws([checked], body.num_draws)
        logprobs = None
        num_top = body.num_top_logprobs
        if num_top is not None:
            logprobs = ChatLogprobs(self.names(body), num_top)
        if body.stream:
            envelope = self.envelope(record, body, model, "chatcmpl", "chat.completion.chunk")
            encoders = [
                ChatEncoder(
                    envelope,
                    index,
                    reading,
                    logprobs,
                    record.ids_of_choice(),
                    echoed=body.echoed,
                    prompt_ids=checked.prompt_ids if body.return_token_ids else None,
                    has_usage=body.includes_usage,
                )
                for index in range(body.num_draws)
            ]
            return await self.stream(record, body, envelope, draws, encoders)
        completions = await self.service.complete(request, draws)
        choices = []
        num_thought_tokens = []
        for index, completion in enumerate(completions):
            choice, num_thought = _chat_choice(completion, body, logprobs, reading, record.ids)
            choices.append({"index": index, **choice})
            num_thought_tokens.append(num_thought)
        envelope = self.envelope(record, body, model, "chatcmpl", "chat.completion")
        more = prompt_fields(body, checked, completions[0])
        return self.reply(record, body, envelope, completions, choices, num_thought_tokens, **more)

    async def check(
        self, record: RequestRecord, body: ChatBody, model: ServedModel
    ) -> tuple[GenerateRequest, Reading | None]:
        """The request for one answer, and how it is read; None: it is text.

        Raises InvalidRequest.
        """
        raw = replace(body.to_raw(self.service.limits), adapter_id=model.adapter_id)
        prompt = await self.render(record, body)
        return await self.service.check(
            record,
            prompt,
            raw,
            body.allowed_tools,
            add_special_tokens=bool(body.add_special_tokens),
        )

    async def render(self, record: RequestRecord, body: ChatBody) -> Rendered:
        """The prompt. Raises TemplateFailed, and Unsupported for what the template ignores."""
        return await self.service.render(record, lambda: body.chat_prompt)


def _chat_choice(
    completion: Completion,
    body: ChatBody,
    logprobs: ChatLogprobs | None,
    reading: Reading | None,
    ids: Random,
) -> tuple[dict[str, Any], int]:
    """The choice, and how many tokens of it are thought."""
    end = completion.finished
    reason = FINISH_REASONS[end.reason]
    message = {"role": "assistant", "content": body.echoed + end.text, "refusal": None}
    num_thought_tokens = 0
    if reading is not None:
        answer = reading.read(completion, CALL_ID_PREFIX, ids)
        message = answer_message(answer, body.echoed, shows_thought=reading.shows_thought)
        reason = answer_reason(answer.end, len(answer.calls))
        num_thought_tokens = answer.num_thought_tokens
    choice = {
        "message": message,
        "logprobs": None if logprobs is None else logprobs.of(completion.tokens),
        **ending_fields(end, reason),
    }
    if body.return_token_ids:
        choice["token_ids"] = [event.token.token_id for event in completion.tokens]
    return choice, num_thought_tokens


class CompletionRoutes(OpenAiRoutes):
    def routes(self) -> list[ApiRoute]:
        docs = openai_docs("Complete a prompt", CompletionBody, TextCompletion, TextCompletionChunk)
        return [ApiRoute("POST", "/v1/completions", self.completions, docs)]

    async def completions(self, request: Request) -> Response:
        """Complete one or several prompts, whole or as server-sent events."""
        record = self.service.validator.begin(request)
        body = await self.read(request, CompletionBody)
        model = self.service.models.find(body.model)
        requests = await self._check(record, body, model)
        field = "n" if body.best_of is None else "best_of"
        draws = self.draws(requests, body.num_draws, field)
        envelope = self.envelope(record, body, model, "cmpl", "text_completion")
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
            choice = _completion_choice(completion, body, echoes[place], names)
            fields = prompt_fields(body, requests[place], completion)
            if body.return_token_ids:
                tokens = () if body.only_scores else completion.tokens
                fields["token_ids"] = [event.token.token_id for event in tokens]
            choices.append({"index": index, **choice, **fields})
        return self.reply(record, body, envelope, completions, choices)

    async def _check(
        self, record: RequestRecord, body: CompletionBody, model: ServedModel
    ) -> list[GenerateRequest]:
        limits = self.service.limits
        validator = self.service.validator
        most = limits.max_client_batch_size
        if len(body.prompt) > most:
            raise InvalidRequest(
                f"`prompt` must hold at most {most} prompts. Given: {len(body.prompt)}",
                field="prompt",
            )
        raw = replace(body.to_raw(limits), adapter_id=model.adapter_id)
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


def _completion_choice(
    completion: Completion, body: CompletionBody, echo: str, names: TokenNames
) -> dict[str, Any]:
    tokens = () if body.only_scores else completion.tokens
    logprobs = None
    if body.logprobs is not None:
        shape = OldLogprobs(names, body.logprobs)
        scored = completion.prompt if body.echo and completion.prompt else _NOTHING_SCORED
        logprobs = joined(shape.prompt(echo, scored), shape.of(tokens))
    end = completion.finished
    return {
        "text": echo + ("" if body.only_scores else end.text),
        "logprobs": logprobs,
        **ending_fields(end, completion_reason(end, only_scores=body.only_scores)),
    }
