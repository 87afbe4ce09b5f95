"""The operator's routes: /info, /metrics and /v1/models."""

from functools import partial
from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import Response

from router.http.errors import model_not_found
from router.http.server.docs import NO_MODEL, ApiRoute, RouteDocs
from router.http.server_info import ServerInfo
from router.http.tgi.answers import Info, ModelCard, ModelList
from router.telemetry.metrics import Metrics

_METRICS_MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class OpsRoutes:
    """The handlers, over what they tell."""

    def __init__(self, metrics: Metrics, info: ServerInfo) -> None:
        self._metrics = metrics
        self._info = info

    def routes(self) -> list[ApiRoute]:
        """The routes, documented."""
        docs = partial(RouteDocs, tag="Operations")
        metrics = docs(answer=str, media_type="text/plain")
        model = docs(answer=ModelCard, failures=NO_MODEL)
        return [
            ApiRoute("GET", "/info", self.info, docs(answer=Info), "get_model_info"),
            ApiRoute("GET", "/metrics", self.metrics, metrics, "metrics"),
            ApiRoute(
                "GET", "/v1/models", self.models, docs(answer=ModelList), "openai_get_model_info"
            ),
            ApiRoute("GET", "/v1/models/{model_name:path}", self.model, model, "openai_get_model"),
        ]

    async def info(self, request: Request) -> Response:
        """The model and the limits: TGI's fields first, then Tandem's."""
        info, limits = self._info, self._info.limits
        return _json(
            {
                "model_id": info.model_id,
                "model_sha": info.model_sha,
                "model_pipeline_tag": info.model_pipeline_tag,
                "max_concurrent_requests": info.max_concurrent_requests,
                "max_best_of": limits.max_best_of,
                "max_stop_sequences": limits.max_stop_sequences,
                "max_input_tokens": limits.max_input_len,
                "max_total_tokens": limits.max_total_len,
                "validation_workers": info.validation_workers,
                "max_client_batch_size": limits.max_client_batch_size,
                "router": "text-generation-router",
                "version": info.version,
                "sha": info.sha,
                "docker_label": info.docker_label,
                "server": "tandem",
                "served_model_names": info.model_names,
                "model_dtype": info.model_dtype,
                "model_device_type": info.model_device_type,
                "max_top_n_tokens": limits.max_top_n_tokens,
                "max_batch_prefill_tokens": info.max_batch_prefill_tokens,
                "max_batch_size": info.max_batch_size,
                "num_shards": info.num_shards,
                "num_blocks": info.num_blocks,
                "block_size": info.block_size,
                "attention": info.attention,
            }
        )

    async def metrics(self, request: Request) -> Response:
        """Every instrument, in Prometheus' text format."""
        return Response(self._metrics.exposition(), headers={"content-type": _METRICS_MEDIA_TYPE})

    async def models(self, request: Request) -> Response:
        """The served model, once for each of its names."""
        data = [self._card(name) for name in self._info.model_names]
        return _json({"object": "list", "data": data})

    async def model(self, request: Request) -> Response:
        """One name of the served model."""
        name = request.path_params["model_name"]
        if name not in self._info.model_names:
            raise model_not_found(name)
        return _json(self._card(name))

    def _card(self, name: str) -> dict[str, Any]:
        return {
            "id": name,
            "object": "model",
            "created": self._info.created_s,
            "owned_by": self._info.model_id,
            "max_model_len": self._info.limits.max_total_len,
        }


def _json(answer: object) -> Response:
    return Response(orjson.dumps(answer), media_type="application/json")
