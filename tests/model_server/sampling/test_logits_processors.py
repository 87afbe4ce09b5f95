"""Bitmask, bias and penalties, each on its own."""

import pytest
import torch
from torch import Tensor
from transformers.generation.logits_process import RepetitionPenaltyLogitsProcessor

from model_server.sampling.edits import add_bias, apply_bitmask, penalise
from tests.model_server.sampling.cases import random_logits


def bitmask_of(allowed: Tensor) -> Tensor:
    """[rows, vocab] bool -> [rows, ceil(vocab / 32)] int32, written bit by bit."""
    num_rows, vocab_size = allowed.shape
    words = [[0] * -(-vocab_size // 32) for _ in range(num_rows)]
    for row, token_id in allowed.nonzero().tolist():
        words[row][token_id // 32] |= 1 << (token_id % 32)
    signed = [[word - 2**32 if word >= 2**31 else word for word in row] for row in words]
    return torch.tensor(signed, dtype=torch.int32)


@pytest.mark.parametrize("vocab_size", [64, 128, 640])
def test_the_bitmask_leaves_the_tokens_whose_bit_is_set(vocab_size: int) -> None:
    allowed = torch.rand(3, vocab_size, generator=torch.Generator().manual_seed(0)) < 0.5
    scores = random_logits(3, vocab_size)
    expected = scores.masked_fill(~allowed, -torch.inf)
    apply_bitmask(scores, bitmask_of(allowed))
    assert torch.equal(scores, expected)


def test_rows_without_a_mask_stay_as_they_are() -> None:
    scores = random_logits(4, 128)
    allowed = torch.rand(2, 128, generator=torch.Generator().manual_seed(1)) < 0.5
    expected = scores.clone()
    for row, mask in zip([3, 1], allowed, strict=True):
        expected[row].masked_fill_(~mask, -torch.inf)
    apply_bitmask(scores, bitmask_of(allowed), torch.tensor([3, 1]))
    assert torch.equal(scores, expected)


def test_bits_beyond_the_vocabulary_change_nothing() -> None:
    scores = torch.full((1, 64), -torch.inf)
    scores[0, :33] = 1.0
    apply_bitmask(scores, torch.tensor([[-1, -1]], dtype=torch.int32))
    assert scores[0, :33].eq(1.0).all()
    assert scores[0, 33:].isneginf().all()


@pytest.mark.parametrize("broken", [torch.nan, torch.inf])
def test_a_mask_does_not_hide_what_is_wrong_with_a_row(broken: float) -> None:
    scores = torch.zeros(1, 64)
    scores[0, 3] = broken
    apply_bitmask(scores, torch.tensor([[0b10, 0]], dtype=torch.int32))
    assert scores[0, 3].isnan()
    assert scores[0, 1] == 0.0


def test_bias_is_added_where_it_is_named_and_nowhere_else() -> None:
    scores = torch.zeros(3, 64)
    add_bias(
        scores,
        rows=torch.tensor([0, 0, 2, 2]),
        token_ids=torch.tensor([5, 6, 5, 5]),
        values=torch.tensor([1.5, -2.0, -torch.inf, 3.0]),
    )
    assert scores[0, 5] == 1.5
    assert scores[0, 6] == -2.0
    assert scores[2, 5] == -torch.inf
    assert scores.nonzero().tolist() == [[0, 5], [0, 6], [2, 5]]


def test_the_repetition_penalty_is_that_of_transformers() -> None:
    token_ids = torch.tensor([[3, 9, 3, 17], [1, 1, 1, 1]])
    logits = random_logits(3, 64)
    expected = logits.clone()
    for place, (row, penalty) in enumerate([(0, 1.3), (2, 0.6)]):
        processor = RepetitionPenaltyLogitsProcessor(penalty)
        expected[row] = processor(token_ids[place : place + 1], logits[row : row + 1].clone())[0]
    penalise(logits, torch.tensor([0, 2]), token_ids, repetition=torch.tensor([1.3, 0.6]))
    assert torch.allclose(logits, expected, atol=1e-6)


def test_presence_counts_once_and_frequency_every_time() -> None:
    scores = torch.zeros(1, 64)
    penalise(
        scores,
        rows=torch.tensor([0]),
        token_ids=torch.tensor([[4, 5, 6, 6, 6]]),
        repetition=torch.tensor([1.0]),
        counts=torch.tensor([[0.0, 1.0, 3.0, 3.0, 3.0]]),
        presence=torch.tensor([0.5]),
        frequency=torch.tensor([0.25]),
    )
    assert scores[0, 4] == 0.0
    assert scores[0, 5] == -0.75
    assert scores[0, 6] == -1.25


def test_a_masked_token_stays_masked_under_every_penalty() -> None:
    scores = torch.full((1, 64), -torch.inf)
    penalise(
        scores,
        rows=torch.tensor([0]),
        token_ids=torch.tensor([[7]]),
        repetition=torch.tensor([0.5]),
        counts=torch.tensor([[2.0]]),
        presence=torch.tensor([-2.0]),
        frequency=torch.tensor([-2.0]),
    )
    assert scores.isneginf().all()
