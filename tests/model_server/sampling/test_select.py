"""The choice of the ways to sample."""

import torch

from model_server.sampling.choosing import NativeChooser, choose_by_torch, sampling_ways
from model_server.sampling.edits import TorchEdits
from tests.native.compiler import needs_compiler


@needs_compiler
def test_a_cpu_chooses_by_the_native_library() -> None:
    ways = sampling_ways(100, torch.device("cpu"), 4)
    assert isinstance(ways.choose, NativeChooser)
    assert isinstance(ways.edits, TorchEdits)


def test_a_device_without_kernels_of_its_own_is_served_by_torch() -> None:
    ways = sampling_ways(100, torch.device("meta"), 4)
    assert ways.choose is choose_by_torch
    assert isinstance(ways.edits, TorchEdits)
