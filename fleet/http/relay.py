"""Relays the frames of one LMTP socket to the model that it is bound to, and the answers back.

    put -> queue -> acquire (the client is notified meanwhile) -> the server's socket -> client

The model is leased while a stream is open: a socket without streams keeps no model in memory. The
connection to the server stays open beyond that, since the server keeps buffers per connection.
"""

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import orjson
from websockets.asyncio.client import ClientConnection, unix_connect
from websockets.exceptions import WebSocketException

from fleet.errors import FleetError, ServerGone
from fleet.http.open_streams import TOKEN_COMMANDS, OpenStreams
from fleet.metrics import FleetMetrics
from fleet.model_manager import Lease, ModelManager
from fleet.names import Model
from router.http.server.errors import HttpError

_logger = logging.getLogger("fleet")

_FIRST_NOTICE_S = 0.2
_NEXT_NOTICE_S = 10.0
_CONNECT_TIMEOUT_S = 10.0
_MAX_QUEUED_LEN = 1 << 24
_MAX_TRIES = 3
# The stream of the relay's own HELLO, unlikely to be one of the client's.
_HELLO_ID = -(1 << 62)
_HELLO_ANSWER = f'MSG [{{"stream_id":{_HELLO_ID},"hello"'

SendText = Callable[[str], Awaitable[None]]


def frame(command: str, fields: dict[str, Any]) -> str:
    """A server's frame of one object."""
    return f"{command} [{orjson.dumps(fields).decode()}]"


def error_fields(error: HttpError) -> dict[str, object]:
    """The fields of LMTP's error object, but for the stream's id."""
    fields: dict[str, object] = {"error": str(error), "error_type": error.error_type}
    if error.field is not None:
        fields["field"] = error.field
    if error.retry_after_s is not None:
        fields["retry_after_s"] = error.retry_after_s
    return {**fields, "retryable": error.status >= 500}


@dataclass(frozen=True, slots=True)
class QueuedFrame:
    """A client's frame for the server, and the version of LMTP in which it was sent."""

    command: str
    stream_id: int
    text: str
    version: int


class Relay:
    """Owner of the connection to a model's server, of its lease, and of the frames that wait."""

    def __init__(
        self,
        model: Model,
        manager: ModelManager,
        metrics: FleetMetrics,
        headers: Sequence[tuple[str, str]],
        send: SendText,
    ) -> None:
        self.model = model
        self._manager = manager
        self._metrics = metrics
        self._headers = headers
        self._send = send
        self._streams = OpenStreams()
        self._queue: deque[QueuedFrame] = deque()
        self._queued_len = 0
        self._has_news = asyncio.Event()
        self._has_room = asyncio.Event()
        self._has_room.set()
        self._serving: asyncio.Task[None] | None = None
        self._connection: ClientConnection | None = None
        self._reading: asyncio.Task[None] | None = None
        # Of the connection: the server's id, its version of LMTP, the relay's own HELLOs.
        self._server_id = 0
        self._version = 1
        self._num_hellos = 0

    async def put(self, queued: QueuedFrame) -> None:
        """Queue a frame for the server; waits while more than _MAX_QUEUED_LEN characters wait."""
        if queued.command == "CANCEL" and self._serving is None:
            return  # no stream is open, and the model is not loaded for this
        await self._has_room.wait()
        self._queue.append(queued)
        self._add_queued_len(len(queued.text))
        self._has_news.set()
        if self._serving is None:
            self._serving = asyncio.create_task(self._serve())

    async def close(self) -> None:
        """Close the connection, which cancels what the server does for it."""
        tasks = [task for task in (self._serving, self._reading) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._disconnect()

    def _clear_queue(self) -> None:
        self._queue.clear()
        self._add_queued_len(-self._queued_len)

    def _add_queued_len(self, length: int) -> None:
        self._queued_len += length
        if self._queued_len <= _MAX_QUEUED_LEN:
            self._has_room.set()
        else:
            self._has_room.clear()

    async def _serve(self) -> None:
        """Serve the queue until it is empty and no stream is open."""
        try:
            while self._queue:
                try:
                    await self._serve_with_lease()
                except FleetError as error:
                    await self._fail_all(error)
                except OSError:
                    raise
                except Exception:
                    _logger.exception("the relay to %s failed by a bug", self.model.name)
                    self._disconnect()
                    message = "a bug; the server's log has more"
                    await self._fail_all(HttpError(500, "internal_error", message))
        except OSError as error:
            _logger.debug("a socket's client left: %s", error)
        finally:
            self._serving = None
            # Empty, unless the client left: then `put` must not wait for room for ever.
            self._clear_queue()

    async def _serve_with_lease(self) -> None:
        with await self._acquire() as lease:
            connection = await self._connect(lease)
            while self._queue or self._streams:
                self._has_news.clear()
                while self._queue:
                    queued = self._queue.popleft()
                    self._add_queued_len(-len(queued.text))
                    await self._forward(connection, queued)
                if not self._is_connected:
                    raise _gone("its socket was closed")
                if self._streams:
                    await self._has_news.wait()

    async def _forward(self, connection: ClientConnection, queued: QueuedFrame) -> None:
        self._metrics.requests.inc(self.model.name)
        try:
            if queued.version != self._version:
                self._version = queued.version
                self._num_hellos += 1
                hello = f'HELLO {{"stream_id":{_HELLO_ID},"version":{queued.version}}}'
                await connection.send(hello)
            self._streams.open(queued.stream_id, queued.command, queued.version)
            await connection.send(queued.text)
        except WebSocketException as error:
            raise _gone(str(error)) from error

    async def _connect(self, lease: Lease) -> ClientConnection:
        """The connection to the leased model's server. Raises ServerGone."""
        is_current = self._is_connected and self._server_id == lease.server_id
        if self._connection is not None and is_current:
            return self._connection
        self._disconnect()
        try:
            connection = await unix_connect(
                str(lease.socket),
                uri="ws://fleet/lmtp",
                additional_headers=self._headers,
                compression=None,
                max_size=None,
                ping_interval=None,
                open_timeout=_CONNECT_TIMEOUT_S,
                close_timeout=0.1,
                proxy=None,
            )
        except (OSError, WebSocketException, TimeoutError) as error:
            self._manager.report_failure(lease)
            raise _gone(str(error)) from error
        self._connection = connection
        self._server_id, self._version, self._num_hellos = lease.server_id, 1, 0
        self._streams.is_server_draining = False
        self._reading = asyncio.create_task(self._read(connection, lease))
        return connection

    @property
    def _is_connected(self) -> bool:
        return self._reading is not None and not self._reading.done()

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.transport.abort()
        self._connection = None

    async def _read(self, connection: ClientConnection, lease: Lease) -> None:
        # A lost connection to the server is noticed by `_serve`, one to the client by its socket.
        with contextlib.suppress(WebSocketException, OSError):
            async for text in connection:
                if not isinstance(text, str):
                    continue
                if self._num_hellos and text.startswith(_HELLO_ANSWER):
                    self._num_hellos -= 1
                    continue
                relayed = self._streams.relay(text)
                if self._streams.is_server_draining:
                    self._manager.report_failure(lease, is_draining=True)
                if relayed is not None:
                    await self._send(relayed)
                if not self._streams:
                    self._has_news.set()
        self._has_news.set()

    async def _acquire(self) -> Lease:
        """The leased model; clients of version 2 are notified while they wait. Raises NotNow."""
        notified: set[int] = set()
        notifying = asyncio.create_task(self._notify_waiting(notified))
        # It fails only if the client is gone, which its socket notices too.
        notifying.add_done_callback(lambda task: task.cancelled() or task.exception())
        try:
            lease = await self._manager.acquire(self.model)
        finally:
            notifying.cancel()  # not awaited: the lease must not be lost here
        try:
            await self._notify(notified, "running", f"{self.model.name} is ready")
        except BaseException:
            lease.release()
            raise
        return lease

    async def _notify_waiting(self, notified: set[int]) -> None:
        """Notify the waiting streams every now and then; adds their ids to `notified`."""
        name, delay_s = self.model.name, _FIRST_NOTICE_S
        while True:
            await asyncio.sleep(delay_s)
            delay_s = _NEXT_NOTICE_S
            notified |= {each.stream_id for each in self._queue if each.version > 1}
            state, message = self._manager.request_state(name), self._manager.wait_message(name)
            await self._notify(notified, state, message)

    async def _notify(self, stream_ids: set[int], state: str, message: str) -> None:
        for stream_id in sorted(stream_ids):
            fields = {"stream_id": stream_id, "state": state, "message": message}
            await self._send(frame("SYS", fields))

    async def _fail_all(self, error: HttpError) -> None:
        """End all streams with an error, those that still wait included."""
        fields = error_fields(error)
        ends = self._streams.end_all(fields)
        for queued in self._queue:
            if queued.command == "CANCEL":
                continue
            kind = "TOKEN" if queued.command in TOKEN_COMMANDS else "MSG"
            ends.append((kind, {"stream_id": queued.stream_id, **fields}))
        self._clear_queue()
        if isinstance(error, FleetError):
            self._metrics.rejected.inc(error.error_type, len(ends))
        for end in ends:
            await self._send(frame(*end))


def _gone(reason: str) -> ServerGone:
    return ServerGone(f"the model's server stopped ({reason}); it is loaded anew when asked for")
