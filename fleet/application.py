"""What the fronts of models and of replicas are as ASGI applications: errors in their dialect."""

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Mapping

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from fleet.errors import FleetError
from fleet.metrics import FleetMetrics, merge
from fleet.upstream import Address, Got, Headers, get
from router.http.bodies import ClientLeft
from router.http.errors import Dialect, HttpError, Problem
from router.http.server.access import AccessRecord

_logger = logging.getLogger("fleet")
_METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_TIMEOUT_S = 5.0


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

    async def _ask_all(
        self, servers: Mapping[str, Address], path: str, headers: Headers
    ) -> dict[str, Got]:
        """What each server answers to GET `path`."""
        asking = [get(address, path, headers, _TIMEOUT_S) for address in servers.values()]
        answers = dict(zip(servers, await asyncio.gather(*asking), strict=True))
        for name, got in answers.items():
            if not got.status:
                _logger.warning("%s did not answer GET %s: %s", name, path, got.body.decode())
        return answers

    async def _metrics_page(
        self, servers: Mapping[str, Address], headers: Headers, label: str
    ) -> Response:
        """Its own metrics, and those of servers with their names as this label."""
        answers = await self._ask_all(servers, "/metrics", headers)
        pages = {name: got.body.decode() for name, got in answers.items() if got.status == 200}
        text = merge(self._metrics.exposition().decode(), pages, label)
        return Response(text.encode(), headers={"content-type": _METRICS_TYPE})

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
