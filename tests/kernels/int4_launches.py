"""Products in 4 bits of the widths of Llama 3 8B, to be compiled ahead of time."""

import torch

from model_server.executor.int4 import Int4Weight
from model_server.executor.triton_layers import TritonLayerOps
from tests.kernels.ahead_of_time import Recorder

NUM_ROWS = (1, 32, 512)


def record(recorder: Recorder) -> None:
    """A decode of one sequence and of a batch, and a prompt."""
    ops, num_inputs, num_outputs = TritonLayerOps(recorder), 4096, 6144
    weight = Int4Weight(
        torch.empty(num_outputs, num_inputs // 8, dtype=torch.int32, device="meta"),
        torch.empty(num_outputs, num_inputs // 128, dtype=torch.float16, device="meta"),
        torch.empty(num_outputs, num_inputs // 128, dtype=torch.uint8, device="meta"),
    )
    for num_rows in NUM_ROWS:
        with recorder.case(f"{num_rows} rows"):
            x = torch.empty(num_rows, num_inputs, dtype=torch.bfloat16, device="meta")
            ops.multiply_int4(x, weight, None)
