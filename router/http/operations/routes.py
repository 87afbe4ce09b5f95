"""The operator's routes: health, /info, /metrics and /v1/models.

    /health/live       the process answers
    /health/ready      a request would be served now; also /health, /ping and GET /, as with TGI,
                       though browsers get the page there
    /health/progress   steps get done, or there is nothing to do

Health answers 200 with an empty body, or 503 with TGI's. No probe sends a request, or waits for a
shard: the answer is what the batcher knows from its own calls, so that a probe neither hangs with a
shard nor costs it a step.
"""

from functools import partial
from typing import Any, Literal

from pydantic import ConfigDict
from starlette.requests import Request
from starlette.responses import Response

from router.engine.infer import Infer
from router.http.schema import AnswerModel
from router.http.server.body import json_response
from router.http.server.docs import NO_MODEL, ApiRoute, RouteDocs
from router.http.server.errors import HttpError, model_not_found
from router.http.server.internal_errors import InternalErrors
from router.http.server.page import page, wants_page
from router.http.server_info import ServerInfo
from router.telemetry.metrics import Metrics

_METRICS_MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"


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
    """A name of the served model; `created` is in Unix time."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    max_model_len: int


class ModelList(AnswerModel):
    """The served model, once for each of its names."""

    object: Literal["list"]
    data: list[ModelCard]


class OperationsRoutes:
    """The handlers, over what they need."""

    def __init__(
        self, infer: Infer, metrics: Metrics, info: ServerInfo, errors: InternalErrors
    ) -> None:
        self._infer = infer
        self._errors = errors
        self._metrics = metrics
        self._info = info

    def routes(self) -> list[ApiRoute]:
        """The routes, documented."""
        docs = partial(RouteDocs, tag="Operations")
        metrics = docs(answer=str, media_type="text/plain")
        model = docs(answer=ModelCard, failures=NO_MODEL)
        ready = RouteDocs(tag="Health", failures={503: "Not ready"})
        progress = RouteDocs(tag="Health", failures={503: "Nothing gets on"})
        live = RouteDocs(tag="Health")
        return [
            ApiRoute("GET", "/health", self.ready, ready, "health"),
            ApiRoute("GET", "/health/live", self.live, live, "health_live"),
            ApiRoute("GET", "/health/ready", self.ready, ready, "health_ready"),
            ApiRoute("GET", "/health/progress", self.progress, progress, "health_progress"),
            ApiRoute("GET", "/ping", self.ready, ready, "ping"),
            ApiRoute("GET", "/", self.root, ready, "root_health"),
            ApiRoute("GET", "/info", self.info, docs(answer=Info), "get_model_info"),
            ApiRoute("GET", "/metrics", self.metrics, metrics, "metrics"),
            ApiRoute(
                "GET", "/v1/models", self.models, docs(answer=ModelList), "openai_get_model_info"
            ),
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
        return Response()

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
        info, limits = self._info, self._info.limits
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
                "served_model_names": info.model_names,
                "model_dtype": info.model_dtype,
                "model_device_type": info.model_device_type,
                "max_top_n_tokens": limits.max_top_n_tokens,
                "max_batch_prefill_tokens": info.max_batch_prefill_tokens,
                "max_batch_size": info.max_batch_size,
                "speculate": info.max_drafts,
                "num_shards": info.num_shards,
                "num_blocks": info.num_blocks,
                "block_size": info.block_size,
                "executor": info.executor,
                "executor_fallback": info.executor_fallback,
                "same_answer_under_load": info.same_answer_under_load,
            }
        )

    async def metrics(self, request: Request) -> Response:
        """Every instrument, in Prometheus' text format."""
        return Response(self._metrics.exposition(), headers={"content-type": _METRICS_MEDIA_TYPE})

    async def models(self, request: Request) -> Response:
        """The served model, once for each of its names."""
        data = [self._card(name) for name in self._info.model_names]
        return json_response({"object": "list", "data": data})

    async def model(self, request: Request) -> Response:
        """One name of the served model."""
        name = request.path_params["model_name"]
        if name not in self._info.model_names:
            raise model_not_found(name, self._info.short_names)
        return json_response(self._card(name))

    def _card(self, name: str) -> dict[str, Any]:
        return {
            "id": name,
            "object": "model",
            "created": self._info.created_s,
            "owned_by": self._info.model_id,
            "max_model_len": self._info.limits.max_total_len,
        }


def _unhealthy(message: str) -> HttpError:
    return HttpError(503, "healthcheck", message)
