"""A step of the sampler on CUDA does not wait for the device before its results are wanted."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from model_server.sampling.edits import Masks
from model_server.sampling.sampler import Sampler
from model_server.sampling.triton import TritonChooser, TritonEdits
from model_server.staging import Array, Arrival, PinnedStaging
from proto.contract import LogprobParams, SamplingParams, StopParams
from tests.model_server.sampling.cases import DRAWN, GREEDY
from tests.no_sync import no_sync

CUDA = torch.device("cuda")
VOCAB_SIZE = 1024  # whole chunks: the logits are the scores
REQUESTS = [
    *[GREEDY] * 5,
    *[DRAWN] * 5,
    replace(DRAWN, top_k=50, top_p=0.9),
    replace(DRAWN, top_p=0.95, temperature=0.7),
    replace(DRAWN, min_p=0.02, repetition_penalty=1.2),
    replace(DRAWN, presence_penalty=0.4, logit_bias={4: 2.0}),
]


class ResultsWanted(Exception):
    """The one wait of a step has been reached."""


class FakeStaging(PinnedStaging):
    """Copies to fake tensors; there is no pinned memory without CUDA."""

    def to_device_all(self, arrays: Sequence[Array]) -> tuple[Tensor, ...]:
        return tuple(
            torch.empty(each.shape, dtype=torch.from_numpy(each[:0]).dtype, device=CUDA)
            for each in map(np.ascontiguousarray, arrays)
        )

    def tensor_to_device(self, tensor: Tensor) -> Tensor:
        return torch.empty_like(tensor, device=CUDA)

    def to_host(self, tensor: Tensor) -> Arrival:
        raise ResultsWanted


def launched_nothing(kernel: Any, grid: tuple[int, ...], *args: Any, **constants: Any) -> None:
    """Fake tensors have no memory."""


def sampler_of(requests: Sequence[SamplingParams]) -> Sampler:
    num_rows = len(requests)
    staging = FakeStaging(CUDA)
    sampler = Sampler(
        VOCAB_SIZE,
        CUDA,
        (0,),
        num_rows,
        choose=TritonChooser(CUDA, num_rows, launched_nothing),
        edits=TritonEdits(VOCAB_SIZE, CUDA, num_rows, staging=staging, launch=launched_nothing),
        staging=staging,
    )
    sampler.reserve(num_rows, 100)
    for request_id, sampling in enumerate(requests):
        stop = StopParams(100, min_new_tokens=int(request_id == 0))
        sampler.add(request_id, sampling, stop, LogprobParams(), (1, 2, 3), 3)
    return sampler


@pytest.mark.parametrize("is_masked", [True, False])
def test_a_step_waits_for_nothing_but_its_results(is_masked: bool) -> None:
    with no_sync():
        sampler = sampler_of(REQUESTS)
        logits = torch.empty(len(REQUESTS), VOCAB_SIZE, device=CUDA)
        masks = None
        if is_masked:
            masks = Masks(np.array([1]), torch.zeros(1, 32, dtype=torch.int32))
        with pytest.raises(ResultsWanted):
            sampler.sample(range(len(REQUESTS)), logits, masks)
