"""The gathering backends equal the oracle over random shapes, dtypes, options and schedules."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from model_server.attention.base import AttentionBackend, LayerOptions
from model_server.attention.reference import ReferenceAttention
from model_server.attention.sdpa import CpuAttention, GatherSdpaAttention
from tests.model_server.attention.attention_cases import (
    Heads,
    Player,
    mixed,
    stream,
    tolerance,
    whole,
)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("backend", [CpuAttention, GatherSdpaAttention])
@settings(max_examples=15)
@given(
    num_kv_heads=st.integers(1, 3),
    group=st.integers(1, 4),
    head_dim=st.sampled_from((4, 16)),
    value_dim=st.sampled_from((4, 8, 24)),
    block_size=st.sampled_from((1, 3, 16)),
    lengths=st.lists(st.integers(1, 40), min_size=1, max_size=5),
    window_len=st.none() | st.integers(1, 40),
    chunk_len=st.none() | st.integers(1, 40),
    softcap=st.none() | st.floats(0.5, 30),
    has_sinks=st.booleans(),
    seed=st.integers(0, 2**16),
)
def test_equals_the_reference(
    backend: Callable[[int], AttentionBackend],
    dtype: torch.dtype,
    num_kv_heads: int,
    group: int,
    head_dim: int,
    value_dim: int,
    block_size: int,
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
    steps = mixed(streams, seed)
    expected = Player(ReferenceAttention(block_size), heads, options, dtype, 256, seed)
    player = Player(backend(block_size), heads, options, dtype, 256, seed)
    pairs = zip(player.play(streams, steps), expected.play(streams, steps), strict=True)
    for output, reference in pairs:
        assert output.dtype == dtype
        torch.testing.assert_close(output, reference, atol=tolerance(dtype), rtol=0)


@pytest.mark.parametrize("softcap", [None, 5.0])
def test_a_long_prompt_is_cut_into_tiles(softcap: float | None) -> None:
    heads = Heads(4, 2, 16, 16)
    options = LayerOptions(0.25, window_len=70, softcap=softcap)
    streams = [stream(heads, 150, torch.float32, 1), stream(heads, 90, torch.float32, 2)]
    outputs = [
        Player(backend, heads, options, torch.float32).play(streams, whole(streams))
        for backend in (CpuAttention(max_tile_scores=1000), ReferenceAttention())
    ]
    for in_tiles, at_once in zip(*outputs, strict=True):
        torch.testing.assert_close(in_tiles, at_once, atol=4e-6, rtol=0)


@pytest.mark.parametrize("window_len", [None, 25])
@pytest.mark.parametrize("softcap", [None, 5.0])
@pytest.mark.parametrize(
    "backend", [CpuAttention(max_tile_scores=1000), CpuAttention(), GatherSdpaAttention()]
)
def test_tokens_of_an_image_see_later_ones_of_it(
    backend: GatherSdpaAttention, softcap: float | None, window_len: int | None
) -> None:
    heads = Heads(4, 2, 16, 16)
    options = LayerOptions(0.25, window_len=window_len, softcap=softcap)
    streams = [stream(heads, 60, torch.float32, 1), stream(heads, 30, torch.float32, 2)]
    steps = [[(1, 12)], [(1, 1), (0, 45)], [(0, 15), (1, 17)]]
    seen, expected, causal = (
        Player(each, heads, options, torch.float32, image=image).play(streams, steps)
        for each, image in (
            (backend, range(20, 45)),
            (ReferenceAttention(), range(20, 45)),
            (ReferenceAttention(), None),
        )
    )
    for output, reference in zip(seen, expected, strict=True):
        torch.testing.assert_close(output, reference, atol=4e-6, rtol=0)
    assert not torch.allclose(seen[0], causal[0], atol=1e-2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_sequence_does_not_depend_on_its_batch_mates(dtype: torch.dtype) -> None:
    heads = Heads(4, 2, 64, 64)
    streams = [stream(heads, length, dtype, length) for length in (60, 45, 70)]
    player = Player(CpuAttention(), heads, LayerOptions(0.125), dtype)
    alone = player.play(streams[:1], [[(0, 40)], *[[(0, 1)]] * 20])
    among = player.play(
        streams,
        [[(2, 40), (0, 40)], [(1, 30), (0, 1)], *[[(1, 1), (0, 1), (2, 1)]] * 15]
        + [[(0, 1), (2, 3)]] * 4,
    )
    assert torch.equal(alone[0], among[0])
