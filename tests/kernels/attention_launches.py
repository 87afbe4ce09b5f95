"""Launches of attention over the shapes of served models, to be compiled ahead of time."""

import torch

from model_server.attention.base import LayerOptions, TokenMajorLayout
from model_server.attention.triton import TritonAttention
from model_server.step import StepInputs
from tests.kernels.ahead_of_time import Recorder
from tests.kernels.paged_steps import Heads

META = torch.device("meta")
NUM_TOKENS = 32
PLAIN = LayerOptions(scale=0.125)
ALL = LayerOptions(scale=0.125, window_len=1024, softcap=30.0, sinks=torch.empty(64, device=META))
# Compiled for all architectures are those that take the fewest and the most registers.
CASES = {
    "64": (Heads(64, 8, 64), ALL),
    "sm_90 80": (Heads(32, 8, 80), PLAIN),
    "sm_90 128": (Heads(32, 8, 128), PLAIN),
    "sm_90 128, all": (Heads(64, 8, 128), ALL),
    "256": (Heads(16, 8, 256), PLAIN),
}


def record(recorder: Recorder) -> None:
    """A mixed step of each."""
    for label, (heads, options) in CASES.items():
        cache = TokenMajorLayout().allocate(64, heads.geometry, torch.bfloat16, META)
        query = torch.empty(
            NUM_TOKENS, heads.num_heads, heads.head_dim, dtype=torch.bfloat16, device=META
        )
        with recorder.case(label):
            TritonAttention(launch=recorder).read(cache, query, _mixed_step(), options)


def _mixed_step() -> StepInputs:
    def numbers(*shape: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype, device=META)

    return StepInputs(
        token_ids=numbers(NUM_TOKENS),
        positions=numbers(NUM_TOKENS),
        slot_mapping=numbers(NUM_TOKENS),
        query_lens=(1, NUM_TOKENS - 1),
        context_lens=(1000, 1000),
        block_tables=numbers(2, 64, dtype=torch.int32),
        cu_query_lens=numbers(3, dtype=torch.int32),
        device_context_lens=numbers(2, dtype=torch.int32),
        logits_indices=numbers(2),
        head_indices=numbers(2),
    )
