"""Sampling by kernels: edits and tokens are those of torch, to the last bit, and nothing waits."""

import math
from collections.abc import Callable, Sequence
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

from model_server.errors import InvalidStep
from model_server.sampling.choosing import choose_by_torch
from model_server.sampling.edits import DeviceMasks, Edits, Masks, TorchEdits
from model_server.sampling.filters import Filters, exp_weights, mass_bits, whole_masses
from model_server.sampling.plan import Bias, Group, Kind, Penalties
from model_server.sampling.sampler import SampledRows, Sampler, rehearse
from model_server.sampling.triton import TritonChooser, TritonEdits, masses_of
from model_server.staging import Array, Arrival, PinnedStaging
from model_server.triton_launch import launch
from proto.contract import LogprobParams, SamplingParams, StopParams
from tests.kernels.ahead_of_time import TARGETS, compiled
from tests.model_server.sampling.cases import (
    CPU,
    DRAWN,
    GREEDY,
    REQUESTS,
    VARIETY,
    assert_chooses_as_torch,
    random_logits,
    sampled,
)
from tests.no_sync import no_sync

# mypy: disable-error-code="no-untyped-def"


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


def rest_at_night(params: Sequence[SamplingParams]) -> list[Any]:
    """The last, which filters the most, by day: a property test draws any of them besides."""
    return [*(pytest.param(each, marks=pytest.mark.nightly) for each in params[:-1]), params[-1]]


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
@settings(max_examples=4)
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
    rest_at_night(
        [
            replace(DRAWN, top_p=0.9),
            replace(DRAWN, top_k=4500),
            replace(DRAWN, min_p=0.5),
            replace(DRAWN, top_k=10, top_p=0.5),
            replace(DRAWN, top_k=6000, top_p=0.97),
        ]
    ),
)
def test_a_flat_row_is_searched_whole(kernels: TritonChooser, sampling: SamplingParams) -> None:
    logits = random_logits(1, 7000, scale=0.01)
    assert_chosen_as_by_torch(kernels, [sampling], logits, TOLERANCE)


@pytest.mark.parametrize(
    "sampling",
    rest_at_night(
        [replace(DRAWN, top_p=0.9), replace(DRAWN, min_p=0.3), replace(DRAWN, top_p=0.9, min_p=0.3)]
    ),
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


@pytest.mark.parametrize("sampling", rest_at_night(FILTERED))
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


@pytest.mark.parametrize(
    "sampling", rest_at_night([replace(DRAWN, top_k=9), replace(DRAWN, top_p=0.4)])
)
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


@pytest.mark.parametrize("sampling", rest_at_night(FILTERED))
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


VOCAB_SIZE = 5000
WIDTH = 5056


def scores_of(num_rows: int) -> Tensor:
    scores = torch.full((num_rows, WIDTH), -torch.inf)
    scores[:, :VOCAB_SIZE] = random_logits(num_rows, VOCAB_SIZE)
    scores[:, 100:200] = torch.tensor([0.0, -0.0, -torch.inf, 1e30]).repeat(25)
    return scores


def assert_edits_agree(edit: Callable[[Edits, Tensor], None], num_rows: int = 4) -> None:
    expected = scores_of(num_rows)
    found = scores_of(num_rows).to(DEVICE)
    edit(TorchEdits(VOCAB_SIZE, CPU), expected)
    edit(TritonEdits(VOCAB_SIZE, DEVICE, max_rows=2), found)
    # Equal as numbers: of a zero that is allowed, torch's masks lose the sign.
    assert torch.equal(found.cpu(), expected)
    assert not torch.equal(expected, scores_of(num_rows))


@pytest.mark.parametrize("places", [(0, 1, 2, 3), (1, 3)])
def test_masks_leave_what_their_bits_allow(places: tuple[int, ...]) -> None:
    generator = torch.Generator().manual_seed(0)
    words = torch.randint(-(2**31), 2**31, (len(places), 157), generator=generator).int()

    def mask(edits: Edits, scores: Tensor) -> None:
        staging = PinnedStaging(scores.device)
        edits.mask(scores, DeviceMasks.of(np.array(places), words, 4, staging))

    assert_edits_agree(mask)


# The interpreter's numpy warns of the sum that makes the score NaN.
@pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")
def test_a_mask_leaves_infinity_and_nan_to_be_seen() -> None:
    scores = torch.zeros(1, 64, device=DEVICE)
    scores[0, :2] = torch.tensor([torch.nan, torch.inf])
    words = torch.tensor([[0b100, 0]], dtype=torch.int32, device=DEVICE)
    TritonEdits(64, DEVICE, max_rows=1).mask(scores, DeviceMasks(np.array([0]), None, words))
    assert scores[0, :2].isnan().all()
    assert scores[0, 2] == 0
    assert scores[0, 3:].isneginf().all()


def test_biases_are_added_in_their_rows() -> None:
    generator = torch.Generator().manual_seed(0)
    places = torch.randperm(4 * VOCAB_SIZE, generator=generator)[:700]
    values = torch.randn(700, generator=generator)
    values[::7] = -torch.inf

    def bias(edits: Edits, scores: Tensor) -> None:
        columns = (places // VOCAB_SIZE, places % VOCAB_SIZE, values)
        edits.add_bias(scores, Bias(*(column.to(scores.device) for column in columns)))

    assert_edits_agree(bias)


@pytest.mark.parametrize("is_counted", [True, False])
def test_penalties_lower_what_prompt_and_output_have_used(is_counted: bool) -> None:
    def penalise(edits: Edits, scores: Tensor) -> None:
        history = edits.history
        history.close(history.open([1, 2, 3], 0))
        slots = [history.open([150, 4999, VOCAB_SIZE, 7, 7, 120], 3), history.open([101, 102], 2)]
        history.extend(slots[0], 6, [7, 8, 7, 4999])
        for position in range(10, 15):
            history.append(np.array(slots), np.array([position, position - 8]), np.array([9, 101]))

        def column(*values: float) -> Tensor:
            return torch.tensor(values, device=scores.device)

        places = np.array([0, 2])
        edits.penalise(
            scores,
            Penalties(
                rows_on_host=places,
                places=places,
                rows=torch.from_numpy(places).to(scores.device),
                slots=torch.tensor(slots, device=scores.device),
                repetition=column(1.3, 0.7),
                presence=column(0.37, -0.2) if is_counted else None,
                frequency=column(0.113, 0.0) if is_counted else None,
            ),
            used_len=15,
        )

    assert_edits_agree(penalise)


def test_a_penalty_needs_a_token_that_the_model_can_produce() -> None:
    with pytest.raises(InvalidStep, match="vocab_size 5000"):
        TritonEdits(VOCAB_SIZE, DEVICE, max_rows=1).history.open([5000, 6000], 1)


def test_a_reserved_table_does_not_move_until_more_slots_are_taken() -> None:
    history = TritonEdits(64, DEVICE, max_rows=1).history
    history.reserve(6, 10**6)
    table = history.table
    assert [history.open([1], 1) for _ in range(6)] == [5, 4, 3, 2, 1, 0]
    assert history.table is table
    assert history.open([1], 1) == 11
    assert history.table.shape == (12, 64)


def test_a_sampler_samples_the_same_with_edits_of_either_kind() -> None:
    requests = [
        replace(sampling, seed=seed, logit_bias={3: 5.0, 4: 1.0})
        for seed, sampling in enumerate(VARIETY)
    ]
    logits = random_logits(len(requests), VOCAB_SIZE)
    masks = Masks(np.array([0, 3, 9]), torch.full((3, 157), 0x5A5A5A5A, dtype=torch.int32))

    def sampled(edits: Edits, device: torch.device) -> list[SampledRows]:
        sampler = Sampler(VOCAB_SIZE, device, (3,), len(requests), edits=edits)
        for request_id, sampling in enumerate(requests):
            stop = StopParams(100, min_new_tokens=2)
            sampler.add(request_id, sampling, stop, LogprobParams(), (1, 2, 3, 9), 3)
        sampler.extend(9, (5, 6, 5))
        rows = range(len(requests))
        return [sampler.sample(rows, logits.to(device), mask) for mask in (masks, None, None)]

    expected = sampled(TorchEdits(VOCAB_SIZE, CPU), CPU)
    found = sampled(TritonEdits(VOCAB_SIZE, DEVICE, max_rows=2), DEVICE)
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.token_ids == theirs.token_ids
        assert ours.logprobs == pytest.approx(theirs.logprobs, abs=1e-4)


def test_a_rehearsal_launches_every_kernel_and_leaves_nothing() -> None:
    launched = set()

    def noted(kernel: Any, grid: tuple[int, ...], *arguments: Any, **constants: Any) -> None:
        launched.add(kernel.fn.__name__)
        launch(kernel, grid, *arguments, **constants)

    edits = TritonEdits(300, DEVICE, 2, launch=noted)
    sampler = Sampler(
        300, DEVICE, (0,), 2, choose=TritonChooser(DEVICE, 2, launch=noted), edits=edits
    )
    rehearse(sampler, 300, DEVICE, num_rows=4)
    assert launched == {
        "mask_scores",
        "add_biases",
        "penalise_used",
        "count_output",
        "chunk_bests",
        "take_best",
        "chunk_tops",
        "chunk_masses",
        "draw_from_all",
        "gather_candidates",
        "draw_filtered",
    }
    # Requests of the same ids are taken again.
    rehearse(sampler, 300, DEVICE, num_rows=4)


CUDA = torch.device("cuda")
NUM_SCORES = 1024  # whole chunks: the logits are the scores
OF_EVERY_KIND = [
    *[GREEDY] * 5,
    *[DRAWN] * 5,
    replace(DRAWN, top_k=50, top_p=0.9),
    replace(DRAWN, top_p=0.95, temperature=0.7),
    replace(DRAWN, min_p=0.02, repetition_penalty=1.2),
    replace(DRAWN, presence_penalty=0.4, logit_bias={4: 2.0}),
]


class ResultsWanted(Exception):
    """The one wait of a step has been reached."""


class FakeStaging(PinnedStaging):
    """Copies to fake tensors; there is no pinned memory without CUDA."""

    def to_device_all(self, arrays: Sequence[Array]) -> tuple[Tensor, ...]:
        return tuple(
            torch.empty(each.shape, dtype=torch.from_numpy(each[:0]).dtype, device=CUDA)
            for each in map(np.ascontiguousarray, arrays)
        )

    def tensor_to_device(self, tensor: Tensor) -> Tensor:
        return torch.empty_like(tensor, device=CUDA)

    def to_host(self, tensor: Tensor) -> Arrival:
        raise ResultsWanted


def launched_nothing(kernel: Any, grid: tuple[int, ...], *args: Any, **constants: Any) -> None:
    """Fake tensors have no memory."""


def sampler_of(requests: Sequence[SamplingParams]) -> Sampler:
    num_rows = len(requests)
    staging = FakeStaging(CUDA)
    sampler = Sampler(
        NUM_SCORES,
        CUDA,
        (0,),
        num_rows,
        choose=TritonChooser(CUDA, num_rows, launched_nothing),
        edits=TritonEdits(NUM_SCORES, CUDA, num_rows, staging=staging, launch=launched_nothing),
        staging=staging,
    )
    sampler.reserve(num_rows, 100)
    for request_id, sampling in enumerate(requests):
        stop = StopParams(100, min_new_tokens=int(request_id == 0))
        sampler.add(request_id, sampling, stop, LogprobParams(), (1, 2, 3), 3)
    return sampler


@pytest.mark.parametrize("is_masked", [True, False])
def test_a_step_waits_for_nothing_but_its_results(is_masked: bool) -> None:
    with no_sync():
        sampler = sampler_of(OF_EVERY_KIND)
        logits = torch.empty(len(OF_EVERY_KIND), NUM_SCORES, device=CUDA)
        masks = None
        if is_masked:
            masks = Masks(np.array([1]), torch.zeros(1, 32, dtype=torch.int32))
        with pytest.raises(ResultsWanted):
            sampler.sample(range(len(OF_EVERY_KIND)), logits, masks)


@pytest.mark.nightly
@pytest.mark.parametrize("architecture", TARGETS)
def test_no_kernel_of_the_sampler_spills_registers(architecture: int) -> None:
    found = compiled("sample", architecture, counts_instructions=False)
    assert {each.kernel: each.local_bytes for each in found} == dict.fromkeys(
        (
            "mask_scores",
            "add_biases",
            "penalise_used",
            "count_output",
            "chunk_bests",
            "take_best",
            "chunk_tops",
            "chunk_masses",
            "draw_from_all",
            "gather_candidates",
            "draw_filtered",
        ),
        0,
    )
