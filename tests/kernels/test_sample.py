# mypy: disable-error-code="no-untyped-def"
"""Tokens chosen by kernels are those that torch chooses, to the last bit."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from model_server.sampling.choosing import choose_by_torch
from model_server.sampling.filters import Filters, exp_weights, mass_bits, whole_masses
from model_server.sampling.plan import Group, Kind
from model_server.sampling.triton import TritonChooser, masses_of
from model_server.triton_launch import launch
from proto.contract import SamplingParams
from tests.model_server.sampling.cases import DRAWN, GREEDY, VARIETY, random_logits
from tests.model_server.sampling.choosers import REQUESTS, assert_chooses_as_torch, sampled

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")

# Both round a float64 to float32, after logarithms of different libraries.
TOLERANCE = 1e-6

FILTERED = [
    replace(DRAWN, top_k=3),
    replace(DRAWN, top_p=0.5),
    replace(DRAWN, min_p=0.4),
    replace(DRAWN, top_k=3, top_p=0.7),
    replace(DRAWN, top_k=5, min_p=0.4),
    replace(DRAWN, top_p=0.75, min_p=0.4),
    replace(DRAWN, top_k=7, top_p=0.8, min_p=0.1),
]


@pytest.fixture(scope="module")
def kernels() -> TritonChooser:
    return TritonChooser(DEVICE, max_rows=2)


def assert_chosen_as_by_torch(
    kernels: TritonChooser,
    requests: list[SamplingParams],
    logits: Tensor,
    tolerance: float = 1e-4,
) -> None:
    assert_chooses_as_torch(kernels, requests, logits, tolerance=tolerance, device=DEVICE)


def in_each_seed(sampling: SamplingParams, num_rows: int) -> list[SamplingParams]:
    return [replace(sampling, seed=seed) for seed in range(num_rows)]


@given(
    requests=st.lists(REQUESTS, min_size=1, max_size=5),
    vocab_size=st.sampled_from([5, 64, 1000, 5000]),
    scale=st.sampled_from([0.0, 0.01, 1.0, 6.0, 40.0]),
    num_values=st.sampled_from([2, 30, None]),
    seed=st.integers(0, 1000),
)
@settings(max_examples=8)
def test_any_requests_draw_what_torch_draws(
    kernels: TritonChooser,
    requests: list[SamplingParams],
    vocab_size: int,
    scale: float,
    num_values: int | None,
    seed: int,
) -> None:
    logits = random_logits(len(requests), vocab_size, seed=seed, scale=scale)
    if num_values is not None:  # many equal scores
        logits = (logits * num_values).round() / num_values
    assert_chosen_as_by_torch(kernels, requests, logits)


def test_a_vocabulary_of_many_chunks_is_searched_among_candidates(
    kernels: TritonChooser,
) -> None:
    requests = [GREEDY, DRAWN, replace(DRAWN, top_k=40, top_p=0.9), replace(DRAWN, min_p=0.02)]
    logits = random_logits(len(requests), 128_256, scale=4.0)
    assert_chosen_as_by_torch(kernels, requests, logits)


@pytest.mark.parametrize(
    "sampling",
    [
        replace(DRAWN, top_p=0.9),
        replace(DRAWN, top_k=4500),
        replace(DRAWN, top_k=6000, top_p=0.97),
        replace(DRAWN, min_p=0.5),
        replace(DRAWN, top_k=10, top_p=0.5),
    ],
)
def test_a_flat_row_is_searched_whole(kernels: TritonChooser, sampling: SamplingParams) -> None:
    logits = random_logits(1, 7000, scale=0.01)
    assert_chosen_as_by_torch(kernels, [sampling], logits, TOLERANCE)


@pytest.mark.parametrize(
    "sampling",
    [replace(DRAWN, top_p=0.9), replace(DRAWN, min_p=0.3), replace(DRAWN, top_p=0.9, min_p=0.3)],
)
def test_a_row_whose_candidates_have_too_little_is_searched_whole(
    kernels: TritonChooser, sampling: SamplingParams
) -> None:
    """1100 tokens alone fill the candidates, and have less than half of the mass."""
    logits = torch.full((2, 5000), -1.0)
    logits[:, 100:3400:3] = 0.0
    assert_chosen_as_by_torch(kernels, in_each_seed(sampling, 2), logits, TOLERANCE)


@pytest.mark.parametrize(("top_k", "depth"), [(40, 3.0), (200, 17.0), (2, 60.0)])
def test_the_last_of_the_tokens_that_are_left_is_drawn_by_the_largest_number(
    kernels: TritonChooser, top_k: int, depth: float
) -> None:
    """However little mass it has beside the first."""
    scores = torch.full((4, 5056), -torch.inf)
    scores[:, 1000:1100] = -depth - torch.arange(100) / 1024
    scores[:, 7] = 0.0
    uniforms = 1.0 - torch.tensor([2.0**-53, 1e-13, 1e-10, 1e-8], dtype=torch.float64)
    group = Group(
        kind=Kind.PREFIX,
        places=np.arange(4),
        rows=None,
        temperature=torch.ones(4, 1),
        filters=Filters(top_k=torch.full((4,), top_k)),
        num_candidates=5056,
        top=None,
    )
    expected = choose_by_torch(group, scores, uniforms).tokens
    moved = replace(
        group,
        temperature=group.temperature.to(DEVICE),
        filters=Filters(top_k=torch.full((4,), top_k, device=DEVICE)),
    )
    found = kernels(moved, scores.to(DEVICE), uniforms.to(DEVICE)).tokens
    assert found.tolist() == expected.tolist()


@pytest.mark.parametrize("sampling", FILTERED)
def test_of_equal_scores_at_a_cut_the_same_stay(
    kernels: TritonChooser, sampling: SamplingParams
) -> None:
    """Each of the tokens that are left is drawn by some of the rows."""
    logits = torch.full((8, 200), -5.0)
    logits[:, 10::40] = 1.0
    logits[:, 3::50] = 0.5
    logits[:, 7::60] = -0.0
    logits[:, 8::60] = 0.0
    assert_chosen_as_by_torch(kernels, in_each_seed(sampling, 8), logits, TOLERANCE)


@pytest.mark.parametrize("sampling", [replace(DRAWN, top_p=0.4), replace(DRAWN, top_k=9)])
def test_equal_scores_of_several_tiles_are_ranked_by_place(
    kernels: TritonChooser, sampling: SamplingParams
) -> None:
    logits = torch.zeros(2, 9000)
    assert_chosen_as_by_torch(kernels, in_each_seed(sampling, 2), logits, TOLERANCE)


def test_a_cut_at_zero_takes_both_zeros_for_equal(kernels: TritonChooser) -> None:
    logits = torch.full((16, 64), -20.0)
    logits[:, :3] = 0.0
    logits[:, 3:6] = -0.0
    requests = in_each_seed(replace(DRAWN, top_k=4, top_p=0.7), 16)
    assert_chosen_as_by_torch(kernels, requests, logits, TOLERANCE)
    assert set(sampled(requests, logits, kernels, DEVICE).token_ids) == {1, 2, 3, 4, 5}


# The interpreter's numpy warns of the differences that make such a row NaN.
@pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")
@pytest.mark.parametrize(
    "sampling", [GREEDY, DRAWN, replace(DRAWN, top_p=0.9), replace(DRAWN, top_k=3, min_p=0.1)]
)
def test_rows_without_a_distribution_fail_as_with_torch(
    kernels: TritonChooser, sampling: SamplingParams
) -> None:
    logits = random_logits(6, 300)
    logits[0, 7] = torch.nan
    logits[1, 7] = torch.inf
    logits[2] = -torch.inf
    logits[3] = torch.nan
    logits[4, 1:] = -torch.inf  # one token is left
    assert_chosen_as_by_torch(kernels, [sampling] * 6, logits)


@pytest.mark.parametrize("sampling", FILTERED)
def test_filters_that_keep_more_than_the_mask_leaves_keep_it_all(
    kernels: TritonChooser, sampling: SamplingParams
) -> None:
    logits = torch.full((2, 5000), -torch.inf)
    logits[:, 4999] = 0.0
    logits[:, 17] = -0.1
    assert_chosen_as_by_torch(kernels, in_each_seed(sampling, 2), logits, TOLERANCE)


def test_groups_of_a_step_take_their_own_rows_and_draws(kernels: TritonChooser) -> None:
    assert_chosen_as_by_torch(kernels, VARIETY, random_logits(len(VARIETY), 500))


@pytest.mark.parametrize(
    ("sampling", "num_launches"), [(GREEDY, 2), (DRAWN, 3), (replace(DRAWN, top_p=0.9), 4)]
)
def test_a_group_takes_few_launches(sampling: SamplingParams, num_launches: int) -> None:
    launched = []

    def noted(kernel: Any, grid: tuple[int, ...], *arguments: Any, **constants: Any) -> None:
        launched.append(kernel)
        launch(kernel, grid, *arguments, **constants)

    sampled(
        in_each_seed(sampling, 3), random_logits(3, 300), TritonChooser(DEVICE, 3, noted), DEVICE
    )
    assert len(launched) == num_launches


@triton.jit
def _masses(scores, masses, unit, WIDTH: tl.constexpr):
    places = tl.arange(0, WIDTH)
    tl.store(masses + places, masses_of(tl.load(scores + places), 0.0, unit))


def test_masses_have_the_bits_of_those_of_torch() -> None:
    width = 8192
    depths = torch.cat([torch.linspace(0, 90, width // 2), torch.logspace(-8, 2, width // 2)])
    depths[-1] = math.inf
    bits = mass_bits(width)
    masses = torch.empty(width, device=DEVICE)
    scores = -depths.to(DEVICE)
    launch(_masses, (1,), scores, masses, 2.0**bits, WIDTH=width, enable_fp_fusion=False)
    expected = whole_masses(exp_weights(-depths), bits)
    assert torch.equal(masses.cpu().view(torch.int32), expected.view(torch.int32))
