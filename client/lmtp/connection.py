"""One WebSocket to a server, with many streams on it: its handshake, its reading and writing.

The connection's two tasks read and write. The reader of a stream gets its parts from a queue, and
never touches the socket: a slow reader delays no other stream.
"""

import asyncio
import json
import ssl
from collections.abc import Callable
from http import HTTPStatus
from typing import Self, TypeAlias

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus, WebSocketException

from client.calls import BeamsReport, GeneratedToken, ServerNotice
from client.errors import (
    ConnectionLost,
    InvalidRequest,
    Overloaded,
    TandemError,
    Unauthorized,
    Unreachable,
)
from client.lmtp.address import Address
from client.lmtp.frames import (
    VERSION,
    BadFrame,
    Failed,
    Greeting,
    Part,
    cancel_frame,
    hello_frame,
    read_frame,
)

OnNotice: TypeAlias = Callable[[ServerNotice], None]
# Writes the frame of a request with this stream id.
FrameWriter: TypeAlias = Callable[[int], str]

# The stream id of HELLO; those of requests are higher.
_GREETING_ID = 1
# Enough for the scores of a whole context, or for many alternatives of a token.
_MAX_FRAME_LEN = 64 << 20
_CLOSE_TIMEOUT_S = 2.0
# Parts before the end of a stream.
_MIDDLE = (GeneratedToken, BeamsReport)
# Close codes of a server that refuses a frame as malformed or too long.
_REFUSALS = frozenset({1002, 1003, 1007, 1008, 1009})


class Stream:
    """The parts of one request's reply. One task reads them, the connection puts them in.

    Leaving its context cancels the request, unless that has ended.
    """

    def __init__(self, connection: "Connection", stream_id: int) -> None:
        self._connection = connection
        self._parts: asyncio.Queue[Part] = asyncio.Queue()
        self.stream_id = stream_id
        self.has_parts = False

    async def next(self) -> Part:
        """The next part. Raises the error of Failed."""
        part = await self._parts.get()
        if isinstance(part, Failed):
            raise part.error
        return part

    def put(self, part: Part) -> None:
        self.has_parts = True
        self._parts.put_nowait(part)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.forget(self.stream_id)


class Connection:
    """An open WebSocket behind its handshake. Owner of the socket and its two tasks."""

    def __init__(
        self, websocket: ClientConnection, greeting: Greeting, on_notice: OnNotice
    ) -> None:
        self._websocket = websocket
        self._on_notice = on_notice
        self._streams: dict[int, Stream] = {}
        self._last_id = _GREETING_ID
        self._outbox: asyncio.Queue[bytes] = asyncio.Queue()
        self.greeting = greeting
        self._is_bound = False
        self._model: str | None = None
        self.is_open = True
        self.is_draining = False
        self._task = asyncio.create_task(self._run(), name="LMTP connection")

    def stream(self, write: FrameWriter) -> Stream:
        """Sends a request; its reply as a stream. Raises ConnectionLost, InvalidRequest."""
        if not self.is_open:
            raise ConnectionLost("the connection is closed")
        self._last_id += 1
        frame = self._encoded(write(self._last_id))
        stream = Stream(self, self._last_id)
        self._streams[stream.stream_id] = stream
        self._outbox.put_nowait(frame)
        return stream

    def forget(self, stream_id: int, *, cancel: bool = True) -> None:
        """Drops a stream that nobody reads any more."""
        if self._streams.pop(stream_id, None) is not None and cancel and self.is_open:
            self._outbox.put_nowait(cancel_frame(stream_id).encode())

    @property
    def num_streams(self) -> int:
        """Streams that have not ended."""
        return len(self._streams)

    @property
    def has_room(self) -> bool:
        """Whether another stream may be opened."""
        most = self.greeting.max_streams
        return self.is_open and not self.is_draining and (most is None or self.num_streams < most)

    def bind(self, model: str | None) -> bool:
        """Use the connection for a model; False: its server keeps it for another one.

        A server of several models binds each connection to one of them.
        """
        if "models_on_demand" in self.greeting.features and self._is_bound:
            return model == self._model
        self._is_bound = True
        self._model = model
        return True

    async def close(self) -> None:
        """Closes the socket; streams that have not ended fail with ConnectionLost."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        # A task that had not started has closed nothing.
        await self._websocket.close()

    def _encoded(self, frame: str) -> bytes:
        try:
            encoded = frame.encode()
        except UnicodeEncodeError as error:
            lone = frame[error.start]
            raise InvalidRequest(
                f"text must be Unicode. Given: the lone surrogate {lone!a}", "validation"
            ) from None
        # The server would close the socket, with all streams on it.
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
                # The server does not say which frame it refuses. Sent again, that frame would close
                # the next socket too, so every request without a reply is refused.
                stream.put(Failed(lost if stream.has_parts else refused or lost))
            self._streams.clear()
            await asyncio.gather(writing, return_exceptions=True)
            await self._websocket.close()

    async def _write(self) -> None:
        while True:
            frame = await self._outbox.get()
            await self._websocket.send(frame, text=True)

    async def _read(self) -> None:
        # Ends by ConnectionClosed, which a broken socket also raises here.
        while True:
            frame = await self._websocket.recv()
            if isinstance(frame, str):
                for stream_id, part in read_frame(frame):
                    self._dispatch(stream_id, part)

    def _dispatch(self, stream_id: int | None, part: Part | ServerNotice) -> None:
        if isinstance(part, ServerNotice):
            self.is_draining |= part.state == "draining"
            # Errors of the callback go to the loop's handler, and do not end the streams.
            asyncio.get_running_loop().call_soon(self._on_notice, part)
            return
        if stream_id is None:
            if isinstance(part, Failed):
                raise BadFrame(f"an error without a stream: {part.error}")
            return
        stream = self._streams.get(stream_id)
        # Parts of a cancelled stream may still arrive.
        if stream is None:
            return
        stream.put(part)
        if not isinstance(part, _MIDDLE):
            self.forget(stream.stream_id, cancel=False)


async def open_websocket(address: Address, timeout_s: float) -> tuple[ClientConnection, Greeting]:
    """A WebSocket to `address` and the server's greeting, both within `timeout_s`.

    Raises Unreachable, Unauthorized or Overloaded.
    """
    try:
        async with asyncio.timeout(timeout_s):
            websocket = await _connect(address)
            try:
                return websocket, await _greet(websocket)
            except BaseException:
                await websocket.close()
                raise
    except TimeoutError:
        raise Unreachable(f"{address.http} did not answer within {timeout_s:g} s") from None
    except InvalidStatus as error:
        raise _refusal(error, address) from None
    except (OSError, WebSocketException, BadFrame) as error:
        raise Unreachable(f"{address.http}: {_reason(error)}") from None


async def _connect(address: Address) -> ClientConnection:
    headers = {} if address.key is None else {"Authorization": f"Bearer {address.key}"}
    return await connect(
        address.websocket,
        additional_headers=headers,
        compression=None,
        max_size=_MAX_FRAME_LEN,
        open_timeout=None,
        close_timeout=_CLOSE_TIMEOUT_S,
        proxy=None if address.is_local else True,
    )


async def _greet(websocket: ClientConnection) -> Greeting:
    await websocket.send(hello_frame(_GREETING_ID))
    while True:
        frame = await websocket.recv()
        for stream_id, part in read_frame(frame if isinstance(frame, str) else ""):
            if isinstance(part, Greeting):
                return part
            if isinstance(part, Failed) and stream_id in (_GREETING_ID, None):
                raise BadFrame(f"it does not speak version {VERSION} of LMTP: {part.error}")


def _refusal(error: InvalidStatus, address: Address) -> TandemError:
    response = error.response
    sentence = _sentence(bytes(response.body or b""))
    status = response.status_code
    message = f"{address.http} answered {status}" + (f": {sentence}" if sentence else "")
    if status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
        return Unauthorized(message, "unauthorized")
    if status in (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE):
        after = response.headers.get("retry-after", "")
        return Overloaded(message, "overloaded", float(after) if after.isdecimal() else None)
    return Unreachable(f"{message}, not a WebSocket: is this a Tandem server?")


def _sentence(body: bytes) -> str:
    """The error message in a body, or its text as it is."""
    try:
        return str(json.loads(body)["error"])
    except (ValueError, KeyError, TypeError):
        return body.decode(errors="replace").strip()[:300]


def _reason(error: Exception) -> str:
    if isinstance(error, ConnectionRefusedError):
        return "nobody listens there"
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"TLS: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return f"TLS: {error.reason or error}"
    return str(error) or type(error).__name__
