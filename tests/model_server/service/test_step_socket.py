"""The shard's end of a step socket, with steps that end when they are told to."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import grpc.aio
import pytest

from model_server.errors import InvalidStep, ShardError
from model_server.service.service import Failures, Lease
from model_server.service.step_socket import taking_steps
from proto import generate_pb2 as pb
from proto.contract import Batch, NewSequence, SamplingParams, StopParams
from proto.frames import frame_bytes
from router.shards.shards import Shards, ShardTimeouts
from router.shards.step_socket import StepSocket
from tests.fakes import FakeShard, serving


class Steps:
    """Steps by their numbers."""

    def __init__(self) -> None:
        self.answers: dict[int, asyncio.Future[pb.StepResponse]] = {}
        self.fatal: list[ShardError] = []

    async def decode(self, request: pb.DecodeRequest) -> pb.StepResponse:
        return await self.answer_of(request.step)

    def answer_of(self, number: int) -> asyncio.Future[pb.StepResponse]:
        future = asyncio.get_running_loop().create_future()
        return self.answers.setdefault(number, future)


@pytest.fixture
async def steps(tmp_path: Path) -> AsyncIterator[Steps]:
    steps = Steps()
    failures = Failures(steps.fatal.append)
    async with taking_steps(tmp_path / "s", steps.decode, failures, Lease(60.0)):
        yield steps


def send(router: StepSocket, number: int) -> asyncio.Future[pb.StepResponse]:
    return router.step(pb.DecodeRequest(step=number), 30.0)


async def test_a_step_that_ends_before_an_earlier_one_is_answered_behind_it(
    steps: Steps, tmp_path: Path
) -> None:
    router = await StepSocket.connect(str(tmp_path / "s"))
    first = send(router, 1)
    second = send(router, 2)
    steps.answer_of(2).set_result(pb.StepResponse(total_ns=20))
    _, unanswered = await asyncio.wait([second], timeout=0.05)
    assert unanswered == {second}
    steps.answer_of(1).set_result(pb.StepResponse(total_ns=10))
    assert [(await first).total_ns, (await second).total_ns] == [10, 20]
    router.close()


async def test_a_refused_step_ends_the_connection_and_not_the_shard(
    steps: Steps, tmp_path: Path
) -> None:
    router = await StepSocket.connect(str(tmp_path / "s"))
    first = send(router, 1)
    second = send(router, 2)
    steps.answer_of(1).set_exception(InvalidStep("it names nobody"))
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
    steps.answer_of(1).set_exception(RuntimeError("the device fell off"))
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
        steps.answer_of(2).set_result(pb.StepResponse(epoch=101, request_ids=[7], total_ns=5))
        assert (await answer).total_s == 5e-9
        assert "Decode" not in [method for method, _ in shard.calls]
        await shards.close()


async def test_steps_of_a_router_that_left_are_given_up(steps: Steps, tmp_path: Path) -> None:
    router = await StepSocket.connect(str(tmp_path / "s"))
    send(router, 1).cancel()
    while 1 not in steps.answers:
        await asyncio.sleep(0.01)
    router.close()
    await asyncio.wait([steps.answers[1]], timeout=30.0)
    assert steps.answers[1].cancelled()
