"""The interface of executors: what computes the logits of a step.

    dense_cpu    a recipe in C++, one call a step      (weights.py packs what it reads)
    dense_cuda   a recipe in kernels and CUDA graphs   (device_weights.py merges what it reads)
    zoo          transformers' own class behind paged attention

An executor owns its weights and its KV pool. It knows no request and no sampling; the caller
decides who owns which block. None of them is for two threads at a time.
"""

from typing import Protocol

from torch import Tensor

from model_server.step import StepInputs
from native.library import Threads


class Executor(Protocol):
    """Computes steps of one model, on one rank."""

    @property
    def name(self) -> str:
        """What computes, and by which instructions or attention: shown in /info."""

    @property
    def is_invariant(self) -> bool:
        """Whether a token's logits have the same bits whatever else is in its step."""

    @property
    def block_size(self) -> int:
        """Tokens per block."""

    @property
    def bytes_per_block(self) -> int:
        """Bytes that one block of the pool takes on this rank, over all layers."""

    @property
    def min_step_tokens(self) -> int:
        """The rows to which `StepInputs.build` has to fill a step up; 1: none."""

    @property
    def threads(self) -> Threads | None:
        """Its threads, for who computes on the CPU between steps; None: it has none to lend."""

    def allocate(self, num_blocks: int) -> None:
        """Make the pool anew, zeroed; what it held is lost. The count includes the scratch block.

        Raises torch.OutOfMemoryError, MemoryError or RuntimeError when it does not fit.
        """

    def prepare(self, max_batch_size: int, max_total_len: int, scratch_block_id: int) -> None:
        """Make steps of the pool as fast as they can be, where that takes time; then serve.

        max_total_len: of a sequence, in tokens
        """

    def forward(self, inputs: StepInputs) -> Tensor:
        """Compute one step; its keys and values are in the pool afterwards.

        Returns logits [len(inputs.logits_indices), vocab_size], of a floating dtype.
        """

    def close(self) -> None:
        """Free the pool. `allocate` begins anew."""
