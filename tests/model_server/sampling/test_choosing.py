"""The native library draws what torch draws, to the last bit; and what is reported of tokens."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from model_server.sampling.choosing import (
    Choose,
    NativeChooser,
    choose_by_torch,
    sampling_ways,
    score_tokens,
)
from model_server.sampling.edits import Masks, TorchEdits
from model_server.sampling.filters import exp_weights
from model_server.sampling.sampler import Sampler
from proto.contract import LogprobParams, SamplingParams
from tests.hypothesis_profiles import more_examples
from tests.model_server.executor.decoders import decoder
from tests.model_server.sampling.cases import (
    CPU,
    DRAWN,
    GREEDY,
    NO_STOP,
    PROMPT,
    REQUESTS,
    VARIETY,
    assert_chooses_as_torch,
    random_logits,
    sample_once,
    sampled,
    sampler_of,
)
from tests.model_server.sampling.test_edits import bitmask_of
from tests.native.compiler import needs_compiler


@pytest.fixture(scope="module")
def native() -> NativeChooser:
    return NativeChooser()


@needs_compiler
@given(
    requests=st.lists(REQUESTS, min_size=1, max_size=8),
    vocab_size=st.sampled_from([5, 64, 1000, 8_000]),
    scale=st.sampled_from([0.0, 0.01, 1.0, 6.0, 40.0]),
    num_values=st.sampled_from([2, 30, None]),
    seed=st.integers(0, 1000),
)
@more_examples(3)
def test_any_requests_draw_what_torch_draws(
    native: NativeChooser,
    requests: list[SamplingParams],
    vocab_size: int,
    scale: float,
    num_values: int | None,
    seed: int,
) -> None:
    logits = random_logits(len(requests), vocab_size, seed=seed, scale=scale)
    if num_values is not None:  # many equal scores
        logits = (logits * num_values).round() / num_values
    assert_chooses_as_torch(native, requests, logits)


@needs_compiler
@pytest.mark.parametrize("top_k", [1, 2, 3, 5])
def test_top_k_holds_where_the_others_are_far_behind(native: NativeChooser, top_k: int) -> None:
    logits = torch.tensor([[0.5, -2.5, -4.5, -1.0, -2.0], [-17.0, 8.5, 3.0, 4.0, 0.5]])
    for seed in range(50):
        requests = [replace(DRAWN, top_k=top_k, seed=seed), replace(DRAWN, top_k=top_k, seed=seed)]
        assert_chooses_as_torch(native, requests, logits)


@needs_compiler
@pytest.mark.parametrize(
    "sampling", [GREEDY, DRAWN, replace(DRAWN, top_p=0.9), replace(DRAWN, top_k=3, min_p=0.1)]
)
def test_rows_without_a_distribution_fail_as_with_torch(
    native: NativeChooser, sampling: SamplingParams
) -> None:
    logits = random_logits(6, 300)
    logits[0, 7] = torch.nan
    logits[1, 7] = torch.inf
    logits[2] = -torch.inf
    logits[3] = torch.nan
    logits[4, 1:] = -torch.inf  # one token is left
    assert_chooses_as_torch(native, [sampling] * 6, logits)


@needs_compiler
def test_weights_are_those_of_the_exponential_function(native: NativeChooser) -> None:
    log_weights = -torch.cat([torch.linspace(0, 87, 2000), torch.logspace(-6, 1, 2000)])
    assert exp_weights(torch.zeros(1)).item() == 1.0
    exact = log_weights.double().exp()
    error = (exp_weights(log_weights).double() - exact).abs() / exact.clamp(min=1e-37)
    assert error.max() < 3e-7
    logits = torch.full((4000, 64), -torch.inf)
    logits[:, 0] = 0.0
    logits[:, 1] = log_weights
    # The logarithm of both weights together shows the second one.
    assert_chooses_as_torch(native, [replace(DRAWN, seed=seed) for seed in range(4000)], logits)


@needs_compiler
def test_the_threads_of_an_executor_change_nothing(native: NativeChooser) -> None:
    executor = decoder("llama").executor(torch.float32, num_threads=3)
    requests = [
        replace(DRAWN, seed=seed, top_p=0.9 if seed % 2 else None, temperature=0.5 + seed % 3)
        for seed in range(40)
    ]
    logits = random_logits(40, 32_000)
    assert executor.threads is not None
    for _ in range(5):
        shared = sampled(requests, logits, NativeChooser(lambda: executor.threads))
        assert shared == sampled(requests, logits, native)
    executor.close()
    assert executor.threads is None


@needs_compiler
def test_a_cpu_chooses_by_the_native_library() -> None:
    ways = sampling_ways(100, torch.device("cpu"), 4)
    assert isinstance(ways.choose, NativeChooser)
    assert isinstance(ways.edits, TorchEdits)


def test_a_device_without_kernels_of_its_own_is_served_by_torch() -> None:
    ways = sampling_ways(100, torch.device("meta"), 4)
    assert ways.choose is choose_by_torch
    assert isinstance(ways.edits, TorchEdits)


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


def exact_logprobs(scores: Tensor) -> "np.ndarray[tuple[int], np.dtype[np.float32]]":
    """The log-softmax of one row, in float64, rounded to float32."""
    weights = scores.double().numpy()
    weights = weights - weights.max()
    return (weights - np.log1p(np.exp(np.sort(weights)[:-1]).sum())).astype(np.float32)


def logprobs_by_way(logits: Tensor, vary: SamplingParams, choose: Choose) -> dict[str, float]:
    """The log-probability of one token of one row, in each way that there is to get it."""
    vocab_size = logits.shape[-1]
    greedy = replace(vary, do_sample=False)
    drawn = replace(vary, do_sample=True, top_k=None)
    allowed = torch.ones(1, vocab_size, dtype=torch.bool)
    found: dict[str, float] = {}
    token = sampled([greedy], logits, choose).token_ids[0]
    for name, params, asked, bitmask in (
        ("greedy", greedy, LogprobParams(), None),
        ("drawn", drawn, LogprobParams(), None),
        ("filtered by nothing", replace(drawn, top_k=vocab_size), LogprobParams(), None),
        ("with alternatives", greedy, LogprobParams(2), None),
        ("drawn with alternatives", drawn, LogprobParams(2), None),
        ("raw", greedy, LogprobParams(raw=True), None),
        ("raw with alternatives", greedy, LogprobParams(2, raw=True), None),
        ("constrained", greedy, LogprobParams(), bitmask_of(allowed)),
        ("constrained and drawn", drawn, LogprobParams(2), bitmask_of(allowed)),
    ):
        sampler = Sampler(vocab_size, CPU, (0,), 1, choose=choose)
        sampler.add(0, params, NO_STOP, asked, PROMPT, len(PROMPT))
        masks = None if bitmask is None else Masks(np.arange(1), bitmask)
        answer = sampler.sample([0], logits.clone(), masks)
        if answer.token_ids[0] == token:
            found[name] = answer.logprobs[0]
        for other in answer.top_tokens[0]:
            if other.token_id == token:
                found[f"{name}: itself"] = other.logprob
    (plain,) = score_tokens(logits, [token])
    (scored,) = score_tokens(logits, [token], 1)
    found["prompt"] = plain.logprob
    found["prompt with alternatives"] = scored.logprob
    found["prompt: itself"] = scored.top_tokens[0].logprob
    found["in float64"] = float(exact_logprobs(logits[0])[token])
    return found


@pytest.mark.parametrize("by_library", [pytest.param(True, marks=needs_compiler), False])
@pytest.mark.parametrize("lead", [0.0, 3.0, 8.0, 14.0, 22.0])
def test_a_token_has_one_logprob_whatever_way_it_is_asked_for(
    lead: float, by_library: bool
) -> None:
    choose: Choose = NativeChooser() if by_library else choose_by_torch
    for seed in range(10):
        logits = random_logits(1, 5000, seed=seed)
        logits[0, 777 + seed] = 6.0 + lead
        found = logprobs_by_way(logits, replace(DRAWN, seed=seed), choose)
        assert len(found) >= 12
        assert set(found.values()) == {found["in float64"]}, found


@needs_compiler
def test_the_logprobs_of_a_row_are_those_of_a_batch(native: NativeChooser) -> None:
    requests = [replace(params, seed=seed) for seed in range(3) for params in VARIETY]
    logits = random_logits(len(requests), 9000)
    together = sampled(requests, logits, native)
    for row, params in enumerate(requests):
        alone = sampled([params], logits[row : row + 1], native)
        assert alone.logprobs[0] == together.logprobs[row]
