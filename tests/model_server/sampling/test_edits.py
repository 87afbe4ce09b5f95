"""Bitmask, bias, penalties and the watermark, each on its own: transformers' own, row by row."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers.generation.logits_process import (
    RepetitionPenaltyLogitsProcessor,
    WatermarkLogitsProcessor,
)

from model_server.errors import ConfigRefused
from model_server.sampling.edits import Watermark, add_bias, apply_bitmask, penalise
from model_server.sampling.sampler import Sampler
from proto.contract import LogprobParams, SamplingParams
from tests.model_server.sampling.cases import (
    CPU,
    DRAWN,
    GREEDY,
    NO_STOP,
    VARIETY,
    expected_logprobs,
    random_logits,
    sample_once,
    sampler_of,
    warped_logprobs,
    z_score,
)


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


GAMMA = 0.5
DELTA = 2.0


def marked(sampling: SamplingParams) -> SamplingParams:
    return replace(sampling, watermark=True)


def oracle(vocab_size: int, gamma: float = GAMMA, delta: float = DELTA) -> WatermarkLogitsProcessor:
    return WatermarkLogitsProcessor(vocab_size, "cpu", greenlist_ratio=gamma, bias=delta)


def lifted(logits: Tensor, previous: Sequence[int]) -> Tensor:
    """transformers' scores for rows that follow these tokens."""
    process = oracle(logits.shape[-1])
    rows = [
        process(torch.tensor([[p]]), row[None]) for p, row in zip(previous, logits, strict=True)
    ]
    return torch.cat(rows)


def applied(watermark: Watermark, logits: Tensor, previous: Sequence[int]) -> Tensor:
    """Our scores for the same rows."""
    num_rows, vocab_size = logits.shape
    scores = torch.full((num_rows, -(-vocab_size // 128) * 128), -torch.inf)
    scores[:, :vocab_size] = logits
    watermark.apply(scores, torch.arange(num_rows), np.array(previous))
    assert scores[:, vocab_size:].isneginf().all()
    return scores[:, :vocab_size]


def generate(sampler: Sampler, steps: Tensor) -> list[int]:
    """Request 0, one step for each row of logits."""
    return [sampler.sample([0], logits[None]).token_ids[0] for logits in steps]


# Against transformers


@pytest.mark.parametrize("vocab_size", [97, 128, 32_000])
@pytest.mark.parametrize(("gamma", "delta"), [(0.5, 2.0), (0.25, 4.5), (0.9, -1.25)])
def test_scores_are_those_of_transformers(vocab_size: int, gamma: float, delta: float) -> None:
    logits = random_logits(5, vocab_size)
    previous = [0, 5, vocab_size - 1, 5, 40]
    ours = applied(Watermark(vocab_size, CPU, gamma, delta), logits, previous)
    process = oracle(vocab_size, gamma, delta)
    for row, token_id in enumerate(previous):
        theirs = process(torch.tensor([[9, token_id]]), logits[row : row + 1])[0]
        assert torch.allclose(ours[row], theirs, rtol=0.0, atol=1e-6)


@pytest.mark.parametrize(
    "sampling",
    [
        GREEDY,
        DRAWN,
        replace(DRAWN, temperature=0.7, top_k=50, top_p=0.95),
        replace(DRAWN, temperature=0.5, repetition_penalty=1.3, logit_bias={3: 1.0, 8: -4.0}),
        replace(DRAWN, typical_p=0.8),
    ],
)
def test_it_comes_before_penalties_and_filters(sampling: SamplingParams) -> None:
    logits = random_logits(1, 500, seed=2)
    prompt = (4, 9, 2, 9)
    ours = warped_logprobs([marked(sampling)], logits, prompt)[0]
    theirs = expected_logprobs(sampling, lifted(logits, prompt[-1:])[0], prompt)
    assert torch.allclose(ours, theirs, atol=1e-5)


def test_transformers_finds_it_in_what_was_sampled() -> None:
    steps = random_logits(200, 1000, seed=6)
    sampling = replace(DRAWN, seed=11)
    with_it = generate(sampler_of([marked(sampling)], 1000), steps)
    without = generate(sampler_of([sampling], 1000), steps)
    assert z_score(1000, with_it, GAMMA, DELTA) > 5.0
    assert abs(z_score(1000, without, GAMMA, DELTA)) < 3.0


def test_half_precision_is_lifted_like_single() -> None:
    logits = random_logits(1, 500).bfloat16()
    assert sample_once([marked(GREEDY)], logits) == sample_once([marked(GREEDY)], logits.float())


# Which rows, which token


def test_a_greedy_row_takes_the_best_token_of_the_lifted_ones() -> None:
    logits = random_logits(1, 2000, scale=0.5)
    sampled = sample_once([marked(GREEDY)], logits, prompt=(7, 8))
    assert sampled.token_ids[0] == int(lifted(logits, [8]).argmax()) != int(logits.argmax())


def test_rows_that_did_not_ask_are_left_alone() -> None:
    logits = random_logits(len(VARIETY), 1000)
    alone = sample_once(VARIETY, logits)
    mixed = [marked(one) if row % 3 == 0 else one for row, one in enumerate(VARIETY)]
    beside = sample_once(mixed, logits)
    for row in range(len(VARIETY)):
        if row % 3:
            assert beside.token_ids[row] == alone.token_ids[row]
            assert beside.logprobs[row] == alone.logprobs[row]
        else:
            assert beside.logprobs[row] != alone.logprobs[row]


def test_a_row_does_not_depend_on_its_batch_mates() -> None:
    requests = [marked(VARIETY[row % len(VARIETY)]) for row in range(150)]
    logits = random_logits(150, 1000, seed=5)
    together = sample_once(requests, logits)
    for row in (0, 3, 63, 64, 149):
        alone = sampler_of([requests[row]], 1000).sample([0], logits[row][None])
        assert alone.token_ids[0] == together.token_ids[row]
        assert alone.logprobs[0] == together.logprobs[row]


def test_the_previous_token_is_the_last_one_sampled() -> None:
    steps = random_logits(8, 300, seed=9)
    drawn = generate(sampler_of([marked(GREEDY)], 300, prompt=(5, 6)), steps)
    expected = [int(row.argmax()) for row in lifted(steps, [6, *drawn[:-1]])]
    assert drawn == expected


def test_a_preempted_request_goes_on_as_if_nothing_had_happened() -> None:
    steps = random_logits(8, 300, seed=9)
    request = marked(replace(DRAWN, seed=3))
    expected = generate(sampler_of([request], 300), steps)
    # Another list does not change each draw.
    for num_made in range(1, 8):
        sampler = sampler_of([request], 300, prompt=(1, 2, 3))
        before = generate(sampler, steps[:num_made])
        sampler.remove(0)
        sampler.add(0, request, NO_STOP, LogprobParams(), (1, 2, 3, *before), 3)
        assert before + generate(sampler, steps[num_made:]) == expected


def test_a_failed_row_keeps_its_previous_token() -> None:
    logits = random_logits(1, 300)
    sampler = sampler_of([marked(GREEDY)], 300)
    assert sampler.sample([0], torch.full((1, 300), torch.nan)).errors
    assert sampler.sample([0], logits) == sample_once([marked(GREEDY)], logits)


def test_a_row_searched_again_is_lifted_once() -> None:
    """Flat scores under top-p: the candidates do not suffice, and the row is repeated."""
    logits = random_logits(1, 8000, scale=0.01)
    request = replace(DRAWN, top_p=0.99)
    ours = warped_logprobs([marked(request)], logits)[0]
    theirs = expected_logprobs(request, lifted(logits, [3])[0])
    assert torch.allclose(ours, theirs, atol=1e-4)


def test_a_masked_token_stays_masked() -> None:
    allowed = torch.zeros(1, 300, dtype=torch.bool)
    allowed[0, [20, 21, 22]] = True
    logits = random_logits(1, 300)
    masked = logits.masked_fill(~allowed, -torch.inf)
    sampled = sample_once([marked(GREEDY)], logits, bitmask=bitmask_of(allowed))
    assert sampled.token_ids[0] == int(lifted(masked, [3]).argmax())


# What is reported


def test_warped_logprobs_have_it_and_raw_ones_do_not() -> None:
    logits = random_logits(1, 300)
    warped = sample_once([marked(GREEDY)], logits, logprobs=LogprobParams(2))
    raw = sample_once([marked(GREEDY)], logits, logprobs=LogprobParams(2, raw=True))
    token_id = warped.token_ids[0]
    assert raw.token_ids[0] == token_id
    lifted_logprobs = torch.log_softmax(lifted(logits, [3]), -1)[0]
    assert warped.logprobs[0] == pytest.approx(float(lifted_logprobs[token_id]), abs=1e-5)
    own_logprobs = torch.log_softmax(logits, -1)[0]
    assert raw.logprobs[0] == pytest.approx(float(own_logprobs[token_id]), abs=1e-5)
    assert raw.top_tokens[0][0].token_id == int(logits.argmax())


# The lists


def test_lists_beyond_the_bound_replace_older_ones() -> None:
    """More different tokens than lists are kept, in one step, and then some of them again."""
    watermark = Watermark(64, CPU, GAMMA, DELTA)
    previous = [*range(2500), *range(0, 2500, 400), 2499]
    logits = random_logits(len(previous), 64)
    assert torch.allclose(applied(watermark, logits, previous), lifted(logits, previous))
    assert torch.allclose(applied(watermark, logits[:9], range(9)), lifted(logits[:9], range(9)))


def test_a_share_that_leaves_no_token_green_is_refused() -> None:
    with pytest.raises(ConfigRefused, match=r"--watermark-gamma 0.001: leaves none of .* 500"):
        Watermark(500, CPU, gamma=0.001, delta=2.0)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_it_is_the_same_on_a_gpu() -> None:
    watermark = Watermark(1000, torch.device("cuda"), GAMMA, DELTA)
    logits = random_logits(3, 1024)
    scores = logits.cuda()
    watermark.apply(scores, torch.arange(3).cuda(), np.array([4, 5, 4]))
    expected = logits.clone()
    Watermark(1000, CPU, GAMMA, DELTA).apply(expected, torch.arange(3), np.array([4, 5, 4]))
    assert torch.equal(scores.cpu(), expected)
