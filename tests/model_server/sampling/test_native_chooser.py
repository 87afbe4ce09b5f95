"""The native library draws what torch draws, to the last bit."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from model_server.sampling.choosing import NativeChooser
from model_server.sampling.filters import exp_weights
from proto.contract import SamplingParams
from tests.hypothesis_profiles import more_examples
from tests.model_server.executor.decoders import decoder
from tests.model_server.sampling.cases import DRAWN, GREEDY, random_logits
from tests.model_server.sampling.choosers import REQUESTS, assert_chooses_as_torch, sampled
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
