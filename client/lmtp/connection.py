"""One WebSocket with many streams on it.

The connection's two tasks read and write; who asks gets a Stream, a mailbox of parts, and never
touches the socket. A mailbox that its reader leaves full ends in FellBehind and its request is
cancelled, so that one slow reader costs bounded memory and holds up nobody else.
"""

import asyncio
from collections.abc import Callable
from typing import Self, TypeAlias

from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed

from client.beams import BeamsReport
from client.errors import ConnectionLost, InvalidRequest, TandemError
from client.lmtp.frames import BadFrame, Failed, Greeting, Part, cancel_frame, read_frame
from client.lmtp.handshake import GREETING_ID
from client.words import ServerNotice, TokenMade

OnNotice: TypeAlias = Callable[[ServerNotice], None]
# A frame, once its stream has a number.
Framed: TypeAlias = Callable[[int], str]


# What comes before the end of a stream.
_MIDDLE = (TokenMade, BeamsReport)
# Close codes by which a server says that a frame is none, or too long.
_REFUSALS = frozenset({1002, 1003, 1007, 1008, 1009})


class FellBehind(TandemError):
    """The stream's reader left too many parts unread; the request was cancelled meanwhile."""


class Stream:
    """What comes back for one request. One task reads it, the connection fills it.

    As a context manager it cancels the request at the end, unless that has ended.
    """

    def __init__(self, connection: "Connection", stream_id: int, max_unread: int) -> None:
        self._connection = connection
        self._parts: asyncio.Queue[Part] = asyncio.Queue()
        self._max_unread = max_unread
        self.stream_id = stream_id
        self.has_begun = False

    async def next(self) -> Part:
        """The next part, Failed excepted: its error is raised."""
        part = await self._parts.get()
        if isinstance(part, Failed):
            raise part.error
        return part

    def put(self, part: Part) -> bool:
        """False: there was no room for another part; the stream has ended."""
        self.has_begun = True
        if isinstance(part, _MIDDLE) and self._parts.qsize() >= self._max_unread:
            self.fail(FellBehind(f"{self._max_unread} parts are left unread"))
            return False
        self._parts.put_nowait(part)
        return True

    def fail(self, error: TandemError) -> None:
        """Ends the stream, whatever room there is."""
        self._parts.put_nowait(Failed(error))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.forget(self.stream_id)


class Connection:
    """A WebSocket whose server was greeted. Owner of the socket and its two tasks."""

    def __init__(
        self, websocket: ClientConnection, greeting: Greeting, on_notice: OnNotice, max_unread: int
    ) -> None:
        self._websocket = websocket
        self._on_notice = on_notice
        self._max_unread = max_unread
        self._streams: dict[int, Stream] = {}
        self._last_id = GREETING_ID
        self._outbox: asyncio.Queue[bytes] = asyncio.Queue()
        self.greeting = greeting
        self._is_bound = False
        self._model: str | None = None
        self.is_open = True
        self.is_draining = False
        self._task = asyncio.create_task(self._run(), name="LMTP connection")

    def stream(self, framed: Framed) -> Stream:
        """Sends a request and gives what will come back. Raises ConnectionLost, InvalidRequest."""
        if not self.is_open:
            raise ConnectionLost("the connection is closed")
        self._last_id += 1
        frame = self._encoded(framed(self._last_id))
        stream = Stream(self, self._last_id, self._max_unread)
        self._streams[stream.stream_id] = stream
        self._outbox.put_nowait(frame)
        return stream

    def forget(self, stream_id: int, *, cancel: bool = True) -> None:
        """Nobody reads the stream any more."""
        if self._streams.pop(stream_id, None) is not None and cancel and self.is_open:
            self._outbox.put_nowait(cancel_frame(stream_id).encode())

    @property
    def num_streams(self) -> int:
        return len(self._streams)

    @property
    def has_room(self) -> bool:
        """It takes another stream."""
        most = self.greeting.max_streams
        return self.is_open and not self.is_draining and (most is None or self.num_streams < most)

    def bind(self, model: str | None) -> bool:
        """Use the connection for a model; False: its server keeps it for another one.

        A server of several models binds each connection to one of them.
        """
        if "models_on_demand" in self.greeting.features and self._is_bound:
            return model == self._model
        self._is_bound, self._model = True, model
        return True

    async def close(self) -> None:
        """Closes the socket; streams that have not ended fail with ConnectionLost."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        # A task that had not begun has closed nothing.
        await self._websocket.close()

    def _encoded(self, frame: str) -> bytes:
        try:
            encoded = frame.encode()
        except UnicodeEncodeError as error:
            lone = frame[error.start]
            raise InvalidRequest(
                f"text must be Unicode. Given: the lone surrogate {lone!a}", "validation"
            ) from None
        # A frame that is too long would close the socket, with all streams on it.
        max_len = self.greeting.max_message_len
        if max_len is not None and len(encoded) > max_len:
            raise InvalidRequest(
                f"a request must have at most {max_len} bytes. Given: {len(encoded)}", "validation"
            )
        return encoded

    async def _run(self) -> None:
        writing = asyncio.create_task(self._write())
        lost = ConnectionLost("the connection was closed")
        refused: TandemError | None = None
        try:
            await self._read()
        except ConnectionClosed as error:
            lost = ConnectionLost(f"the connection was lost: {error}")
            if error.rcvd is not None and error.rcvd.code in _REFUSALS:
                refused = InvalidRequest(f"the server took it for no frame: {error}", "validation")
        except BadFrame as error:
            lost = ConnectionLost(f"the server sent what is no LMTP: {error}")
        finally:
            self.is_open = False
            writing.cancel()
            for stream in self._streams.values():
                # The frame is unknown; sent again, it would close the next socket too.
                stream.fail(lost if stream.has_begun else refused or lost)
            self._streams.clear()
            await asyncio.gather(writing, return_exceptions=True)
            await self._websocket.close()

    async def _write(self) -> None:
        while True:
            frame = await self._outbox.get()
            await self._websocket.send(frame, text=True)

    async def _read(self) -> None:
        # Ends by ConnectionClosed, which a broken socket raises here as well as in `_write`.
        while True:
            frame = await self._websocket.recv()
            if isinstance(frame, str):
                for stream_id, part in read_frame(frame):
                    self._take(stream_id, part)

    def _take(self, stream_id: int | None, part: Part | ServerNotice) -> None:
        if isinstance(part, ServerNotice):
            self.is_draining |= part.state == "draining"
            # What the callee raises is for the loop's handler, not for our streams.
            asyncio.get_running_loop().call_soon(self._on_notice, part)
            return
        if stream_id is None:
            if isinstance(part, Failed):
                raise BadFrame(f"an error without a stream: {part.error}")
            return
        stream = self._streams.get(stream_id)
        # Parts of streams that were cancelled may still be on their way.
        if stream is None:
            return
        if not stream.put(part):
            self.forget(stream.stream_id)
        elif not isinstance(part, _MIDDLE):
            self.forget(stream.stream_id, cancel=False)
