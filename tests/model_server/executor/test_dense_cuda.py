"""The executor for GPUs computes what transformers computes; here in plain torch, on a CPU."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from model_server.adapter import Adapter
from model_server.attention.base import LayerCache
from model_server.checkpoint.check import unfit_reason_on_cuda
from model_server.engine.distributed import World
from model_server.errors import InvalidStep
from model_server.executor.dense_cuda import DecodeGraphs, batch_sizes, build_dense_cuda
from model_server.executor.device_weights import Partition, matrices_of
from model_server.executor.layer_ops import TorchLayerOps
from model_server.recipe.recipe import Mlp, Moe
from model_server.step import StepInputs
from proto.contract import KeptState
from tests.model_server import lora_folders
from tests.model_server.engine.driver import on_two_ranks
from tests.model_server.executor.decoders import (
    NUM_BLOCKS,
    NUM_STATES,
    Decoder,
    Pool,
    decoder,
    distance,
    random_tokens,
)
from tests.model_server.recipe.families import EXECUTED, WITH_STATES, by_night

NIGHTLY = {
    "mistral",
    "gemma2",
    "olmo",
    "starcoder2",
    "phi-qk",
    "glm4",
    "hunyuan",
    "arcee",
    "mixtral",
    "qwen3_moe",
    "olmo_hybrid",
}
LENS = (37, 9, 1, 70)


def run_again(run: Callable[[], Tensor]) -> Callable[[], Tensor]:
    """A capture without a device: the same launches over the same memory."""
    return run


@pytest.mark.parametrize("family", by_night(NIGHTLY, EXECUTED))
def test_float32_is_as_near_to_transformers_as_another_order_of_sums(family: str) -> None:
    own = decoder(family)
    pool = Pool(own.on_device(torch.float32))
    prompts = random_tokens(sum(LENS)).split(list(LENS))

    actual = pool.run([(pool.sequence(prompt), len(prompt)) for prompt in prompts])

    expected = torch.cat([own.native(prompt) for prompt in prompts])
    assert distance(torch.cat(actual), expected) < (2e-5 if family in WITH_STATES else 1e-5)


@pytest.mark.parametrize(("family", "most"), [("llama-bias-tied", 0.2), ("qwen3_5", 0.4)])
def test_weights_in_8_bits_stay_near_float32(family: str, most: float) -> None:
    own = decoder(family)
    make_matrix = matrices_of(TorchLayerOps(), "fp8")
    executor = own.on_device(torch.bfloat16, make_matrix=make_matrix)
    assert executor.name == "dense, fp8, reference attention"
    pool = Pool(executor)
    prompt = random_tokens(100)
    (actual,) = pool.run([(pool.sequence(prompt), 100)])
    assert distance(actual.float(), own.native(prompt)) < most


def test_widths_that_8_bits_do_not_serve_are_named() -> None:
    own = decoder("llama")
    lens = ((208,),) * len(own.recipe.layers)
    assert unfit_reason_on_cuda(own.recipe, lens, num_ranks=1, quantize="fp8") is None
    reason = unfit_reason_on_cuda(own.recipe, ((72,), *lens[1:]), num_ranks=1, quantize="fp8")
    assert reason == "layer 0: a product of 72 numbers is none in fp8"
    hybrid = decoder("qwen3_5").recipe
    assert unfit_reason_on_cuda(hybrid, lens, num_ranks=1, quantize="fp8") is None
    reason = unfit_reason_on_cuda(hybrid, ((416,),) * 6, num_ranks=2, quantize="fp8")
    assert reason == "layer 0: a product of 8 numbers is none in fp8"
    reason = unfit_reason_on_cuda(own.recipe, lens, num_ranks=1, quantize="int8")
    assert reason == "weights are quantized to fp8 on CUDA, not to int8"


def test_experts_are_not_multiplied_in_8_bits() -> None:
    own = decoder("qwen3_moe")
    reason = unfit_reason_on_cuda(own.recipe, inner_lens(own), num_ranks=1, quantize="fp8")
    assert reason == "layer 0: its MLP has experts, which are not multiplied in fp8"


@pytest.mark.parametrize("family", by_night({"qwen3_5", "olmo_hybrid", "lfm3"}, WITH_STATES))
def test_states_go_on_in_chunks_in_replayed_steps_and_from_kept_slots(family: str) -> None:
    own = decoder(family)
    executor = own.on_device(torch.float32, new_capture=lambda: run_again)
    executor.prepare(max_batch_size=4, max_total_len=256, scratch_block_id=NUM_BLOCKS)
    assert executor.state_bytes == own.recipe.state_bytes
    pool = Pool(executor)
    prompt = random_tokens(60)
    expected = own.native(prompt)
    slots = {16: pool.free_states.pop(), 48: pool.free_states.pop()}
    first = pool.sequence(prompt)
    first.kept = tuple(KeptState(position, slot) for position, slot in slots.items())
    mate = pool.other(40, computed_len=7)
    found = [pool.run([(mate, 1), (first, count)])[1] for count in (13, 6, 28, 1, 1, 11)]
    assert distance(torch.cat(found), expected) < 2e-5
    for position, slot in slots.items():
        hit = pool.sequence(prompt)
        hit.block_ids = first.block_ids
        hit.computed_len = position
        hit.from_state = slot
        found = [pool.run([(hit, count)])[0] for count in (1, 59 - position)]
        assert distance(torch.cat(found), expected[position:]) < 2e-5


def test_slots_that_the_pool_does_not_have_are_refused() -> None:
    pool = Pool(decoder("qwen3_5").on_device(torch.float32))
    held = pool.sequence([5, 6])
    held.state_ids = (0, NUM_STATES)
    with pytest.raises(InvalidStep, match="names the state 400; the pool has 400"):
        pool.run([(held, 1)])


@pytest.mark.parametrize("num_seqs", [1, 2, 3, 8, 11])
def test_a_replayed_decode_has_the_bits_of_one_that_is_not(num_seqs: int) -> None:
    own = decoder("gemma3_text")
    eager = own.on_device(torch.bfloat16)
    replayed = own.on_device(torch.bfloat16, new_capture=lambda: run_again)
    replayed.prepare(max_batch_size=12, max_total_len=256, scratch_block_id=NUM_BLOCKS)
    pools = [Pool(eager), Pool(replayed)]

    answers = []
    for pool in pools:
        held = [pool.other(7 + 3 * index, computed_len=5) for index in range(num_seqs)]
        steps = [pool.run([(each, 1) for each in held]) for _ in range(2)]
        answers.append([torch.cat(step).clone() for step in steps])

    assert all(torch.equal(*pair) for pair in zip(*answers, strict=True))


def test_what_fills_a_batch_up_writes_to_the_scratch_block_alone() -> None:
    own = decoder("llama")
    executor = own.on_device(torch.float32, new_capture=lambda: run_again)
    executor.prepare(max_batch_size=8, max_total_len=256, scratch_block_id=NUM_BLOCKS)
    pool = Pool(executor)
    mates = [pool.other(40, computed_len=20) for _ in range(7)]
    pool.run([(each, 1) for each in mates])
    caches = [cache for cache in executor._caches if isinstance(cache, LayerCache)]
    before = [cache.keys[:NUM_BLOCKS].clone() for cache in caches]

    # Of the graph of eight the last three are padding, whose rows held others just now.
    pool.run([(each, 1) for each in mates[:5]])

    for cache, keys in zip(caches, before, strict=True):
        changed = (cache.keys[:NUM_BLOCKS] != keys).flatten(2).any(2).nonzero()
        assert len(changed) == 5


def test_what_fills_a_batch_up_writes_no_state() -> None:
    executor = decoder("qwen3_next").on_device(torch.float32, new_capture=lambda: run_again)
    executor.prepare(max_batch_size=8, max_total_len=256, scratch_block_id=NUM_BLOCKS)
    pool = Pool(executor)
    mates = [pool.other(40, computed_len=20) for _ in range(7)]
    pool.run([(each, 1) for each in mates])
    pools = [part for states in executor._caches if isinstance(states, tuple) for part in states]
    before = [part.clone() for part in pools]
    written = {each.state_ids[1] for each in mates[:5] if each.state_ids is not None}
    pool.run([(each, 1) for each in mates[:5]])
    for part, was in zip(pools, before, strict=True):
        assert set((part != was).flatten(1).any(1).nonzero()[:, 0].tolist()) == written


def test_graphs_serve_decode_steps_of_the_sizes_that_were_captured() -> None:
    executor = decoder("llama").on_device(torch.float32)
    pool = Pool(executor)
    graphs = DecodeGraphs(
        executor.forward_eager,
        run_again,
        device=torch.device("cpu"),
        block_size=16,
        scratch_block_id=NUM_BLOCKS,
        max_batch_size=4,
        max_total_len=64,
    )

    def step(lens: list[int]) -> StepInputs:
        return StepInputs.build(
            [pool.sequence(range(1, 1 + length)).next_step(length) for length in lens],
            block_size=16,
            scratch_block_id=NUM_BLOCKS,
            device=torch.device("cpu"),
        )

    assert graphs.sizes == (1, 2, 4)
    assert graphs.has(step([1, 1, 1]))
    assert not graphs.has(step([1, 2]))
    assert not graphs.has(step([1] * 5))


def test_batch_sizes_end_with_the_largest_batch() -> None:
    assert batch_sizes(1) == (1,)
    assert batch_sizes(20) == (1, 2, 4, 8, 16, 20)
    assert batch_sizes(2000)[-1] == 512


def test_a_rank_has_its_part_of_the_heads() -> None:
    third = Partition(rank=2, num_ranks=4)
    assert third.part(32) == range(16, 24)
    assert third.kv_heads(8) == range(4, 6)
    assert third.kv_heads(2) == range(1, 2)
    assert third.longest(10) == range(6, 9)


def inner_lens(own: Decoder) -> tuple[tuple[int, ...], ...]:
    return tuple(_inner_lens(layer.feed_forward, own) for layer in own.recipe.layers)


def _inner_lens(mlp: Mlp | Moe, own: Decoder) -> tuple[int, ...]:
    if isinstance(mlp, Moe):
        shape = own.parameters[mlp.down].shape
        shared = () if mlp.shared is None else _inner_lens(mlp.shared, own)
        return (shape[1 if mlp.transposed else 2], *shared)
    return (own.parameters[mlp.out.weight].shape[0 if mlp.out.transposed else 1],)


@pytest.mark.parametrize(
    ("family", "num_ranks", "reason"),
    [
        ("llama", 2, None),
        ("llama", 3, "layer 0: 8 heads cannot be divided among 3 ranks"),
        ("qwen2_moe", 2, None),
        ("qwen3_5", 2, None),
        (
            "qwen3_5",
            8,
            "layer 0: 4 key heads of its gated delta rule cannot be divided among 8 ranks",
        ),
        ("lfm2-bias", 6, "layer 0: 256 channels cannot be divided among 6 ranks"),
    ],
)
def test_what_cannot_be_divided_is_named(family: str, num_ranks: int, reason: str | None) -> None:
    own = decoder(family)
    assert unfit_reason_on_cuda(own.recipe, inner_lens(own), num_ranks) == reason


def test_experts_that_cannot_be_divided_are_named() -> None:
    own = decoder("qwen2_moe")
    lens = ((88, 121), *inner_lens(own)[1:])
    reason = unfit_reason_on_cuda(own.recipe, lens, 2)
    assert reason == "layer 0: an MLP of 121 numbers cannot be divided among 2 ranks"


RANK_FAMILIES = (
    "llama-bias-tied",
    "gemma3_text",
    "phi3-partial",
    "gpt_neox",
    "qwen2_moe",
    "gpt_oss",
    "qwen3_5",
    "lfm3",
)


def _logits_of_ranks(device: torch.device, folders: Path, world: World) -> dict[str, Any]:
    """On a GPU by its kernels, on a CPU by plain torch; the ranks talk over gloo.

    Every second sequence is computed with an adapter.
    """
    partition = Partition(world.rank, world.world_size)
    group = dist.group.WORLD
    answers = {}
    for family in RANK_FAMILIES:
        own = decoder(family)
        if device.type == "cuda":
            executor = build_dense_cuda(
                own.recipe,
                torch.float32,
                device,
                partition,
                group,
                own.parameters,
                own.tables,
                max_loras=1,
            )
            executor.allocate(NUM_BLOCKS + 1, NUM_STATES)
        else:
            executor = own.on_device(
                torch.float32, partition=partition, group=group, has_adapters=True
            )
        assert executor.state_bytes == own.recipe.state_bytes // world.world_size
        pool = Pool(executor, device=device)
        answers[family] = _with_an_adapter(pool, folders / family).float().cpu().numpy()
    return answers


def _with_an_adapter(pool: Pool, folder: Path) -> Tensor:
    """Logits of all prompts, every second one with this adapter."""
    places = pool.executor.adapters
    assert places is not None
    places.set(0, places.pack(Adapter.read(folder, places.adaptable, max_rank=16)))
    held = [pool.sequence(prompt) for prompt in random_tokens(sum(LENS)).split(list(LENS))]
    for sequence in held[1::2]:
        sequence.adapter = 0
    return torch.cat(pool.run([(each, len(each.token_ids)) for each in held]))


@pytest.mark.slow
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda:0", marks=pytest.mark.gpu)])
def test_two_ranks_compute_what_one_does(device: str, tmp_path: Path) -> None:
    """Two ranks share the GPU, where there is one."""
    if device != "cpu" and not torch.cuda.is_available():
        pytest.skip("there is no CUDA device")
    for family in RANK_FAMILIES:
        places = decoder(family).on_device(torch.float32, has_adapters=True).adapters
        assert places is not None
        lora_folders.save(tmp_path / family, places.adaptable, rank=5)
    first, _ = on_two_ranks(partial(_logits_of_ranks, torch.device(device), tmp_path))
    assert isinstance(first, dict), first
    for family in RANK_FAMILIES:
        own = decoder(family)
        prompts = random_tokens(sum(LENS)).split(LENS)
        pool = Pool(own.on_device(torch.float32, has_adapters=True))
        expected = list(_with_an_adapter(pool, tmp_path / family).split(LENS))
        for index in range(len(prompts)):
            native = own.native(prompts[index])
            if index % 2:
                assert distance(expected[index], native) > 0.1
            else:
                expected[index] = native
        most = 2e-5 if family in WITH_STATES else 1e-5
        assert distance(torch.from_numpy(first[family]), torch.cat(expected)) < most, family
