"""LoRA adapters: loaded, named, used, unloaded, and loaded again by shards that begin anew."""

import asyncio
from dataclasses import replace
from pathlib import Path

import grpc
import pytest

from proto import generate_pb2 as pb
from router.engine.adapters import find_adapter
from router.engine.beam_search import Beam, BeamGroup, BeamRun, Hole, OutputTexts
from router.request.errors import (
    AdapterLost,
    AdapterRefused,
    InvalidRequest,
    NoAdapter,
    ShardFailed,
    StartupFailed,
)
from tests.fakes import Context, FakeShard
from tests.router.rig import (
    PROMPT,
    Rig,
    adapter_folder,
    asking,
    byte_tokenizer,
    end_of,
    error_of,
    events_of,
    expected_text,
    methods,
    routing,
    settled,
    until,
)


def written(num_tokens: int) -> str:
    """What a fake shard writes with an adapter."""
    return expected_text(PROMPT, num_tokens, with_adapter=True)


async def text_of(rig: Rig, adapter_id: int | None, num_tokens: int = 6) -> str:
    stream = rig.batcher.submit(asking(max_new_tokens=num_tokens, adapter_id=adapter_id))
    return end_of(await events_of(stream)).text


# ---- loading and naming


async def test_a_loaded_adapter_is_listed_and_computes_its_requests_beside_others(
    tmp_path: Path,
) -> None:
    shard = FakeShard(max_loras=2)
    async with routing(shard) as rig:
        adapter = await rig.adapters.load("sql", adapter_folder(tmp_path, "a"))
        assert (adapter.name, adapter.rank) == ("sql", 8)
        assert list(rig.adapters.listed.values()) == [adapter]
        tuned, plain = await asyncio.gather(text_of(rig, adapter.adapter_id), text_of(rig, None))
        assert (tuned, plain) == (written(6), expected_text(PROMPT, 6))


async def test_each_load_has_a_number_of_its_own(tmp_path: Path) -> None:
    path = adapter_folder(tmp_path, "a")
    async with routing(FakeShard(max_loras=1)) as rig:
        first = await rig.adapters.load("sql", path)
        await rig.adapters.unload("sql")
        again = await rig.adapters.load("sql", path)
        assert first.adapter_id != again.adapter_id


async def test_what_the_shard_refuses_is_refused_in_its_words_and_leaves_nothing(
    tmp_path: Path,
) -> None:
    shard = FakeShard(max_loras=1)
    async with routing(shard) as rig:
        with pytest.raises(AdapterRefused, match=r"/nowhere: has no adapter_config\.json"):
            await rig.adapters.load("sql", "/nowhere")
        await rig.adapters.load("sql", adapter_folder(tmp_path, "a"))
        with pytest.raises(AdapterRefused, match=r"1 adapters are loaded \(--max-loras\)"):
            await rig.adapters.load("other", adapter_folder(tmp_path, "b"))
        assert [*rig.adapters.listed] == ["sql"]
        assert len(shard.adapters) == 1


@pytest.mark.parametrize("name", ["", "a,b", "a b", "x" * 201])
async def test_a_name_must_fit_into_a_label(name: str) -> None:
    async with routing(FakeShard(max_loras=1)) as rig:
        with pytest.raises(AdapterRefused, match="without white space and commas"):
            await rig.adapters.load(name, "/nowhere")


async def test_a_name_is_of_one_model(tmp_path: Path) -> None:
    path = adapter_folder(tmp_path, "a")
    async with routing(FakeShard(max_loras=2)) as rig:
        with pytest.raises(AdapterRefused, match="'model' is a name of the model itself"):
            await rig.adapters.load("model", path)
        one, two = await asyncio.gather(
            rig.adapters.load("sql", path), rig.adapters.load("sql", path), return_exceptions=True
        )
        assert not isinstance(one, BaseException)
        assert "'sql' has already been loaded" in str(two)


async def test_every_rank_holds_its_part_or_none_does(tmp_path: Path) -> None:
    ranks = FakeShard(world_size=2, max_loras=1), FakeShard(rank=1, world_size=2, max_loras=1)
    async with routing(*ranks) as rig:
        refused = ("LoadAdapter", grpc.StatusCode.INVALID_ARGUMENT, "rank 16 is above 8")
        ranks[1].faults.fails.append(refused)
        with pytest.raises(AdapterRefused, match="rank 16 is above 8"):
            await rig.adapters.load("sql", adapter_folder(tmp_path, "a"))
        await until(lambda: not ranks[0].adapters)
        await rig.adapters.load("sql", adapter_folder(tmp_path, "b"))
        assert ranks[0].adapters == ranks[1].adapters != {}


async def test_a_start_frees_what_a_router_before_it_left(tmp_path: Path) -> None:
    shard = FakeShard(max_loras=1)
    shard.adapters = {1: "of another time"}
    path = adapter_folder(tmp_path, "a")
    async with routing(shard) as rig:
        await rig.adapters.begin({"sql": path})
        assert list(shard.adapters.values()) == [path]


async def test_a_start_ends_with_the_reason_of_the_shard() -> None:
    async with routing(FakeShard(max_loras=1)) as rig:
        with pytest.raises(StartupFailed, match=r"^--lora-adapters sql=/nowhere: /nowhere: has no"):
            await rig.adapters.begin({"sql": "/nowhere"})


def test_a_folder_without_an_adapter_is_refused_before_the_start(tmp_path: Path) -> None:
    assert find_adapter(adapter_folder(tmp_path, "a")) == tmp_path / "a"
    with pytest.raises(StartupFailed, match=r"has no adapter_config\.json"):
        find_adapter(str(tmp_path))
    with pytest.raises(StartupFailed, match="the adapter's folder '/nowhere' does not exist"):
        find_adapter("/nowhere")


# ---- unloading


async def test_an_unloaded_name_is_gone_at_once_and_its_adapter_with_the_last_request(
    tmp_path: Path,
) -> None:
    shard = FakeShard(max_loras=1)
    async with routing(shard) as rig:
        adapter = await rig.adapters.load("sql", adapter_folder(tmp_path, "a"))
        asked = asking(max_new_tokens=20, adapter_id=adapter.adapter_id)
        running = rig.batcher.submit(asked)
        await running.take()
        await rig.adapters.unload("sql")
        assert not rig.adapters.listed
        assert shard.adapters
        assert end_of(await events_of(running)).text == written(20)
        await until(lambda: not shard.adapters)
        with pytest.raises(NoAdapter, match="was unloaded before it began"):
            rig.batcher.submit(asked)
        with pytest.raises(NoAdapter, match="'sql' cannot be found"):
            await rig.adapters.unload("sql")


async def test_an_adapter_stays_while_a_step_may_compute_a_request_that_was_cancelled(
    tmp_path: Path,
) -> None:
    shard = FakeShard(max_loras=1)
    shard.faults.delay_s = 0.05
    async with routing(shard) as rig:
        adapter = await rig.adapters.load("sql", adapter_folder(tmp_path, "a"))
        running = rig.batcher.submit(asking(max_new_tokens=30, adapter_id=adapter.adapter_id))
        await running.take()
        rig.batcher.cancel(running)
        # The shard notes as a violation when it still has a request without its adapter.
        await rig.adapters.unload("sql")
        await settled(rig)
        await until(lambda: not shard.adapters)
        assert "UnloadAdapter" in methods(shard)


async def test_a_search_keeps_its_adapter_between_its_steps(tmp_path: Path) -> None:
    shard = FakeShard(max_loras=1)
    async with routing(shard) as rig:
        adapter = await rig.adapters.load("sql", adapter_folder(tmp_path, "a"))
        asked = asking(max_new_tokens=12, adapter_id=adapter.adapter_id)
        logprobs = replace(asked.logprobs, num_top_tokens=8, raw=True)
        hole = Hole(replace(asked, pause_after=1, logprobs=logprobs), is_last=True)
        group = BeamGroup(width=2, holes=(hole,), beams=(Beam(hole=0),), end_token_ids=frozenset())
        texts = OutputTexts(byte_tokenizer(), 8)
        run = BeamRun(group, texts, rig.batcher, None)
        searching = asyncio.ensure_future(run.next())
        await until(lambda: run.num_steps > 1)
        await rig.adapters.unload("sql")
        outcome = await asyncio.wait_for(searching, 20.0)
        assert outcome is not None
        assert outcome.ended
        run.close()
        await until(lambda: not shard.adapters)


# ---- shards that begin anew


async def test_a_killed_shard_has_its_adapters_again_before_it_computes(tmp_path: Path) -> None:
    shard = FakeShard(max_loras=2)
    async with routing(shard) as rig:
        adapters = [
            await rig.adapters.load(name, adapter_folder(tmp_path, name)) for name in ("one", "two")
        ]
        asked = [asking(max_new_tokens=30, adapter_id=each.adapter_id) for each in adapters]
        streams = [rig.batcher.submit(each) for each in (*asked, asking(max_new_tokens=30))]
        await streams[0].take()
        await rig.adapters.unload("two")
        shard.restart()
        shard.faults.fails.append(("Decode", grpc.StatusCode.INTERNAL, "killed"))
        texts = [end_of(await events_of(stream)).text for stream in streams]
        assert texts == [written(30), written(30), expected_text(PROMPT, 30)]
        again = methods(shard)[methods(shard).index("ClearCache", 5) :]
        begun = [each for each in again if each in ("Warmup", "LoadAdapter", "Prefill")]
        assert begun[:4] == ["Warmup", "LoadAdapter", "LoadAdapter", "Prefill"]
        await until(lambda: list(shard.adapters) == [adapters[0].adapter_id])


async def test_an_adapter_that_is_refused_then_fails_its_requests_by_name_and_no_other(
    tmp_path: Path,
) -> None:
    shard = FakeShard(max_loras=2)
    path = Path(adapter_folder(tmp_path, "one"))
    async with routing(shard) as rig:
        lost = await rig.adapters.load("one", str(path))
        kept = await rig.adapters.load("two", adapter_folder(tmp_path, "two"))
        asked = asking(max_new_tokens=30, adapter_id=lost.adapter_id)
        streams = [
            rig.batcher.submit(replace(asked, adapter_id=each.adapter_id)) for each in (lost, kept)
        ]
        await streams[0].take()
        (path / "adapter_config.json").rename(path / "elsewhere")
        shard.restart()
        shard.faults.fails.append(("Decode", grpc.StatusCode.INTERNAL, "killed"))
        error = error_of(await events_of(streams[0]))
        assert isinstance(error, AdapterLost)
        assert "LoRA adapter 'one'" in str(error)
        assert "has no adapter_config.json" in str(error)
        assert str(tmp_path) not in str(error)
        assert end_of(await events_of(streams[1])).text == written(30)
        with pytest.raises(AdapterLost, match="'one'"):
            rig.batcher.submit(asked)
        assert [*rig.adapters.listed] == ["one", "two"]
        # Each further beginning tries it again.
        (path / "elsewhere").rename(path / "adapter_config.json")
        shard.restart()
        shard.faults.fails.append(("Prefill", grpc.StatusCode.INTERNAL, "killed"))
        assert await text_of(rig, None) == expected_text(PROMPT, 6)
        assert await text_of(rig, lost.adapter_id) == written(6)


async def test_a_restore_that_fails_is_done_again_whole(tmp_path: Path) -> None:
    shard = FakeShard(max_loras=1)
    async with routing(shard) as rig:
        adapter = await rig.adapters.load("sql", adapter_folder(tmp_path, "a"))
        shard.restart()
        for method in ("Prefill", "LoadAdapter"):
            shard.faults.fails.append((method, grpc.StatusCode.INTERNAL, "killed"))
        assert await text_of(rig, adapter.adapter_id) == written(6)
        assert methods(shard).count("Warmup") == 2


async def test_a_load_that_a_shard_does_not_answer_is_undone_once_it_does(tmp_path: Path) -> None:
    shard = FakeShard(max_loras=1)
    path = adapter_folder(tmp_path, "a")
    async with routing(shard) as rig:
        fails = shard.faults.fails
        fails.append(("LoadAdapter", grpc.StatusCode.INTERNAL, "device lost"))
        with pytest.raises(ShardFailed, match="device lost"):
            await rig.adapters.load("sql", path)
        await until(lambda: "UnloadAdapter" in methods(shard))
        await rig.adapters.load("sql", path)
        assert len(shard.adapters) == 1


# ---- what follows from the adapter


async def test_preempted_requests_enter_again_with_their_adapters(tmp_path: Path) -> None:
    # Room for one of the two at their full lengths.
    shard = FakeShard(num_blocks=14, block_size=4, max_loras=2)
    async with routing(shard) as rig:
        ids = [
            (await rig.adapters.load(name, adapter_folder(tmp_path, name))).adapter_id
            for name in ("one", "two")
        ]
        texts = await asyncio.gather(*(text_of(rig, each, 40) for each in ids))
        assert texts == [written(40), written(40)]
        assert rig.scheduler.stats().num_preemptions
        entered = [
            new.adapter_id
            for _, call in shard.calls
            if isinstance(call, pb.PrefillRequest)
            for new in call.batch.requests
        ]
        assert len(entered) > 2
        assert set(entered) == set(ids)


async def test_a_gauge_says_which_adapters_have_requests(tmp_path: Path) -> None:
    shard = FakeShard(max_loras=3)
    async with routing(shard, max_batch_size=2) as rig:
        ids = [
            (await rig.adapters.load(name, adapter_folder(tmp_path, name))).adapter_id
            for name in ("b", "a", "late")
        ]
        streams = [
            rig.batcher.submit(asking(max_new_tokens=200, ignore_eos=True, adapter_id=each))
            for each in ids
        ]
        labels = b'{max_lora="3",running_lora_adapters="a,b",waiting_lora_adapters="late"}'
        name = b"vllm:lora_requests_info"
        await until(lambda: name + labels in rig.metrics.exposition())
        for stream in streams:
            rig.batcher.cancel(stream)
        none = b'{max_lora="3",running_lora_adapters="",waiting_lora_adapters=""}'
        await until(lambda: name + none in rig.metrics.exposition())
        assert rig.metrics.exposition().count(name + b"{") == 1


async def test_a_request_of_an_unknown_number_is_refused_and_takes_no_slot() -> None:
    async with routing(FakeShard()) as rig:
        with pytest.raises(InvalidRequest):
            rig.batcher.submit(asking(adapter_id=9))
        assert rig.batcher.admission.num_taken == 0


class _SlowToLoad(FakeShard):
    """Loads an adapter once it may."""

    def __init__(self) -> None:
        super().__init__(max_loras=1)
        self.is_asked = asyncio.Event()
        self.may_load = asyncio.Event()

    async def LoadAdapter(
        self, request: pb.LoadAdapterRequest, context: Context
    ) -> pb.LoadAdapterResponse:
        self.is_asked.set()
        await self.may_load.wait()
        return await super().LoadAdapter(request, context)


async def test_what_nobody_needs_any_more_when_it_is_loaded_again_is_freed(tmp_path: Path) -> None:
    shard = _SlowToLoad()
    shard.may_load.set()
    async with routing(shard) as rig:
        await rig.adapters.load("sql", adapter_folder(tmp_path, "a"))
        shard.is_asked.clear()
        shard.may_load.clear()
        shard.restart()
        shard.faults.fails.append(("Prefill", grpc.StatusCode.INTERNAL, "killed"))
        answering = asyncio.ensure_future(text_of(rig, None))
        await shard.is_asked.wait()
        await rig.adapters.unload("sql")
        shard.may_load.set()
        assert await answering == expected_text(PROMPT, 6)
        await until(lambda: not shard.adapters)
