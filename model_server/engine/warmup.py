"""Warm-up: computes the largest steps, and finds how many blocks fit beside them.

Steps of warm-up write their keys and values to one block of a pool made for the purpose, again and
again: shapes, memory and time are those of real steps, the logits mean nothing.

One row of logits per sequence is tried. A step that scores prompts has one per token, which takes
num_tokens * vocab_size * bytes of the dtype more (4 096 tokens of 128 000 in bfloat16: 1 GB), and
is not part of the peak: on CUDA it must fit into the share that `memory_fraction` leaves alone.
Scoring adds little, since it goes by slices of rows.
"""

import torch

from model_server.engine import memory
from model_server.engine.distributed import World
from model_server.engine.step import SequenceStep, StepInputs
from model_server.errors import OutOfMemory
from model_server.model.model import PagedModel


def try_largest_steps(
    model: PagedModel, max_step_tokens: int, max_batch_size: int, max_total_len: int
) -> int:
    """Compute the largest prompt step and two decode steps; returns the peak of device memory.

    Replaces the model's pool by one of a single block. Raises OutOfMemory.
    """
    longest = min(max_step_tokens, max_total_len)
    whole, rest = divmod(max_step_tokens, longest)
    prompt_lens = [longest] * whole + [rest] * (rest > 0)
    steps = (prompt_lens, [1] * max_batch_size, [1])
    model.allocate(1)

    def run() -> None:
        for query_lens in steps:
            _run(model, query_lens)

    try:
        return memory.peak_of(model.device, run)
    except torch.OutOfMemoryError as error:
        raise OutOfMemory(
            f"a step of {max_step_tokens} tokens does not fit on {model.device}:"
            " lower --max-batch-prefill-tokens"
        ) from error


def blocks_that_fit(
    model: PagedModel,
    world: World,
    *,
    peak_bytes: int,
    memory_fraction: float,
    max_batch_size: int,
    max_total_len: int,
) -> int:
    """The number of blocks that fit on this rank. Raises OutOfMemory when none does.

    On the host no more than the largest batch of the longest sequences could ever fill.
    """
    room_bytes = memory.pool_bytes(
        model.device,
        peak_bytes=peak_bytes,
        memory_fraction=memory_fraction,
        num_ranks=world.world_size,
    )
    # One of them is the scratch block.
    num_blocks = room_bytes // model.bytes_per_block - 1
    if num_blocks < 1:
        raise OutOfMemory(
            f"{max(0, room_bytes)} bytes are left for the KV pool on {model.device},"
            f" and a block takes {model.bytes_per_block}"
        )
    if model.device.type == "cuda":
        return num_blocks
    return min(num_blocks, max_batch_size * -(-max_total_len // model.block_size))


def _run(model: PagedModel, query_lens: list[int]) -> None:
    block_size = model.block_size
    inputs = StepInputs.build(
        [
            SequenceStep((0,) * query_len, 0, (0,) * -(-query_len // block_size))
            for query_len in query_lens
        ],
        block_size=block_size,
        scratch_block_id=model.scratch_block_id,
        device=model.device,
        min_tokens=model.min_step_tokens,
    )
    model.forward(inputs)
