"""PrepareConstraint: compiled beside running steps, refused with the author's words."""

import asyncio
import threading
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from model_server.engine.runner import Runner
from model_server.errors import ShardError
from model_server.service.device_thread import DeviceThread
from model_server.service.server import listening
from model_server.service.service import TextGenerationService
from proto import generate_pb2 as pb
from proto import generate_pb2_grpc as pb_grpc
from router.shards.wire import step_from_pb
from tests.model_server.engine.driver import info_of
from tests.model_server.masking.shard import EOS_ID, Shard, save

EPOCH = 3
REGEX = pb.CONSTRAINT_KIND_REGEX


@dataclass
class Served:
    """A served shard, as its client sees it."""

    shard: Shard
    stub: Any
    runner: Runner
    fatal: list[ShardError] = field(default_factory=list)

    async def prepare(
        self,
        kind: pb.ConstraintKind.ValueType,
        text: str,
        translation: pb.Translation | None = None,
    ) -> Any:
        constraint = pb.Constraint(kind=kind, text=text, translation=translation)
        call = pb.PrepareConstraintRequest(constraint=constraint)
        return await self.stub.PrepareConstraint(call, timeout=60.0)

    async def decode(self, *updates: pb.RunningUpdate) -> Any:
        """A step of what runs."""
        return await self.stub.Decode([pb.DecodeRequest(epoch=EPOCH, updates=updates)]).read()


@pytest.fixture(scope="module")
def shard(tmp_path_factory: pytest.TempPathFactory) -> Shard:
    return Shard.load(save(tmp_path_factory.mktemp("model")))


@pytest.fixture
async def served(shard: Shard, tmp_path: Path) -> AsyncIterator[Served]:
    info = replace(info_of(shard.model), eos_token_ids=(EOS_ID,))
    fatal: list[ShardError] = []
    runner = shard.runner()
    with DeviceThread() as device_thread:
        service = TextGenerationService(
            runner, info, (), device_thread, constraints=shard.languages
        )
        path = tmp_path / "s"
        async with (
            listening(service, path, fatal.append),
            grpc.aio.insecure_channel(f"unix:{path}") as channel,
        ):
            stub = pb_grpc.TextGenerationServiceStub(channel)
            await stub.ClearCache(pb.ClearCacheRequest(epoch=EPOCH))
            yield Served(shard, stub, runner, fatal)


def prefill(request_id: int, constraint: pb.Constraint | None = None) -> pb.PrefillRequest:
    request = pb.Request(
        id=request_id,
        token_ids=range(300, 320),
        prompt_len=20,
        chunk_len=20,
        block_ids=[request_id * 4 + i for i in range(4)],
        sampling=pb.SamplingParameters(
            temperature=1.0, top_p=1.0, typical_p=1.0, repetition_penalty=1.0
        ),
        stopping=pb.StoppingParameters(max_new_tokens=20),
        constraint=constraint,
    )
    return pb.PrefillRequest(epoch=EPOCH, batch=pb.Batch(requests=[request]))


def drawn(answer: pb.StepResponse) -> list[int]:
    """The tokens of the one request; none where it failed."""
    (generation,) = step_from_pb(answer, 0).generations
    assert generation.error is None
    return [token.token_id for token in generation.tokens]


async def test_a_constraint_is_compiled_once_and_then_served(served: Served) -> None:
    first = await served.prepare(REGEX, "[ab]{3}")
    second = await served.prepare(REGEX, "[ab]{3}")
    assert (first.was_cached, second.was_cached) == (False, True)
    assert first.compile_ns > 0

    call = prefill(1, pb.Constraint(kind=REGEX, text="[ab]{3}"))
    answer = await served.stub.Prefill(call)
    tokens = drawn(answer)
    while answer.request_ids:
        answer = await served.decode()
        tokens += drawn(answer)
    assert set(served.shard.text(tokens)) <= {"a", "b"}
    assert len(served.shard.text(tokens)) == 3
    assert answer.generations[0].constraint_satisfied
    assert answer.generations[0].finish_reason == pb.FINISH_REASON_CONSTRAINT_COMPLETE
    assert answer.num_masked_rows == 1
    assert served.fatal == []


async def test_what_the_router_has_found_is_not_found_out_again(served: Served) -> None:
    found = pb.Translation(grammar="start: /[ab]{3}/")
    found.completion.token_ids.extend([served.shard.languages.vocabulary().tokens.index(b"a")] * 3)
    # The text alone would be refused.
    await served.prepare(REGEX, "(never closed", found)
    call = prefill(1, pb.Constraint(kind=REGEX, text="(never closed"))
    answer = await served.stub.Prefill(call)
    assert set(served.shard.text(drawn(answer))) <= {*"ab"}


async def test_a_find_of_the_routers_that_is_none_is_refused_and_ends_nothing(
    served: Served,
) -> None:
    found = pb.Translation(grammar="start: /a/")
    found.completion.token_ids.append(2**32 - 1)
    with pytest.raises(grpc.aio.AioRpcError, match="completion must be of token ids") as refusal:
        await served.prepare(REGEX, "a", found)
    assert refusal.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert served.fatal == []


@pytest.mark.parametrize(
    ("kind", "text", "said"),
    [
        pytest.param(REGEX, "a(b", "never closed", id="malformed"),
        pytest.param(99, "a", "99 is not known", id="kind"),
        pytest.param(pb.CONSTRAINT_KIND_NONE, "a", "0 is not known", id="none"),
    ],
)
async def test_what_cannot_be_compiled_is_refused_in_words(
    served: Served, kind: pb.ConstraintKind.ValueType, text: str, said: str
) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as refusal:
        await served.prepare(kind, text)
    assert refusal.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert said in str(refusal.value.details())
    assert served.fatal == []


async def test_a_constraint_is_compiled_while_a_step_runs(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = threading.Event()
    released = threading.Event()
    model = served.shard.model
    forward = model.forward

    def wait_and_compute(inputs: Any) -> Any:
        begun.set()
        assert released.wait(60.0)
        return forward(inputs)

    monkeypatch.setattr(model, "forward", wait_and_compute)
    step = asyncio.ensure_future(served.stub.Prefill(prefill(2)))
    try:
        assert await asyncio.to_thread(begun.wait, 30.0)
        answer = await served.prepare(REGEX, "while a step runs")
        assert not answer.was_cached
        assert not step.done()
    finally:
        released.set()
    assert list((await step).request_ids) == [2]


async def test_quick_masks_are_made_between_steps_without_being_asked_for(served: Served) -> None:
    guides = served.runner._guides
    assert guides is not None
    constraint = pb.Constraint(kind=pb.CONSTRAINT_KIND_WHERE, text="len(words(X)) < 9")
    await served.stub.Prefill(prefill(1, constraint))
    async with asyncio.timeout(30):
        while not served.runner.is_prepared:
            await asyncio.sleep(0.05)
    # It was no worker of the pool.
    assert not guides._jobs
    await served.decode(update(1))


def update(request_id: int) -> pb.RunningUpdate:
    return pb.RunningUpdate(request_id=request_id, chunk_len=1, block_ids=[])
