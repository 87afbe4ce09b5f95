"""Choosers compared with `choose_by_torch`, through a sampler."""

import pytest
import torch
from hypothesis import strategies as st
from torch import Tensor

from model_server.sampling.choosing import Choose, choose_by_torch
from model_server.sampling.sampler import SampledRows, Sampler
from proto.contract import LogprobParams, SamplingParams
from tests.model_server.sampling.cases import CPU, NO_STOP, PROMPT

REQUESTS = st.builds(
    SamplingParams,
    do_sample=st.booleans(),
    temperature=st.sampled_from([0.3, 1.0, 1.7]),
    top_k=st.sampled_from([None, 1, 2, 40, 56, 300, 5000]),
    top_p=st.sampled_from([None, 1e-6, 0.3, 0.95, 0.9999]),
    min_p=st.sampled_from([None, 1e-4, 0.05, 1.0]),
    seed=st.integers(0, 2**64 - 1),
)


def sampled(
    requests: list[SamplingParams], logits: Tensor, choose: Choose, device: torch.device = CPU
) -> SampledRows:
    """One token for each request, of its row of logits [num_requests, vocab_size]."""
    sampler = Sampler(logits.shape[-1], device, (0,), len(requests), choose=choose)
    for request_id, sampling in enumerate(requests):
        sampler.add(request_id, sampling, NO_STOP, LogprobParams(), PROMPT, len(PROMPT))
    return sampler.sample(range(len(requests)), logits.to(device, copy=True))


def assert_chooses_as_torch(
    choose: Choose,
    requests: list[SamplingParams],
    logits: Tensor,
    *,
    tolerance: float = 1e-4,
    device: torch.device = CPU,
) -> None:
    """The same tokens on the device as torch chooses on the host, log-probabilities alike."""
    expected = sampled(requests, logits, choose_by_torch)
    found = sampled(requests, logits, choose, device)
    assert found.token_ids == expected.token_ids
    assert found.errors == expected.errors
    assert found.logprobs == pytest.approx(expected.logprobs, abs=tolerance, nan_ok=True)
