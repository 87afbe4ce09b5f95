"""The step socket: Decode's messages from a router on the same machine, without gRPC.

The event loop accepts; the device's thread reads and answers itself, between its steps.
"""

import asyncio
import contextlib
import logging
import socket
from collections import deque
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Protocol

from google.protobuf.message import DecodeError

from model_server.errors import InvalidStep
from model_server.service.device_thread import DeviceThread
from model_server.service.service import Failures, Lease
from model_server.service.step_queue import GivenStep
from proto import generate_pb2 as pb
from proto.frames import FrameReader, frame_bytes

_log = logging.getLogger(__name__)

_READ_LEN = 1 << 16
# A router that does not read for so long is gone, or stands still.
_PATIENCE_S = 10.0
# As asyncio's own servers.
_ACCEPT_RETRY_S = 1.0


class Decode(Protocol):
    """Gives a step to the device's thread, on that thread."""

    def __call__(
        self,
        request: pb.DecodeRequest,
        answer: Callable[[pb.StepResponse], None],
        fail: Callable[[BaseException], None],
        /,
    ) -> GivenStep:
        """Raises what is wrong with the request itself."""


class StepConnection:
    """A router's: each step is run in its turn, and answered when it has run.

    The first failure, or message that is refused, is answered with the reason, and ends the
    connection: behind it nothing is answered, since a router then begins anew.
    """

    def __init__(
        self,
        connection: socket.socket,
        thread: DeviceThread,
        decode: Decode,
        failures: Failures,
        lease: Lease,
    ) -> None:
        self._socket = connection
        self._thread = thread
        self._decode = decode
        self._failures = failures
        self._lease = lease
        self._frames = FrameReader()
        # Those that were given and are not answered.
        self._given: deque[GivenStep] = deque()
        self.is_open = True
        thread.watch(connection, self._read)

    def close(self) -> None:
        """Nobody waits for answers any more."""
        if self.is_open:
            self.is_open = False
            self._thread.unwatch(self._socket)
            self._socket.close()
            for step in self._given:
                step.is_given_up = True

    def _read(self) -> None:
        try:
            data = self._socket.recv(_READ_LEN)
        except OSError:
            data = b""
        if not data:
            self.close()
            return
        self._lease.renew()
        for _, message in self._frames.feed(data):
            if self.is_open:
                self._take(message)

    def _take(self, message: bytes) -> None:
        try:
            try:
                request = pb.DecodeRequest.FromString(message)
            except DecodeError as error:
                raise InvalidStep(f"it is no message: {error}") from error
            self._given.append(self._decode(request, self._answer, self._fail))
        except Exception as error:  # noqa: BLE001 -- it is the answer
            self._fail(error)

    def _answer(self, answer: pb.StepResponse) -> None:
        if not self.is_open:
            return
        self._given.popleft()
        self._send(frame_bytes(answer.SerializeToString()))

    def _fail(self, error: BaseException) -> None:
        status, reason = self._failures.of("Decode", error)
        if self.is_open:
            self._send(frame_bytes(reason.encode(), status.value[0]))
            self.close()

    def _send(self, frame: bytes) -> None:
        try:
            num_sent = self._socket.send(frame, socket.MSG_DONTWAIT)
        except BlockingIOError:
            num_sent = 0
        except OSError:
            # Its end is what is read next.
            return
        if num_sent < len(frame):
            self._send_slowly(frame[num_sent:])

    def _send_slowly(self, rest: bytes) -> None:
        """More than the system keeps for a reader."""
        self._socket.settimeout(_PATIENCE_S)
        try:
            self._socket.sendall(rest)
            self._socket.settimeout(None)
        except OSError as error:
            _log.warning("the router does not read its answers: %s", error)
            self.close()


@contextlib.asynccontextmanager
async def taking_steps(
    path: Path, thread: DeviceThread, decode: Decode, failures: Failures, lease: Lease
) -> AsyncIterator[None]:
    """Take steps at this socket inside the `async with`. A file that is there is replaced."""
    path.unlink(missing_ok=True)
    opened: list[StepConnection] = []
    listener = socket.socket(socket.AF_UNIX)
    listener.setblocking(False)
    listener.bind(str(path))
    listener.listen()

    def take(connection: socket.socket) -> None:
        opened[:] = [each for each in opened if each.is_open]
        opened.append(StepConnection(connection, thread, decode, failures, lease))

    async def accept() -> None:
        loop = asyncio.get_running_loop()
        is_failing = False
        while True:
            try:
                connection, _ = await loop.sock_accept(listener)
            except OSError as error:
                # No file is free: the connection waits, and to try again at once would only spin.
                if not is_failing:
                    _log.warning("cannot accept a router at %s, and tries on: %s", path, error)
                is_failing = True
                await asyncio.sleep(_ACCEPT_RETRY_S)
            else:
                is_failing = False
                connection.setblocking(True)
                thread.submit(take, connection)

    def close() -> None:
        for connection in opened:
            connection.close()

    accepting = asyncio.create_task(accept())
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
        accepting.cancel()
        await asyncio.wait([accepting])
        listener.close()
        # The thread may be in a step that never ends.
        thread.submit(close)
