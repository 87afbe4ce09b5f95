"""A sampler built in one line, and what others make of its tokens: torch and transformers."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import strategies as st
from torch import Tensor
from transformers import GPT2Config, WatermarkDetector, WatermarkingConfig
from transformers.generation.logits_process import (
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
    TypicalLogitsWarper,
)
from transformers.generation.watermarking import WatermarkDetectorOutput

from model_server.sampling.choosing import Choose, choose_by_torch
from model_server.sampling.edits import Masks
from model_server.sampling.filters import uniforms
from model_server.sampling.sampler import SampledRows, Sampler
from proto.contract import LogprobParams, SamplingParams, StopParams

CPU = torch.device("cpu")
NO_STOP = StopParams(max_new_tokens=1000)
PROMPT = (1, 2, 3)

GREEDY = SamplingParams()
DRAWN = SamplingParams(do_sample=True)

VARIETY = [
    GREEDY,
    DRAWN,
    replace(DRAWN, temperature=0.7, seed=1),
    replace(DRAWN, top_k=50, top_p=0.95, seed=2),
    replace(DRAWN, top_k=300, seed=3),
    replace(DRAWN, top_p=0.9, seed=4),
    replace(DRAWN, top_p=0.97, temperature=4.0, seed=5),
    replace(DRAWN, typical_p=0.8, seed=6),
    replace(DRAWN, min_p=0.02, repetition_penalty=1.2, seed=7),
    replace(DRAWN, presence_penalty=0.4, frequency_penalty=0.1, logit_bias={4: 2.0}, seed=8),
    replace(GREEDY, repetition_penalty=1.4),
]


def sampler_of(
    requests: Sequence[SamplingParams],
    vocab_size: int,
    *,
    stop: StopParams = NO_STOP,
    logprobs: LogprobParams | None = None,
    prompt: Sequence[int] = PROMPT,
    eos_token_ids: tuple[int, ...] = (0,),
) -> Sampler:
    """Requests 0, 1, 2, ... of these parameters, all with the same prompt."""
    sampler = Sampler(vocab_size, CPU, eos_token_ids, max_rows=2)
    for request_id, sampling in enumerate(requests):
        sampler.add(request_id, sampling, stop, logprobs or LogprobParams(), prompt, len(prompt))
    return sampler


def sample_once(
    requests: Sequence[SamplingParams],
    logits: Tensor,
    *,
    logprobs: LogprobParams | None = None,
    prompt: Sequence[int] = PROMPT,
    bitmask: Tensor | None = None,
) -> SampledRows:
    """`bitmask` masks every row."""
    sampler = sampler_of(requests, logits.shape[-1], logprobs=logprobs, prompt=prompt)
    masks = None if bitmask is None else Masks(np.arange(len(requests)), bitmask)
    return sampler.sample(range(len(requests)), logits, masks)


def warped_logprobs(
    requests: Sequence[SamplingParams], logits: Tensor, prompt: Sequence[int] = PROMPT
) -> Tensor:
    """The whole filtered distribution of each row, which is what n = vocabulary top tokens are."""
    vocab_size = logits.shape[-1]
    everything = LogprobParams(num_top_tokens=vocab_size)
    sampled = sample_once(requests, logits, logprobs=everything, prompt=prompt)
    assert not sampled.errors
    whole = torch.full(logits.shape, torch.nan)
    for row, tokens in enumerate(sampled.top_tokens):
        assert len(tokens) == vocab_size
        whole[row, [token.token_id for token in tokens]] = torch.tensor(
            [token.logprob for token in tokens]
        )
    return whole


def processors(sampling: SamplingParams) -> LogitsProcessorList:
    """What generate() would build for these parameters, in its order."""
    return LogitsProcessorList([*_edits(sampling), *(_warpers(sampling))])


def _edits(sampling: SamplingParams) -> Iterator[object]:
    if sampling.logit_bias:
        yield SequenceBiasLogitsProcessor(
            [[[token_id], float(bias)] for token_id, bias in sampling.logit_bias.items()]
        )
    if sampling.repetition_penalty != 1.0:
        yield RepetitionPenaltyLogitsProcessor(sampling.repetition_penalty)


def _warpers(sampling: SamplingParams) -> Iterator[object]:
    if not sampling.do_sample:
        return
    if sampling.temperature != 1.0:
        yield TemperatureLogitsWarper(sampling.temperature)
    if sampling.top_k:
        yield TopKLogitsWarper(sampling.top_k)
    if sampling.top_p is not None and sampling.top_p < 1.0:
        yield TopPLogitsWarper(sampling.top_p)
    if sampling.min_p:
        yield MinPLogitsWarper(sampling.min_p)
    if sampling.typical_p is not None and sampling.typical_p < 1.0:
        yield TypicalLogitsWarper(sampling.typical_p)


def expected_logprobs(
    sampling: SamplingParams,
    logits: Tensor,
    prompt: Sequence[int] = PROMPT,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """transformers' filtered distribution for one row, [vocab_size]."""
    scores = processors(sampling)(torch.LongTensor([list(prompt)]), logits.to(dtype)[None].clone())
    return torch.log_softmax(scores, -1)[0]


def expected_token(sampling: SamplingParams, logprobs: Tensor, position: int) -> int:
    """The inverse of the cumulative distribution at the draw of (seed, position)."""
    (draw,) = uniforms(np.array([sampling.seed], np.uint64), np.array([position], np.uint64))
    cumulative = logprobs.double().exp().cumsum(-1)
    return int((cumulative <= draw * cumulative[-1]).sum())


def random_logits(num_rows: int, vocab_size: int, *, seed: int = 0, scale: float = 2.5) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(num_rows, vocab_size, generator=generator) * scale


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


def z_score(vocab_size: int, token_ids: Sequence[int], gamma: float, delta: float) -> float:
    """How many standard deviations more green tokens there are than chance brings.

    The detector thinks a text marked from 3 on. A pair of tokens counts once, since one that is
    repeated says nothing new. Of the model it reads the size of the vocabulary, and which token to
    skip at the beginning.
    """
    detector = WatermarkDetector(
        GPT2Config(vocab_size=vocab_size, bos_token_id=0, eos_token_id=0),
        "cpu",
        WatermarkingConfig(greenlist_ratio=gamma, bias=delta),
        ignore_repeated_ngrams=True,
    )
    found = detector(torch.LongTensor([list(token_ids)]), return_dict=True)
    assert isinstance(found, WatermarkDetectorOutput)
    assert found.z_score is not None
    return float(found.z_score[0])
