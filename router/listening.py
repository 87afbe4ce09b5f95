"""The HTTP server as a task: a socket bound early, uvicorn on it, our own idea of signals.

    bind ...... startup, with the port taken but closed ...... serve ...... stop

It knows no route; it serves any ASGI application.
"""

import asyncio
import contextlib
import socket
from collections.abc import Iterator

import uvicorn
from starlette.types import ASGIApp

from router.errors import StartupFailed
from router.http.protocol import Protocol

# Clients keep connections for about a minute; one that is closed while they write is an error.
_KEEP_ALIVE_S = 75
_POLL_S = 0.01


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals are for whoever runs the server."""
        yield


def bind(hostname: str, port: int) -> socket.socket:
    """A socket that nobody can connect to yet. Raises StartupFailed with the address."""
    try:
        found = socket.getaddrinfo(hostname, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        # A name with addresses of both kinds (localhost) means the one that clients try anyway.
        family, kind, protocol, _, address = min(found, key=lambda one: one[0] != socket.AF_INET)
        bound = socket.socket(family, kind, protocol)
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise StartupFailed(f"--hostname {hostname}: {reason}") from error
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
    except OSError as error:
        bound.close()
        reason = error.strerror or str(error)
        raise StartupFailed(f"cannot listen at {hostname}:{port}: {reason}") from error
    return bound


class HttpServer:
    """One application on one bound socket."""

    def __init__(self, app: ASGIApp, bound: socket.socket, stop_timeout_s: float) -> None:
        """`stop_timeout_s`: how long `stop` waits for answers that are being written."""
        config = uvicorn.Config(
            app,
            http=Protocol,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=_KEEP_ALIVE_S,
            timeout_graceful_shutdown=max(1, round(stop_timeout_s)),
        )
        self._server = _Server(config)
        self._bound = bound
        self._serving: asyncio.Task[None] | None = None

    @property
    def address(self) -> str:
        """Where it listens, as a URL."""
        host, port = self._bound.getsockname()[:2]
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    async def start(self) -> None:
        """Returns once connections are accepted."""
        self._serving = asyncio.create_task(self._server.serve(sockets=[self._bound]))
        while not self._server.started:
            if self._serving.done():
                self._serving.result()
                raise StartupFailed(f"the HTTP server at {self.address} did not start")
            await asyncio.sleep(_POLL_S)

    async def stop(self) -> None:
        """Accepts no more, lets what is being written end, closes idle connections."""
        self._server.should_exit = True
        if self._serving is not None:
            await self._serving

    def stop_at_once(self) -> None:
        """Makes `stop` wait for nobody."""
        self._server.force_exit = True
        self._server.should_exit = True
