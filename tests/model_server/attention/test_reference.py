"""The oracle equals the formula, and so do the backends that torch alone stands behind."""

from collections.abc import Callable

import pytest
import torch

from model_server.attention.base import AttentionBackend, LayerOptions
from model_server.attention.reference import ReferenceAttention
from model_server.attention.sdpa import CpuAttention, GatherSdpaAttention
from tests.model_server.attention.attention_cases import (
    Heads,
    Player,
    contiguous,
    mixed,
    stream,
    whole,
)

BACKENDS = (ReferenceAttention, CpuAttention, GatherSdpaAttention)
HEADS = Heads(num_heads=4, num_kv_heads=2, head_dim=8, value_dim=8)
SINKS = torch.tensor([0.5, -1.0, 2.0, 0.0])
OPTIONS = {
    "plain": LayerOptions(0.35),
    "window": LayerOptions(0.35, window_len=7),
    "window of one": LayerOptions(0.35, window_len=1),
    "chunks": LayerOptions(0.35, chunk_len=8),
    "softcap": LayerOptions(0.35, softcap=2.0),
    "sinks": LayerOptions(0.35, sinks=SINKS),
    "all": LayerOptions(0.35, window_len=9, softcap=2.0, sinks=SINKS, chunk_len=16),
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
@pytest.mark.parametrize("backend", BACKENDS)
def test_paged_equals_contiguous(
    backend: Callable[[int], AttentionBackend], options: LayerOptions
) -> None:
    streams = [stream(HEADS, length, torch.float32, length) for length in (1, 33, 4, 18)]
    outputs = Player(backend(4), HEADS, options, torch.float32).play(streams, whole(streams))
    for output, s in zip(outputs, streams, strict=True):
        torch.testing.assert_close(output.double(), contiguous(s, options), atol=4e-6, rtol=0)


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
@pytest.mark.parametrize("backend", BACKENDS)
def test_chunks_among_decodes_equal_the_whole_prompt(
    backend: Callable[[int], AttentionBackend], options: LayerOptions
) -> None:
    streams = [stream(HEADS, length, torch.float32, length) for length in (5, 40, 12, 27)]
    player = Player(backend(4), HEADS, options, torch.float32)
    at_once = player.play(streams, whole(streams))
    in_parts = player.play(streams, mixed(streams, seed=3))
    for part, one in zip(in_parts, at_once, strict=True):
        torch.testing.assert_close(part, one, atol=4e-6, rtol=0)


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_a_freed_block_holds_is_never_seen(
    backend: Callable[[int], AttentionBackend],
) -> None:
    broken = stream(HEADS, 60, torch.float32, 0)
    broken.key.fill_(float("nan"))
    broken.value.fill_(float("nan"))
    streams = [stream(HEADS, length, torch.float32, length) for length in (3, 21, 30)]
    player = Player(backend(4), HEADS, LayerOptions(0.35), torch.float32, num_blocks=15)
    player.play([broken], whole([broken]))
    for output, s in zip(player.play(streams, mixed(streams, 5)), streams, strict=True):
        expected = contiguous(s, LayerOptions(0.35))
        torch.testing.assert_close(output.double(), expected, atol=4e-6, rtol=0)


def test_options_refuse_a_bound_that_is_not_positive() -> None:
    with pytest.raises(ValueError, match="window_len must be positive, got 0"):
        LayerOptions(1.0, window_len=0)
    with pytest.raises(ValueError, match="chunk_len must be positive, got -3"):
        LayerOptions(1.0, chunk_len=-3)
    with pytest.raises(ValueError, match=r"softcap must be positive, got 0\.0"):
        LayerOptions(1.0, softcap=0.0)
