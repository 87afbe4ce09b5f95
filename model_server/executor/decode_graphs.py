"""Decode steps that are launched as a whole: one CUDA graph for each batch size of a few.

    a step of 5 sequences:  | 0 | 1 | 2 | 3 | 4 | padding |     the graph of 6

A graph replays the same launches over the same memory. So a step is copied to tensors that stay,
and filled up to the next batch size that has a graph: what is padding sees no key, and writes to
the scratch block. All graphs share one pool of memory, since one of them runs at a time.
"""

import logging
import time
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import torch
from torch import Tensor

from model_server.step import StepInputs

_log = logging.getLogger(__name__)

_SMALL_SIZES = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
_PROGRESS_INTERVAL_S = 2.0

# A function that launches and returns a tensor -> one that does the same launches again, with the
# same tensor as its result.
Capture: TypeAlias = Callable[[Callable[[], Tensor]], Callable[[], Tensor]]


def batch_sizes(max_batch_size: int) -> tuple[int, ...]:
    """The batch sizes that have a graph; larger batches than 512 have none."""
    sizes = [size for size in _SMALL_SIZES if size < max_batch_size]
    return (*sizes, min(max_batch_size, _SMALL_SIZES[-1]))


@dataclass(frozen=True, slots=True, eq=False)
class StaticStep:
    """The tensors that graphs read; the rows of a batch are their first ones."""

    token_ids: Tensor  # [max_batch_size] int64, and so on as in StepInputs
    positions: Tensor
    slot_mapping: Tensor
    block_tables: Tensor  # [max_batch_size, max_blocks] int32
    context_lens: Tensor
    cu_query_lens: Tensor  # [max_batch_size + 1] int32, rising by one
    rows: Tensor  # [max_batch_size] int64, rising by one
    scratch_slot: int

    @classmethod
    def of(
        cls,
        max_batch_size: int,
        max_blocks: int,
        block_size: int,
        scratch_block_id: int,
        device: torch.device,
    ) -> "StaticStep":
        """Of padding alone."""
        long = partial(torch.full, (max_batch_size,), dtype=torch.int64, device=device)
        counts = torch.arange(max_batch_size + 1, dtype=torch.int64, device=device)
        slot = scratch_block_id * block_size
        return cls(
            token_ids=long(fill_value=0),
            positions=long(fill_value=0),
            slot_mapping=long(fill_value=slot),
            block_tables=torch.full(
                (max_batch_size, max_blocks), scratch_block_id, dtype=torch.int32, device=device
            ),
            context_lens=torch.zeros(max_batch_size, dtype=torch.int32, device=device),
            cu_query_lens=counts.to(torch.int32),
            rows=counts[:-1],
            scratch_slot=slot,
        )

    def inputs(self, size: int) -> StepInputs:
        """The first `size` sequences as a step. What the host knows of it is all padding."""
        rows = self.rows[:size]
        return StepInputs(
            token_ids=self.token_ids[:size],
            positions=self.positions[:size],
            slot_mapping=self.slot_mapping[:size],
            query_lens=(1,) * size,
            context_lens=(0,) * size,
            block_tables=self.block_tables[:size],
            cu_query_lens=self.cu_query_lens[: size + 1],
            device_context_lens=self.context_lens[:size],
            logits_indices=rows,
            head_indices=rows,
        )

    def fill(self, step: StepInputs, size: int) -> None:
        """Take over a step, and fill it up to `size` sequences."""
        num_seqs, num_blocks = step.block_tables.shape
        torch._foreach_copy_(
            [self.token_ids[:num_seqs], self.positions[:num_seqs], self.slot_mapping[:num_seqs]],
            [step.token_ids, step.positions, step.slot_mapping],
        )
        self.block_tables[:num_seqs, :num_blocks].copy_(step.block_tables)
        self.context_lens[:num_seqs].copy_(step.device_context_lens)
        if num_seqs < size:
            self.slot_mapping[num_seqs:size].fill_(self.scratch_slot)
            self.context_lens[num_seqs:size].zero_()


class DecodeGraphs:
    """Replays decode steps of up to `max_batch_size` sequences, as `compute` computes them."""

    def __init__(
        self,
        compute: Callable[[StepInputs], Tensor],
        capture: Capture,
        *,
        device: torch.device,
        block_size: int,
        scratch_block_id: int,
        max_batch_size: int,
        max_total_len: int,
    ) -> None:
        """Captures all graphs, the largest first: the others find their memory in its pool."""
        self.sizes = batch_sizes(max_batch_size)
        self._max_blocks = -(-max_total_len // block_size)
        self._static = StaticStep.of(
            self.sizes[-1], self._max_blocks, block_size, scratch_block_id, device
        )
        self._replays: dict[int, Callable[[], Tensor]] = {}
        started_s = last_s = time.monotonic()
        for size in reversed(self.sizes):
            self._replays[size] = capture(partial(compute, self._static.inputs(size)))
            if time.monotonic() - last_s > _PROGRESS_INTERVAL_S:
                last_s = time.monotonic()
                _log.info("decode graphs: %d of %d", len(self._replays), len(self.sizes))
        _log.info(
            "captured decode graphs of up to %d sequences in %.1f s",
            *(self.sizes[-1], time.monotonic() - started_s),
        )

    def has(self, step: StepInputs) -> bool:
        """Whether there is a graph for a step: one token and one row of logits per sequence."""
        num_seqs, num_blocks = step.block_tables.shape
        return (
            num_seqs == step.num_tokens == len(step.logits_indices)
            and num_seqs <= self.sizes[-1]
            and num_blocks <= self._max_blocks
        )

    @torch.inference_mode()
    def forward(self, step: StepInputs) -> Tensor:
        """The logits of a step that has a graph."""
        size = self.sizes[bisect_left(self.sizes, step.num_seqs)]
        self._static.fill(step, size)
        return self._replays[size]()[: step.num_seqs].clone()  # the next step overwrites them


class CudaCapture:
    """Captures in CUDA graphs that share one pool. See Capture."""

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, run: Callable[[], Tensor]) -> Callable[[], Tensor]:
        # Kernels are compiled and libraries make their workspaces at the first run, and neither can
        # be captured.
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            run()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            output = run()

        def replay() -> Tensor:
            graph.replay()
            return output

        return replay
