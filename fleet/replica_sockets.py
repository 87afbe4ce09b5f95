"""WebSockets to replicas: each is joined to one of them, and its messages are passed on unread.

What the replica answers to the handshake the client is answered. The close of one side closes the
other with the same code; 1012 where the replica is gone without one. A socket does not move.
"""

import asyncio
from contextlib import closing, suppress
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
from fleet.upstream import client_tls
from router.http.bodies import end
from router.http.errors import Dialect, Problem

_CONNECT_TIMEOUT_S = 10.0
_OF_HANDSHAKE = frozenset({"authorization", "x-api-key", "x-request-id"})
_GONE = "the replica is gone"
# Close codes of WebSockets.
_GOING_AWAY = 1001
_NO_STATUS = 1005
_SERVICE_RESTART = 1012


class ReplicaSockets:
    """Owner of the open sockets."""

    def __init__(self, pool: ReplicaPool, metrics: FleetMetrics) -> None:
        self._pool = pool
        self._metrics = metrics
        self._open: set[Send] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one socket, from its handshake until it is closed."""
        await receive()
        try:
            if self._pool.is_draining:
                raise ShuttingDown()
            with closing(await self._pool.use([], ())) as use:
                replica = await self._connect(scope, use)
                self._note(send, is_open=True)
                try:
                    await send({"type": "websocket.accept"})
                    await _relay(replica, receive, send)
                finally:
                    self._note(send, is_open=False)
                    # It cancels what it does for this socket.
                    replica.transport.abort()
        except InvalidStatus as error:
            answer = error.response
            headers = {"content-type": answer.headers.get("content-type", "application/json")}
            response = Response(bytes(answer.body), answer.status_code, headers)
            await response(scope, receive, send)
        except FleetError as error:
            self._metrics.rejected.inc(error.error_type)
            await Problem.of(error, Dialect.TGI).response()(scope, receive, send)

    async def close(self) -> None:
        """Close what is still open."""
        await asyncio.gather(
            *(_close(send, _GOING_AWAY, "the server stops") for send in self._open)
        )

    async def _connect(self, scope: Scope, use: Use) -> ClientConnection:
        """The replica's socket. Raises NotReached, and InvalidStatus for its refusal."""
        headers = HTTPConnection(scope).headers.items()
        target = scope["raw_path"].decode("latin-1")
        if scope["query_string"]:
            target += "?" + scope["query_string"].decode("latin-1")
        connecting = partial(
            connect,
            additional_headers=[each for each in headers if each[0] in _OF_HANDSHAKE],
            compression=None,
            max_size=None,
            ping_interval=None,
            open_timeout=_CONNECT_TIMEOUT_S,
            close_timeout=0.1,
            proxy=None,
        )
        address = use.address
        try:
            if isinstance(address, Path):
                return await connecting(f"ws://fleet{target}", path=str(address), unix=True)
            name = address.tls_name
            uri = f"ws://fleet{target}" if name is None else f"wss://{name}{target}"
            tls = None if name is None else client_tls()
            return await connecting(uri, host=address.host, port=address.port, ssl=tls)
        except InvalidStatus:
            raise
        except (OSError, WebSocketException) as error:
            self._pool.report_failure(use, error)
            raise NotReached(_GONE) from error

    def _note(self, send: Send, *, is_open: bool) -> None:
        (self._open.add if is_open else self._open.discard)(send)
        self._metrics.sockets.set(len(self._open))


async def _relay(replica: ClientConnection, receive: Receive, send: Send) -> None:
    """Pass messages on until one side is closed."""
    sending = asyncio.create_task(_send_on(replica, receive))
    hearing = asyncio.create_task(_send_back(replica, send))
    try:
        await asyncio.wait({sending, hearing}, return_when=asyncio.FIRST_COMPLETED)
        if hearing.done():
            hearing.result()
    except ConnectionClosed as closed:
        if closed.rcvd is None or closed.rcvd.code == _NO_STATUS:
            await _close(send, _SERVICE_RESTART, _GONE)
        else:
            await _close(send, closed.rcvd.code, closed.rcvd.reason)
    except OSError:
        pass  # the client has left
    finally:
        await end(sending, hearing)


async def _send_on(replica: ClientConnection, receive: Receive) -> None:
    with suppress(ConnectionClosed):  # `_send_back` notices it too
        while (message := await receive())["type"] != "websocket.disconnect":
            text = message.get("text")
            await replica.send(message["bytes"] if text is None else text)


async def _send_back(replica: ClientConnection, send: Send) -> None:
    while True:
        message = await replica.recv()
        content = {"text": message} if isinstance(message, str) else {"bytes": message}
        await send({"type": "websocket.send", **content})


async def _close(send: Send, code: int, reason: str) -> None:
    with suppress(OSError, RuntimeError):  # it is closed already
        await send({"type": "websocket.close", "code": code, "reason": reason})
