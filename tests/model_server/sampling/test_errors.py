"""What goes wrong in a row, in a parameter, in a call: named, and nobody else's trouble."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from model_server.errors import InvalidStep
from model_server.sampling.edits import Masks
from proto.contract import LogprobParams, SamplingParams
from tests.model_server.sampling.cases import (
    DRAWN,
    GREEDY,
    NO_STOP,
    VARIETY,
    random_logits,
    sample_once,
    sampler_of,
)
from tests.model_server.sampling.test_logits_processors import bitmask_of


@pytest.mark.parametrize("sampling", VARIETY)
@pytest.mark.parametrize(
    ("broken", "reason"), [(torch.nan, "NaN"), (torch.inf, "+inf"), (-torch.inf, "-inf")]
)
def test_a_broken_row_fails_alone(sampling: SamplingParams, broken: float, reason: str) -> None:
    logits = random_logits(3, 1000)
    expected = sample_once([sampling] * 3, logits, logprobs=LogprobParams(1))
    logits[1, 500 if broken != -torch.inf else slice(None)] = broken
    sampler = sampler_of([sampling] * 3, 1000, logprobs=LogprobParams(1))
    sampled = sampler.sample(range(3), logits)
    assert list(sampled.errors) == [1]
    assert reason in sampled.errors[1]
    for row in (0, 2):
        assert sampled.token_ids[row] == expected.token_ids[row]
        assert sampled.logprobs[row] == expected.logprobs[row]
        assert sampled.top_tokens[row] == expected.top_tokens[row]
    assert sampled.token_ids[1] == 0
    assert math.isnan(sampled.logprobs[1])
    assert sampled.top_tokens[1] == ()


@pytest.mark.parametrize("sampling", VARIETY)
@pytest.mark.parametrize("raw", [False, True])
def test_a_row_whose_tokens_are_all_masked_fails_alone(sampling: SamplingParams, raw: bool) -> None:
    masks = torch.full((2, 32), -1, dtype=torch.int32)
    masks[0] = 0
    logprobs = LogprobParams(2, raw=raw)
    sampled = sample_once([sampling] * 2, random_logits(2, 1000), logprobs=logprobs, bitmask=masks)
    assert list(sampled.errors) == [0]
    assert "mask" in sampled.errors[0]


def test_nan_behind_a_mask_is_still_an_error() -> None:
    logits = random_logits(1, 1000)
    logits[0, 5] = torch.nan
    allowed = torch.ones(1, 1000, dtype=torch.bool)
    allowed[0, 5] = False
    sampled = sample_once([replace(DRAWN, top_k=3)], logits, bitmask=bitmask_of(allowed))
    assert list(sampled.errors) == [0]


def test_a_failed_row_has_not_moved_on() -> None:
    request = replace(DRAWN, seed=3, frequency_penalty=0.5)
    logits = random_logits(1, 100)
    sampler = sampler_of([request], 100)
    assert sampler.sample([0], torch.full((1, 100), torch.nan)).errors
    assert sampler.sample([0], logits) == sample_once([request], logits)


@pytest.mark.parametrize(
    "broken",
    [
        SamplingParams(logit_bias={100: 1.0}),
        SamplingParams(logit_bias={-1: 1.0}),
        SamplingParams(logit_bias={1: math.inf}),
    ],
    ids=repr,
)
def test_a_bias_out_of_range_is_refused_by_name(broken: SamplingParams) -> None:
    sampler = sampler_of([], 100)
    with pytest.raises(InvalidStep, match=r"request 3: logit_bias .* must be "):
        sampler.add(3, broken, NO_STOP, LogprobParams(), [1], 1)
    sampler.add(3, DRAWN, NO_STOP, LogprobParams(), [1], 1)


def test_extreme_parameters_still_draw() -> None:
    extremes = [
        replace(DRAWN, temperature=1e-45),
        replace(DRAWN, temperature=3e38),
        replace(DRAWN, top_p=1e-30),
        replace(DRAWN, typical_p=1e-30),
        replace(DRAWN, top_k=2**31, min_p=1e-30),
    ]
    logits = random_logits(len(extremes), 100)
    sampled = sample_once(extremes, logits)
    assert not sampled.errors
    assert sampled.token_ids[0] == int(logits[0].argmax())


def test_scores_that_overflow_are_an_error_of_their_row() -> None:
    tiny = replace(DRAWN, repetition_penalty=1e-38)
    sampled = sample_once([tiny, DRAWN], torch.full((2, 100), 50.0))
    assert list(sampled.errors) == [0]
    assert "penalties" in sampled.errors[0]


def test_ids_are_held_once_and_known() -> None:
    sampler = sampler_of([GREEDY], 100)
    with pytest.raises(InvalidStep, match="request 0 is being sampled already"):
        sampler.add(0, GREEDY, NO_STOP, LogprobParams(), [1], 1)
    with pytest.raises(InvalidStep, match="request 9 is not being sampled"):
        sampler.remove(9)
    with pytest.raises(InvalidStep, match="request 9 is not being sampled"):
        sampler.sample([9], torch.zeros(1, 100))


def test_shapes_that_contradict_each_other_are_refused() -> None:
    sampler = sampler_of([GREEDY], 100)
    with pytest.raises(InvalidStep, match=r"\(1, 99\), not \(1, 100\)"):
        sampler.sample([0], torch.zeros(1, 99))
    masks = Masks(np.array([0]), torch.zeros(1, 3, dtype=torch.int32))
    with pytest.raises(InvalidStep, match=r"\(1, 3\) torch.int32, not \(1, 4\)"):
        sampler.sample([0], torch.zeros(1, 100), masks)
