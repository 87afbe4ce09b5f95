"""The filtered distribution is transformers', and draws follow it exactly."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from model_server.sampling.choosing import first_argmax
from model_server.sampling.filters import (
    ascending_order,
    descending,
    draw,
    largest,
    philox4x32,
    top_ids,
    uniforms,
    whole_masses,
)
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


@pytest.mark.slow
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


MASSES = st.lists(st.integers(0, 2**20), min_size=1, max_size=128).filter(any)
# Random123's known answers for philox4x32 with 10 rounds: counter, key, result.
KNOWN_ANSWERS = [
    (
        [0, 0, 0, 0],
        [0, 0],
        [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8],
    ),
    (
        [0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF],
        [0xFFFFFFFF, 0xFFFFFFFF],
        [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD],
    ),
    (
        [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
        [0xA4093822, 0x299F31D0],
        [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
    ),
]


@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN_ANSWERS)
def test_known_answers(counter: list[int], key: list[int], expected: list[int]) -> None:
    assert philox4x32(counter, key).tolist() == expected


def test_a_batch_gives_what_each_counter_gives_alone() -> None:
    counters, keys, expected = (list(column) for column in zip(*KNOWN_ANSWERS, strict=True))
    assert philox4x32(counters, keys).tolist() == expected


def test_the_uniform_number_is_made_of_the_first_two_words() -> None:
    (only,) = uniforms(np.array([0], dtype=np.uint64), np.array([0], dtype=np.uint64))
    assert only == ((0x6627E8D5 >> 5) * 2**26 + (0xE169C58D >> 6)) / 2**53


def test_seed_and_position_use_all_of_their_64_bits() -> None:
    def draw_of(seed: int, position: int) -> float:
        (only,) = uniforms(np.array([seed], np.uint64), np.array([position], np.uint64))
        return float(only)

    draws = [draw_of(s, p) for s in (0, 1, 2**32, 2**63) for p in (0, 1, 2**32, 2**63)]
    assert len(set(draws)) == len(draws)


def test_seeds_and_positions_broadcast() -> None:
    seeds = np.arange(3, dtype=np.uint64)[:, None]
    positions = np.arange(5, dtype=np.uint64)[None, :]
    table = uniforms(seeds, positions)
    assert table.shape == (3, 5)
    assert table[2, 4] == uniforms(seeds[2], positions[0, 4:])[0]


def test_numbers_lie_in_the_unit_interval_and_are_uniform() -> None:
    seeds = np.arange(200, dtype=np.uint64)[:, None]
    numbers = uniforms(seeds, np.arange(1000, dtype=np.uint64)[None, :]).ravel()
    assert numbers.min() >= 0.0
    assert numbers.max() < 1.0
    counts = np.histogram(numbers, bins=100, range=(0.0, 1.0))[0]
    expected = numbers.size / 100
    chi_square = float(((counts - expected) ** 2 / expected).sum())
    # 99 degrees of freedom: 160 is beyond the 99.99th percentile.
    assert chi_square < 160.0


def test_neighbouring_seeds_and_positions_are_uncorrelated() -> None:
    seeds = np.arange(300, dtype=np.uint64)[:, None]
    table = uniforms(seeds, np.arange(300, dtype=np.uint64)[None, :])
    along_positions = np.corrcoef(table[:, :-1].ravel(), table[:, 1:].ravel())[0, 1]
    along_seeds = np.corrcoef(table[:-1].ravel(), table[1:].ravel())[0, 1]
    # The deviation of a correlation of 90 000 independent pairs is 0.0033.
    assert abs(along_positions) < 0.015
    assert abs(along_seeds) < 0.015


@more_examples(2)
@given(masses=MASSES, uniform=st.floats(0.0, 1.0, exclude_max=True))
def test_the_first_token_whose_cumulative_mass_exceeds_the_target(
    masses: list[int], uniform: float
) -> None:
    total = sum(masses)
    target = min(int(uniform * total), total - 1)
    expected = next(i for i in range(len(masses)) if sum(masses[: i + 1]) > target)
    row = torch.tensor([masses + [0] * (128 - len(masses))], dtype=torch.float64)
    index, totals = draw(row, torch.tensor([uniform], dtype=torch.float64))
    assert int(index) == expected
    assert int(totals) == total


def test_the_last_possible_draw_takes_the_last_token_with_mass() -> None:
    almost_one = torch.tensor([1.0 - 2.0**-53], dtype=torch.float64)
    masses = torch.zeros(1, 128, dtype=torch.float64)
    masses[0, 3] = 2.0**52
    masses[0, 90] = 1.0
    assert int(draw(masses, almost_one)[0]) == 90


def test_the_first_possible_draw_skips_tokens_without_mass() -> None:
    masses = torch.zeros(1, 128)
    masses[0, 70] = 5.0
    assert int(draw(masses, torch.zeros(1, dtype=torch.float64))[0]) == 70


def test_zeros_in_between_and_other_rows_change_nothing() -> None:
    generator = torch.Generator().manual_seed(0)
    weights = torch.rand(50, 64, generator=generator)
    numbers = torch.rand(50, generator=generator, dtype=torch.float64)
    narrow = draw(whole_masses(weights, 40), numbers)[0]
    places = torch.randperm(6400, generator=generator)[:64].sort().values
    wide = torch.zeros(50, 6400)
    wide[:, places] = weights
    spread = draw(whole_masses(wide, 40), numbers)[0]
    assert torch.equal(places[narrow], spread)
    alone = [draw(whole_masses(wide[i : i + 1], 40), numbers[i : i + 1])[0] for i in range(50)]
    assert torch.equal(torch.cat(alone), spread)


def test_a_broken_row_gives_an_index_within_the_row() -> None:
    rows = torch.stack((torch.full((64,), torch.nan), torch.zeros(64), torch.ones(64)))
    index, _ = draw(rows, torch.full((3,), 0.5, dtype=torch.float64))
    assert int(index.min()) >= 0
    assert int(index.max()) < 64
    assert int(index[2]) == 32


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
