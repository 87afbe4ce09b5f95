"""The front as an ASGI application: it answers its own routes and passes the others on.

    own route: health, models, metrics, pages ------------> answered here; loads nothing
    a route of the router: read_requested_model -> Model -> Lease -> forward, send_back
    a stored response, the document ----------------------> a loaded model's server
    a WebSocket ------------------------------------------> fleet/sockets.py

Routes of the router are told by their paths; what they take and answer only its server knows.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable
from contextlib import closing

import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Send

from fleet.application import FrontApplication
from fleet.errors import NoModelNamed, ServerGone, UnknownModel
from fleet.metrics import FleetMetrics
from fleet.model_manager import ModelManager
from fleet.model_table import ModelState
from fleet.names import PLACEHOLDERS, Model, ModelNames
from fleet.upstream import forward, send_back
from router.http.bodies import (
    BodyReader,
    ParserThread,
    json_response,
    parse_json,
    unless_disconnected,
)
from router.http.errors import Dialect, HttpError, model_not_found
from router.http.server.docs import OPENAPI_PATH
from router.http.server.page import ASSETS_PATH, DOCS_PATH, asset, docs, page, wants_page

_MAX_TRIES = 3
# Of the router's API; the front answers its GET routes itself.
_POST_PATHS = frozenset(
    {
        "/",
        "/generate",
        "/generate_stream",
        "/tokenize",
        "/chat_tokenize",
        "/invocations",
        "/vertex",
        "/constraints/check",
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/responses",
        "/v1/responses/input_tokens",
        "/v1/messages",
        "/v1/messages/count_tokens",
    }
)
_STORED = re.compile(r"/v1/responses/(?!input_tokens$)[^/]+(/cancel)?")
_DOCUMENTS = frozenset({OPENAPI_PATH})
_MAX_QUOTED_LEN = 60

Handler = Callable[[Request], Awaitable[Response]]


class Front(FrontApplication):
    """The front of several models. Its own routes load none, and wait for none.

    `keys` are the servers' too.
    """

    def __init__(
        self,
        manager: ModelManager,
        names: ModelNames,
        metrics: FleetMetrics,
        sockets: ASGIApp,
        bodies: BodyReader,
        parser: ParserThread,
        *,
        version: str,
        max_loaded: int,
        created_s: int,
        keys: tuple[str, ...] = (),
    ) -> None:
        super().__init__(metrics, sockets)
        self._manager = manager
        self._names = names
        self._bodies = bodies
        self._parser = parser
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
            "/metrics": self._all_metrics,
            "/v1/models": self._models,
        }

    async def _answer(self, request: Request) -> Response | None:
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
        ready = self._manager.ready()
        answers = await self._ask_all(ready, "/health/progress", self._headers)
        for name, got in answers.items():
            if got.status != 200:
                raise _unhealthy(f"{name}: {got.body.decode(errors='replace')[:200] or got.status}")
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
            ready = {name: self._manager.ready()[name]}
            got = (await self._ask_all(ready, "/v1/models", self._headers))[name]
            served = orjson.loads(got.body)["data"][0] if got.status == 200 else {}
            card |= {name: served[name] for name in ("max_model_len", "sees") if name in served}
        return card

    async def _all_metrics(self, request: Request) -> Response:
        return await self._metrics_page(self._manager.ready(), self._headers, "model")

    async def _pass_on(self, request: Request, send: Send) -> None:
        path = request.scope["path"]
        if request.method not in methods_of(path):
            raise self._no_route(request.method, path)
        if is_of_loaded_model(path):
            await self._ask_loaded(request, send)
            return
        body, name = await read_requested_model(request, self._bodies, self._parser)
        model = await model_of(name, self._names, self._manager)
        for num_tries in range(1, _MAX_TRIES + 1):
            acquiring = self._manager.acquire(model)
            with closing(await unless_disconnected(request, acquiring)) as lease:
                try:
                    response = await forward(request, lease.socket, body)
                except ServerGone:
                    # No response arrived, so the request may be sent again.
                    self._manager.report_failure(lease)
                    if num_tries == _MAX_TRIES:
                        raise
                    continue
                self._metrics.requests.inc(model.name)
                await send_back(request, response, send)
                return

    async def _ask_loaded(self, request: Request, send: Send) -> None:
        """The answer of the first loaded model's server that has what is requested."""
        for name in self._manager.ready():
            lease = self._manager.acquire_ready(name)
            if lease is None:
                continue
            with closing(lease):
                response = await forward(request, lease.socket, b"")
                if response.status != 404:
                    await send_back(request, response, send)
                    return
                response.close()
        if request.scope["path"].startswith("/v1/responses/"):
            message = "no loaded model keeps such a response; they are forgotten with its unloading"
            raise HttpError(404, "response_not_found", message, field="response_id")
        raise HttpError(404, "not_found", "no model is loaded whose server would answer this")

    def _no_route(self, method: str, path: str) -> HttpError:
        allowed = methods_of(path)
        if self._handler(path) is not None:
            allowed |= {"GET", "HEAD"}
        if not allowed:
            return HttpError(404, "not_found", f"there is nothing at {path[:200]}")
        listed = ", ".join(sorted(allowed))
        message = f"{method} is not a method of {path[:200]}; {listed} would be"
        return HttpError(405, "method_not_allowed", message, headers={"allow": listed})


def _unhealthy(message: str) -> HttpError:
    return HttpError(503, "healthcheck", message)


async def model_of(name: str | None, names: ModelNames, manager: ModelManager) -> Model:
    """The model of a name, or the default. Raises NoModelNamed, UnknownModel, LoadFailed."""
    if name is not None and name not in PLACEHOLDERS:
        return await names.find(name)
    default = names.default() or manager.last_used()
    if default is None:
        raise NoModelNamed("`model` is required: no model is loaded that could be meant")
    return default


def methods_of(path: str) -> set[str]:
    """The methods by which requests for a path are passed on."""
    if stored := _STORED.fullmatch(path):
        return {"POST"} if stored[1] else {"GET", "HEAD", "DELETE"}
    if path in _DOCUMENTS:
        return {"GET", "HEAD"}
    return {"POST"} if path in _POST_PATHS else set()


def is_of_loaded_model(path: str) -> bool:
    """Whether any loaded model that has what the path names may answer, as a stored response."""
    return path in _DOCUMENTS or _STORED.fullmatch(path) is not None


async def read_requested_model(
    request: Request, bodies: BodyReader, parser: ParserThread
) -> tuple[bytes, str | None]:
    """The request's body, and the model that it or the query string names. Raises HttpError."""
    in_query = request.query_params.get("model")
    body = await bodies.read(request)
    fields = await parser.run(len(body), lambda: parse_json(body, parser.bounds))
    if not isinstance(fields, dict):
        raise _invalid(request, "the body must be a JSON object")
    model = fields.get("model")
    if model is not None and not isinstance(model, str):
        shown = repr(model)[:_MAX_QUOTED_LEN]
        raise _invalid(request, f"`model` must be a valid string. Given: {shown}", "model")
    return body, model or in_query


def _invalid(request: Request, message: str, field: str | None = None) -> HttpError:
    """As the router answers it."""
    if Dialect.of_path(request.scope["path"]) is Dialect.TGI:
        return HttpError(422, "validation", f"Input validation error: {message}", field=field)
    return HttpError(400, "validation", message, field=field)
