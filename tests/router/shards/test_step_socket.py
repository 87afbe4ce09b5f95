"""The router's end of a step socket, against a shard's end that answers when it is told to."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import grpc.aio
import pytest

from proto import generate_pb2 as pb
from proto.frames import FrameReader, frame_bytes
from router.shards.step_socket import StepSocket


class Shard(asyncio.Protocol):
    """Keeps the numbers of the steps that came."""

    def __init__(self) -> None:
        self.steps: list[int] = []
        self._frames = FrameReader()
        self._came = asyncio.Event()
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        for _, message in self._frames.feed(data):
            self.steps.append(pb.DecodeRequest.FromString(message).step)
        self._came.set()

    async def until(self, num_steps: int) -> None:
        while len(self.steps) < num_steps:
            self._came.clear()
            await asyncio.wait_for(self._came.wait(), 30.0)

    def answer(self, total_ns: int) -> None:
        assert self.transport is not None
        message = pb.StepResponse(total_ns=total_ns).SerializeToString()
        self.transport.write(frame_bytes(message))

    def fail(self, status: int, reason: str) -> None:
        assert self.transport is not None
        self.transport.write(frame_bytes(reason.encode(), status))
        self.transport.close()


@pytest.fixture
async def shard() -> Shard:
    return Shard()


@pytest.fixture
async def steps(shard: Shard, tmp_path: Path) -> AsyncIterator[StepSocket]:
    path = str(tmp_path / "s")
    server = await asyncio.get_running_loop().create_unix_server(lambda: shard, path)
    connection = await StepSocket.connect(path)
    yield connection
    connection.close()
    server.close()


def step(
    steps: StepSocket, number: int, timeout_s: float = 30.0
) -> asyncio.Future[pb.StepResponse]:
    return steps.step(pb.DecodeRequest(step=number), timeout_s)


async def test_answers_are_those_of_the_steps_in_their_order(
    steps: StepSocket, shard: Shard
) -> None:
    first = step(steps, 1)
    second = step(steps, 2)
    await shard.until(2)
    assert shard.steps == [1, 2]
    shard.answer(10)
    shard.answer(20)
    assert [(await first).total_ns, (await second).total_ns] == [10, 20]


async def test_a_step_that_nobody_waits_for_keeps_its_place(
    steps: StepSocket, shard: Shard
) -> None:
    step(steps, 1).cancel()
    second = step(steps, 2)
    await shard.until(2)
    shard.answer(10)
    shard.answer(20)
    assert (await second).total_ns == 20


async def test_a_step_that_fails_has_its_status_and_those_behind_it_no_answer(
    steps: StepSocket, shard: Shard
) -> None:
    first = step(steps, 1)
    second = step(steps, 2)
    await shard.until(2)
    shard.fail(9, "epoch 1 is over: epoch 2 has begun")
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await first
    assert failed.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert failed.value.details() == "epoch 1 is over: epoch 2 has begun"
    with pytest.raises(EOFError):
        await second
    with pytest.raises(EOFError):
        await step(steps, 3)


async def test_a_step_without_an_answer_in_time_fails(steps: StepSocket, shard: Shard) -> None:
    late = step(steps, 1, timeout_s=0.01)
    with pytest.raises(TimeoutError):
        await late


async def test_a_socket_that_is_not_there_is_an_os_error(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        await StepSocket.connect(str(tmp_path / "nothing"))
