"""The routes that the front answers itself: health, the models and their states, metrics, pages.

None of them loads a model or waits for one.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable

import orjson
from starlette.requests import Request
from starlette.responses import Response

from fleet.errors import FleetError, UnknownModel
from fleet.http.upstream import send_request
from fleet.metrics import FleetMetrics, merge
from fleet.model_manager import ModelManager
from fleet.model_table import ModelState
from fleet.names import ModelNames
from router.http.bodies import json_response
from router.http.errors import HttpError, model_not_found
from router.http.server.page import ASSETS_PATH, DOCS_PATH, asset, docs, page, wants_page

_logger = logging.getLogger("fleet")

_METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_SERVER_TIMEOUT_S = 5.0

Handler = Callable[[Request], Awaitable[Response]]


class FrontRoutes:
    """The handlers. `keys` are the servers' too."""

    def __init__(
        self,
        manager: ModelManager,
        names: ModelNames,
        metrics: FleetMetrics,
        *,
        version: str,
        max_loaded: int,
        created_s: int,
        keys: tuple[str, ...] = (),
    ) -> None:
        self._manager = manager
        self._names = names
        self._metrics = metrics
        self._version = version
        self._max_loaded = max_loaded
        self._created_s = created_s
        self._headers = [(b"host", b"fleet")]
        if keys:
            self._headers.append((b"authorization", b"Bearer " + keys[0].encode()))
        self._handlers: dict[str, Handler] = {
            "/": self._root,
            DOCS_PATH: docs,
            "/ping": self._ready,
            "/health": self._ready,
            "/health/ready": self._ready,
            "/health/live": self._live,
            "/health/progress": self._progress,
            "/info": self._info,
            "/metrics": self._merged_metrics,
            "/v1/models": self._models,
        }

    def has(self, path: str) -> bool:
        """Whether the front answers GET requests for a path."""
        return self._handler(path) is not None

    async def answer(self, request: Request) -> Response | None:
        """The response; None for requests that are passed on. Raises HttpError."""
        if request.method not in ("GET", "HEAD"):
            return None
        handler = self._handler(request.scope["path"])
        return None if handler is None else await handler(request)

    def _handler(self, path: str) -> Handler | None:
        if path.startswith("/v1/models/"):
            return self._model
        return asset if path.startswith(ASSETS_PATH) else self._handlers.get(path)

    async def _root(self, request: Request) -> Response:
        """As /health, or the page for browsers."""
        return await (page if wants_page(request) else self._ready)(request)

    async def _live(self, request: Request) -> Response:
        return Response()

    async def _ready(self, request: Request) -> Response:
        """Whether requests are accepted."""
        if self._manager.is_draining:
            raise _unhealthy("the server is shutting down")
        return Response()

    async def _progress(self, request: Request) -> Response:
        """Whether the server of every loaded model makes progress."""
        for name, (status, body) in (await self._get_all("/health/progress")).items():
            if status != 200:
                raise _unhealthy(f"{name}: {body.decode(errors='replace')[:200] or status}")
        return Response()

    async def _info(self, request: Request) -> Response:
        """The front and its models, in TGI's fields as far as they apply."""
        default = self._names.default() or self._manager.last_used()
        info = {
            "model_id": default.name if default is not None else None,
            "router": "text-generation-router",
            "version": self._version,
            "server": "tandem",
            "max_loaded_models": self._max_loaded,
            "models": await self._cards(),
        }
        return json_response(info)

    async def _models(self, request: Request) -> Response:
        return json_response({"object": "list", "data": await self._cards()})

    async def _model(self, request: Request) -> Response:
        name = request.scope["path"].removeprefix("/v1/models/")
        try:
            found = await self._names.find(name)
        except UnknownModel as error:
            raise model_not_found(name) from error
        return json_response(await self._card(found.name))

    async def _cards(self) -> list[dict[str, object]]:
        listed = await asyncio.to_thread(self._names.listed)
        names = dict.fromkeys([*listed, *(each.name for each in self._manager.entries())])
        return list(await asyncio.gather(*(self._card(name) for name in names)))

    async def _card(self, name: str) -> dict[str, object]:
        """A model's entry of `/v1/models`, with OpenAI's, vLLM's and the front's fields."""
        entry = self._manager.entry(name)
        card: dict[str, object] = {
            "id": name,
            "object": "model",
            "created": self._created_s,
            "owned_by": "tandem",
            "state": str(entry.state),
            "num_requests": entry.num_users,
        }
        if entry.state is ModelState.FAILED:
            card["failure"] = entry.failure
        if entry.state is ModelState.READY:
            status, body = await self._get(name, "/v1/models")
            served = orjson.loads(body)["data"][0] if status == 200 else {}
            if "max_model_len" in served:
                card["max_model_len"] = served["max_model_len"]
        return card

    async def _merged_metrics(self, request: Request) -> Response:
        answers = await self._get_all("/metrics")
        pages = {name: body.decode() for name, (status, body) in answers.items() if status == 200}
        text = merge(self._metrics.exposition().decode(), pages)
        return Response(text.encode(), headers={"content-type": _METRICS_TYPE})

    async def _get_all(self, path: str) -> dict[str, tuple[int, bytes]]:
        """Status and body of GET `path` from the server of each loaded model."""
        names = list(self._manager.ready())
        answers = await asyncio.gather(*(self._get(name, path) for name in names))
        return dict(zip(names, answers, strict=True))

    async def _get(self, name: str, path: str) -> tuple[int, bytes]:
        """Status and body of GET `path` from a model's server; status 0: it did not answer."""
        socket = self._manager.ready().get(name)
        if socket is None:
            return 0, b"it is gone"
        try:
            async with asyncio.timeout(_SERVER_TIMEOUT_S):
                response = await send_request(socket, "GET", path.encode(), self._headers)
                try:
                    return response.status, b"".join([chunk async for chunk in response.chunks()])
                finally:
                    response.close()
        except (FleetError, TimeoutError) as error:
            _logger.warning("%s did not answer GET %s: %s", name, path, error)
            return 0, str(error).encode()


def _unhealthy(message: str) -> HttpError:
    return HttpError(503, "healthcheck", message)
