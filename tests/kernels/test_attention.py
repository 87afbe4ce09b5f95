"""The kernels attend as the reference does; a row's bits depend on its own sequence alone."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from model_server.attention.base import LayerOptions
from model_server.attention.triton import TritonAttention
from model_server.step import StepInputs
from tests.kernels.ahead_of_time import SHARED_LIMITS, TARGETS, compiled
from tests.kernels.paged_steps import BLOCK_SIZE, DEVICE, Heads, PagedStep, paged_step

PLAIN = LayerOptions(scale=0.125)
SINKS = torch.linspace(-1, 3, 8, device=DEVICE)
KINDS = {
    "plain": PLAIN,
    "window": replace(PLAIN, window_len=37),
    "chunks": replace(PLAIN, chunk_len=48),
    "softcap": replace(PLAIN, softcap=5.0),
    "sinks": replace(PLAIN, sinks=SINKS),
    "all": LayerOptions(0.2, window_len=90, softcap=20.0, sinks=SINKS, chunk_len=200),
}
DECODES = ((1, 0), (1, 40), (1, 255), (1, 256), (1, 600))
PROMPTS = ((7, 0), (2, 130), (40, 63))
MIXED = ((1, 300), *PROMPTS, (1, 17))
# Products of bfloat16 are rounded once more, on their way to the values.
TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 2e-2, torch.float16: 4e-3}


def attended(step: PagedStep, options: LayerOptions) -> Tensor:
    return TritonAttention(BLOCK_SIZE).read(step.cache, step.query, step.inputs, options)


def assert_near(actual: Tensor, expected: Tensor) -> None:
    tolerance = TOLERANCE[actual.dtype]
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("lens", [DECODES, MIXED], ids=["decodes", "mixed"])
def test_every_kind_of_layer_attends_as_the_reference(
    lens: Sequence[tuple[int, int]], kind: str
) -> None:
    step = paged_step(lens, Heads(), KINDS[kind])
    assert_near(attended(step, KINDS[kind]), step.expected(KINDS[kind]))


@pytest.mark.parametrize("kind", ["plain", "window"])
def test_tokens_of_an_image_attend_to_later_ones_of_it(kind: str) -> None:
    causal = paged_step(MIXED, Heads(), KINDS[kind])
    ends = [cached + token + 1 for query, cached in MIXED for token in range(query)]
    ends[-36:-3] = [63 + 38] * 33
    inputs = replace(causal.inputs, key_ends=torch.tensor(ends, device=DEVICE).int())
    step = replace(causal, inputs=inputs)
    expected = step.expected(KINDS[kind])
    assert_near(attended(step, KINDS[kind]), expected)
    assert not torch.allclose(expected, causal.expected(KINDS[kind]), atol=1e-2)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    "heads",
    [
        Heads(4, 4, 64),
        Heads(14, 2, 80),
        Heads(8, 1, 96),
        Heads(4, 2, 128),
        Heads(2, 1, 192, 128),
        Heads(4, 2, 256),
    ],
    ids=str,
)
def test_every_size_of_heads_attends_as_the_reference(heads: Heads, dtype: torch.dtype) -> None:
    step = paged_step(((1, 70), (9, 20)), heads, PLAIN, dtype=dtype)
    assert_near(attended(step, PLAIN), step.expected(PLAIN))


@pytest.mark.parametrize("kind", [pytest.param("plain", marks=pytest.mark.nightly), "all"])
def test_a_decode_has_the_same_bits_alone_and_in_a_mixed_batch(kind: str) -> None:
    options = KINDS[kind]
    alone = attended(paged_step(((1, 600),), Heads(), options), options)
    batch = paged_step(((1, 600), (5, 0), *((1, 3),) * 16), Heads(), options, num_more_blocks=50)
    assert torch.equal(attended(batch, options)[:1], alone)


# In the interpreter numpy multiplies, and adds up a row by its place in the tile.
CUTS = (64, 128) if DEVICE.type == "cpu" else (64, 57, 149)


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("kind", [pytest.param("plain", marks=pytest.mark.nightly), "all"])
def test_a_prompt_has_the_same_bits_in_one_chunk_and_in_two(kind: str, cut: int) -> None:
    options = KINDS[kind]
    whole = paged_step(((151, 0),), Heads(), options)
    expected = attended(whole, options)
    second = paged_step(((151 - cut, cut),), Heads(), options)
    rest = replace(whole, query=whole.query[cut:], inputs=_same_blocks(second, whole))
    assert torch.equal(attended(rest, options), expected[cut:])


def _same_blocks(second: PagedStep, whole: PagedStep) -> StepInputs:
    return replace(second.inputs, block_tables=whole.inputs.block_tables)


def test_a_sequence_without_a_key_gives_zeros() -> None:
    step = paged_step(((1, 20), (1, 0)), Heads(), PLAIN)
    step.inputs.device_context_lens[1] = 0
    assert torch.equal(attended(step, PLAIN)[1], torch.zeros(8, 64, device=DEVICE))


@settings(max_examples=15)
@given(
    lens=st.lists(
        st.tuples(st.sampled_from([1, 1, 2, 17]), st.integers(0, 300)), min_size=1, max_size=4
    ),
    window_len=st.none() | st.integers(1, 80),
    chunk_len=st.none() | st.integers(1, 80),
    seed=st.integers(0, 1000),
)
def test_any_step_attends_as_the_reference(
    lens: list[tuple[int, int]], window_len: int | None, chunk_len: int | None, seed: int
) -> None:
    options = LayerOptions(0.125, window_len=window_len, chunk_len=chunk_len)
    step = paged_step(lens, Heads(4, 2, 64), options, seed=seed)
    assert_near(attended(step, options), step.expected(options))


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.parametrize("architecture", TARGETS)
def test_kernels_do_not_spill_registers_and_their_tiles_fit_and_are_loaded_16_bytes_at_a_time(
    architecture: int,
) -> None:
    found = compiled("attention", architecture)
    assert {(each.kernel, each.label): each.local_bytes for each in found if each.local_bytes} == {}
    assert all(each.shared_bytes < SHARED_LIMITS[architecture] for each in found)
    tiled = [each for each in found if each.kernel != "merge_splits"]
    assert len(tiled) == 2 * (6 if architecture == 90 else 2)
    assert all(each.num_matrix_ops > 0 for each in tiled)
    assert all(each.num_wide_loads > 0 for each in tiled)
    if architecture == 90:
        assert all(each.num_wgmma > 0 for each in tiled if each.kernel == "prefill")
