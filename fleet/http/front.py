"""The front as an ASGI application: what is its own it answers, the rest goes to a model's server.

own routes | a route of the router's -> name -> Model -> Lease -> passing
errors in the dialect of the path, as the router has them
"""

import asyncio
import logging

from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from fleet.errors import FleetError, NotNow, ServerGone
from fleet.http.errors import http_error
from fleet.http.event_stream import CommentTimes, EventStream, with_retry
from fleet.http.front_routes import OwnRoutes
from fleet.http.proxy import ask_for, pass_back, refuses_all
from fleet.http.requested_model import read_named
from fleet.http.routes import Kind, Routes
from fleet.metrics import FleetMetrics
from fleet.model_manager import ModelManager
from fleet.names import PLACEHOLDERS, Model, Names, no_model_named
from router.http.errors import problem_of
from router.http.server.access import AccessRecord
from router.http.server.body import BodyReader, ClientLeft, unless_disconnected
from router.http.server.errors import Dialect, HttpError, Problem
from router.request.errors import RouterError

_logger = logging.getLogger("fleet")
_NOT_FOUND = 404


class Front:
    """All requests; `sockets` serves WebSockets."""

    def __init__(
        self,
        keeper: ModelManager,
        names: Names,
        routes: Routes,
        own: OwnRoutes,
        metrics: FleetMetrics,
        sockets: ASGIApp,
        *,
        max_body_len: int,
        comments: CommentTimes | None = None,
    ) -> None:
        self._keeper = keeper
        self._names = names
        self._routes = routes
        self._own = own
        self._metrics = metrics
        self._sockets = sockets
        self._bodies = BodyReader(max_body_len)
        self._comments = comments or CommentTimes()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request or socket."""
        if scope["type"] == "websocket":
            await self._sockets(scope, receive, send)
            return
        request = Request(scope, receive)
        stream = EventStream(request, send, self._comments)
        try:
            response = await self._own.answer(request)
            if response is not None:
                await response(scope, receive, send)
            else:
                await self._serve(request, stream, send)
        except (FleetError, HttpError, RouterError) as error:
            problem = self._problem(request, error)
            if stream.is_open:
                await stream.fail(problem)
            else:
                await problem.response()(scope, receive, send)

    async def _serve(self, request: Request, stream: EventStream, send: Send) -> None:
        path = request.scope["path"]
        route = self._routes.find(request.method, path)
        if route is None:
            raise self._no_route(request.method, path)
        if route.kind is Kind.STORED:
            await self._pass_to_who_has_it(request, stream, send)
            return
        named = await read_named(request, self._bodies)
        model = await model_of(route.model or named.model, self._names, self._keeper)
        for is_last in (False, False, True):
            lending = self._keeper.lend(model)
            if stream.is_wanted(named.stream):
                lending = stream.told(lending, lambda: self._keeper.waits_for(model.name))
            with await unless_disconnected(request, lending) as lease:
                try:
                    answer = await ask_for(request, lease.socket, named.body)
                except ServerGone:
                    # Nothing of an answer came, so the request may be made once more.
                    self._keeper.suspect(lease)
                    if is_last:
                        raise
                    continue
                if refuses_all(answer) and not is_last and not self._keeper.is_draining:
                    # It ends of itself: a shard of it did, or somebody sent it a signal.
                    answer.close()
                    self._keeper.suspect(lease, is_leaving=True)
                    continue
                self._metrics.requests.inc(model.name)
                await pass_back(request, answer, stream, send, self._metrics)
                return

    async def _pass_to_who_has_it(self, request: Request, stream: EventStream, send: Send) -> None:
        """What one of the servers keeps, and the others do not know."""
        for model, _ in self._keeper.ready():
            lease = self._keeper.lend_ready(model.name)
            if lease is None:
                continue
            with lease:
                answer = await ask_for(request, lease.socket, b"")
                if answer.status != _NOT_FOUND:
                    await pass_back(request, answer, stream, send, self._metrics)
                    return
                answer.close()
        message = "no loaded model keeps such a response; they are forgotten with its unloading"
        raise HttpError(_NOT_FOUND, "response_not_found", message, field="response_id")

    def _no_route(self, method: str, path: str) -> HttpError:
        allowed = self._routes.methods(path) | ({"GET", "HEAD"} if self._own.has(path) else set())
        if not allowed:
            return HttpError(_NOT_FOUND, "not_found", f"there is nothing at {path[:200]}")
        told = ", ".join(sorted(allowed))
        message = f"{method} is not a method of {path[:200]}; {told} would be"
        return HttpError(405, "method_not_allowed", message, headers={"allow": told})

    def _problem(self, request: Request, error: Exception) -> Problem:
        """The error as it is told, booked."""
        record = AccessRecord.of(request)
        dialect = Dialect.of_path(request.scope["path"])
        told = http_error(error) if isinstance(error, FleetError) else error
        assert isinstance(told, HttpError | RouterError)
        problem = problem_of(told, dialect, record.request_id)
        record.error_type = problem.error_type
        if isinstance(error, FleetError):
            self._metrics.rejected.inc(problem.error_type)
        if isinstance(error, NotNow):
            problem = with_retry(problem, error.retry_after_s)
        if isinstance(error, ClientLeft):
            _logger.debug("request_id=%s left before its answer began", record.request_id)
        return problem


async def model_of(asked: str | None, names: Names, keeper: ModelManager) -> Model:
    """The model that a name means. Raises NoModelNamed, UnknownModel, LoadFailed."""
    if asked is not None and asked not in PLACEHOLDERS:
        return await names.find(asked)
    default = names.default() or keeper.last_used()
    if default is None:
        raise await asyncio.to_thread(no_model_named, names)
    return default
