"""Executors: what computes the logits of a step; and one rank's model, an executor and its KV pool.

    dense_cpu    a recipe in C++, one call a step      (weights.py packs what it reads)
    dense_cuda   a recipe in kernels and CUDA graphs   (device_weights.py merges what it reads)
    zoo          transformers' own class behind paged attention

An executor owns its weights and its KV pool. It knows no request and no sampling; the caller
decides who owns which block. None of them is for two threads at a time.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from model_server.adapter import Adapter
from model_server.errors import OutOfMemory
from model_server.executor.adapters import AdapterPlaces, PackedAdapter
from model_server.eyes import Eyes
from model_server.step import StepInputs
from native.library import Threads
from processes.image_processor import ImageProcessor


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
    def state_bytes(self) -> int:
        """Bytes of one sequence's state on this rank; 0: keys and values are all there is."""

    @property
    def keeps_states(self) -> bool:
        """Whether it writes states inside of a step's tokens, at block boundaries."""

    @property
    def min_step_tokens(self) -> int:
        """The rows to which `StepInputs.build` has to fill a step up; 1: none."""

    @property
    def threads(self) -> Threads | None:
        """Its threads, for who computes on the CPU between steps; None: it has none to lend."""

    @property
    def adapters(self) -> AdapterPlaces | None:
        """Where LoRA adapters are loaded; None: none may be."""

    def allocate(self, num_blocks: int, num_states: int = 0) -> None:
        """Make the pool anew, zeroed; what it held is lost. The blocks include the scratch block.

        num_states: slots for states; 0 where there are none

        Raises torch.OutOfMemoryError, MemoryError or RuntimeError when it does not fit.
        """

    def prepare(self, max_batch_size: int, max_total_len: int, scratch_block_id: int) -> None:
        """Make steps of the pool as fast as they can be, where that takes time; then serve.

        max_total_len: of a sequence, in tokens
        """

    def forward(self, inputs: StepInputs) -> Tensor:
        """Compute one step; its keys and values are in the pool afterwards.

        Returns logits [len(inputs.logits_indices), vocab_size], of a floating dtype. Steps have
        images only where this was proven to be right of them.
        """

    def close(self) -> None:
        """Free the pool. `allocate` begins anew."""


@dataclass(frozen=True, slots=True, eq=False)
class ModelSight:
    """What sees images for a model, what they are for its executor, and what makes tensors of them.

    is_turned:  an image's tokens have three rotary positions
    sees_ahead: tokens of an image attend to later ones of it
    folder:     of its checkpoint, where its processor is
    """

    eyes: Eyes
    is_turned: bool
    sees_ahead: bool
    folder: Path
    trust_remote_code: bool

    def look_at_largest(self, max_len: int) -> Callable[[], object]:
        """Looks, at each call, at an image about as large as any of which a prompt has room.

        Raises what the processor raises.
        """
        processor = ImageProcessor(self.folder, trust_remote_code=self.trust_remote_code)
        made = processor.largest(max_len)
        tensors = {name: torch.from_numpy(each) for name, each in made.tensors.items()}
        return partial(self.eyes.look, torch.tensor(made.span_ids), tensors)


@dataclass(frozen=True, slots=True, eq=False)
class ReadAdapter:
    """An adapter that is ready for steps; `rank` is the largest of its matrices."""

    packed: PackedAdapter
    rank: int


class PagedModel:
    """One rank's model: its executor, the size of its KV pool, and what its callers need to know.

    Not for two threads at a time.

    fallback_reason: why no recipe describes the model, where its executor is the zoo's; else None
    max_loras:       adapters that may be loaded at one time
    max_lora_rank:   the largest of their ranks
    sight:           what sees; None: images are not served
    blind_reason:    why they are not, where its class takes them
    """

    def __init__(
        self,
        executor: Executor,
        *,
        model_type: str,
        dtype: torch.dtype,
        device: torch.device,
        vocab_size: int,
        max_position_embeddings: int,
        window_len: int | None,
        eos_token_ids: tuple[int, ...],
        fallback_reason: str | None = None,
        max_loras: int = 0,
        max_lora_rank: int = 16,
        sight: ModelSight | None = None,
        blind_reason: str | None = None,
    ) -> None:
        self._executor = executor
        self.sight = sight
        self.blind_reason = blind_reason
        self._num_blocks: int | None = None
        self.executor = executor.name
        self.state_bytes = executor.state_bytes
        self.keeps_states = executor.keeps_states
        self.is_invariant = executor.is_invariant
        self.fallback_reason = fallback_reason
        self.block_size = executor.block_size
        self.min_step_tokens = executor.min_step_tokens
        self.model_type = model_type
        self.dtype = dtype
        self.device = device
        self.vocab_size = vocab_size
        self.max_position_embeddings = max_position_embeddings
        self.window_len = window_len
        self.eos_token_ids = eos_token_ids
        self.max_loras = max_loras
        self.adapter_bytes = 0 if executor.adapters is None else executor.adapters.bytes_each
        self._max_lora_rank = max_lora_rank

    @property
    def bytes_per_block(self) -> int:
        """Bytes that one block of the pool takes on this rank, over all layers."""
        return self._executor.bytes_per_block

    @property
    def threads(self) -> Threads | None:
        """Threads that compute on the CPU; None: there are none to lend."""
        return self._executor.threads

    @property
    def num_blocks(self) -> int | None:
        """Blocks of the pool; None before `allocate`."""
        return self._num_blocks

    @property
    def scratch_block_id(self) -> int:
        """The block past the pool's last, which padding rows write to."""
        if self._num_blocks is None:
            raise AssertionError("the pool is not allocated")
        return self._num_blocks

    def allocate(self, num_blocks: int, num_states: int = 0) -> None:
        """Make the pool anew, of `num_blocks` blocks, the scratch block and slots for states.

        What it held is lost. Raises OutOfMemory when it does not fit; then there is no pool.
        """
        self._num_blocks = None
        try:
            self._executor.allocate(num_blocks + 1, num_states)
        # A CPU allocator raises a plain RuntimeError.
        except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
            raise OutOfMemory(
                f"{num_blocks} blocks of {self.bytes_per_block} bytes and {num_states} states of"
                f" {self.state_bytes} do not fit on {self.device}"
            ) from error
        self._num_blocks = num_blocks

    def prepare(self, max_batch_size: int, max_total_len: int) -> None:
        """See Executor.prepare; after `allocate`. Raises OutOfMemory."""
        try:
            self._executor.prepare(max_batch_size, max_total_len, self.scratch_block_id)
        except torch.OutOfMemoryError as error:
            raise OutOfMemory(
                f"decode steps of {max_batch_size} sequences could not be prepared on"
                f" {self.device}: {error}"
            ) from error

    def read_adapter(self, folder: Path) -> ReadAdapter:
        """Read an adapter and pack it. On any thread, beside steps.

        Raises AdapterRefused, and OutOfMemory when it does not fit.
        """
        adapter = Adapter.read(folder, self._places.adaptable, self._max_lora_rank)
        try:
            packed = self._places.pack(adapter)
        except (torch.OutOfMemoryError, MemoryError) as error:
            raise OutOfMemory(f"{folder}: the adapter does not fit: {error}") from error
        return ReadAdapter(packed, adapter.rank)

    def set_adapter(self, place: int, adapter: ReadAdapter | None) -> None:
        """Compute with an adapter in the steps that name its place, or with none. Between steps."""
        self._places.set(place, None if adapter is None else adapter.packed)

    @property
    def _places(self) -> AdapterPlaces:
        places = self._executor.adapters
        assert places is not None, "max_loras is 0"
        return places

    def forward(self, inputs: StepInputs) -> Tensor:
        """Compute one step; its keys and values are in the pool afterwards.

        Returns logits [len(inputs.logits_indices), vocab_size], of a floating dtype.
        """
        return self._executor.forward(inputs)
