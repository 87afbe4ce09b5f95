"""The C++ operator equals the oracle, and a row's bits are its own."""

from collections.abc import Callable, Iterator
from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from model_server.attention.base import LayerGeometry, LayerOptions
from model_server.attention.cpu_op import CpuOp, CpuOpAttention
from model_server.attention.reference import ReferenceAttention
from model_server.step import SequenceStep, StepInputs
from tests.model_server.attention.attention_cases import (
    CPU,
    Heads,
    Player,
    Schedule,
    Stream,
    contiguous,
    mixed,
    stream,
    tolerance,
    whole,
)
from tests.native.compiler import needs_compiler

pytestmark = needs_compiler

HEADS = Heads(num_heads=6, num_kv_heads=2, head_dim=64, value_dim=64)
DTYPES = [torch.float32, torch.bfloat16]


@cache  # the steps of one test after another, as in a shard
def backend() -> CpuOpAttention:
    return CpuOpAttention(CpuOp.load())


@pytest.fixture(autouse=True)
def threads() -> Iterator[Callable[[int], None]]:
    """Sets torch's thread count for one test: one, or what it says. On a busy machine threads that
    wait for each other take many times longer than one that waits for nobody."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.mark.parametrize("dtype", DTYPES)
@settings(max_examples=25)
@given(
    num_kv_heads=st.integers(1, 3),
    group=st.sampled_from((1, 2, 3, 5, 8, 11, 17)),
    head_dim=st.sampled_from((2, 16, 48, 64, 72)),
    value_dim=st.sampled_from((16, 48, 64, 112)),
    lengths=st.lists(st.sampled_from((1, 2, 15, 16, 17, 40, 300)), min_size=1, max_size=4),
    window_len=st.none() | st.integers(1, 300),
    chunk_len=st.none() | st.integers(1, 300),
    softcap=st.none() | st.floats(0.5, 30),
    has_sinks=st.booleans(),
    seed=st.integers(0, 2**16),
)
def test_equals_the_reference(
    dtype: torch.dtype,
    num_kv_heads: int,
    group: int,
    head_dim: int,
    value_dim: int,
    lengths: list[int],
    window_len: int | None,
    chunk_len: int | None,
    softcap: float | None,
    has_sinks: bool,
    seed: int,
) -> None:
    heads = Heads(num_kv_heads * group, num_kv_heads, head_dim, value_dim)
    sinks = torch.linspace(-2, 2, heads.num_heads, dtype=dtype) if has_sinks else None
    options = LayerOptions(head_dim**-0.5, window_len, softcap, sinks, chunk_len)
    streams = [stream(heads, length, dtype, seed + i) for i, length in enumerate(lengths)]
    expected = Player(ReferenceAttention(16), heads, options, dtype, 128)
    player = Player(backend(), heads, options, dtype, 128, seed)
    outputs = player.play(streams, mixed(streams, seed, max_chunk_len=90))
    for output, reference in zip(outputs, expected.play(streams, whole(streams)), strict=True):
        assert output.dtype == dtype
        torch.testing.assert_close(output, reference, atol=tolerance(dtype), rtol=0)


@pytest.mark.parametrize("dtype", DTYPES)
def test_paged_equals_contiguous(dtype: torch.dtype) -> None:
    options = LayerOptions(0.125, window_len=130, softcap=10.0, sinks=torch.linspace(-1, 2, 6))
    s = stream(HEADS, 300, dtype, 1)
    output = Player(backend(), HEADS, options, dtype).play([s], whole([s]))[0]
    torch.testing.assert_close(
        output.double(), contiguous(s, options), atol=tolerance(dtype), rtol=0
    )


OPTIONS = {
    "plain": LayerOptions(0.125),
    "window": LayerOptions(0.125, window_len=100),
    "chunks": LayerOptions(0.125, chunk_len=40),
    "softcap and sinks": LayerOptions(0.125, softcap=5.0, sinks=torch.linspace(-1, 2, 6)),
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
@pytest.mark.parametrize("dtype", DTYPES)
def test_bits_do_not_depend_on_batch_mates_chunks_blocks_or_threads(
    dtype: torch.dtype, options: LayerOptions, threads: Callable[[int], None]
) -> None:
    streams = [stream(HEADS, length, dtype, length) for length in (700, 33, 290, 1, 64)]

    def play(num_threads: int, chosen: list[Stream], steps: Schedule) -> list[Tensor]:
        threads(num_threads)
        player = Player(backend(), HEADS, options, dtype, 128, seed=num_threads)
        return player.play(chosen, steps)

    at_once = play(1, streams, whole(streams))
    for num_threads in (1, 2, 5):
        in_parts = play(num_threads, streams, mixed(streams, num_threads, max_chunk_len=150))
        assert all(torch.equal(*pair) for pair in zip(in_parts, at_once, strict=True))
    alone = play(2, streams[:1], [[(0, 690)], *[[(0, 1)]] * 10])
    assert torch.equal(alone[0], at_once[0])


@pytest.mark.parametrize("group", range(1, 14))
@pytest.mark.parametrize("dtype", DTYPES)
def test_bits_do_not_depend_on_how_many_rows_share_a_tile(dtype: torch.dtype, group: int) -> None:
    heads = Heads(group, 1, 32, 48)
    s = stream(heads, 40, dtype, group)
    player = Player(backend(), heads, LayerOptions(0.2), dtype)
    at_once = player.play([s], whole([s]))[0]
    for chunk_len in range(1, 8):
        steps = [[(0, min(chunk_len, 40 - start))] for start in range(0, 40, chunk_len)]
        assert torch.equal(player.play([s], steps)[0], at_once)


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_a_freed_block_holds_is_never_seen(dtype: torch.dtype) -> None:
    broken = stream(HEADS, 160, dtype, 0)
    for rows in (broken.key, broken.value):
        rows.fill_(float("nan"))
    streams = [stream(HEADS, length, dtype, length) for length in (3, 70, 51)]
    options = LayerOptions(0.125)
    clean = Player(backend(), HEADS, options, dtype, num_blocks=10)
    expected = clean.play(streams, mixed(streams, 5))
    player = Player(backend(), HEADS, options, dtype, num_blocks=10)
    player.play([broken], whole([broken]))
    for output, reference in zip(player.play(streams, mixed(streams, 5)), expected, strict=True):
        assert torch.equal(output, reference)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_key_outside_the_window_weighs_nothing_however_large_its_value(
    dtype: torch.dtype,
) -> None:
    options = LayerOptions(0.125, window_len=20)
    s, huge = (stream(HEADS, 100, dtype, 1) for _ in range(2))
    huge.value[:70] = 3e38
    player = Player(backend(), HEADS, options, dtype)
    expected = player.play([s], whole([s]))[0]
    assert torch.equal(player.play([huge], whole([huge]))[0][89:], expected[89:])


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_broken_sequence_fails_alone(dtype: torch.dtype) -> None:
    broken = stream(HEADS, 40, dtype, 0)
    sound = stream(HEADS, 40, dtype, 1)
    broken.query[20:].fill_(float("nan"))
    player = Player(backend(), HEADS, LayerOptions(0.125), dtype)
    outputs = player.play([broken, sound], whole([broken, sound]))
    assert outputs[0][20:].isnan().all()
    assert outputs[0][:20].isfinite().all()
    assert torch.equal(outputs[1], player.play([sound], whole([sound]))[0])


def test_scores_far_apart_neither_overflow_nor_vanish() -> None:
    s = stream(HEADS, 300, torch.float32, 1)
    s.query.mul_(40)
    options = LayerOptions(1.0)
    output = Player(backend(), HEADS, options, torch.float32).play([s], whole([s]))[0]
    expected = Player(ReferenceAttention(), HEADS, options, torch.float32).play([s], whole([s]))[0]
    torch.testing.assert_close(output, expected, atol=1e-4, rtol=0)


def step(num_blocks: int = 4) -> StepInputs:
    return StepInputs.build(
        [SequenceStep([1] * 4, 0, [2])], block_size=16, scratch_block_id=num_blocks, device=CPU
    )


@pytest.mark.parametrize(
    ("shapes", "dtype", "reason"),
    [
        ([(5, 6, 64), (4, 2, 64), (4, 2, 64)], torch.float32, "do not fit 4 tokens"),
        ([(4, 5, 64), (4, 2, 64), (4, 2, 64)], torch.float32, "do not fit 4 tokens"),
        ([(4, 6, 32), (4, 2, 64), (4, 2, 64)], torch.float32, "do not fit 4 tokens"),
        ([(4, 6, 64), (4, 1, 64), (4, 2, 64)], torch.float32, "do not fit 4 tokens"),
        ([(4, 6, 64), (4, 2, 64), (4, 2, 48)], torch.float32, "do not fit 4 tokens"),
        ([(4, 6, 64), (4, 2, 64), (4, 2, 64)], torch.bfloat16, "met a cache of torch.float32"),
    ],
)
def test_rows_that_do_not_fit_the_cache_are_refused(
    shapes: list[tuple[int, int, int]], dtype: torch.dtype, reason: str
) -> None:
    cache = backend().allocate(5, HEADS.geometry, torch.float32, CPU)
    query, key, value = (torch.zeros(shape, dtype=dtype) for shape in shapes)
    with pytest.raises(ValueError, match=reason):
        backend().attend(cache, query, key, value, step(), LayerOptions(1.0))


def test_a_step_of_another_pool_is_refused() -> None:
    cache = backend().allocate(2, HEADS.geometry, torch.float32, CPU)
    query = torch.zeros(4, 6, 64)
    key = torch.zeros(4, 2, 64)
    with pytest.raises(ValueError, match="names block 2, the cache has 2 blocks"):
        backend().attend(cache, query, key, key, step(), LayerOptions(1.0))


@pytest.mark.parametrize(
    ("geometry", "dtype", "reason"),
    [
        (LayerGeometry(1, 64, 64), torch.float16, "not torch.float16"),
        (LayerGeometry(1, 63, 64), torch.bfloat16, "head_dim 63 must be even"),
        (LayerGeometry(1, 64, 40), torch.float32, "value_dim 40 must be a multiple of 16"),
    ],
)
def test_a_layer_that_is_unfit_is_refused_with_the_reason(
    geometry: LayerGeometry, dtype: torch.dtype, reason: str
) -> None:
    with pytest.raises(ValueError, match=reason):
        backend().allocate(4, geometry, dtype, CPU)
