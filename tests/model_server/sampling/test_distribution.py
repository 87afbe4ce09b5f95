"""The filtered distribution is transformers', and draws follow it."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from proto.contract import LogprobParams, SamplingParams
from tests.hypothesis_profiles import more_examples
from tests.model_server.sampling.cases import (
    DRAWN,
    NO_STOP,
    PROMPT,
    expected_logprobs,
    expected_token,
    random_logits,
    sample_once,
    sampler_of,
    warped_logprobs,
)

EACH_PARAMETER = {
    "greedy": SamplingParams(),
    "greedy, warpers ignored": SamplingParams(temperature=0.3, top_k=3, top_p=0.2, typical_p=0.3),
    "all tokens": DRAWN,
    "cold": replace(DRAWN, temperature=0.05),
    "hot": replace(DRAWN, temperature=3.0),
    "top_k 1": replace(DRAWN, top_k=1),
    "top_k narrow": replace(DRAWN, top_k=40),
    "top_k wide": replace(DRAWN, top_k=300),
    "top_k complete": replace(DRAWN, top_k=2500),
    "top_k of everything": replace(DRAWN, top_k=100_000),
    "top_p small": replace(DRAWN, top_p=0.1),
    "top_p": replace(DRAWN, top_p=0.95),
    "top_p of a flat row": replace(DRAWN, top_p=0.95, temperature=5.0),
    "min_p": replace(DRAWN, min_p=0.05),
    "min_p 1": replace(DRAWN, min_p=1.0),
    "typical_p": replace(DRAWN, typical_p=0.5),
    "typical_p of a flat row": replace(DRAWN, typical_p=0.95, temperature=5.0),
    "top_k, top_p": replace(DRAWN, top_k=50, top_p=0.95),
    "top_p, min_p, typical_p": replace(DRAWN, top_p=0.9, min_p=0.02, typical_p=0.7),
    "top_k, typical_p": replace(DRAWN, top_k=40, typical_p=0.6),
    "repetition_penalty": replace(DRAWN, repetition_penalty=1.3),
    "repetition_penalty below 1": replace(DRAWN, repetition_penalty=0.7),
    "logit_bias": replace(DRAWN, logit_bias={5: 4.0, 1: -3.0}),
    "everything": SamplingParams(
        do_sample=True,
        temperature=0.8,
        top_k=60,
        top_p=0.9,
        typical_p=0.8,
        min_p=0.01,
        repetition_penalty=1.2,
        logit_bias={5: 1.0, 2: 2.0},
        seed=99,
    ),
}


def assert_same_distribution(actual: Tensor, expected: Tensor) -> None:
    assert torch.equal(actual.isneginf(), expected.isneginf())
    assert (actual.double().exp() - expected.double().exp()).abs().max() < 1e-5


@pytest.mark.parametrize("sampling", EACH_PARAMETER.values(), ids=EACH_PARAMETER.keys())
@pytest.mark.parametrize("vocab_size", [3000, 37])
def test_the_filtered_distribution_is_that_of_transformers(
    sampling: SamplingParams, vocab_size: int
) -> None:
    logits = random_logits(3, vocab_size)
    actual = warped_logprobs([sampling] * 3, logits)
    for row in range(3):
        assert_same_distribution(actual[row], expected_logprobs(sampling, logits[row]))


def test_rows_of_different_parameters_do_not_mix() -> None:
    requests = list(EACH_PARAMETER.values())
    logits = random_logits(len(requests), 3000, seed=1)
    actual = warped_logprobs(requests, logits)
    for row, sampling in enumerate(requests):
        assert_same_distribution(actual[row], expected_logprobs(sampling, logits[row]))


def test_tokens_are_the_inverse_of_the_cumulative_distribution() -> None:
    requests = [
        replace(sampling, seed=seed * 12345)
        for seed, sampling in enumerate(list(EACH_PARAMETER.values())[2:] * 4)
    ]
    logits = random_logits(len(requests), 3000, seed=2)
    sampled = sample_once(requests, logits)
    for row, sampling in enumerate(requests):
        distribution = expected_logprobs(sampling, logits[row])
        assert sampled.token_ids[row] == expected_token(sampling, distribution, len(PROMPT))
        assert sampled.logprobs[row] == pytest.approx(
            float(distribution[sampled.token_ids[row]]), abs=1e-5
        )


def share(low: float = 0.01) -> st.SearchStrategy[float]:
    return st.floats(low, 1.0)


PARAMETERS = st.builds(
    SamplingParams,
    do_sample=st.just(True),
    temperature=st.sampled_from([1.0, 0.7]) | st.floats(0.05, 3.0),
    top_k=st.none() | st.integers(1, 50) | st.integers(1, 3000),
    top_p=st.none() | share(),
    typical_p=st.none() | share(),
    min_p=st.none() | share(0.0),
    repetition_penalty=st.just(1.0) | st.floats(0.5, 2.0),
    logit_bias=st.dictionaries(st.integers(0, 36), st.floats(-5.0, 5.0), max_size=3),
)


@more_examples(3)
@given(
    sampling=PARAMETERS,
    seed=st.integers(0, 2**32),
    vocab_size=st.sampled_from([37, 64, 2200]),
    scale=st.sampled_from([0.3, 1.0, 6.0]),
    coarse=st.booleans(),
    few=st.booleans(),
)
def test_any_parameters_give_the_probabilities_of_transformers(
    sampling: SamplingParams, seed: int, vocab_size: int, scale: float, coarse: bool, few: bool
) -> None:
    logits = random_logits(1, vocab_size, seed=seed, scale=scale)
    if coarse:
        logits = logits.bfloat16()
    if few:
        logits[:, 20:] = -torch.inf
    actual = warped_logprobs([sampling], logits)[0].double().exp().sort().values
    # Which of equal scores top-p drops is left to torch's sort, hence the sorted probabilities. A
    # running sum that meets its bound to the last bit ends differently in float32 and float64.
    matches = [
        (actual - expected.double().exp().sort().values).abs().max() < 1e-5
        for dtype in (torch.float32, torch.float64)
        for expected in [expected_logprobs(sampling, logits[0], dtype=dtype)]
    ]
    assert any(matches)


def test_all_of_the_tokens_equal_to_the_kth_stay() -> None:
    logits = torch.zeros(1, 3000)
    logits[0, 500:800] = 1.0
    probabilities = warped_logprobs([replace(DRAWN, top_k=10)], logits)[0].exp()
    assert torch.allclose(probabilities[500:800], torch.tensor(1 / 300))
    assert probabilities.sum() == pytest.approx(1.0)


@pytest.mark.parametrize("top_p", [0.125, 0.25, 0.5, 0.75])
@pytest.mark.parametrize("num_equal", [2, 4, 8, 16, 256])
def test_top_p_keeps_as_many_equal_tokens_as_transformers_does(
    num_equal: int, top_p: float
) -> None:
    logits = torch.full((1, 3000), -100.0)
    logits[0, :num_equal] = 3.0
    actual = warped_logprobs([replace(DRAWN, top_p=top_p)], logits)[0]
    expected = expected_logprobs(replace(DRAWN, top_p=top_p), logits[0])
    assert (~actual.isneginf()).sum() == (~expected.isneginf()).sum()


def test_ties_that_reach_beyond_the_candidates_are_all_seen() -> None:
    """The widened search must find what the first one, of 64 candidates, cannot hold."""
    sampling = replace(DRAWN, top_k=40, top_p=0.5)
    logits = torch.zeros(1, 3000)
    logits[0, 100:300] = 4.0
    logits[0, :20] = 6.0
    actual = warped_logprobs([sampling], logits)[0]
    expected = expected_logprobs(sampling, logits[0])
    assert (~actual.isneginf()).sum() == (~expected.isneginf()).sum() == 47
    assert float(actual[7].exp()) == pytest.approx(float(expected[7].exp()), abs=1e-6)


@pytest.mark.parametrize(
    "sampling",
    [
        DRAWN,
        replace(DRAWN, temperature=0.6),
        replace(DRAWN, top_k=12),
        replace(DRAWN, top_p=0.8),
        replace(DRAWN, typical_p=0.8),
        replace(DRAWN, top_k=30, top_p=0.95, min_p=0.02),
    ],
    ids=["plain", "temperature", "top_k", "top_p", "typical_p", "mixed"],
)
def test_draws_follow_the_distribution(sampling: SamplingParams) -> None:
    """Chi-square over seeds and positions; tokens expected fewer than five times count as one."""
    num_rows = 200
    num_steps = 60
    vocab_size = 50
    row = random_logits(1, vocab_size, seed=5, scale=1.5)
    sampler = sampler_of([replace(sampling, seed=seed) for seed in range(num_rows)], vocab_size)
    logits = row.expand(num_rows, -1).contiguous()
    counts = np.zeros(vocab_size)
    for _ in range(num_steps):
        counts += np.bincount(sampler.sample(range(num_rows), logits).token_ids, None, vocab_size)
    expected = expected_logprobs(sampling, row[0]).double().exp().numpy() * num_rows * num_steps
    assert counts[expected == 0.0].sum() == 0
    common = expected >= 5.0
    observed = np.append(counts[common], counts[~common].sum())
    wanted = np.append(expected[common], expected[~common].sum())
    observed = observed[wanted > 0.0]
    wanted = wanted[wanted > 0.0]
    chi_square = ((observed - wanted) ** 2 / wanted).sum()
    freedom = len(wanted) - 1
    # Five deviations above the mean: once in a million for a right sampler.
    assert chi_square < freedom + 5 * (2 * freedom) ** 0.5


def test_presence_and_frequency_count_the_output_alone() -> None:
    sampling = replace(DRAWN, presence_penalty=0.5, frequency_penalty=0.25, repetition_penalty=1.5)
    logits = random_logits(1, 40, seed=6)
    whole = LogprobParams(num_top_tokens=40)
    sampler = sampler_of([], 40)
    prompt = [4, 5, 5]
    output = [5, 6, 6, 6]
    sampler.add(0, sampling, NO_STOP, whole, prompt + output, len(prompt))
    sampled = sampler.sample([0], logits)
    scores = logits[0].clone()
    for token_id in (4, 5, 6):
        scores[token_id] *= 1.5 if scores[token_id] < 0 else 1 / 1.5
    scores[5] -= 0.5 + 0.25
    scores[6] -= 0.5 + 0.25 * 3
    expected = torch.log_softmax(scores, -1)
    for token in sampled.top_tokens[0]:
        assert token.logprob == pytest.approx(float(expected[token.token_id]), abs=1e-5)
