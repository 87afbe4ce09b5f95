"""Relays the frames of one LMTP socket to the model that it is bound to, and the answers back.

    forward -> acquire (the client is notified meanwhile) -> the server's socket -> client

The model is leased while a stream is open: a socket without streams keeps no model in memory. The
connection to the server stays open beyond that, for the streams that follow.
"""

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson
from websockets.asyncio.client import ClientConnection, unix_connect
from websockets.exceptions import WebSocketException

from fleet.errors import ServerGone
from fleet.metrics import FleetMetrics
from fleet.model_manager import Lease, ModelManager
from fleet.names import Model
from router.http.errors import HttpError

_CONNECT_TIMEOUT_S = 10.0
_TOKEN_COMMANDS = frozenset({"GENERATE", "SCORE", "BEAMS"})
# The stream of the relay's own HELLO, unlikely to be one of the client's.
_HELLO_ID = -(1 << 62)
_HELLO_ANSWER = f'MSG [{{"stream_id":{_HELLO_ID},"hello"'

SendText = Callable[[str], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Frame:
    """A client's frame: its type, the object's fields, and both as they were sent.

    `fault` is why it is refused alone, though its stream is known.
    """

    command: str
    fields: Mapping[str, Any]
    text: str
    fault: HttpError | None = None

    @property
    def key(self) -> tuple[str, int | None]:
        """The type of the frames that answer it, and the stream's id; None if that is none."""
        stream_id = self.fields.get("stream_id")
        is_valid = type(stream_id) is int
        kind = "TOKEN" if is_valid and self.command in _TOKEN_COMMANDS else "MSG"
        return kind, stream_id if is_valid else None


def frame_text(kind: str, fields: Mapping[str, object]) -> str:
    """A server's frame of one object."""
    return f"{kind} [{orjson.dumps(fields).decode()}]"


def error_fields(error: HttpError) -> dict[str, object]:
    """The fields of LMTP's error object, but for the stream's id."""
    fields: dict[str, object] = {"error": str(error), "error_type": error.error_type}
    if error.field is not None:
        fields["field"] = error.field
    if error.retry_after_s is not None:
        fields["retry_after_s"] = error.retry_after_s
    return {**fields, "retryable": error.status >= 500}


class Relay:
    """Owner of the connection to a model's server, its lease, and the streams that are open.

    `hang_up` closes the client's socket.
    """

    def __init__(
        self,
        model: Model,
        manager: ModelManager,
        metrics: FleetMetrics,
        headers: Sequence[tuple[str, str]],
        send: SendText,
        hang_up: SendText,
    ) -> None:
        self.model = model
        self._manager = manager
        self._metrics = metrics
        self._headers = headers
        self._send = send
        self._hang_up = hang_up
        self._version = 1
        # By `Frame.key`, whether a token with a finish reason ends the stream.
        self._streams: dict[tuple[str, int | None], bool] = {}
        self._lease: Lease | None = None
        self._connection: ClientConnection | None = None
        self._reading: asyncio.Task[None] | None = None

    async def set_version(self, version: int) -> None:
        """The version of LMTP of all further frames."""
        self._version = version
        if self._connection is not None:
            await self._greet(self._connection)

    async def forward(self, frame: Frame) -> None:
        """Send a frame to the server, which is started first if necessary. Raises NotNow."""
        if self._connection is None:
            if frame.command == "CANCEL":
                return  # no stream is open, and the model is not loaded for this
            await self._connect(await self._acquire(frame))
        connection = self._connection
        assert connection is not None
        # Since it was looked at nothing awaits, so that `_read` does not close it.
        self._metrics.requests.inc(self.model.name)
        if frame.command != "CANCEL":
            # In version 2 the last token of a generation is followed by DONE.
            ends_by_token = self._version == 1 or frame.command == "SCORE"
            # A second one of the same id is refused by the server, and the first goes on.
            self._streams.setdefault(frame.key, ends_by_token)
        with contextlib.suppress(WebSocketException):  # `_read` notices it too
            await connection.send(frame.text)

    def close(self) -> None:
        """Close the connection, which cancels what the server does for it, and end the lease."""
        if self._reading is not None and self._reading is not asyncio.current_task():
            self._reading.cancel()
        if self._connection is not None:
            self._connection.transport.abort()
        if self._lease is not None:
            self._lease.close()
        self._connection = self._reading = self._lease = None

    async def _connect(self, lease: Lease) -> None:
        self._lease = lease
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
            self.close()
            raise _gone() from error
        if self._version > 1:
            await self._greet(connection)
        self._connection = connection
        self._reading = asyncio.create_task(self._read(connection))

    async def _greet(self, connection: ClientConnection) -> None:
        hello = f'HELLO {{"stream_id":{_HELLO_ID},"version":{self._version}}}'
        with contextlib.suppress(WebSocketException):  # `_read` notices it too
            await connection.send(hello)

    async def _read(self, connection: ClientConnection) -> None:
        """Relay the server's frames until no stream is open, or one of both ends is gone."""
        with contextlib.suppress(OSError):  # the client left, which its socket notices too
            with contextlib.suppress(WebSocketException):
                while self._streams:
                    await self._relay(str(await connection.recv()))
                self.close()
            await self._fail_streams()

    async def _relay(self, text: str) -> None:
        if text.startswith(_HELLO_ANSWER):
            return
        if text.startswith("SYS ") and '"draining"' in text:
            return  # said of the model's server, not of the front
        self._note_ends(text)
        await self._send(text)

    def _note_ends(self, text: str) -> None:
        """Forget the streams that a frame of the server ends."""
        kind, _, body = text.partition(" ")
        if kind == "TOKEN" and '"error"' not in body and not any(self._streams.values()):
            return  # as almost all frames, which are not parsed for that
        # In version 1, JSON may have NaN and infinities.
        for fields in json.loads(body):
            is_end = kind in ("MSG", "DONE", "SCORES") or "error" in fields
            key = ("MSG" if kind == "MSG" else "TOKEN", fields.get("stream_id"))
            has_reason = kind == "TOKEN" and fields.get("finish_reason") is not None
            if is_end or (has_reason and self._streams.get(key)):
                self._streams.pop(key, None)

    async def _fail_streams(self) -> None:
        """Where the server is gone: end its streams with an error."""
        streams = self._streams
        self._streams = {}
        if self._lease is not None:
            self._manager.report_failure(self._lease)
            self.close()
        if not streams:
            return
        error = _gone()
        self._metrics.rejected.inc(error.error_type, len(streams))
        for kind, stream_id in streams:
            fields = {"stream_id": stream_id, **error_fields(error)}
            await self._send(frame_text(kind, fields))
        if self._version == 1:
            # Its clients do not see an error behind the third token, and would wait for ever.
            await self._hang_up(str(error))

    async def _acquire(self, frame: Frame) -> Lease:
        """The leased model; a client of version 2 is notified if it has to wait. Raises NotNow."""
        name = self.model.name
        lease = self._manager.acquire_ready(name)
        if lease is not None:
            return lease
        if self._version > 1 and not self._manager.is_draining:
            message = f"the model {name!r} is not loaded"
            fields = {"stream_id": frame.key[1], "state": "loading", "message": message}
            await self._send(frame_text("SYS", fields))
        return await self._manager.acquire(self.model)


def _gone() -> ServerGone:
    return ServerGone("the model's server stopped; it is loaded anew when asked for")
