"""Edits by kernels change scores as those of torch do, to the last bit."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from model_server.errors import InvalidStep
from model_server.sampling.edits import DeviceMasks, Edits, Masks, TorchEdits
from model_server.sampling.plan import Bias, Penalties
from model_server.sampling.sampler import SampledRows, Sampler
from model_server.sampling.triton import TritonEdits
from model_server.staging import PinnedStaging
from proto.contract import LogprobParams, StopParams
from tests.model_server.sampling.cases import CPU, VARIETY, random_logits

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
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
