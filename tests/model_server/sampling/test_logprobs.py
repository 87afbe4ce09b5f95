"""Reported log-probabilities: raw and warped, of the token and of its alternatives, of prompts."""

import math
from dataclasses import replace

import pytest
import torch

from model_server.sampling.choosing import score_tokens
from proto.contract import LogprobParams, SamplingParams
from tests.model_server.sampling.cases import (
    DRAWN,
    GREEDY,
    NO_STOP,
    PROMPT,
    VARIETY,
    random_logits,
    sample_once,
    sampler_of,
)
from tests.model_server.sampling.test_logits_processors import bitmask_of


@pytest.mark.parametrize("sampling", VARIETY)
def test_raw_logprobs_are_of_the_untouched_logits(sampling: SamplingParams) -> None:
    logits = random_logits(1, 500)
    sampled = sample_once([sampling], logits, logprobs=LogprobParams(3, raw=True))
    expected = torch.log_softmax(logits, -1)[0]
    assert sampled.logprobs[0] == pytest.approx(float(expected[sampled.token_ids[0]]), abs=1e-5)
    best, ids = expected.topk(3)
    assert [token.token_id for token in sampled.top_tokens[0]] == ids.tolist()
    assert [token.logprob for token in sampled.top_tokens[0]] == pytest.approx(best.tolist())


def test_greedy_rows_report_penalised_unwarped_logprobs() -> None:
    sampling = SamplingParams(temperature=0.2, top_k=2, repetition_penalty=2.0)
    logits = random_logits(1, 50).abs()
    sampled = sample_once([sampling], logits)
    scores = logits[0].clone()
    scores[list(PROMPT)] /= 2.0
    assert sampled.token_ids[0] == int(scores.argmax())
    assert sampled.logprobs[0] == pytest.approx(
        float(torch.log_softmax(scores, -1).max()), abs=1e-5
    )


@pytest.mark.parametrize("lead", range(10, 24))
def test_a_token_that_is_all_but_certain_is_not_more_than_certain(lead: int) -> None:
    logits = torch.linspace(-3, 3, 500).unsqueeze(0)
    logits[0, 7] = lead
    sampled = sample_once(
        [replace(DRAWN, typical_p=0.9)], logits, logprobs=LogprobParams(num_top_tokens=1)
    )
    assert -1e-3 < sampled.logprobs[0] <= 0
    assert -1e-3 < sampled.top_tokens[0][0].logprob <= 0


@pytest.mark.parametrize("raw", [False, True])
def test_a_token_has_the_same_logprob_among_its_alternatives(raw: bool) -> None:
    width = 64
    num_rows = 4 * len(VARIETY)
    sampler = sampler_of([], width)
    for request_id in range(num_rows):
        sampling = VARIETY[request_id % len(VARIETY)]
        # Some of their neighbours want none, so that rows have other numbers in their groups.
        asked = LogprobParams(0 if request_id % 3 == 0 else width, raw=raw)
        sampler.add(request_id, sampling, NO_STOP, asked, PROMPT, 3)
    sampled = sampler.sample(range(num_rows), 3 * random_logits(num_rows, width))
    for row in range(num_rows):
        among = {token.token_id: token.logprob for token in sampled.top_tokens[row]}
        assert sampled.logprobs[row] <= 0
        assert among.get(sampled.token_ids[row], sampled.logprobs[row]) == sampled.logprobs[row]
        assert bool(among) == (row % 3 != 0)


def test_each_row_gets_as_many_top_tokens_as_it_asked_for() -> None:
    counts = [0, 5, 1, 0, 30]
    sampler = sampler_of([], 30)
    for request_id, count in enumerate(counts):
        sampler.add(request_id, VARIETY[request_id], NO_STOP, LogprobParams(count), PROMPT, 3)
    sampled = sampler.sample(range(5), random_logits(5, 30))
    assert [len(tokens) for tokens in sampled.top_tokens] == counts
    for tokens in sampled.top_tokens:
        assert list(tokens) == sorted(tokens, key=lambda token: (-token.logprob, token.token_id))


def test_equal_top_tokens_come_by_id() -> None:
    sampled = sample_once([GREEDY], torch.zeros(1, 1000), logprobs=LogprobParams(4))
    assert [token.token_id for token in sampled.top_tokens[0]] == [0, 1, 2, 3]
    assert sampled.top_tokens[0][0].logprob == pytest.approx(-math.log(1000))


def test_tokens_dropped_by_a_filter_have_no_probability() -> None:
    logits = torch.arange(100.0)[None]
    sampled = sample_once([replace(DRAWN, top_k=2)], logits, logprobs=LogprobParams(4))
    ids, logprobs = zip(*((t.token_id, t.logprob) for t in sampled.top_tokens[0]), strict=True)
    assert ids == (99, 98, 0, 1)
    assert logprobs[:2] == pytest.approx((-0.31326, -1.31326), abs=1e-4)
    assert logprobs[2:] == (-math.inf, -math.inf)


def test_prompt_tokens_are_scored_by_the_rows_before_them() -> None:
    logits = random_logits(150, 70)
    token_ids = [i % 70 for i in range(150)]
    scores = score_tokens(logits.bfloat16(), token_ids, 3)
    expected = torch.log_softmax(logits.bfloat16().float(), -1)
    logprobs = [float(expected[i, i % 70]) for i in range(150)]
    assert [score.logprob for score in scores] == pytest.approx(logprobs)
    assert [len(score.top_tokens) for score in scores] == [3] * 150
    assert scores[149].top_tokens[0].logprob == pytest.approx(float(expected[149].max()))
    assert [score.top_tokens for score in score_tokens(logits, token_ids)] == [()] * 150


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_mask_does_not_hide_logits_that_are_no_numbers(bad: float) -> None:
    logits = random_logits(2, 100)
    logits[1, 7] = bad
    allowed = torch.zeros(2, 100, dtype=torch.bool)
    allowed[:, 42] = True
    sampled = sample_once(
        [GREEDY, GREEDY], logits, bitmask=bitmask_of(allowed), logprobs=LogprobParams(1, raw=True)
    )
    assert sampled.token_ids[0] == 42
    assert math.isfinite(sampled.logprobs[0])
    assert list(sampled.errors) == [1]
    assert "the model's logits hold" in sampled.errors[1]


def test_raw_logprobs_do_not_see_the_mask() -> None:
    logits = random_logits(1, 100)
    allowed = torch.zeros(1, 100, dtype=torch.bool)
    allowed[0, 42] = True
    raw = sample_once(
        [GREEDY], logits, bitmask=bitmask_of(allowed), logprobs=LogprobParams(1, raw=True)
    )
    warped = sample_once([GREEDY], logits, bitmask=bitmask_of(allowed), logprobs=LogprobParams(1))
    assert raw.token_ids == warped.token_ids == (42,)
    assert raw.logprobs[0] == pytest.approx(float(torch.log_softmax(logits, -1)[0, 42]), abs=1e-5)
    assert raw.top_tokens[0][0].token_id == int(logits.argmax())
    assert warped.logprobs[0] == 0.0
    assert warped.top_tokens[0][0].token_id == 42
