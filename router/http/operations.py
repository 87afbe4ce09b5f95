"""The routes that generate nothing: health, /info, /metrics, /v1/models, /constraints/check.

    /health/live       the process answers
    /health/ready      a request would be served now; also /health, /ping and GET /, as with TGI,
                       though browsers get the page there
    /health/progress   steps get done, or there is nothing to do

Health answers 200 with an empty body, or 503 with TGI's. No probe sends a request, or waits for a
shard: the answer is what the batcher knows from its own calls, so that a probe neither hangs with a
shard nor costs it a step.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal, Protocol

from pydantic import ConfigDict, Field
from starlette.requests import Request
from starlette.responses import Response

from constraints.spec import ConstraintSpec, JudgeResult
from router.engine.infer import Infer
from router.engine.validation import Limits
from router.http.bodies import json_response, unless_disconnected
from router.http.errors import HttpError, InternalErrors
from router.http.schema import AnswerModel, Grammar, Schema, SchemaReader
from router.http.served_models import ServedModels
from router.http.server.access import AccessRecord
from router.http.server.docs import NO_MODEL, ApiRoute, RouteDocs, Tag
from router.http.server.page import page, wants_page
from router.http.server_info import ServerInfo
from router.request.errors import ConstraintRefused, InvalidRequest, TemplateFailed
from router.request.request import NO_KEY, ApiKey
from router.telemetry.metrics import Metrics
from router.text.chat_template import ChatTemplate

_MAX_TEXTS = 256
_FAILURES = {429: "Too many constraints wait to be compiled"}
_METRICS_MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class ConstraintCheckBody(Schema):
    """A grammar as /generate takes it, and texts to judge: `text`, `texts`, or none."""

    names_unknown = True
    known_fields = frozenset({"model"})

    grammar: Grammar
    text: str | None = None
    texts: list[str] | None = Field(default=None, max_length=_MAX_TEXTS)


class SpellingNote(AnswerModel):
    """An instance that masks write otherwise, from the character at `position` on."""

    position: int
    message: str


class JudgedText(AnswerModel):
    """One text. `position`: characters of it that can stand, null where it is accepted.
    `expected`: what may follow there. `error`: how a JSON text violates its schema, or why it could
    not be checked to its end. `note`: of an instance that masks write otherwise."""

    text: str
    accepted: bool
    position: int | None
    expected: list[str]
    num_legal_tokens: int
    error: str | None = None
    note: SpellingNote | None = None


class ConstraintCheckResponse(AnswerModel):
    """A grammar that can be kept. `shortest`: the shortest text that was found under it.
    `not_enforced`: JSON Pointers of what `lenient` leaves out; `checked_at_close`: of what is
    judged where a value ends. `dropped_phrases`: what ends an output and is cut off it."""

    shortest: str | None
    shortest_tokens: int | None
    not_enforced: list[str]
    checked_at_close: list[str]
    dropped_phrases: list[str]
    results: list[JudgedText]


class Judges(Protocol):
    """Judges texts; see `ConstraintCheck`."""

    async def judge(
        self,
        spec: ConstraintSpec,
        texts: Sequence[str],
        client: ApiKey = NO_KEY,
        *,
        remedy: str = "",
    ) -> JudgeResult:
        """Judge each text under a constraint.

        Raises ConstraintRefused, Overloaded, RateLimited, Unsupported.
        """


class ConstraintRoutes:
    """The handler, over what it needs. `judges` is None where nothing is compiled."""

    def __init__(self, judges: Judges | None, bodies: SchemaReader, limits: Limits) -> None:
        self._judges = judges
        self._bodies = bodies
        self._limits = limits

    def routes(self) -> list[ApiRoute]:
        docs = RouteDocs(
            tag=Tag.CONSTRAINTS,
            summary="Check a constraint, and texts under it",
            body=ConstraintCheckBody,
            answer=ConstraintCheckResponse,
            failures=_FAILURES,
        )
        return [ApiRoute("POST", "/constraints/check", self.check, docs, "check_constraint")]

    async def check(self, request: Request) -> Response:
        """Judge texts by a grammar: accepted, or where and why not."""
        body = await self._bodies.read(request, ConstraintCheckBody)
        if body.text is not None and body.texts is not None:
            raise InvalidRequest("`text` and `texts` exclude each other", "texts")
        texts = body.texts or ([] if body.text is None else [body.text])
        constraint = body.grammar.constraint("grammar")
        if self._judges is None or not self._limits.takes_grammars:
            raise InvalidRequest("grammar is not supported", "grammar")
        try:
            key = AccessRecord.of(request).key
            judging = self._judges.judge(constraint.spec, texts, key, remedy=constraint.remedy)
            judged = await unless_disconnected(request, judging)
        except ConstraintRefused as error:
            message = f"`grammar`: {error}"
            raise ConstraintRefused(message, error.reason, error.details, "grammar") from error
        return json_response(_answer(texts, judged))


def _answer(texts: list[str], judged: JudgeResult) -> dict[str, object]:
    return {
        "shortest": judged.shortest,
        "shortest_tokens": judged.min_len,
        "not_enforced": list(judged.not_enforced),
        "checked_at_close": list(judged.checked_at_close),
        "dropped_phrases": list(judged.dropped_phrases),
        "results": [
            judgement.as_object(text)
            for text, judgement in zip(texts, judged.judgements, strict=True)
        ],
    }


class Info(AnswerModel):
    """The model and the limits: TGI's fields first, then Tandem's."""

    model_config = ConfigDict(extra="allow")

    model_id: str
    model_sha: str | None
    model_pipeline_tag: str | None
    max_concurrent_requests: int
    max_best_of: int
    max_stop_sequences: int
    max_input_tokens: int
    max_total_tokens: int
    validation_workers: int
    max_client_batch_size: int
    router: str
    version: str
    sha: str | None
    docker_label: str | None
    server: str


class ModelCard(AnswerModel):
    """The served model, or a LoRA adapter: `parent` is the name of the model that it is for.
    `created` is in Unix time; `sees` says whether prompts may have images."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    max_model_len: int
    sees: bool
    parent: str | None = None


class ModelList(AnswerModel):
    """The served model and its LoRA adapters."""

    object: Literal["list"]
    data: list[ModelCard]


class OperationsRoutes:
    def __init__(
        self,
        infer: Infer,
        metrics: Metrics,
        info: ServerInfo,
        models: ServedModels,
        template: ChatTemplate,
        errors: InternalErrors,
        store_name: str | None = None,
    ) -> None:
        """`store_name`: of the files and batches that are kept here, for a front."""
        self._models = models
        self._template = template
        self._infer = infer
        self._errors = errors
        self._metrics = metrics
        self._info = info
        self._of_ready = {} if store_name is None else {"x-tandem-store": store_name}

    def routes(self) -> list[ApiRoute]:
        docs = partial(RouteDocs, tag=Tag.OPERATIONS)
        ready = docs(summary="Is the server ready?", failures={503: "Not ready"})
        probed = replace(ready, summary="Is the server ready? Beside `live`, for probes")
        ping = replace(ready, summary="Is the server ready? By SageMaker's path")
        root = replace(ready, summary="Is the server ready? For browsers, the page")
        live = docs(summary="Does the process answer?")
        progress = docs(summary="Do steps get done?", failures={503: "Nothing gets on"})
        info = docs(summary="What is served, within which limits?", answer=Info)
        metrics = docs(summary="Metrics for Prometheus", answer=str, media_type="text/plain")
        models = RouteDocs(tag=Tag.OPENAI, summary="List the models", answer=ModelList)
        model = RouteDocs(
            tag=Tag.OPENAI, summary="Describe a model", answer=ModelCard, failures=NO_MODEL
        )
        return [
            ApiRoute("GET", "/health", self.ready, ready, "health"),
            ApiRoute("GET", "/health/live", self.live, live, "health_live"),
            ApiRoute("GET", "/health/ready", self.ready, probed, "health_ready"),
            ApiRoute("GET", "/health/progress", self.progress, progress, "health_progress"),
            ApiRoute("GET", "/ping", self.ready, ping, "ping"),
            ApiRoute("GET", "/", self.root, root, "root_health"),
            ApiRoute("GET", "/info", self.info, info, "get_model_info"),
            ApiRoute("GET", "/metrics", self.metrics, metrics, "metrics"),
            ApiRoute("GET", "/v1/models", self.models, models, "openai_get_model_info"),
            ApiRoute("GET", "/v1/models/{model_name:path}", self.model, model, "openai_get_model"),
        ]

    async def live(self, request: Request) -> Response:
        """Whether the process answers: 200 with an empty body."""
        return Response()

    async def ready(self, request: Request) -> Response:
        """Whether requests would be served now: 200 with an empty body, or 503."""
        if not self._infer.is_ready:
            raise _unhealthy("unhealthy")
        if self._errors.are_many:
            raise _unhealthy("one request after the other fails by a bug; the log has more")
        return Response(headers=self._of_ready)

    async def root(self, request: Request) -> Response:
        """As /health, or for browsers, which accept HTML, a page to talk with the model."""
        return await (page if wants_page(request) else self.ready)(request)

    async def progress(self, request: Request) -> Response:
        """Whether steps get done, or there is nothing to do: 200 with an empty body, or 503."""
        trouble = self._infer.trouble
        if trouble is not None:
            raise _unhealthy(trouble)
        return Response()

    async def info(self, request: Request) -> Response:
        """The model and the limits: TGI's fields first, then Tandem's."""
        info = self._info
        limits = self._info.limits
        return json_response(
            {
                "model_id": info.model_id,
                "model_sha": None,
                "model_pipeline_tag": None,
                "max_concurrent_requests": info.max_concurrent_requests,
                "max_best_of": limits.max_best_of,
                "max_stop_sequences": limits.max_stop_sequences,
                "max_input_tokens": limits.max_input_len,
                "max_total_tokens": limits.max_total_len,
                "validation_workers": info.validation_workers,
                "max_client_batch_size": limits.max_client_batch_size,
                "router": "text-generation-router",
                "version": info.version,
                "sha": None,
                "docker_label": None,
                "server": "tandem",
                "served_model_names": (info.model_id,),
                "model_dtype": info.model_dtype,
                "model_device_type": info.model_device_type,
                "max_top_n_tokens": limits.max_top_n_tokens,
                "sampling_defaults": limits.sampling_defaults,
                "max_batch_prefill_tokens": info.max_batch_prefill_tokens,
                "max_batch_size": info.max_batch_size,
                "speculate": info.max_drafts,
                "num_shards": info.num_shards,
                "num_blocks": info.num_blocks,
                "block_size": info.block_size,
                "num_states": info.num_states,
                "prefix_caching": info.prefix_caching,
                "executor": info.executor,
                "executor_fallback": info.executor_fallback,
                "same_answer_under_load": info.same_answer_under_load,
                "language_model_only": info.language_model_only,
                "sees": info.sees,
                "blind_reason": info.blind_reason,
                "example_prompts": [
                    {"title": each.title, "text": each.text} for each in info.example_prompts
                ],
                "max_loras": self._models.max_loras,
                "lora_adapters": [
                    {"id": each.name, "rank": each.rank} for each in self._models.adapters
                ],
                **_answers(self._template),
            }
        )

    async def metrics(self, request: Request) -> Response:
        """Every instrument, in Prometheus' text format."""
        return Response(self._metrics.exposition(), headers={"content-type": _METRICS_MEDIA_TYPE})

    async def models(self, request: Request) -> Response:
        """The served model and its LoRA adapters."""
        return json_response({"object": "list", "data": self._models.cards()})

    async def model(self, request: Request) -> Response:
        """The served model, by its name or an alias, or one of its LoRA adapters."""
        return json_response(self._models.card(request.path_params["model_name"]))


def _answers(template: ChatTemplate) -> dict[str, Any]:
    """What was read of the chat template: how the model thinks and calls. For eyes to check."""
    try:
        verdict = template.verdict(with_tools=True)
        key = template.thought_key(with_tools=True)
    except TemplateFailed:
        return {"calls": None, "thoughts": None}
    form = verdict.answer_format.calls
    calls = {
        "form": "generic" if verdict.has_generic_calls else "template",
        "several": form is not None and form.between is not None,
        "proven": verdict.calls.is_proven,
        "reason": verdict.calls.reason or None,
        "example": None if form is None else form.example,
    }
    thought = verdict.answer_format.thought
    thoughts = {
        "open": None if thought is None else thought.opening,
        "close": None if thought is None else thought.closing,
        "field": key or None,
        "proven": verdict.thought.is_proven,
        "reason": verdict.thought.reason or None,
    }
    return {
        "calls": {**calls, "form": calls["form"] if verdict.calls.is_on else None},
        "thoughts": None if thought is None and not verdict.thought.reason else thoughts,
    }


def _unhealthy(message: str) -> HttpError:
    return HttpError(503, "healthcheck", message)
