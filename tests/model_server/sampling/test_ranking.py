"""Largest, first and sorted elements, against plain torch."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from model_server.sampling.choosing import first_argmax
from model_server.sampling.filters import ascending_order, descending, largest, top_ids
from tests.model_server.sampling.cases import random_logits


@given(seed=st.integers(0, 2**32), num_rows=st.integers(1, 4), levels=st.integers(1, 6))
def test_the_first_of_equal_maxima_is_found(seed: int, num_rows: int, levels: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randint(0, levels, (num_rows, 256), generator=generator).float()
    assert torch.equal(first_argmax(scores), scores.argmax(-1))


@given(
    seed=st.integers(0, 2**32),
    count=st.integers(1, 256),
    levels=st.integers(1, 400),
    masked=st.booleans(),
)
def test_top_ids_are_ordered_by_score_then_by_id(
    seed: int, count: int, levels: int, masked: bool
) -> None:
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randint(-levels, levels, (2, 256), generator=generator).float()
    if masked:
        scores[:, 3:] = -torch.inf
    for row in range(2):
        order = sorted(range(256), key=lambda token_id: (-float(scores[row, token_id]), token_id))
        assert top_ids(scores, count)[row].tolist() == order[:count]


def test_minus_zero_and_zero_are_equal() -> None:
    scores = torch.full((1, 64), -1.0)
    scores[0, 5] = -0.0
    scores[0, 9] = 0.0
    assert top_ids(scores, 2).tolist() == [[5, 9]]


@pytest.mark.parametrize("count", [1, 64, 65, 500])
def test_largest_elements_are_found_in_any_order(count: int) -> None:
    scores = random_logits(3, 640)
    found = largest(scores, count).sort(-1).values
    assert torch.equal(found, scores.topk(count).indices.sort(-1).values)


def test_nan_counts_as_largest() -> None:
    scores = random_logits(1, 640)
    scores[0, 77] = torch.nan
    assert 77 in largest(scores, 5)[0]
    assert 77 in largest(scores, 100)[0]
    assert descending(scores)[0, 0].isnan()


def test_sorted_values_and_order_agree_with_torch() -> None:
    scores = random_logits(3, 640)
    assert torch.equal(descending(scores), scores.sort(-1, descending=True).values)
    assert torch.equal(ascending_order(scores), scores.argsort(-1))
