"""A client's WebSocket joined to a server's: messages pass unread until one side is closed.

The close of one side closes the other with the same code; 1012 where the server is gone without
one. A socket of a replica begins with its replica's answer to the handshake, and does not move.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from functools import partial
from pathlib import Path

from starlette.requests import HTTPConnection
from starlette.responses import Response
from starlette.types import Receive, Scope, Send
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus, WebSocketException

from fleet.errors import FleetError, NotReached, ShuttingDown
from fleet.metrics import FleetMetrics
from fleet.replica_pool import ReplicaPool, Use
from fleet.upstream import Address, client_tls
from router.http.bodies import end
from router.http.errors import Dialect, Problem

_logger = logging.getLogger("fleet")
# Of a client's handshake, what its server gets.
_PASSED = frozenset({"authorization", "x-api-key", "x-request-id"})
_CONNECT_TIMEOUT_S = 10.0
_MAX_REASON_LEN = 123
# Close codes of WebSockets.
GOING_AWAY = 1001
_NO_STATUS = 1005
_SERVICE_RESTART = 1012


class SocketClose(Exception):
    """Why a client's socket is closed: with `code`, and the text as the reason."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(reason)
        self.code = code


class ServerLost(SocketClose):
    """The server is gone without a close."""

    def __init__(self, reason: str) -> None:
        super().__init__(_SERVICE_RESTART, reason)


class OpenSockets:
    """Owner of the clients' sockets that are open."""

    def __init__(self, metrics: FleetMetrics) -> None:
        self._metrics = metrics
        self._open: set[Send] = set()

    @contextmanager
    def opened(self, send: Send) -> Iterator[None]:
        """A socket, as long as it is open."""
        self._open.add(send)
        self._metrics.sockets.set(len(self._open))
        try:
            yield
        finally:
            self._open.discard(send)
            self._metrics.sockets.set(len(self._open))

    async def close(self) -> None:
        """Close what is still open."""
        stop = SocketClose(GOING_AWAY, "the server stops")
        await asyncio.gather(*(close_socket(send, stop) for send in self._open))


class ReplicaSockets(OpenSockets):
    """Serves those of replicas, whatever they say."""

    def __init__(self, pool: ReplicaPool, metrics: FleetMetrics) -> None:
        super().__init__(metrics)
        self._pool = pool

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one socket, from its handshake until it is closed."""
        await receive()
        try:
            if self._pool.is_draining:
                raise ShuttingDown()
            use, replica = await self._join(scope)
            with closing(use), self.opened(send):
                await send({"type": "websocket.accept"})
                await relay(replica, _messages(receive), send, "the replica is gone")
        except SocketClose as close:
            await close_socket(send, close)
        except InvalidStatus as error:
            answer = error.response
            headers = {"content-type": answer.headers.get("content-type", "application/json")}
            response = Response(bytes(answer.body), answer.status_code, headers)
            await response(scope, receive, send)
        except FleetError as error:
            self._metrics.rejected.inc(error.error_type)
            await Problem.of(error, Dialect.TGI).response()(scope, receive, send)
        except OSError as error:
            _logger.debug("a socket's client left: %s", error)

    async def _join(self, scope: Scope) -> tuple[Use, ClientConnection]:
        """A replica's socket, of the first one that is there. Raises FleetError, InvalidStatus."""
        tried: set[str] = set()
        while True:
            use = await self._pool.use([], tried)
            try:
                return use, await self._connect(scope, use)
            except NotReached:
                use.close()
                tried.add(use.name)
            except BaseException:
                use.close()
                raise

    async def _connect(self, scope: Scope, use: Use) -> ClientConnection:
        """The replica's socket. Raises NotReached, and InvalidStatus for its refusal."""
        headers = [each for each in HTTPConnection(scope).headers.items() if each[0] in _PASSED]
        target = scope["raw_path"].decode("latin-1")
        if scope["query_string"]:
            target += "?" + scope["query_string"].decode("latin-1")
        try:
            return await connect_socket(use.address, target, headers)
        except InvalidStatus as refusal:
            # It drains, and another one does not.
            if refusal.response.status_code == 503:
                raise NotReached("the replica takes no sockets") from refusal
            raise
        except (OSError, WebSocketException) as error:
            self._pool.report_failure(use, error)
            raise NotReached("the replica is gone") from error


async def _messages(receive: Receive) -> AsyncIterator[str | bytes]:
    while (message := await receive())["type"] != "websocket.disconnect":
        text = message.get("text")
        yield message["bytes"] if text is None else text


async def connect_socket(
    address: Address, target: str, headers: Sequence[tuple[str, str]]
) -> ClientConnection:
    """A server's socket. Raises OSError, WebSocketException; InvalidStatus for its refusal."""
    connecting = partial(
        connect,
        additional_headers=headers,
        compression=None,
        max_size=None,
        ping_interval=None,
        open_timeout=_CONNECT_TIMEOUT_S,
        close_timeout=0.1,
        proxy=None,
    )
    if isinstance(address, Path):
        return await connecting(f"ws://fleet{target}", path=str(address), unix=True)
    name = address.tls_name
    uri = f"ws://fleet{target}" if name is None else f"wss://{name}{target}"
    tls = None if name is None else client_tls()
    return await connecting(uri, host=address.host, port=address.port, ssl=tls)


async def relay(
    server: ClientConnection, messages: AsyncIterator[str | bytes], send: Send, gone: str
) -> None:
    """Pass the client's messages on, and the server's back, until there are none of the client.

    Raises SocketClose: ServerLost, with the reason `gone`, or the server's own.
    """
    sending = asyncio.create_task(_send_on(server, messages))
    hearing = asyncio.create_task(_send_back(server, send))
    try:
        await asyncio.wait({sending, hearing}, return_when=asyncio.FIRST_COMPLETED)
        if hearing.done():
            hearing.result()
    except ConnectionClosed as closed:
        if closed.rcvd is None or closed.rcvd.code == _NO_STATUS:
            raise ServerLost(gone) from closed
        raise SocketClose(closed.rcvd.code, closed.rcvd.reason) from closed
    finally:
        await end(sending, hearing)
        # It cancels what it does for this socket.
        server.transport.abort()


async def _send_on(server: ClientConnection, messages: AsyncIterator[str | bytes]) -> None:
    with suppress(ConnectionClosed):  # `_send_back` notices it too
        async for message in messages:
            await server.send(message)


async def _send_back(server: ClientConnection, send: Send) -> None:
    while True:
        message = await server.recv()
        content = {"text": message} if isinstance(message, str) else {"bytes": message}
        await send({"type": "websocket.send", **content})


async def close_socket(send: Send, close: SocketClose) -> None:
    """Close a client's socket, unless it is closed already."""
    reason = str(close).encode()[:_MAX_REASON_LEN].decode(errors="ignore")
    with suppress(OSError, RuntimeError):
        await send({"type": "websocket.close", "code": close.code, "reason": reason})
