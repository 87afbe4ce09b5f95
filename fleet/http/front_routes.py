"""What the front answers itself: health, the models and their states, metrics, the document.

No probe loads a model, and none waits for one.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from fleet.errors import FleetError, UnknownModel
from fleet.http.scraping import merge
from fleet.http.upstream import ask
from fleet.metrics import FleetMetrics
from fleet.model_entry import State
from fleet.model_manager import ModelManager
from fleet.names import Names
from router.http.server.docs import OPENAPI_PATH, docs_page
from router.http.server.errors import HttpError, model_not_found

_logger = logging.getLogger("fleet")

_METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_PATIENCE_S = 5.0
_KSERVE_READY = "/ready"
_KSERVE_MODELS = "/v2/models/"

Handler = Callable[[Request], Awaitable[Response]]


class OwnRoutes:
    """The handlers, over what they tell of. `keys` open the servers' metrics."""

    def __init__(
        self,
        keeper: ModelManager,
        names: Names,
        metrics: FleetMetrics,
        document: Mapping[str, Any],
        *,
        max_loaded: int,
        created_s: int,
        keys: tuple[str, ...] = (),
    ) -> None:
        self._keeper = keeper
        self._names = names
        self._metrics = metrics
        self._document = document
        self._max_loaded = max_loaded
        self._created_s = created_s
        self._headers = [(b"authorization", b"Bearer " + keys[0].encode())] if keys else []
        self._handlers: dict[str, Handler] = {
            "/": self._ready,
            "/ping": self._ready,
            "/health": self._ready,
            "/health/ready": self._ready,
            "/health/live": self._live,
            "/health/progress": self._progress,
            "/v2": self._kserve,
            "/v2/health/live": self._kserve_live,
            "/v2/health/ready": self._kserve_ready,
            "/info": self._info,
            "/metrics": self._merged_metrics,
            "/v1/models": self._models,
            OPENAPI_PATH: self._openapi,
            "/docs": self._docs,
        }

    def has(self, path: str) -> bool:
        """Whether GET of a path is answered here."""
        return self._handler(path) is not None

    async def answer(self, request: Request) -> Response | None:
        """The answer; None for what is not the front's own. Raises HttpError."""
        if request.method not in ("GET", "HEAD"):
            return None
        handler = self._handler(request.scope["path"])
        return None if handler is None else await handler(request)

    def _handler(self, path: str) -> Handler | None:
        if path.startswith("/v1/models/"):
            return self._model
        if path.startswith(_KSERVE_MODELS) and path.endswith(_KSERVE_READY):
            return self._model_ready
        return self._handlers.get(path)

    async def _live(self, request: Request) -> Response:
        return Response()

    async def _ready(self, request: Request) -> Response:
        """Requests are taken, and models loaded for them."""
        if self._keeper.is_draining:
            raise _unhealthy("the server is shutting down")
        return Response()

    async def _progress(self, request: Request) -> Response:
        """Every loaded model's server gets on."""
        probes = [self._get(name, "/health/progress") for name in self._ready_names()]
        for name, (status, body) in zip(
            self._ready_names(), await asyncio.gather(*probes), strict=True
        ):
            if status != 200:
                raise _unhealthy(f"{name}: {body.decode(errors='replace')[:200] or status}")
        return Response()

    async def _kserve(self, request: Request) -> Response:
        told = {"name": "text-generation-inference", "version": self._version}
        return _json({**told, "extensions": ["health", "models", "metrics"]})

    async def _kserve_live(self, request: Request) -> Response:
        return _json({"live": True})

    async def _kserve_ready(self, request: Request) -> Response:
        await self._ready(request)
        return _json({"live": True, "ready": True})

    async def _model_ready(self, request: Request) -> Response:
        path = request.scope["path"]
        name = path[len(_KSERVE_MODELS) : -len(_KSERVE_READY)].partition("/versions/")[0]
        if self._keeper.states().get(name) is not State.READY:
            raise _unhealthy(f"{name[:200]!r} is not loaded")
        return _json({"name": name, "live": True, "ready": True})

    async def _info(self, request: Request) -> Response:
        """What the front is, under TGI's names where it has something to say there."""
        default = self._names.default() or self._keeper.last_used()
        told = {
            "model_id": default.name if default is not None else None,
            "router": "text-generation-router",
            "version": self._version,
            "server": "tandem",
            "max_loaded_models": self._max_loaded,
            "models": await self._cards(),
        }
        return _json(told)

    async def _models(self, request: Request) -> Response:
        return _json({"object": "list", "data": await self._cards()})

    async def _model(self, request: Request) -> Response:
        asked = request.scope["path"].removeprefix("/v1/models/")
        try:
            found = await self._names.find(asked)
        except UnknownModel as error:
            raise model_not_found(asked) from error
        return _json(await self._card(found.name))

    async def _cards(self) -> list[dict[str, object]]:
        listed = await asyncio.to_thread(self._names.listed)
        names = dict.fromkeys([*listed, *self._keeper.states()])
        return list(await asyncio.gather(*(self._card(name) for name in names)))

    async def _card(self, name: str) -> dict[str, object]:
        """A model as OpenAI's and vLLM's clients read it; what its server knows, if it is there."""
        state = self._keeper.states().get(name, State.ABSENT)
        card: dict[str, object] = {
            "id": name,
            "object": "model",
            "created": self._created_s,
            "owned_by": "tandem",
            "state": str(state),
            "num_requests": self._keeper.num_users(name),
        }
        if (failure := self._keeper.failure(name)) is not None:
            card["failure"] = failure
        if state is State.READY:
            status, body = await self._get(name, "/v1/models")
            told = orjson.loads(body)["data"][0] if status == 200 else {}
            card |= {key: told[key] for key in ("max_model_len",) if key in told}
        return card

    async def _merged_metrics(self, request: Request) -> Response:
        names = self._ready_names()
        pages = await asyncio.gather(*(self._get(name, "/metrics") for name in names))
        texts = {
            name: body.decode()
            for name, (status, body) in zip(names, pages, strict=True)
            if status == 200
        }
        text = merge(self._metrics.exposition().decode(), texts)
        return Response(text.encode(), headers={"content-type": _METRICS_TYPE})

    async def _openapi(self, request: Request) -> Response:
        return _json(self._document)

    async def _docs(self, request: Request) -> Response:
        return HTMLResponse(docs_page(self._document))

    @property
    def _version(self) -> str:
        return str(self._document["info"]["version"])

    def _ready_names(self) -> list[str]:
        return [model.name for model, _ in self._keeper.ready()]

    async def _get(self, name: str, path: str) -> tuple[int, bytes]:
        """Of a model's server; 0 when it does not answer."""
        sockets = {model.name: socket for model, socket in self._keeper.ready()}
        if name not in sockets:
            return 0, b"it is gone"
        try:
            async with asyncio.timeout(_PATIENCE_S):
                answer = await ask(sockets[name], "GET", path.encode(), self._asked_by)
                try:
                    return answer.status, b"".join([piece async for piece in answer.pieces()])
                finally:
                    answer.close()
        except (FleetError, TimeoutError) as error:
            _logger.warning("%s did not answer GET %s: %s", name, path, error)
            return 0, str(error).encode()

    @property
    def _asked_by(self) -> list[tuple[bytes, bytes]]:
        return [(b"host", b"fleet"), *self._headers]


def _json(answer: object) -> Response:
    return Response(orjson.dumps(answer), media_type="application/json")


def _unhealthy(message: str) -> HttpError:
    return HttpError(503, "healthcheck", message)
