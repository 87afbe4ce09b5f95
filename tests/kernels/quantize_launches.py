"""Rows in 8 bits, as wide as an MLP of Llama 3 8B, to be compiled ahead of time."""

import torch

from model_server.executor.triton_layers import TritonLayerOps
from tests.kernels.ahead_of_time import Recorder


def record(recorder: Recorder) -> None:
    """For GPUs that have such numbers: sm_80 has none."""
    with recorder.case("inner 14336"):
        x = torch.empty(8, 14336, dtype=torch.bfloat16, device="meta")
        TritonLayerOps(recorder).quantize(x)
