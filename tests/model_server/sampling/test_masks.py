"""Masks on some rows of a step, judges who refuse what was drawn, and tokens that nobody drew."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from model_server.errors import InvalidStep
from model_server.sampling.edits import Masks
from model_server.sampling.plan import Rows
from model_server.sampling.sampler import SampledRows
from proto.contract import LogprobParams, MaskEffect, SamplingParams
from tests.model_server.sampling.cases import (
    DRAWN,
    GREEDY,
    NO_STOP,
    VARIETY,
    random_logits,
    sampler_of,
)
from tests.model_server.sampling.test_logits_processors import bitmask_of


class Judge(Masks):
    """Refuses tokens, by row of the step, and clears their bits."""

    def __init__(self, places: Rows, words: Tensor, refused: Mapping[int, Collection[int]]) -> None:
        super().__init__(places, words.clone())
        self.refused = refused
        self.judged: list[tuple[int, int]] = []

    def accepts(self, index: int, token_id: int) -> bool:
        place = int(self.places[index])
        self.judged.append((place, token_id))
        if token_id not in self.refused.get(place, ()):
            return True
        bit = torch.tensor(1 << token_id % 32).to(torch.int32)
        self.words[index, token_id // 32] &= ~bit
        return False


def everything(num_rows: int, vocab_size: int) -> Tensor:
    return torch.full((num_rows, -(-vocab_size // 32)), -1, dtype=torch.int32)


def sample(
    requests: Sequence[SamplingParams],
    logits: Tensor,
    masks: Masks | None,
    logprobs: LogprobParams | None = None,
) -> SampledRows:
    sampler = sampler_of(requests, logits.shape[-1], logprobs=logprobs)
    return sampler.sample(range(len(requests)), logits, masks)


@pytest.mark.parametrize("vocab_size", [100, 1024, 5000])
def test_rows_without_a_mask_draw_as_if_there_were_none(vocab_size: int) -> None:
    logits = random_logits(len(VARIETY), vocab_size)
    masked = np.arange(0, len(VARIETY), 2)
    allowed = torch.zeros(len(masked), vocab_size, dtype=torch.bool)
    allowed[:, 40:60] = True
    free = sample(VARIETY, logits, None, LogprobParams(3))
    beside = sample(VARIETY, logits, Masks(masked, bitmask_of(allowed)), LogprobParams(3))
    for row in range(len(VARIETY)):
        if row % 2:
            assert beside.token_ids[row] == free.token_ids[row]
            assert beside.logprobs[row] == free.logprobs[row]
            assert beside.top_tokens[row] == free.top_tokens[row]
        else:
            assert 40 <= beside.token_ids[row] < 60


def test_a_few_rows_are_edited_in_place_and_restored() -> None:
    """Rows that are not contiguous are copied before that, and draw the same."""
    with torch.inference_mode():
        logits = random_logits(len(VARIETY), 1024).clone()
    apart = torch.empty(len(VARIETY), 2048)[:, ::2].copy_(logits)
    allowed = torch.zeros(2, 1024, dtype=torch.bool)
    allowed[:, 40:60] = True
    masks = Masks(np.array([1, 3]), bitmask_of(allowed))
    in_place = sample(VARIETY, logits, masks, LogprobParams(3, raw=True))
    assert in_place == sample(VARIETY, apart, masks, LogprobParams(3, raw=True))
    assert torch.equal(logits, apart)


def test_a_masked_row_draws_the_same_alone_and_beside_others() -> None:
    logits = random_logits(len(VARIETY), 1000)
    generator = torch.Generator().manual_seed(1)
    words = bitmask_of(torch.rand(len(VARIETY), 1000, generator=generator) < 0.2)
    together = sample(VARIETY, logits, Masks(np.arange(len(VARIETY)), words))
    for row, sampling in enumerate(VARIETY):
        alone = sample(
            [sampling], logits[row : row + 1], Masks(np.array([0]), words[row : row + 1])
        )
        assert alone.token_ids[0] == together.token_ids[row]
        assert alone.logprobs[0] == together.logprobs[row]


def test_a_refused_token_is_drawn_anew_for_its_row_alone() -> None:
    logits = random_logits(len(VARIETY), 1000)
    places = np.arange(1, len(VARIETY))
    words = everything(len(places), 1000)
    free = sample(VARIETY, logits, Masks(places, words))
    refused = {3: [free.token_ids[3]], 5: [free.token_ids[5]], 7: [free.token_ids[7]]}
    judge = Judge(places, words, refused)
    judged = sample(VARIETY, logits, judge)
    for row in range(len(VARIETY)):
        if row in refused:
            assert judged.token_ids[row] != free.token_ids[row]
            assert (row, judged.token_ids[row]) in judge.judged
        else:
            assert judged.token_ids[row] == free.token_ids[row]
            assert judged.logprobs[row] == free.logprobs[row]


def test_a_refused_greedy_token_gives_way_to_the_next_best() -> None:
    logits = torch.arange(100.0)[None]
    sampled = sample([GREEDY], logits, Judge(np.array([0]), everything(1, 100), {0: (99, 98, 96)}))
    assert sampled.token_ids == (97,)


def test_what_is_drawn_after_a_refusal_is_the_same_in_any_company() -> None:
    logits = random_logits(len(VARIETY), 1000)
    even = range(0, 1000, 2)
    judge = Judge(
        np.arange(len(VARIETY)), everything(len(VARIETY), 1000), dict.fromkeys(range(99), even)
    )
    together = sample(VARIETY, logits, judge)
    for row, sampling in enumerate(VARIETY):
        alone = Judge(np.array([0]), everything(1, 1000), {0: even})
        assert (
            sample([sampling], logits[row : row + 1], alone).token_ids[0]
            == (together.token_ids[row])
        )
        assert together.token_ids[row] % 2 == 1


def test_refusals_leave_the_distribution_of_what_is_accepted() -> None:
    """Of tokens with 4/10, 3/10, 2/10 and 1/10, the first two refused: 2/3 and 1/3 are left."""
    logits = torch.tensor([[0.4, 0.3, 0.2, 0.1]]).log().expand(6000, 4)
    requests = [replace(DRAWN, seed=seed) for seed in range(6000)]
    judge = Judge(np.arange(6000), everything(6000, 4), dict.fromkeys(range(6000), (0, 1)))
    drawn = np.bincount(sample(requests, logits, judge).token_ids, minlength=4)
    assert drawn[:2].tolist() == [0, 0]
    # Four deviations of a draw of 6000.
    assert drawn[2] / 6000 == pytest.approx(2 / 3, abs=0.025)


def test_a_row_that_is_left_without_a_token_fails_alone() -> None:
    logits = random_logits(3, 100)
    words = everything(3, 100)
    words[1] = 0
    words[1, 0] = 0b1100
    judged = sample([DRAWN] * 3, logits, Judge(np.arange(3), words, {1: (2, 3)}))
    assert list(judged.errors) == [1]
    assert "mask" in judged.errors[1]


def test_a_search_too_narrow_for_a_masked_row_is_repeated_with_its_mask() -> None:
    """Equal scores reach beyond any narrow search; only the allowed half may come."""
    logits = torch.zeros(2, 5000)
    allowed = torch.zeros(1, 5000, dtype=torch.bool)
    allowed[0, 2500:] = True
    requests = [replace(DRAWN, top_p=0.9999, seed=1), replace(DRAWN, top_p=0.9999, seed=2)]
    for seed in range(8):
        requests = [replace(request, seed=seed) for request in requests]
        masked = sample(requests, logits, Masks(np.array([1]), bitmask_of(allowed)))
        assert masked.token_ids[1] >= 2500
        assert masked.token_ids[0] == sample(requests, logits, None).token_ids[0]


def test_only_tokens_that_were_accepted_are_remembered() -> None:
    request = replace(GREEDY, frequency_penalty=100.0)
    sampler = sampler_of([request], 64)
    logits = torch.zeros(1, 64)
    logits[0, 5] = 9.0
    logits[0, 6] = 8.0
    logits[0, 7] = 7.0
    judge = Judge(np.array([0]), everything(1, 64), {0: (5,)})
    assert sampler.sample([0], logits, judge).token_ids == (6,)
    assert sampler.sample([0], logits).token_ids == (5,)
    assert sampler.sample([0], logits).token_ids == (7,)


@pytest.mark.parametrize("run", [(5,), (9, 9, 4), tuple(range(60)) * 5])
def test_a_run_that_nobody_drew_counts_as_output(run: tuple[int, ...]) -> None:
    request = replace(
        DRAWN, seed=3, frequency_penalty=0.2, presence_penalty=0.1, repetition_penalty=1.3
    )
    logits = random_logits(1, 100)
    extended = sampler_of([request], 100, prompt=(1, 2))
    extended.extend(0, run)
    fresh = sampler_of([], 100)
    fresh.add(0, request, NO_STOP, LogprobParams(), (1, 2, *run), 2)
    for _ in range(5):
        assert extended.sample([0], logits) == fresh.sample([0], logits)


def test_a_run_moves_the_watermark_and_the_draws_on() -> None:
    request = replace(DRAWN, seed=3, watermark=True)
    logits = random_logits(1, 100)
    extended = sampler_of([request], 100, prompt=(1, 2))
    extended.extend(0, (9, 4))
    fresh = sampler_of([request], 100, prompt=(1, 2, 9, 4))
    assert extended.sample([0], logits) == fresh.sample([0], logits)


def test_a_run_of_an_unknown_request_is_refused() -> None:
    with pytest.raises(InvalidStep, match="request 7 is not being sampled"):
        sampler_of([], 100).extend(7, (1,))


@pytest.mark.parametrize(
    ("allowed_ids", "effect"),
    [
        ((7, 8), MaskEffect.FREE),
        ((8, 9), MaskEffect.STEERED),
        ((9,), MaskEffect.FORCED),
        ((7,), MaskEffect.FORCED),
    ],
)
def test_a_mask_says_whether_it_left_the_favourite_another_or_one_token(
    allowed_ids: tuple[int, ...], effect: MaskEffect
) -> None:
    logits = torch.zeros(2, 100)
    logits[:, 7] = 5.0
    allowed = torch.zeros(1, 100, dtype=torch.bool)
    allowed[0, list(allowed_ids)] = True
    masks = Masks(np.array([1]), bitmask_of(allowed))

    sampled = sample([DRAWN, DRAWN], logits, masks, LogprobParams(2, raw=True))
    warped = sample([DRAWN, DRAWN], logits, masks, LogprobParams(2))

    assert sampled.mask_effects == {1: effect}
    assert warped.mask_effects == {}
