"""The sampler's behaviour: batches, seeds, least length, masks, dtypes, history."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from model_server.errors import InvalidStep
from model_server.sampling.edits import Masks, TorchEdits
from model_server.sampling.sampler import SampledRows, Sampler
from proto.contract import LogprobParams, StopParams
from tests.model_server.sampling.cases import (
    CPU,
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


def continuation(
    sampler: Sampler, request_id: int, logits: Sequence[Tensor]
) -> list[tuple[int, float]]:
    sampled = [sampler.sample([request_id], row[None]) for row in logits]
    return [(rows.token_ids[0], rows.logprobs[0]) for rows in sampled]


# Batches


@pytest.mark.parametrize("vocab_size", [1000, 40_000], ids=["small", "beyond torch's grain"])
def test_a_row_does_not_depend_on_its_batch_mates(vocab_size: int) -> None:
    """Token and log-probability, to the bit, in batches of 1, 2, 3, 7 and 32."""
    generator = torch.Generator().manual_seed(3)
    logits = random_logits(32, vocab_size, seed=4)
    requests = [VARIETY[i % len(VARIETY)] for i in range(32)]
    logprobs = LogprobParams(num_top_tokens=2)

    def sample(rows: list[int]) -> SampledRows:
        sampler = sampler_of([requests[row] for row in rows], vocab_size, logprobs=logprobs)
        return sampler.sample(range(len(rows)), logits[rows])

    alone = [sample([row]) for row in range(32)]
    for size in (2, 3, 7, 32):
        rows = torch.randperm(32, generator=generator)[:size].tolist()
        together = sample(rows)
        for place, row in enumerate(rows):
            assert together.token_ids[place] == alone[row].token_ids[0]
            assert together.logprobs[place] == alone[row].logprobs[0]
            assert together.top_tokens[place] == alone[row].top_tokens[0]


def test_the_order_of_a_step_is_the_order_of_its_ids() -> None:
    logits = random_logits(len(VARIETY), 500)
    straight = sample_once(VARIETY, logits)
    order = [3, 0, 10, 7, 1, 5, 2, 9, 4, 8, 6]
    shuffled = sampler_of(VARIETY, 500).sample(order, logits[order])
    assert list(shuffled.token_ids) == [straight.token_ids[row] for row in order]
    assert list(shuffled.logprobs) == [straight.logprobs[row] for row in order]


def test_rows_may_leave_and_join_between_steps() -> None:
    steps = [random_logits(1, 200, seed=step)[0] for step in range(6)]
    request = replace(DRAWN, repetition_penalty=1.3, top_p=0.9, seed=77)
    expected = continuation(sampler_of([request], 200), 0, steps)
    sampler = sampler_of([request, *VARIETY], 200)
    actual = []
    for step, row in enumerate(steps):
        if step == 2:
            sampler.remove(3)
        if step == 4:
            sampler.add(50, DRAWN, NO_STOP, LogprobParams(), [9], 1)
        mates = [[], [1, 2], [4, 2], [5], [50, 1], [50]][step]
        ids = [*mates[:1], 0, *mates[1:]]
        rows = torch.stack([row if i == 0 else steps[0] for i in ids])
        sampled = sampler.sample(ids, rows)
        at = ids.index(0)
        actual.append((sampled.token_ids[at], sampled.logprobs[at]))
    assert actual == expected


def test_the_table_grows_beyond_the_rows_expected() -> None:
    sampler = sampler_of([replace(DRAWN, seed=seed) for seed in range(100)], 200)
    sampled = sampler.sample(range(100), random_logits(1, 200).expand(100, -1))
    assert len(set(sampled.token_ids)) > 10


def test_an_empty_step_gives_nothing() -> None:
    assert sampler_of([], 100).sample([], torch.empty(0, 100)) == SampledRows((), (), (), {})


# Seeds


def test_a_seed_means_the_same_tokens_again() -> None:
    steps = [random_logits(1, 200, seed=step)[0] for step in range(100)]
    first = continuation(sampler_of([replace(DRAWN, seed=2**64 - 1)], 200), 0, steps)
    again = continuation(sampler_of([replace(DRAWN, seed=2**64 - 1)], 200), 0, steps)
    other = continuation(sampler_of([replace(DRAWN, seed=0)], 200), 0, steps)
    assert first == again
    assert first != other


@pytest.mark.parametrize("kept", [1, 63, 64, 70])
def test_a_preempted_request_goes_on_as_if_nothing_had_happened(kept: int) -> None:
    """Its draws, penalties and least length count from the prompt, not from its return."""
    request = replace(
        DRAWN, seed=5, repetition_penalty=1.2, presence_penalty=0.3, frequency_penalty=0.2
    )
    stop = StopParams(max_new_tokens=200, min_new_tokens=68)
    steps = [random_logits(1, 30, seed=step, scale=1.0)[0] for step in range(75)]
    whole = continuation(sampler_of([request], 30, stop=stop), 0, steps)
    sampler = sampler_of([request], 30, stop=stop)
    before = continuation(sampler, 0, steps[:kept])
    sampler.remove(0)
    tokens = [*PROMPT, *(token_id for token_id, _ in before)]
    sampler.add(0, request, stop, LogprobParams(), tokens, len(PROMPT))
    assert before + continuation(sampler, 0, steps[kept:]) == whole


def test_a_reused_row_remembers_nothing() -> None:
    old = replace(DRAWN, presence_penalty=2.0, logit_bias={7: 9.0}, top_k=2)
    sampler = sampler_of([old], 100)
    logits = random_logits(1, 100)
    sampler.sample([0], logits)
    sampler.remove(0)
    fresh = replace(GREEDY, presence_penalty=2.0)
    sampler.add(1, fresh, NO_STOP, LogprobParams(), [3], 1)
    assert sampler.sample([1], logits).token_ids[0] == int(logits.argmax())


# Least length


def test_end_and_stop_tokens_are_masked_until_the_least_length() -> None:
    stop = StopParams(max_new_tokens=10, min_new_tokens=2, stop_token_ids=(7, 5000))
    logits = torch.zeros(1, 100)
    logits[0, 0] = 9.0
    logits[0, 7] = 8.0
    logits[0, 9] = 1.0
    sampler = sampler_of([GREEDY], 100, stop=stop)
    tokens = [sampler.sample([0], logits).token_ids[0] for _ in range(3)]
    assert tokens == [9, 9, 0]


def test_rows_reach_their_least_length_one_by_one() -> None:
    logits = torch.zeros(3, 100)
    logits[:, 0] = 9.0
    logits[:, 9] = 1.0
    sampler = sampler_of([], 100)
    for request_id, least in enumerate((0, 1, 3)):
        stop = StopParams(max_new_tokens=10, min_new_tokens=least)
        sampler.add(request_id, GREEDY, stop, LogprobParams(), PROMPT, len(PROMPT))
    steps = [sampler.sample([0, 1, 2], logits).token_ids for _ in range(5)]
    assert steps == [(0, 9, 9), (0, 0, 9), (0, 0, 9), (0, 0, 0), (0, 0, 0)]


def test_an_ignored_end_token_is_not_masked() -> None:
    stop = StopParams(max_new_tokens=10, min_new_tokens=5, ignore_eos=True)
    logits = torch.zeros(1, 100)
    logits[0, 0] = 9.0
    assert sampler_of([GREEDY], 100, stop=stop).sample([0], logits).token_ids == (0,)


# Bitmask


@pytest.mark.parametrize("vocab_size", [100, 1024])
def test_only_allowed_tokens_are_chosen(vocab_size: int) -> None:
    generator = torch.Generator().manual_seed(0)
    allowed = torch.rand(len(VARIETY), vocab_size, generator=generator) < 0.03
    allowed[:, 17] = True
    logits = random_logits(len(VARIETY), vocab_size)
    for seed in range(10):
        requests = [replace(sampling, seed=seed) for sampling in VARIETY]
        sampled = sample_once(requests, logits, bitmask=bitmask_of(allowed))
        assert not sampled.errors
        assert all(allowed[row, token] for row, token in enumerate(sampled.token_ids))


def test_a_mask_of_ones_changes_nothing() -> None:
    logits = random_logits(len(VARIETY), 1000)
    ones = torch.full((len(VARIETY), 32), -1, dtype=torch.int32)
    assert sample_once(VARIETY, logits, bitmask=ones) == sample_once(VARIETY, logits)


def test_masks_come_before_filters() -> None:
    """Top-k of the allowed tokens, not the allowed ones among the top k."""
    logits = torch.arange(100.0)[None]
    allowed = torch.zeros(1, 100, dtype=torch.bool)
    allowed[0, :10] = True
    sampled = sample_once([replace(DRAWN, top_k=1)], logits, bitmask=bitmask_of(allowed))
    assert sampled.token_ids == (9,)


# Dtypes


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_logits_of_any_float_dtype_are_computed_in_float32(dtype: torch.dtype) -> None:
    logits = random_logits(len(VARIETY), 1000).to(dtype)
    assert sample_once(VARIETY, logits) == sample_once(VARIETY, logits.float())


def test_logits_are_not_changed() -> None:
    logits = random_logits(len(VARIETY), 1024)
    before = logits.clone()
    ones = torch.full((len(VARIETY), 32), 0x7FFF, dtype=torch.int32)
    sample_once(VARIETY, logits)
    sample_once(VARIETY, logits, bitmask=ones)
    assert torch.equal(logits, before)


# History


def test_tokens_that_cannot_be_produced_are_no_reason_for_a_penalty() -> None:
    request = replace(GREEDY, repetition_penalty=2.0, frequency_penalty=1.0)
    logits = torch.full((1, 100), 1.0)
    logits[0, 5] = 1.5
    logits[0, 6] = 1.2
    sampler = sampler_of([], 100)
    sampler.add(0, request, NO_STOP, LogprobParams(), [5, 100, 2000, 5], 2)
    assert sampler.sample([0], logits).token_ids == (6,)
    with pytest.raises(InvalidStep, match=r"request 1: .* vocab_size 100"):
        sampler.add(1, request, NO_STOP, LogprobParams(), [100], 1)
    sampler.add(1, GREEDY, NO_STOP, LogprobParams(), [100], 1)


def test_a_long_history_is_penalised_to_its_end() -> None:
    request = replace(GREEDY, frequency_penalty=1.0)
    steps = 600
    logits = torch.full((1, 64), -1000.0)
    logits[0, 3] = 50.0
    logits[0, 4] = 49.5
    sampler = sampler_of([request], 64)
    tokens = [sampler.sample([0], logits).token_ids[0] for _ in range(steps)]
    assert tokens == [3, 4] * (steps // 2)


def test_what_is_reserved_holds_the_largest_batch_of_the_longest_sequences() -> None:
    elsewhere = torch.device("meta")
    edits = TorchEdits(1000, elsewhere)
    Sampler(1000, elsewhere, (0,), 2, edits=edits).reserve(6, 5000)
    assert (edits.history.num_slots, edits.history.max_len) == (6, 5000)


def test_on_the_host_nothing_is_reserved() -> None:
    edits = TorchEdits(1000, CPU)
    Sampler(1000, CPU, (0,), 2, edits=edits).reserve(6, 5000)
    assert edits.history.num_slots == 0


def test_a_biased_token_that_may_not_come_yet_is_banned() -> None:
    request = replace(GREEDY, logit_bias={0: 50.0, 7: 20.0})
    sampler = sampler_of([request], 64, stop=StopParams(100, min_new_tokens=1))
    tokens = [sampler.sample([0], torch.zeros(1, 64)).token_ids[0] for _ in range(2)]
    assert tokens == [7, 0]


# CUDA


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_gpu_draws_the_tokens_of_a_cpu() -> None:
    cuda = torch.device("cuda")
    requests = [replace(VARIETY[i % len(VARIETY)], seed=i) for i in range(66)]
    logits = random_logits(66, 32_000)
    some = np.arange(0, 66, 2)
    masks = Masks(some, torch.full((33, 1000), 0x7FFFFFFF, dtype=torch.int32))
    samplers = []
    for device in (CPU, cuda):
        sampler = Sampler(32_000, device, (0,), 4)
        for request_id, sampling in enumerate(requests):
            stop = StopParams(100, min_new_tokens=1)
            sampler.add(request_id, sampling, stop, LogprobParams(2), PROMPT, 3)
        samplers.append(sampler)
    for mask in (None, masks):
        on_cpu = samplers[0].sample(range(66), logits, mask)
        on_cuda = samplers[1].sample(range(66), logits.to(cuda), mask)
        assert on_cuda.token_ids == on_cpu.token_ids
        assert on_cuda.logprobs == pytest.approx(on_cpu.logprobs, abs=1e-4)
