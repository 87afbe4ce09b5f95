"""The HTTP server as a task: a socket that is bound early, with TLS or without, and uvicorn on it.

bind ...... startup, with the port taken but closed ...... start ...... stop
"""

import asyncio
import contextlib
import resource
import socket
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import cast

import uvicorn
from starlette.types import ASGIApp

from processes.instruments import Counter
from router.front_config import FrontConfig, server_tls
from router.http.server.protocol import (
    KEPT_BACK,
    Connection,
    ConnectionLimits,
    HttpProtocol,
    WebSocketProtocol,
    watch,
)

# Clients keep connections for about a minute; one that is closed while they write is an error.
_KEEP_ALIVE_S = 75
_POLL_S = 0.01
# Bytes that the kernel buffers beyond those on their way; else a client that reads nothing gets
# megabytes before anybody notices.
_KERNEL_UNSENT_LEN = 16_384
# Descriptors of the process itself: shards, workers, logs, and files that are read now and then.
_OWN_FILES = 96


class ListenFailed(Exception):
    """The socket cannot be bound, or the server does not start on it."""


@dataclass(frozen=True, slots=True)
class BoundSocket:
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
        self.socket.close()


def bind_configured(config: FrontConfig) -> BoundSocket:
    """The socket that the flags name. Raises BadConfig for TLS files, ListenFailed otherwise."""
    tls = server_tls(config)
    if config.http_uds is not None:
        return bind_unix(config.http_uds, tls)
    return bind(config.hostname, config.port, tls)


def bind(hostname: str, port: int, tls: ssl.SSLContext | None = None) -> BoundSocket:
    """A bound socket that does not listen yet. Raises ListenFailed with the address."""
    try:
        found = socket.getaddrinfo(hostname, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        # A name with addresses of both kinds (localhost) means the one that clients try anyway.
        family, kind, protocol, _, address = min(found, key=lambda one: one[0] != socket.AF_INET)
        bound = socket.socket(family, kind, protocol)
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ListenFailed(f"--hostname {hostname}: {reason}") from error
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # Connections inherit it.
        bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _KERNEL_UNSENT_LEN)
        bound.bind(address)
    except OSError as error:
        bound.close()
        reason = error.strerror or str(error)
        raise ListenFailed(f"cannot listen at {hostname}:{port}: {reason}") from error
    return BoundSocket(bound, tls)


def bind_unix(path: Path, tls: ssl.SSLContext | None = None) -> BoundSocket:
    """A unix socket, for this process's user alone. Raises ListenFailed with the path."""
    bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        # What a server that was killed left; a file of another kind is not ours to remove.
        if path.is_socket():
            path.unlink()
        bound.bind(str(path))
        path.chmod(0o600)
    except OSError as error:
        bound.close()
        raise ListenFailed(f"--http-uds {path}: {error.strerror or error}") from error
    return BoundSocket(bound, tls)


def configured_limits(config: FrontConfig, cuts: Counter) -> ConnectionLimits:
    """The limits that the flags set. `cuts` counts the connections that were cut, by cause."""
    num_files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return ConnectionLimits(
        max_head_len=config.header_limit,
        head_timeout_s=config.header_timeout,
        write_timeout_s=config.write_timeout,
        max_message_len=config.socket_message_limit,
        ping_interval_s=config.socket_ping_interval,
        max_connections=max(1, num_files - _OWN_FILES - KEPT_BACK),
        cuts=cuts,
    )


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals are handled outside of the server."""
        yield


class HttpServer:
    """One application on one socket."""

    def __init__(
        self,
        app: ASGIApp,
        bound: BoundSocket,
        stop_timeout_s: float,
        limits: ConnectionLimits | None = None,
    ) -> None:
        """`stop_timeout_s`: how long `stop` waits for answers that are being written."""
        limits = limits or ConnectionLimits()
        config = uvicorn.Config(
            app,
            http=cast(type[asyncio.Protocol], partial(HttpProtocol, limits)),
            ws=cast(type[asyncio.Protocol], partial(WebSocketProtocol, limits)),
            ws_max_size=limits.max_message_len,
            ws_ping_interval=limits.ping_interval_s,
            ws_ping_timeout=limits.ping_interval_s,
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
        config.ssl = bound.tls
        self._server = _Server(config)
        self._bound = bound
        self._limits = limits
        self._serving: asyncio.Task[None] | None = None

    @property
    def address(self) -> str:
        """Where it listens, as a URL."""
        return self._bound.address

    async def start(self) -> None:
        """Returns once connections are accepted."""
        connections = cast(set[Connection], self._server.server_state.connections)
        watching = asyncio.create_task(watch(connections, self._limits))
        self._serving = asyncio.create_task(self._server.serve(sockets=[self._bound.socket]))
        self._serving.add_done_callback(lambda _: watching.cancel())
        while not self._server.started:
            if self._serving.done():
                self._serving.result()
                raise ListenFailed(f"the HTTP server at {self.address} did not start")
            await asyncio.sleep(_POLL_S)

    async def stop(self) -> None:
        """Accepts no more, lets what is being written end, closes idle connections."""
        self._server.should_exit = True
        if self._serving is not None:
            await self._serving

    def stop_at_once(self) -> None:
        """Makes `stop` wait for no answer."""
        self._server.force_exit = True
        self._server.should_exit = True
