"""The front as an ASGI application: it answers its own routes and passes the others on.

front_routes | read_requested_model -> Model -> Lease -> proxy
"""

import logging
import re
from contextlib import closing

from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from fleet.errors import FleetError, NoModelNamed, ServerGone
from fleet.http.front_routes import FrontRoutes
from fleet.http.proxy import forward, send_back
from fleet.metrics import FleetMetrics
from fleet.model_manager import ModelManager
from fleet.names import PLACEHOLDERS, Model, ModelNames
from router.http.bodies import BodyReader, ClientLeft, ParserThread, parse_json, unless_disconnected
from router.http.errors import Dialect, HttpError, Problem
from router.http.server.access import AccessRecord
from router.http.server.docs import OPENAPI_PATH

_logger = logging.getLogger("fleet")
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


class Front:
    """The application; `sockets` serves WebSockets."""

    def __init__(
        self,
        manager: ModelManager,
        names: ModelNames,
        front_routes: FrontRoutes,
        metrics: FleetMetrics,
        sockets: ASGIApp,
        bodies: BodyReader,
        parser: ParserThread,
    ) -> None:
        self._manager = manager
        self._names = names
        self._front_routes = front_routes
        self._metrics = metrics
        self._sockets = sockets
        self._bodies = bodies
        self._parser = parser

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request or socket."""
        if scope["type"] == "websocket":
            await self._sockets(scope, receive, send)
            return
        request = Request(scope, receive)
        try:
            response = await self._front_routes.answer(request)
            if response is not None:
                await response(scope, receive, send)
            else:
                await self._pass_on(request, send)
        except HttpError as error:
            await self._problem(request, error).response()(scope, receive, send)

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
        if self._front_routes.has(path):
            allowed |= {"GET", "HEAD"}
        if not allowed:
            return HttpError(404, "not_found", f"there is nothing at {path[:200]}")
        listed = ", ".join(sorted(allowed))
        message = f"{method} is not a method of {path[:200]}; {listed} would be"
        return HttpError(405, "method_not_allowed", message, headers={"allow": listed})

    def _problem(self, request: Request, error: HttpError) -> Problem:
        """The error in the dialect of the request's path, counted and logged."""
        record = AccessRecord.of(request)
        record.error_type = error.error_type
        if isinstance(error, FleetError):
            self._metrics.rejected.inc(error.error_type)
        if isinstance(error, ClientLeft):
            _logger.debug("request_id=%s left before its answer began", record.request_id)
        return Problem.of(error, Dialect.of_path(request.scope["path"]), record.request_id)


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
