"""The shard's end of a step socket, with steps that end when they are told to."""

import asyncio
import contextlib
import os
import resource
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from model_server.errors import InvalidStep, ShardError
from model_server.service.device_thread import DeviceThread
from model_server.service.service import Failures, Lease
from model_server.service.step_queue import GivenStep
from model_server.service.step_socket import taking_steps
from model_server.service.tracing import StepCall
from proto import generate_pb2 as pb
from proto.contract import Batch, NewSequence, SamplingParams, StopParams
from proto.frames import frame_bytes
from router.shards.shards import Shards, ShardTimeouts
from router.shards.step_socket import StepSocket
from tests.fakes import FakeShard, serving

Answer = Callable[[pb.StepResponse], None]
Fail = Callable[[BaseException], None]


class Steps:
    """Steps by their numbers, on a device's thread."""

    def __init__(self, thread: DeviceThread) -> None:
        self.fatal: list[ShardError] = []
        self._thread = thread
        self._loop = asyncio.get_running_loop()
        self._given: dict[int, asyncio.Future[tuple[GivenStep, Answer, Fail]]] = {}

    def decode(self, request: pb.DecodeRequest, answer: Answer, fail: Fail) -> GivenStep:
        step = GivenStep(StepCall(), request.step, lambda _: None, fail)
        self._loop.call_soon_threadsafe(self._note, step, answer, fail)
        return step

    def _note(self, step: GivenStep, answer: Answer, fail: Fail) -> None:
        assert step.number is not None
        self._future_of(step.number).set_result((step, answer, fail))

    def _future_of(self, number: int) -> asyncio.Future[tuple[GivenStep, Answer, Fail]]:
        return self._given.setdefault(number, self._loop.create_future())

    async def given(self, number: int) -> GivenStep:
        step, _, _ = await self._future_of(number)
        return step

    async def answer(self, number: int, response: pb.StepResponse) -> None:
        _, answer, _ = await self._future_of(number)
        self._thread.submit(answer, response)

    async def fail(self, number: int, error: Exception) -> None:
        _, _, fail = await self._future_of(number)
        self._thread.submit(fail, error)


@pytest.fixture
async def steps(tmp_path: Path) -> AsyncIterator[Steps]:
    with DeviceThread() as thread:
        steps = Steps(thread)
        failures = Failures(steps.fatal.append)
        async with taking_steps(tmp_path / "s", thread, steps.decode, failures, Lease(60.0)):
            yield steps


def send(router: StepSocket, number: int) -> asyncio.Future[pb.StepResponse]:
    return router.step(pb.DecodeRequest(step=number), 30.0)


async def test_steps_that_are_sent_ahead_are_answered_one_by_one(
    steps: Steps, tmp_path: Path
) -> None:
    router = await StepSocket.connect(str(tmp_path / "s"))
    first = send(router, 1)
    second = send(router, 2)
    await steps.given(2)
    await steps.answer(1, pb.StepResponse(total_ns=10))
    assert (await first).total_ns == 10
    await steps.answer(2, pb.StepResponse(total_ns=20))
    assert (await second).total_ns == 20
    router.close()


async def test_an_answer_that_is_larger_than_what_the_system_keeps_arrives_whole(
    steps: Steps, tmp_path: Path
) -> None:
    router = await StepSocket.connect(str(tmp_path / "s"))
    large = pb.StepResponse(request_ids=range(1 << 20))
    first = send(router, 1)
    await steps.answer(1, large)
    assert await first == large
    router.close()


async def test_a_refused_step_ends_the_connection_and_not_the_shard(
    steps: Steps, tmp_path: Path
) -> None:
    router = await StepSocket.connect(str(tmp_path / "s"))
    first = send(router, 1)
    second = send(router, 2)
    await steps.fail(1, InvalidStep("it names nobody"))
    with pytest.raises(grpc.aio.AioRpcError) as refusal:
        await first
    assert refusal.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert refusal.value.details() == "it names nobody"
    with pytest.raises(EOFError):
        await second
    assert steps.fatal == []


async def test_an_unexpected_error_ends_the_shard(steps: Steps, tmp_path: Path) -> None:
    router = await StepSocket.connect(str(tmp_path / "s"))
    first = send(router, 1)
    await steps.fail(1, RuntimeError("the device fell off"))
    with pytest.raises(grpc.aio.AioRpcError) as failure:
        await first
    assert failure.value.code() is grpc.StatusCode.INTERNAL
    assert [str(error) for error in steps.fatal] == ["Decode: RuntimeError: the device fell off"]


async def test_bytes_that_are_no_step_are_refused(steps: Steps, tmp_path: Path) -> None:
    reader, writer = await asyncio.open_unix_connection(str(tmp_path / "s"))
    writer.write(frame_bytes(b"\xff"))
    answer = await asyncio.wait_for(reader.read(), 30.0)
    assert answer[4] == grpc.StatusCode.INVALID_ARGUMENT.value[0]
    assert answer[5:].startswith(b"it is no message")
    writer.close()


async def test_a_router_sends_its_decode_steps_there(steps: Steps, tmp_path: Path) -> None:
    shard = FakeShard()
    shard.step_socket = str(tmp_path / "s")
    new = NewSequence(7, (10, 11), 2, 0, 2, (0,), SamplingParams(), StopParams(max_new_tokens=8))
    async with serving(shard) as address:
        shards = await Shards.connect(address, ShardTimeouts(), first_epoch=100)
        await shards.step(Batch(1, (new,), (), (), (), 2, 0))
        answer = shards.step(Batch(2, (), (), (7,), (), 1, 1))
        await steps.answer(2, pb.StepResponse(epoch=101, request_ids=[7], total_ns=5))
        assert (await answer).total_s == 5e-9
        assert "Decode" not in [method for method, _ in shard.calls]
        await shards.close()


async def test_steps_of_a_router_that_left_are_given_up(steps: Steps, tmp_path: Path) -> None:
    router = await StepSocket.connect(str(tmp_path / "s"))
    send(router, 1).cancel()
    step = await steps.given(1)
    assert not step.is_given_up
    router.close()
    async with asyncio.timeout(30.0):
        while not step.is_given_up:
            await asyncio.sleep(0.01)


@contextlib.contextmanager
def no_free_file() -> Iterator[None]:
    """This process can open nothing."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # Those below are taken.
    lowest = os.open(os.devnull, os.O_RDONLY)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest + 1, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        os.close(lowest)


class Pauses:
    """asyncio, for one whose sleep ends when the test says so."""

    def __init__(self) -> None:
        self._begun: asyncio.Queue[asyncio.Future[None]] = asyncio.Queue()

    def __getattr__(self, name: str) -> Any:
        return getattr(asyncio, name)

    async def sleep(self, delay_s: float) -> None:
        end: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._begun.put_nowait(end)
        await end

    async def begun(self) -> asyncio.Future[None]:
        return await asyncio.wait_for(self._begun.get(), 30.0)


async def test_a_router_that_comes_when_no_file_is_free_waits_until_one_is(
    steps: Steps,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    pauses = Pauses()
    monkeypatch.setattr("model_server.service.step_socket.asyncio", pauses)
    with socket.socket(socket.AF_UNIX) as router:
        with no_free_file():
            router.connect(str(tmp_path / "s"))
            router.send(frame_bytes(pb.DecodeRequest(step=1).SerializeToString()))
            (await pauses.begun()).set_result(None)
            again = await pauses.begun()
        again.set_result(None)
        await steps.given(1)
    (line,) = caplog.messages
    assert line.startswith(f"cannot accept a router at {tmp_path / 's'}, and tries on: ")
