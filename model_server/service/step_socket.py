"""The step socket: Decode's messages from a router on the same machine, without gRPC."""

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any, cast

from google.protobuf.message import DecodeError

from model_server.errors import InvalidStep
from model_server.service.service import Failures, Lease
from proto import generate_pb2 as pb
from proto.frames import FrameReader, frame_bytes

Decode = Callable[[pb.DecodeRequest], Coroutine[Any, Any, pb.StepResponse]]


class StepConnection(asyncio.Protocol):
    """A router's: each step is begun when it comes, and answered in its turn.

    The first that fails is answered with the reason, and ends the connection.
    """

    def __init__(
        self, decode: Decode, failures: Failures, lease: Lease, opened: "set[StepConnection]"
    ) -> None:
        self._decode = decode
        self._failures = failures
        self._lease = lease
        self._opened = opened
        self._frames = FrameReader()
        self._begun: deque[asyncio.Task[bytes]] = deque()
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """As asyncio.Protocol."""
        # uvloop's transports are no asyncio.Transport by class.
        self._transport = cast(asyncio.Transport, transport)
        self._opened.add(self)

    def data_received(self, data: bytes) -> None:
        """As asyncio.Protocol."""
        self._lease.renew()
        for _, message in self._frames.feed(data):
            step = asyncio.ensure_future(self._step(message))
            self._begun.append(step)
            step.add_done_callback(self._answer)

    def connection_lost(self, exc: Exception | None) -> None:
        """As asyncio.Protocol: nobody waits for answers."""
        self._transport = None
        self._opened.discard(self)
        for step in self._begun:
            step.cancel()

    def close(self) -> None:
        """Once what was written is sent."""
        if self._transport is not None:
            self._transport.close()

    async def _step(self, message: bytes) -> bytes:
        try:
            request = pb.DecodeRequest.FromString(message)
        except DecodeError as error:
            raise InvalidStep(f"it is no message: {error}") from error
        return (await self._decode(request)).SerializeToString()

    def _answer(self, _: object) -> None:
        """Answers the steps that have ended behind none that has not."""
        while self._begun and self._begun[0].done():
            step = self._begun.popleft()
            if step.cancelled():
                continue
            error = step.exception()
            transport = self._transport
            if transport is None or transport.is_closing():
                continue
            if error is None:
                transport.write(frame_bytes(step.result()))
            else:
                status, reason = self._failures.of("Decode", error)
                transport.write(frame_bytes(reason.encode(), status.value[0]))
                transport.close()


@contextlib.asynccontextmanager
async def taking_steps(
    path: Path, decode: Decode, failures: Failures, lease: Lease
) -> AsyncIterator[None]:
    """Take steps at this socket inside the `async with`. A file that is there is replaced."""
    path.unlink(missing_ok=True)
    opened: set[StepConnection] = set()
    server = await asyncio.get_running_loop().create_unix_server(
        partial(StepConnection, decode, failures, lease, opened), str(path)
    )
    try:
        yield
    finally:
        server.close()
        for connection in [*opened]:
            connection.close()
        path.unlink(missing_ok=True)
