"""Constraints are compiled in the shard before their requests enter a step."""

import asyncio
from dataclasses import replace
from time import monotonic

import grpc
import pytest

from constraints.spec import ConstraintSpec, Kind
from proto.contract import FinishReason
from router.request.errors import ConstraintRefused, GenerationFailed, Overloaded
from router.request.request import Constraint
from router.shards.shards import ShardTimeouts
from tests.fakes import FakeShard
from tests.router.rig import (
    ANY_TEXT,
    QUICK,
    Rig,
    asking,
    end_of,
    error_of,
    events_of,
    expected_text,
    methods,
    routing,
    settled,
)

OTHER = Constraint(ConstraintSpec(Kind.CHOICE, '["a"]'))


async def test_a_constraint_is_compiled_before_its_first_step() -> None:
    shard = FakeShard()
    async with routing(shard) as rig:
        await events_of(rig.batcher.submit(asking(constraint=ANY_TEXT)))
        called = methods(shard)
        assert called.index("PrepareConstraint") < called.index("Prefill")
        assert called.count("PrepareConstraint") == 1


async def test_nothing_is_prepared_without_a_constraint() -> None:
    shard = FakeShard()
    async with routing(shard) as rig:
        await events_of(rig.batcher.submit(asking()))
        assert "PrepareConstraint" not in methods(shard)


async def test_what_compiles_in_no_time_is_left_to_the_first_step() -> None:
    shard = FakeShard()
    async with routing(shard) as rig:
        quick = replace(ANY_TEXT, is_quick=True)
        end_of(await events_of(rig.batcher.submit(asking(constraint=quick))))
        assert "PrepareConstraint" not in methods(shard)


async def test_equal_constraints_are_prepared_together_and_others_beside_them() -> None:
    shard = FakeShard()
    async with routing(shard) as rig:
        streams = rig.batcher.submit_all(
            [asking(constraint=each) for each in (ANY_TEXT, OTHER, ANY_TEXT)]
        )
        for stream in streams:
            end_of(await events_of(stream))
        assert sorted(shard.prepared) == sorted({ANY_TEXT.spec.text, OTHER.spec.text})


async def test_what_the_shard_has_is_not_asked_for_again_until_it_begins_anew() -> None:
    shard = FakeShard()
    async with routing(shard) as rig:
        for _ in range(3):
            end_of(await events_of(rig.batcher.submit(asking(constraint=ANY_TEXT))))
        assert len(shard.prepared) == 1
        shard.faults.fails.append(("Prefill", grpc.StatusCode.INTERNAL, "device lost"))
        await events_of(rig.batcher.submit(asking(constraint=ANY_TEXT)))
        await works_again(rig)
        assert len(shard.prepared) == 2


async def test_only_the_last_few_are_known_and_none_that_is_long() -> None:
    shard = FakeShard()

    async def ask(text: str) -> None:
        constraint = Constraint(ConstraintSpec(Kind.REGEX, text))
        end_of(await events_of(rig.batcher.submit(asking("a", 1, constraint=constraint))))

    async with routing(shard) as rig:
        for text in (
            "first",
            "long" * 20_000,
            "long" * 20_000,
            *map(str, range(64)),
            "63",
            "first",
        ):
            await ask(text)
        assert [shard.prepared.count(text) for text in ("first", "long" * 20_000, "63")] == [
            2,
            2,
            1,
        ]


async def test_others_go_on_while_one_waits_for_its_constraint() -> None:
    shard = FakeShard()
    shard.faults.hangs.add("PrepareConstraint")
    async with routing(shard) as rig:
        waiting = rig.batcher.submit(asking(constraint=ANY_TEXT))
        assert end_of(await events_of(rig.batcher.submit(asking()))).text == expected_text(
            "Once upon", 6
        )
        assert waiting.end is None
        assert rig.scheduler.stats().num_waiting == 1
        rig.batcher.cancel(waiting)


async def test_a_client_that_leaves_while_its_constraint_is_prepared_leaves_nothing() -> None:
    shard = FakeShard()
    shard.faults.hangs.add("PrepareConstraint")
    async with routing(shard) as rig:
        stream = rig.batcher.submit(asking(constraint=ANY_TEXT))
        await until_called(shard, "PrepareConstraint")
        rig.batcher.cancel(stream)
        await settled(rig)
        async with asyncio.timeout(1.0):
            while is_compiling():
                await asyncio.sleep(0.002)
        shard.faults.hangs.clear()
        # The next one with the same constraint is asked for anew.
        await events_of(rig.batcher.submit(asking(constraint=ANY_TEXT)))
        assert methods(shard).count("PrepareConstraint") == 2
        assert methods(shard).count("Prefill") == 1


async def test_one_that_stays_has_its_constraint_when_another_leaves() -> None:
    shard = FakeShard()
    async with routing(shard) as rig:
        left, stays = rig.batcher.submit_all([asking(constraint=ANY_TEXT) for _ in range(2)])
        rig.batcher.cancel(left)
        assert end_of(await events_of(stays)).num_generated_tokens == 6
        assert methods(shard).count("PrepareConstraint") == 1


async def test_what_the_shard_cannot_compile_is_refused_and_nothing_runs() -> None:
    shard = FakeShard()
    shard.faults.refused_constraints[ANY_TEXT.spec.text] = "it is too large"
    async with routing(shard) as rig:
        error = error_of(await events_of(rig.batcher.submit(asking(constraint=ANY_TEXT))))
        assert isinstance(error, ConstraintRefused)
        assert (str(error), error.reason) == ("it is too large", "too_complex")
        assert rig.metrics.constraint_refusals.value("too_complex") == 1
        assert "Prefill" not in methods(shard)
        await settled(rig)


async def test_a_compilation_without_end_fails_its_request_alone() -> None:
    shard = FakeShard()
    shard.faults.hangs.add("PrepareConstraint")
    async with routing(shard, timeouts=replace(QUICK, prepare_s=0.1)) as rig:
        other = rig.batcher.submit(asking())
        error = error_of(await events_of(rig.batcher.submit(asking(constraint=ANY_TEXT))))
        assert type(error) is GenerationFailed
        assert "did not compile the constraint within 0.1 s" in str(error)
        end_of(await events_of(other))


async def test_a_request_that_may_wait_no_longer_is_asked_to_retry() -> None:
    shard = FakeShard()
    shard.faults.hangs.add("PrepareConstraint")
    async with routing(shard) as rig:
        hurried = replace(ANY_TEXT, prepare_by_s=monotonic() + 0.15)
        error = error_of(await events_of(rig.batcher.submit(asking(constraint=hurried))))
        assert type(error) is Overloaded
        assert "did not compile the constraint within 0.1" in str(error)
        await settled(rig)


async def test_where_the_shard_fails_otherwise_the_first_step_compiles() -> None:
    shard = FakeShard()
    shard.faults.fails.append(("PrepareConstraint", grpc.StatusCode.UNAVAILABLE, "restarting"))
    async with routing(shard) as rig:
        end = end_of(await events_of(rig.batcher.submit(asking(constraint=ANY_TEXT))))
        assert end.num_generated_tokens == 6


async def test_a_deadline_passes_while_a_constraint_is_prepared() -> None:
    shard = FakeShard()
    shard.faults.hangs.add("PrepareConstraint")
    async with routing(shard) as rig:
        now_s = asyncio.get_running_loop().time()
        request = asking(constraint=ANY_TEXT, deadline_s=now_s + 0.1)
        end = end_of(await events_of(rig.batcher.submit(request)))
        assert (end.reason, end.constraint_satisfied) == (FinishReason.DEADLINE, False)
        await settled(rig)


async def test_a_drain_waits_for_requests_that_wait_for_a_constraint() -> None:
    shard = FakeShard()
    async with routing(shard) as rig:
        stream = rig.batcher.submit(asking(constraint=ANY_TEXT))
        await rig.batcher.drain(2.0)
        assert end_of(await events_of(stream)).num_generated_tokens == 6


@pytest.mark.parametrize("is_broken", [True, False])
async def test_a_step_that_breaks_meanwhile_changes_nothing_for_waiting_requests(
    is_broken: bool,
) -> None:
    shard = FakeShard()
    shard.faults.hangs.add("PrepareConstraint")
    timeouts = ShardTimeouts(connect_s=2.0, warmup_s=2.0, step_s=1.0, control_s=0.2, prepare_s=0.5)
    async with routing(shard, timeouts=timeouts) as rig:
        stream = rig.batcher.submit(asking(constraint=ANY_TEXT))
        if is_broken:
            shard.faults.fails.append(("Prefill", grpc.StatusCode.INTERNAL, "broke"))
            await events_of(rig.batcher.submit(asking()))
        assert "within 0.5 s" in str(error_of(await events_of(stream)))
        shard.faults.hangs.clear()
        await works_again(rig)


async def works_again(rig: Rig) -> None:
    while not rig.batcher.is_alive:
        await asyncio.sleep(0.01)
    end_of(await events_of(rig.batcher.submit(asking(constraint=ANY_TEXT))))


def is_compiling() -> bool:
    coroutines = [task.get_coro() for task in asyncio.all_tasks()]
    return any(getattr(each, "__qualname__", "") == "Preparing._compile" for each in coroutines)


async def until_called(shard: FakeShard, method: str) -> None:
    while method not in methods(shard):
        await asyncio.sleep(0.002)
