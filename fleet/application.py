"""What the fronts of models and of replicas are as ASGI applications: errors in their dialect."""

import logging
from abc import ABC, abstractmethod

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from fleet.errors import FleetError
from fleet.metrics import FleetMetrics
from router.http.bodies import ClientLeft
from router.http.errors import Dialect, HttpError, Problem
from router.http.server.access import AccessRecord

_logger = logging.getLogger("fleet")


class FrontApplication(ABC):
    """Answers requests itself or passes them on; `sockets` serves WebSockets."""

    def __init__(self, metrics: FleetMetrics, sockets: ASGIApp) -> None:
        self._metrics = metrics
        self._sockets = sockets

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request or socket."""
        if scope["type"] == "websocket":
            await self._sockets(scope, receive, send)
            return
        request = Request(scope, receive)
        try:
            response = await self._answer(request)
            if response is not None:
                await response(scope, receive, send)
            else:
                await self._pass_on(request, send)
        except HttpError as error:
            await self._problem(request, error).response()(scope, receive, send)

    @abstractmethod
    async def _answer(self, request: Request) -> Response | None:
        """The front's own answer; None for requests that are passed on. Raises HttpError."""

    @abstractmethod
    async def _pass_on(self, request: Request, send: Send) -> None:
        """Have a server answer. Raises HttpError where no answer has begun."""

    def _problem(self, request: Request, error: HttpError) -> Problem:
        """The error in the dialect of the request's path, counted and logged."""
        record = AccessRecord.of(request)
        record.error_type = error.error_type
        if isinstance(error, FleetError):
            self._metrics.rejected.inc(error.error_type)
        if isinstance(error, ClientLeft):
            _logger.debug("request_id=%s left before its answer began", record.request_id)
        return Problem.of(error, Dialect.of_path(request.scope["path"]), record.request_id)
