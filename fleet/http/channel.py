"""One model as one client socket uses it: frames that wait for it, its upstream socket, its lease.

    put -> queue -> lend (tells that it loads) -> upstream socket -> StreamBook -> client

The model is leased while a stream is open, and not a moment longer: a socket without streams holds
no model in memory. Its upstream socket stays open for as long as that server does; what the server
keeps for it (buffers) ends with it.
"""

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import orjson
from websockets.asyncio.client import ClientConnection, unix_connect
from websockets.exceptions import WebSocketException

from fleet.errors import FleetError, ServerGone
from fleet.http.errors import fields_of
from fleet.http.stream_book import StreamBook
from fleet.lease import Lease
from fleet.metrics import FleetMetrics
from fleet.model_manager import ModelManager
from fleet.names import Model
from router.http.lmtp.frames import Frame, write_frame
from router.http.server.errors import HttpError
from router.request.errors import RouterError

_logger = logging.getLogger("fleet")

_FIRST_NOTICE_S = 0.2
_NEXT_NOTICE_S = 10.0
_CONNECT_S = 10.0
_MAX_QUEUED_LEN = 1 << 24
_RETRY_AFTER_S = 1.0
_MAX_TRIES = 3
_BUG = "a bug; the server's log has more"

SendText = Callable[[str], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Upstream:
    """How a server's socket is opened: the path with its query, and headers."""

    target: str
    headers: tuple[tuple[str, str], ...]

    async def connect(self, socket: Path) -> ClientConnection:
        """An open socket. Raises Unreachable."""
        try:
            return await unix_connect(
                str(socket),
                uri=f"ws://fleet{self.target}",
                additional_headers=self.headers,
                compression=None,
                max_size=None,
                ping_interval=None,
                open_timeout=_CONNECT_S,
                close_timeout=0.1,
                proxy=None,
            )
        except (OSError, WebSocketException, TimeoutError) as error:
            raise Unreachable(str(_gone(str(error))), _RETRY_AFTER_S) from error


class Unreachable(ServerGone):
    """No socket could be opened, so no frame was handed over."""


@dataclass(frozen=True, slots=True)
class _Queued:
    """A frame for the server, and the version that the client spoke when it said it."""

    stream_id: int
    text: str
    version: int


class Channel:
    """Owner of one upstream socket and of the lease that goes with its streams."""

    def __init__(
        self,
        find: Callable[[], Awaitable[Model]],
        keeper: ModelManager,
        metrics: FleetMetrics,
        upstream: Upstream,
        send: SendText,
        version: int,
    ) -> None:
        self._find = find
        self._keeper = keeper
        self._metrics = metrics
        self._upstream = upstream
        self._send = send
        self._book = StreamBook()
        self._book.version = version
        self._queue: deque[_Queued] = deque()
        self._queued_len = 0
        self._has_news = asyncio.Event()
        self._has_room = asyncio.Event()
        self._has_room.set()
        self._serving: asyncio.Task[None] | None = None
        # While the queue waits for the model.
        self._patience: asyncio.Timeout | None = None
        self._reading: asyncio.Task[None] | None = None
        self._connection: ClientConnection | None = None
        # What the upstream socket was told to speak, and how answers begin that are for us.
        self._spoken = 1
        self._greetings: deque[str] = deque()
        # That of the upstream socket, which may be over.
        self._lease: Lease | None = None
        self._was_told = False
        # What a client is told for the server's own word that it takes nothing more.
        self._leaving = fields_of(_gone("it takes nothing more"))

    def __contains__(self, stream_id: int) -> bool:
        return stream_id in self._book

    @property
    def num_streams(self) -> int:
        """Open ones."""
        return len(self._book)

    @property
    def is_idle(self) -> bool:
        """Whether it holds no model."""
        return self._serving is None

    @property
    def is_connected(self) -> bool:
        """Whether a server may keep something for it."""
        return self._connection is not None and self._is_read

    async def put(self, stream_id: int, frame: Frame) -> None:
        """A frame for the model; waits while too much waits."""
        await self._has_room.wait()
        self._book.open(stream_id, frame.command)
        self._push(stream_id, f"{frame.command} {frame.text.decode()}")
        if self._serving is None:
            self._serving = asyncio.create_task(self._serve())

    async def cancel(self, stream_id: int) -> None:
        """Ends a stream at its client's word, whether the server knows of it or not."""
        cancelling = f'CANCEL {{"stream_id":{stream_id}}}'
        queued = [each for each in self._queue if each.stream_id == stream_id]
        if not queued:
            self._push(stream_id, cancelling)
            return
        if any(each.text == cancelling for each in queued):
            return  # the server has the stream, and is told already
        for each in queued:
            self._queue.remove(each)
            self._drop(each.text)
        self._has_news.set()
        command, told = self._book.cancels(stream_id)
        if not self._book:
            self._give_up()
        await self._say(command, told)

    def speak(self, version: int) -> None:
        """The client speaks this version from now on. The server is told before its next frame."""
        self._book.version = version

    async def close(self) -> None:
        """Hangs up, which ends what the server does for it."""
        tasks = [task for task in (self._serving, self._reading) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self.hang_up()

    def hang_up(self) -> None:
        """Closes the upstream socket, where nothing is open."""
        if self._connection is not None:
            self._connection.transport.abort()
        self._connection = None

    def _push(self, stream_id: int, text: str) -> None:
        self._queue.append(_Queued(stream_id, text, self._book.version))
        self._queued_len += len(text)
        if self._queued_len > _MAX_QUEUED_LEN:
            self._has_room.clear()
        self._has_news.set()

    def _drop(self, text: str) -> None:
        """A frame that waits no more."""
        self._queued_len -= len(text)
        if self._queued_len <= _MAX_QUEUED_LEN:
            self._has_room.set()

    async def _serve(self) -> None:
        num_tries = 0
        try:
            while self._queue:
                try:
                    lease = await self._wanted()
                    if lease is None:
                        continue
                    with lease:
                        connection = await self._connected(lease)
                        num_tries = 0
                        await self._pump(connection, lease.model)
                except Unreachable as error:
                    # The frames are where they were.
                    num_tries += 1
                    if num_tries == _MAX_TRIES:
                        num_tries = 0
                        await self._fail_all(error)
                except (FleetError, HttpError, RouterError) as error:
                    await self._fail_all(error)
                except Exception as error:  # noqa: BLE001 (it is logged)
                    await self._fail_by_bug(error)
        finally:
            self._serving = None

    async def _pump(self, connection: ClientConnection, model: Model) -> None:
        """Hands frames to the server until no stream is open. Raises ServerGone."""
        while self._queue or self._book:
            self._has_news.clear()
            while self._queue:
                each = self._queue.popleft()
                self._drop(each.text)
                if each.stream_id in self._book:
                    self._metrics.requests.inc(model.name)
                    if each.version != self._spoken:
                        await self._greet(connection, each.version)
                    await _send(connection, each.text)
            if not self._is_read:
                self.hang_up()
                raise _gone("its socket was closed")
            if self._book:
                await self._has_news.wait()

    async def _connected(self, lease: Lease) -> ClientConnection:
        is_old = self._lease is None or self._lease.generation != lease.generation
        if not is_old and self._connection is not None and self._is_read:
            return self._connection
        self.hang_up()
        try:
            self._connection = await self._upstream.connect(lease.socket)
        except Unreachable:
            self._keeper.suspect(lease)
            raise
        self._lease, self._spoken = lease, 1
        self._greetings.clear()
        self._book.is_leaving = False
        self._reading = asyncio.create_task(self._read(self._connection))
        return self._connection

    async def _greet(self, connection: ClientConnection, version: int) -> None:
        """The server answers what comes from here on in this version."""
        # Any number may be a client's: the next answer to one that is not open is ours.
        stream_id = -1
        while stream_id in self._book:
            stream_id -= 1
        self._spoken = version
        self._greetings.append(f'MSG [{{"stream_id":{stream_id},"hello"')
        await _send(connection, f'HELLO {{"stream_id":{stream_id},"version":{version}}}')

    @property
    def _is_read(self) -> bool:
        return self._reading is not None and not self._reading.done()

    async def _read(self, connection: ClientConnection) -> None:
        try:
            async for text in connection:
                if not isinstance(text, str):
                    continue
                if self._greetings and text.startswith(self._greetings[0]):
                    self._greetings.popleft()
                    continue
                # When all of us stop, the server's word is the right one.
                leaving = None if self._keeper.is_draining else self._leaving
                passed = self._book.passes(text, leaving)
                if self._book.is_leaving and self._lease is not None:
                    self._keeper.suspect(self._lease, is_leaving=True)
                if passed is not None:
                    await self._send(passed)
                if not self._book:
                    self._has_news.set()
        except (WebSocketException, OSError):
            pass  # the server or the client is gone; who finds that out tells what was open
        finally:
            self._has_news.set()

    async def _wanted(self) -> Lease | None:
        """The model; None if all that waited for it was cancelled."""
        patience = self._patience = asyncio.timeout(None)
        try:
            async with patience:
                return await self._lend(await self._find())
        except TimeoutError:
            if not patience.expired():
                raise
            return None
        finally:
            self._patience = None

    def _give_up(self) -> None:
        """Nothing waits for the model any more, so that it takes no other one's place."""
        if self._patience is not None:
            self._patience.reschedule(asyncio.get_running_loop().time())
            self._patience = None

    async def _lend(self, model: Model) -> Lease:
        self._was_told = False
        telling = asyncio.create_task(self._tell(model))
        # What ends it early is that the client is gone, which everybody else finds out too.
        telling.add_done_callback(lambda task: task.cancelled() or task.exception())
        try:
            lease = await self._keeper.lend(model)
        finally:
            telling.cancel()  # not awaited: a lease is in hand here
        if self._was_told:
            try:
                await self._notify("running", f"{model.name} is ready")
            except BaseException:
                lease.release()
                raise
        return lease

    async def _tell(self, model: Model) -> None:
        """Tells the client, every now and then, what its streams wait for."""
        delay_s = _FIRST_NOTICE_S
        while True:
            await asyncio.sleep(delay_s)
            delay_s = _NEXT_NOTICE_S
            self._was_told |= self._book.version > 1
            state, told = self._keeper.waits_for(model.name), self._keeper.notice(model.name)
            await self._notify(state, told)

    async def _notify(self, state: str, message: str) -> None:
        if self._book.version == 1:
            return  # it knows none
        for stream_id in self._book.ids():
            await self._say("SYS", {"stream_id": stream_id, "state": state, "message": message})

    async def _fail_all(self, error: FleetError | HttpError | RouterError) -> None:
        self._queue.clear()
        self._queued_len = 0
        self._has_room.set()
        fields = fields_of(error)
        if isinstance(error, FleetError):
            self._metrics.rejected.inc(str(fields["error_type"]), len(self._book))
        # All end before the first is told: a CANCEL meanwhile finds none that it would wait for.
        for said in [self._book.breaks_off(stream_id, fields) for stream_id in self._book.ids()]:
            await self._say(*said)

    async def _fail_by_bug(self, error: Exception) -> None:
        """A stream that has no end would keep its client waiting for ever."""
        self.hang_up()
        # A client that is gone is no bug, and finds nobody to tell.
        with contextlib.suppress(OSError):
            await self._fail_all(HttpError(500, "internal_error", _BUG))
            _logger.error("%s", _BUG, exc_info=error)

    async def _say(self, command: str, told: dict[str, object]) -> None:
        await self._send(write_frame(command, [orjson.dumps(told).decode()]))


async def _send(connection: ClientConnection, text: str) -> None:
    try:
        await connection.send(text)
    except WebSocketException as error:
        raise _gone(str(error)) from error


def _gone(reason: str) -> ServerGone:
    return ServerGone(
        f"the model's server stopped ({reason}); it is loaded anew when asked for", _RETRY_AFTER_S
    )
