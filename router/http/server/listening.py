"""The HTTP server as a task: a socket bound early, uvicorn on it, our own idea of signals.

    bind ...... startup, with the port taken but closed ...... serve ...... stop

It knows no route; it serves any ASGI application.
"""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import cast

import uvicorn
from starlette.types import ASGIApp

from router.http.server.protocol import ConnectionRules, Protocol
from router.http.server.websocket import SocketProtocol
from router.http.server.write_limits import Pieces
from router.request.errors import StartupFailed

# Clients keep connections for about a minute; one that is closed while they write is an error.
_KEEP_ALIVE_S = 75
_POLL_S = 0.01
# Bytes that the kernel takes beyond those on their way; else a client that reads nothing is given
# megabytes before anybody notices.
_KERNEL_UNSENT_LEN = 16_384


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals are for whoever runs the server."""
        yield


@dataclass(frozen=True, slots=True)
class Door:
    """A bound socket, and what it takes to speak TLS there."""

    socket: socket.socket
    tls: ssl.SSLContext | None = None

    @property
    def address(self) -> str:
        """As a URL."""
        if self.socket.family == socket.AF_UNIX:
            return f"unix:{self.socket.getsockname()}"
        host, port = self.socket.getsockname()[:2]
        scheme = "http" if self.tls is None else "https"
        return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"

    def close(self) -> None:
        """Gives the port back."""
        self.socket.close()


def bind(hostname: str, port: int, tls: ssl.SSLContext | None = None) -> Door:
    """A door that nobody can come in by yet. Raises StartupFailed with the address."""
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
        # Connections inherit it.
        bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _KERNEL_UNSENT_LEN)
        bound.bind(address)
    except OSError as error:
        bound.close()
        reason = error.strerror or str(error)
        raise StartupFailed(f"cannot listen at {hostname}:{port}: {reason}") from error
    return Door(bound, tls)


def bind_unix(path: Path, tls: ssl.SSLContext | None = None) -> Door:
    """A door at a unix socket, for this process's user. Raises StartupFailed with the path."""
    bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        # What a server that was killed left; a file of another kind is not ours to remove.
        if path.is_socket():
            path.unlink()
        bound.bind(str(path))
        path.chmod(0o600)
    except OSError as error:
        bound.close()
        raise StartupFailed(f"--http-uds {path}: {error.strerror or error}") from error
    return Door(bound, tls)


class HttpServer:
    """One application behind one door."""

    def __init__(
        self,
        app: ASGIApp,
        door: Door,
        stop_timeout_s: float,
        rules: ConnectionRules | None = None,
    ) -> None:
        """`stop_timeout_s`: how long `stop` waits for answers that are being written."""
        rules = rules or ConnectionRules()
        config = uvicorn.Config(
            Pieces(app),
            http=cast(type[asyncio.Protocol], partial(Protocol, rules)),
            ws=cast(type[asyncio.Protocol], partial(SocketProtocol, rules)),
            ws_max_size=rules.max_message_len,
            ws_ping_interval=rules.ping_interval_s,
            ws_ping_timeout=rules.ping_interval_s,
            ws_per_message_deflate=False,
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=_KEEP_ALIVE_S,
            timeout_graceful_shutdown=max(1, round(stop_timeout_s)),
        )
        config.load()
        config.ssl = door.tls
        self._server = _Server(config)
        self._door = door
        self._serving: asyncio.Task[None] | None = None

    @property
    def address(self) -> str:
        """Where it listens, as a URL."""
        return self._door.address

    async def start(self) -> None:
        """Returns once connections are accepted."""
        self._serving = asyncio.create_task(self._server.serve(sockets=[self._door.socket]))
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
