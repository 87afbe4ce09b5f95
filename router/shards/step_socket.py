"""A rank's step socket: Decode's messages on the same machine, for a third of what gRPC's take."""

import asyncio
from collections import deque
from typing import NamedTuple, cast

import grpc
import grpc.aio

from proto import generate_pb2 as pb
from proto.frames import FrameReader, frame_bytes

_STATUSES = {status.value[0]: status for status in grpc.StatusCode}


class _Waiting(NamedTuple):
    """A message without an answer."""

    answer: asyncio.Future[pb.StepResponse]
    timer: asyncio.TimerHandle


class StepSocket(asyncio.Protocol):
    """The connection of one epoch: messages, and the answers to them in the same order.

    An answer raises what gRPC's would: AioRpcError, TimeoutError, and EOFError where there will be
    none.
    """

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._frames = FrameReader()
        # One that nobody waits for any more keeps its place.
        self._waiting: deque[_Waiting] = deque()
        self._loop = asyncio.get_running_loop()

    @classmethod
    async def connect(cls, path: str) -> "StepSocket":
        """Raises OSError."""
        _, connection = await asyncio.get_running_loop().create_unix_connection(cls, path)
        return connection

    def step(
        self, request: pb.DecodeRequest, timeout_s: float
    ) -> "asyncio.Future[pb.StepResponse]":
        """The answer, which is under way."""
        answer: asyncio.Future[pb.StepResponse] = self._loop.create_future()
        if self._transport is None:
            answer.set_exception(EOFError())
            return answer
        self._transport.write(frame_bytes(request.SerializeToString()))
        timer = self._loop.call_later(timeout_s, _fail, answer, TimeoutError())
        self._waiting.append(_Waiting(answer, timer))
        return answer

    def close(self) -> None:
        """Hangs up; nobody waits for answers."""
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """As asyncio.Protocol."""
        # uvloop's transports are no asyncio.Transport by class.
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """As asyncio.Protocol."""
        for status, message in self._frames.feed(data):
            answer, timer = self._waiting.popleft()
            timer.cancel()
            if status:
                details = message.decode(errors="replace")
                _fail(answer, grpc.aio.AioRpcError(_STATUSES[status], details=details))
            elif not answer.done():
                answer.set_result(pb.StepResponse.FromString(message))

    def connection_lost(self, exc: Exception | None) -> None:
        """As asyncio.Protocol."""
        self._transport = None
        for answer, timer in self._waiting:
            timer.cancel()
            _fail(answer, EOFError())
        self._waiting.clear()


def _fail(answer: "asyncio.Future[pb.StepResponse]", error: Exception) -> None:
    if not answer.done():
        answer.set_exception(error)
