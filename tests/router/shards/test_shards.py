"""Shards over real gRPC, against fakes that check what they are asked to do."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from time import monotonic
from typing import Any

import grpc
import pytest

from proto import generate_pb2 as pb
from proto.contract import (
    Batch,
    LoadedAdapter,
    NewSequence,
    RunningUpdate,
    SamplingParams,
    StepResult,
    StopParams,
)
from router.request.errors import AdapterRefused, Displaced, ShardFailed, StartupFailed
from router.request.request import GenerateRequest
from router.shards.shards import Rank, Shards, ShardTimeouts, dial_target
from tests.fake_script import letters
from tests.fakes import FakeShard, serving
from tests.router.rig import adapter_folder

QUICK = ShardTimeouts(connect_s=2.0, warmup_s=2.0, step_s=1.0, control_s=1.0, lockstep_s=0.2)
PROMPT = (10, 11, 12, 13, 14, 15)


def request(max_new_tokens: int = 8) -> GenerateRequest:
    stop = StopParams(max_new_tokens=max_new_tokens)
    return GenerateRequest(PROMPT, "", SamplingParams(), stop)


def new(request_id: int, block_ids: tuple[int, ...] = (0, 1), **changes: int) -> NewSequence:
    return NewSequence(
        request_id=request_id,
        token_ids=PROMPT,
        prompt_len=len(PROMPT),
        cached_len=0,
        chunk_len=changes.get("chunk_len", 6),
        block_ids=block_ids,
        sampling=SamplingParams(),
        stop=StopParams(max_new_tokens=changes.get("max_new_tokens", 8)),
    )


def prefill(step_id: int, *requests: NewSequence, running_ids: tuple[int, ...] = ()) -> Batch:
    num_tokens = sum(one.chunk_len for one in requests) + len(running_ids)
    return Batch(step_id, requests, (), running_ids, (), num_tokens, len(running_ids))


def decode(
    step_id: int,
    *running_ids: int,
    dropped_ids: tuple[int, ...] = (),
    updates: tuple[RunningUpdate, ...] = (),
) -> Batch:
    num_tokens = len(running_ids)
    return Batch(step_id, (), updates, running_ids, dropped_ids, num_tokens, num_tokens)


@asynccontextmanager
async def connected(*ranks: FakeShard, timeouts: ShardTimeouts = QUICK) -> AsyncIterator[Shards]:
    async with serving(*ranks) as address:
        shards = await Shards.connect(address, timeouts, first_epoch=100)
        try:
            yield shards
        finally:
            await shards.close()


async def run(shards: Shards, batch: Batch) -> StepResult:
    return await shards.step(batch)


def tokens_of(result: StepResult) -> dict[int, list[int]]:
    return {
        made.request_id: [token.token_id for token in made.tokens] for made in result.generations
    }


def methods(shard: FakeShard) -> list[str]:
    return [method for method, _ in shard.calls]


async def test_connecting_discovers_all_ranks_and_begins_an_epoch_on_each() -> None:
    ranks = [FakeShard(rank=rank, world_size=2) for rank in range(2)]
    async with connected(*ranks) as shards:
        assert shards.num_ranks == 2
        assert [rank.epoch for rank in ranks] == [101, 101]
        assert (await shards.info()).model_id == "fake"


async def test_warm_up_answers_the_smallest_ranks_limits() -> None:
    ranks = [FakeShard(num_blocks=64, world_size=2), FakeShard(num_blocks=60, rank=1)]
    async with connected(*ranks) as shards:
        limits = await shards.warmup(256, 16, 1000)
    assert (limits.num_blocks, limits.block_size, limits.max_total_len) == (60, 4, 240)


async def test_a_shard_that_was_started_anew_is_asked_for_the_pool_that_it_had() -> None:
    shard = FakeShard(num_states=12)
    async with connected(shard) as shards:
        limits = await shards.warmup(256, 16, None)
        assert limits.num_states == 12
        shard.is_warm = False
        await shards.reset()
    first, second = [request for method, request in shard.calls if method == "Warmup"]
    assert not first.HasField("num_blocks")
    assert not first.HasField("num_states")
    assert (second.num_blocks, second.num_states) == (64, 12)


async def test_a_prompt_then_decodes_until_the_shard_ends_it() -> None:
    shard = FakeShard()
    async with connected(shard) as shards:
        result = await run(shards, prefill(1, new(7, max_new_tokens=3)))
        first = letters(PROMPT)
        assert tokens_of(result) == {7: [first]}
        assert result.remaining_ids == (7,)
        await run(shards, decode(2, 7))
        result = await run(shards, decode(3, 7, updates=(RunningUpdate(7, (2,)),)))
        assert result.remaining_ids == ()
        assert result.generations[0].finish_reason is not None
        assert shard.num_held == 0


async def test_steps_go_by_grpc_where_the_step_socket_cannot_be_reached(
    caplog: pytest.LogCaptureFixture,
) -> None:
    shard = FakeShard()
    shard.step_socket = "/nowhere/shard-0.steps"
    async with connected(shard) as shards:
        await run(shards, prefill(1, new(7)))
        assert tokens_of(await run(shards, decode(2, 7))).keys() == {7}
    assert "its steps go by gRPC" in caplog.text


async def test_new_prompts_join_the_running_batch() -> None:
    shard = FakeShard()
    async with connected(shard) as shards:
        await run(shards, prefill(1, new(7)))
        result = await run(shards, prefill(2, new(8, (4, 5)), running_ids=(7,)))
        assert sorted(result.remaining_ids) == [7, 8]
        assert sorted(tokens_of(result)) == [7, 8]


async def test_a_dropped_request_leaves_with_the_step() -> None:
    shard = FakeShard()
    async with connected(shard) as shards:
        await run(shards, prefill(1, new(7), new(8, (4, 5))))
        result = await run(shards, decode(2, 8, dropped_ids=(7,)))
        assert (result.remaining_ids, list(tokens_of(result))) == ((8,), [8])
        assert methods(shard)[-2:] == ["Prefill", "Decode"]


async def test_when_all_are_dropped_others_may_enter() -> None:
    shard = FakeShard()
    async with connected(shard) as shards:
        await run(shards, prefill(1, new(7)))
        drop = Batch(2, (), (), (), (7,), 0, 0)
        assert (await run(shards, drop)).remaining_ids == ()
        assert shard.num_held == 0
        result = await run(shards, prefill(3, new(9)))
        assert result.remaining_ids == (9,)


async def test_all_may_be_dropped_by_the_step_of_a_prompt_that_gets_their_blocks() -> None:
    shard = FakeShard()
    async with connected(shard) as shards:
        await run(shards, prefill(1, new(7)))
        step = Batch(2, (new(8),), (), (), (7,), 6, 0)
        assert (await run(shards, step)).remaining_ids == (8,)


class TestStepsSentAhead:
    """Steps that are sent before those before them are answered."""

    async def test_they_are_computed_in_their_order(self) -> None:
        shard = FakeShard()
        async with connected(shard) as shards:
            steps = [shards.step(prefill(1, new(7))), shards.step(decode(2, 7))]
            results = await asyncio.gather(*steps)
        second = letters((*PROMPT, letters(PROMPT)))
        assert [tokens_of(result) for result in results] == [{7: [letters(PROMPT)]}, {7: [second]}]

    async def test_one_may_name_a_batch_that_ends_before_it(self) -> None:
        async with connected(FakeShard()) as shards:
            ending = shards.step(prefill(1, new(7, max_new_tokens=1)))
            late = shards.step(decode(2, 7))
            joining = shards.step(prefill(3, new(8)))
            results = await asyncio.gather(ending, late, joining)
            assert [result.remaining_ids for result in results] == [(), (), (8,)]
            assert (await run(shards, decode(4, 8))).remaining_ids == (8,)

    async def test_one_may_be_sent_when_the_end_is_answered_but_not_looked_at(self) -> None:
        async with connected(FakeShard()) as shards:
            ending = shards.step(prefill(1, new(7, max_new_tokens=1)))
            await asyncio.wait([ending])
            assert (await run(shards, decode(2, 7))).generations == ()

    async def test_each_has_the_time_of_those_before_it_as_well(self) -> None:
        shard = FakeShard()
        shard.faults.delay_s = 0.6
        async with connected(shard) as shards:
            steps = [shards.step(prefill(1, new(7))), shards.step(decode(2, 7))]
            assert len(await asyncio.gather(*steps)) == 2

    async def test_after_a_reset_their_order_begins_anew(self) -> None:
        shard = FakeShard()
        async with connected(shard) as shards:
            shard.faults.fails.append(("Prefill", grpc.StatusCode.INTERNAL, "broken"))
            failing = shards.step(prefill(1, new(7)))
            behind = shards.step(decode(2, 7))
            with pytest.raises(ShardFailed, match="INTERNAL: broken"):
                await failing
            behind.cancel()
            await shards.reset()
            assert (await run(shards, prefill(3, new(8)))).remaining_ids == (8,)


async def test_both_ranks_are_asked_and_only_rank_0_brings_tokens() -> None:
    ranks = [FakeShard(rank=rank, world_size=2) for rank in range(2)]
    async with connected(*ranks) as shards:
        result = await run(shards, prefill(1, new(7)))
        assert tokens_of(result) == {7: [letters(PROMPT)]}
        assert [methods(rank)[-1] for rank in ranks] == ["Prefill", "Prefill"]


async def test_ranks_that_hold_different_requests_have_failed() -> None:
    ranks = [FakeShard(rank=rank, world_size=2) for rank in range(2)]
    async with connected(*ranks) as shards:
        ranks[1].script = lambda token_ids: 0
        with pytest.raises(
            ShardFailed, match=r"shard 1 .* holds requests \[\], shard 0 holds \[7\]"
        ):
            await run(shards, prefill(1, new(7)))


async def test_a_failing_rank_does_not_leave_the_others_waiting_for_long() -> None:
    ranks = [FakeShard(rank=rank, world_size=2) for rank in range(2)]
    slow = ShardTimeouts(connect_s=2.0, step_s=60.0, lockstep_s=0.2)
    async with connected(*ranks, timeouts=slow) as shards:
        ranks[0].faults.hangs.add("Prefill")
        ranks[1].faults.fails.append(("Prefill", grpc.StatusCode.INTERNAL, "broken"))
        began_s = monotonic()
        with pytest.raises(ShardFailed, match=r"shard 1 .*INTERNAL: broken"):
            await run(shards, prefill(1, new(7)))
        assert monotonic() - began_s < 20.0


@pytest.mark.parametrize("method", ["Prefill", "Decode"])
async def test_a_refused_call_names_rank_method_code_and_reason(method: str) -> None:
    shard = FakeShard()
    async with connected(shard) as shards:
        shard.faults.fails.append((method, grpc.StatusCode.RESOURCE_EXHAUSTED, "out of memory"))

        async def serve_two_then_one() -> None:
            await run(shards, prefill(1, new(7), new(8, (4, 5))))
            await run(shards, decode(2, 7, dropped_ids=(8,)))

        with pytest.raises(ShardFailed) as caught:
            await serve_two_then_one()
        for word in ("shard 0 at ", method, "RESOURCE_EXHAUSTED", "out of memory"):
            assert word in str(caught.value)


async def test_an_adapter_is_loaded_by_all_ranks_and_counted_over_them(tmp_path: Path) -> None:
    ranks = [FakeShard(rank=rank, world_size=2, max_loras=1) for rank in range(2)]
    path = adapter_folder(tmp_path, "a")
    async with connected(*ranks) as shards:
        loaded = await shards.load_adapter(5, path)
        assert loaded == LoadedAdapter(rank=8, num_bytes=2 << 20)
        assert [rank.adapters for rank in ranks] == [{5: path}] * 2
        await shards.unload_adapter(5)
        # What is not loaded is as good as freed.
        await shards.unload_adapter(5)
        assert [rank.adapters for rank in ranks] == [{}] * 2


@pytest.mark.parametrize("refusing", [0, 1])
async def test_a_rank_that_refuses_an_adapter_says_why_also_beside_one_that_is_slow(
    refusing: int, tmp_path: Path
) -> None:
    ranks = [FakeShard(rank=rank, world_size=2, max_loras=1) for rank in range(2)]
    async with connected(*ranks) as shards:
        invalid = grpc.StatusCode.INVALID_ARGUMENT
        ranks[refusing].faults.fails.append(("LoadAdapter", invalid, "use_dora is true"))
        ranks[1 - refusing].faults.hangs.add("LoadAdapter")
        with pytest.raises(AdapterRefused, match="use_dora is true"):
            await shards.load_adapter(5, adapter_folder(tmp_path, "a"))


async def test_an_adapter_that_is_loaded_for_an_earlier_epoch_does_not_count(
    tmp_path: Path,
) -> None:
    shard = FakeShard(max_loras=1)
    async with connected(shard) as shards:
        shard.faults.epoch_offset = -1
        with pytest.raises(ShardFailed, match="LoadAdapter: answered for epoch"):
            await shards.load_adapter(5, adapter_folder(tmp_path, "a"))


async def test_a_hanging_step_fails_at_its_deadline() -> None:
    shard = FakeShard()
    brief = replace(QUICK, step_s=0.2)
    async with connected(shard, timeouts=brief) as shards:
        shard.faults.hangs |= {"Prefill", "Decode"}
        with pytest.raises(ShardFailed, match="Prefill: DEADLINE_EXCEEDED"):
            await run(shards, prefill(1, new(7)))
        with pytest.raises(ShardFailed, match="Decode: DEADLINE_EXCEEDED"):
            await run(shards, decode(2, 7))


async def test_a_step_after_a_lost_connection_is_a_message_of_another_call() -> None:
    shard = FakeShard()
    async with connected(shard) as shards:
        await run(shards, prefill(1, new(7)))
        await run(shards, decode(2, 7))
        call = shards._ranks[0]._decode
        assert call is not None
        await shard.stop()
        await shard.start(shard.urls[0])
        async with asyncio.timeout(5.0):
            while not call.is_over:
                await asyncio.sleep(0.01)
            while True:
                with suppress(ShardFailed):
                    await shards.check_health()
                    break
        assert (await run(shards, decode(3, 7))).remaining_ids == (7,)


async def test_a_message_of_a_call_that_has_just_ended_has_no_answer() -> None:
    shard = FakeShard()
    async with connected(shard) as shards:
        await run(shards, prefill(1, new(1)))
        await run(shards, decode(2, 1))
        call = shards._ranks[0]._decode
        assert call is not None
        await shard.stop()
        while not call.is_over:
            await asyncio.sleep(0)

        # The router looked just before, and the shard died in between.
        with pytest.raises(EOFError):
            await call.step(pb.DecodeRequest(epoch=100), 1.0)


async def test_an_answer_of_another_epoch_is_dropped() -> None:
    shard = FakeShard()
    async with connected(shard) as shards:
        shard.faults.epoch_offset = -1
        with pytest.raises(ShardFailed, match="answered for epoch 100 in epoch 101"):
            await run(shards, prefill(1, new(7)))


async def test_reset_begins_anew_with_the_next_epoch() -> None:
    shard = FakeShard()
    async with connected(shard) as shards:
        await run(shards, prefill(1, new(7)))
        await shards.reset()
        assert (shard.epoch, shard.num_held) == (102, 0)
        assert (await run(shards, prefill(2, new(8)))).remaining_ids == (8,)


async def test_a_shard_that_comes_back_is_found_again() -> None:
    shard = FakeShard()
    async with connected(shard) as shards:
        port = shard.urls[0].rpartition(":")[2]
        await shard.stop()
        with pytest.raises(ShardFailed, match="UNAVAILABLE"):
            await shards.check_health()
        await shard.start(f"127.0.0.1:{port}")
        async with asyncio.timeout(30):
            while True:
                with suppress(ShardFailed):
                    await shards.reset()
                    break
        assert (await run(shards, prefill(1, new(7)))).remaining_ids == (7,)


async def test_decoding_nothing_is_a_fault_of_ours_and_said() -> None:
    async with connected(FakeShard()) as shards:
        with pytest.raises(ShardFailed, match="hold no batch"):
            await run(shards, decode(1, 7))


async def test_unix_sockets_work_by_path_and_by_url(tmp_path: Path) -> None:
    shard = FakeShard()
    path = tmp_path / "shard-0"
    await shard.start(f"unix:{path}")
    shard.urls = [f"unix://{path}"]
    for address in (str(path), f"unix:{path}", f"unix://{path}"):
        shards = await Shards.connect(address, QUICK, first_epoch=1)
        await shards.check_health()
        await shards.close()
    await shard.stop()
    assert [method for method, _ in shard.calls].count("Health") >= 3


async def test_no_shard_is_said_in_one_line(tmp_path: Path) -> None:
    brief = ShardTimeouts(connect_s=0.3)
    with pytest.raises(StartupFailed, match=r"no shard answers at .*/none \(waited 0.3 s\)"):
        await Shards.connect(str(tmp_path / "none"), brief, first_epoch=1)


async def test_a_rank_that_is_missing_is_named() -> None:
    shard = FakeShard(world_size=2)
    async with serving(shard) as address:
        shard.urls = [address, "127.0.0.1:9"]
        brief = ShardTimeouts(connect_s=0.5)
        with pytest.raises(StartupFailed, match=r"shard 1 at 127\.0\.0\.1:9"):
            await Shards.connect(address, brief, first_epoch=1)


async def test_a_world_of_another_size_is_refused() -> None:
    async with connected(FakeShard(world_size=4)) as shards:
        with pytest.raises(ShardFailed, match="one of 4 ranks, but names 1"):
            await shards.info()


@pytest.mark.parametrize(
    ("address", "target"),
    [
        ("127.0.0.1:50051", "127.0.0.1:50051"),
        ("[::1]:50051", "[::1]:50051"),
        ("/tmp/shard-0", "unix:/tmp/shard-0"),
        ("/tmp/odd:1", "unix:/tmp/odd:1"),
        ("unix:///tmp/shard-0", "unix:/tmp/shard-0"),
        ("unix:shard-0", "unix:shard-0"),
        ("shard-0", "unix:shard-0"),
    ],
)
def test_an_address_is_host_and_port_or_a_path(address: str, target: str) -> None:
    assert dial_target(address) == target


def test_a_socket_path_beyond_the_systems_limit_is_refused_with_numbers() -> None:
    with pytest.raises(StartupFailed, match="at most 107"):
        dial_target("/tmp/" + "x" * 200)


@pytest.mark.parametrize("num_ranks", [1, 2])
async def test_a_later_routers_epoch_displaces_this_one(num_ranks: int) -> None:
    ranks = [FakeShard(rank=rank, world_size=num_ranks) for rank in range(num_ranks)]
    async with connected(*ranks) as shards:
        later = await Shards.connect(ranks[0].urls[0], QUICK, first_epoch=500)
        with pytest.raises(Displaced, match=r"another router .* epoch 501 has begun"):
            await shards.reset()
        await later.close()


async def test_another_precondition_displaces_nobody() -> None:
    shard = FakeShard()
    async with connected(shard) as shards:
        shard.faults.fails.append(
            ("ClearCache", grpc.StatusCode.FAILED_PRECONDITION, "not warmed up")
        )
        with pytest.raises(ShardFailed) as refusal:
            await shards.reset()
        assert not isinstance(refusal.value, Displaced)


async def test_a_router_that_comes_too_late_does_not_start() -> None:
    shard = FakeShard()
    async with connected(shard):
        with pytest.raises(StartupFailed, match="another router has taken over"):
            await Shards.connect(shard.urls[0], QUICK, first_epoch=1)


class ScriptedRank(Rank):
    """A rank whose calls end with an answer, or as a call does that fails below gRPC's errors."""

    def __init__(self, rank: int, ending: object) -> None:
        super().__init__(rank, "localhost:1")
        self._ending = ending

    def send(self, *_: object, **__: object) -> Any:
        async def answer() -> object:
            if isinstance(self._ending, BaseException):
                raise self._ending
            return self._ending

        return answer()


@pytest.mark.parametrize("broken_rank", [0, 1])
async def test_with_several_ranks_an_unforeseen_error_is_raised_as_it_is(broken_rank: int) -> None:
    error = ValueError("a bug in a rank's client")
    endings: list[object] = [pb.HealthResponse(), pb.HealthResponse()]
    endings[broken_rank] = error
    shards = Shards([ScriptedRank(*each) for each in enumerate(endings)], QUICK, first_epoch=1)
    with pytest.raises(ValueError, match="a bug in a rank's client") as caught:
        await shards.check_health()
    assert caught.value is error
    await shards.close()


async def test_with_several_ranks_a_call_cancelled_below_us_fails_the_shard() -> None:
    endings = (pb.HealthResponse(), asyncio.CancelledError())
    shards = Shards([ScriptedRank(*each) for each in enumerate(endings)], QUICK, first_epoch=1)
    with pytest.raises(ShardFailed, match=r"shard 1 at localhost:1, Health: cancelled"):
        await shards.check_health()
    await shards.close()
