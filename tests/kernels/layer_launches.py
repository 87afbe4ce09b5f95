"""Launches of a layer's operations, to be compiled ahead of time; see ahead_of_time.py."""

import torch
from torch import Tensor

from model_server.executor.layer_ops import HeadLayout, NormWeights
from model_server.executor.triton_layers import TritonLayerOps
from tests.kernels.ahead_of_time import Recorder

META = torch.device("meta")
BF16 = torch.bfloat16


def record(recorder: Recorder) -> None:
    """Of Llama 3 8B, of Qwen3 8B and of a model as wide as Llama 3 70B with Gemma's norms."""
    ops = TritonLayerOps(recorder)
    for label, hidden, inner in (("sm_90 4096", 4096, 14336), ("8192", 8192, 28672)):
        rows, norm = _empty(8, hidden), _norm(hidden, hidden)
        with recorder.case(label):
            ops.add_norm(rows, rows, norm)
            ops.add_norm(rows, rows, norm, post_norm=norm)
            ops.activate(_empty(8, 2 * inner), "gate_up", "silu")
    table = _empty(1000, 64, dtype=torch.float32)
    places = _empty(8, dtype=torch.int64)
    for label, query_norm, key_norm in (
        ("no norms", None, None),
        ("norms", _norm(128, 4096), _norm(128, 1024)),
    ):
        heads = HeadLayout(32, 8, 128, query_norm, key_norm, cos=table, sin=table)
        pool = _empty(64, 16, 8, 128)
        with recorder.case(label):
            ops.rotate_and_write(_empty(8, 6144), heads, places, places, pool, pool)


def _empty(*shape: int, dtype: torch.dtype = BF16) -> Tensor:
    return torch.empty(shape, dtype=dtype, device=META)


def _norm(width: int, row_len: int) -> NormWeights:
    return NormWeights("rms", width, 1e-5, _empty(row_len, dtype=torch.float32), None)
