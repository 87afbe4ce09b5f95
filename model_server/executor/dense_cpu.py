"""The executor of recipes on CPUs: a step's whole forward in one call of `native/dense.cpp`.

A token's logits have the same bits whatever else is in its step, however its prompt was cut, and on
any number of threads; `native/tile.h` and `native/gemm.h` say why. The library is called through
ctypes, which releases the GIL.
"""

import ctypes
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from model_server.errors import InvalidStep
from model_server.executor.adapters import NativeAdapters
from model_server.executor.weights import (
    Arena,
    PackedWeights,
    StepStruct,
    sizes,
)
from model_server.recipe.recipe import Delta, Mamba2, Recipe, ShortConv
from model_server.step import StepInputs
from native.library import NativeUnavailable, Threads, instruction_set_of, load_native

_SOURCE = Path(__file__).parents[1] / "native" / "dense.cpp"
_BLOCK_SIZE = 16  # kBlock of the C++
_OUT_OF_MEMORY = 1
_BAD_TOKEN = 2
_BAD_POSITION = 3


def load_dense() -> ctypes.CDLL:
    """The library. Raises NativeUnavailable with the reason."""
    library = load_native(_SOURCE)
    library.tandem_dense_sizes.restype = ctypes.c_int64
    if library.tandem_dense_sizes() != sizes():
        raise NativeUnavailable(f"{library._name} expects other structs than this version has")
    library.tandem_dense_open.argtypes = (ctypes.c_void_p, ctypes.c_int32)
    library.tandem_dense_open.restype = ctypes.c_void_p
    library.tandem_dense_close.argtypes = (ctypes.c_void_p,)
    library.tandem_dense_close.restype = None
    library.tandem_dense_forward.argtypes = (ctypes.c_void_p, ctypes.c_void_p)
    library.tandem_dense_forward.restype = ctypes.c_int32
    return library


@dataclass(frozen=True, slots=True, eq=False)
class _StateSlots:
    """What a step reads and writes of states; see Step in `native/model.h`."""

    reads: npt.NDArray[np.int32]  # [num_seqs]
    cu_writes: npt.NDArray[np.int32]  # [num_seqs + 1]
    write_lens: npt.NDArray[np.int32]
    write_slots: npt.NDArray[np.int32]

    @classmethod
    def of(cls, inputs: StepInputs, num_slots: int) -> "_StateSlots":
        """Raises InvalidStep."""
        reads = []
        bounds = [0]
        writes = []  # tokens of the sequence's step, slot
        for row, state in enumerate(inputs.states_within(num_slots)):
            reads.append(-1 if state.read_id is None else state.read_id)
            query_len = inputs.query_lens[row]
            cached_len = inputs.context_lens[row] - query_len
            writes += [(kept.position - cached_len, kept.state_id) for kept in state.kept]
            writes.append((query_len - state.num_drafts, state.write_id))
            bounds.append(len(writes))
        used = np.array(writes, dtype=np.int32)
        return cls(
            np.array(reads, dtype=np.int32),
            np.array(bounds, dtype=np.int32),
            np.ascontiguousarray(used[:, 0]),
            np.ascontiguousarray(used[:, 1]),
        )


class DenseCpu:
    """See Executor, and PackedWeights for the arguments. Not for two threads at a time.

    num_threads:   of the team, the caller's included
    max_loras:     adapters that may be loaded at one time
    max_lora_rank: the largest of their ranks
    """

    block_size = _BLOCK_SIZE
    is_invariant = True
    min_step_tokens = 1
    keeps_states = True

    def __init__(
        self,
        recipe: Recipe,
        parameters: Mapping[str, Tensor],
        tables: Sequence[tuple[Tensor, Tensor]],
        *,
        dtype: torch.dtype,
        num_threads: int,
        quantize: str | None = None,
        activation_bits: int = 8,
        max_loras: int = 0,
        max_lora_rank: int = 16,
        release: Callable[[str], None] = lambda name: None,
    ) -> None:
        """Raises NativeUnavailable and MemoryError."""
        self._library = load_dense()
        self._each = ctypes.cast(self._library.tandem_dense_each, ctypes.c_void_p).value
        self._weights = PackedWeights(
            self._library,
            recipe,
            parameters,
            tables,
            dtype=dtype,
            num_threads=num_threads,
            quantize=quantize,
            activation_bits=activation_bits,
            release=release,
        )
        self._model = self._weights.model
        self.adapters: NativeAdapters | None = None
        if max_loras:
            self.adapters = NativeAdapters(self._library, self._weights, max_loras, max_lora_rank)
            self._model.adapters = self.adapters.struct
        self._recipe = recipe
        self._axes: Sequence[npt.NDArray[np.int64]] = ()
        self.state_bytes = recipe.state_bytes
        self._step = StepStruct()
        self._step_address = ctypes.addressof(self._step)
        self._itemsize = dtype.itemsize
        self._pool: Arena | None = None
        self._num_states = 0
        self._handed: Tensor | None = None
        self._engine: int | None = None
        self.num_threads = num_threads
        format_name = self._weights.format_name
        self.name = f"dense, {format_name}, {instruction_set_of(self._library)}"

    @property
    def threads(self) -> Threads | None:
        """See Executor."""
        each = self._each
        return None if self._engine is None or each is None else Threads(each, self._engine)

    @property
    def bytes_per_block(self) -> int:
        """See Executor."""
        return sum(2 * self._part_bytes(layer) for layer in self._weights.layers)

    def _part_bytes(self, layer: ctypes.Structure) -> int:
        """Of a block's keys, or values, in one layer."""
        return _BLOCK_SIZE * layer.num_kv_heads * layer.head_dim * self._itemsize

    def allocate(self, num_blocks: int, num_states: int = 0) -> None:
        """See Executor."""
        self.close()
        pool = Arena()
        for layer, described in zip(self._weights.layers, self._recipe.layers, strict=True):
            mixer = described.mixer
            if isinstance(mixer, Delta | Mamba2):
                layer.recurrence.contents.states = pool.take(num_states * mixer.state_bytes)
            elif isinstance(mixer, ShortConv):
                layer.conv.contents.states = pool.take(num_states * mixer.state_bytes)
            layer.keys = pool.take(num_blocks * self._part_bytes(layer))
            layer.values = pool.take(num_blocks * self._part_bytes(layer))
        self._pool = pool
        self._num_states = num_states
        # The library keeps a copy of the model with the pool's addresses.
        self._engine = self._library.tandem_dense_open(
            ctypes.addressof(self._model), self.num_threads
        )
        if not self._engine:
            raise MemoryError("the native forward found no memory for its buffers")

    def in_wide_rows(self) -> AbstractContextManager[None]:
        """A pool that is allocated meanwhile gives rows beside weights in groups 16 bits."""
        return self._weights.in_wide_rows()

    def hand_experts(self, chosen: Tensor | None) -> None:
        """Steps of so many tokens have these experts; None: the best again.

        chosen: [num_layers, num_tokens, the largest top_k] int32
        """
        self._handed = None if chosen is None else chosen.contiguous()

    def turn_by(self, axes: Sequence[npt.NDArray[np.int64]]) -> None:
        """By which of three rotary positions each angle of each table turns."""
        self._axes = axes

    def prepare(self, max_batch_size: int, max_total_len: int, scratch_block_id: int) -> None:
        """See Executor: there is nothing to do."""

    def forward(self, inputs: StepInputs) -> Tensor:
        """See Executor. The logits are float32.

        Raises InvalidStep for a token or position that the model does not have, and MemoryError.
        """
        step = self._step
        num_logits = inputs.logits_indices.shape[0]
        # Not torch.empty, which lets go of the interpreter: whoever has it then holds up the step.
        logits = torch.from_numpy(np.empty((num_logits, self._model.vocab), np.float32))
        step.num_tokens = inputs.token_ids.shape[0]
        step.num_seqs, step.max_blocks = inputs.block_tables.shape
        step.num_logits = num_logits
        step.token_ids = inputs.token_ids.data_ptr()
        step.positions = inputs.positions.data_ptr()
        step.slots = inputs.slot_mapping.data_ptr()
        step.block_tables = inputs.block_tables.data_ptr()
        step.cu_query_lens = inputs.cu_query_lens.data_ptr()
        step.context_lens = inputs.device_context_lens.data_ptr()
        step.logits_rows = inputs.logits_indices.data_ptr()
        step.logits = logits.data_ptr()
        if self.state_bytes:
            slots = _StateSlots.of(inputs, self._num_states)
            step.state_reads = slots.reads.ctypes.data
            step.cu_state_writes = slots.cu_writes.ctypes.data
            step.state_write_lens = slots.write_lens.ctypes.data
            step.state_write_slots = slots.write_slots.ctypes.data
        step.adapters = None
        if inputs.adapters:
            assert inputs.device_adapters is not None
            step.adapters = inputs.device_adapters.data_ptr()
        step.key_ends = None if inputs.key_ends is None else inputs.key_ends.data_ptr()
        step.experts = None
        if self._handed is not None:
            assert self._handed.shape[1] == step.num_tokens
            step.experts = self._handed.data_ptr()
        step.num_rows = step.num_deep = step.num_turned = 0
        is_plain = inputs.images is None and inputs.turns is None
        kept = None if is_plain else self._set_images(step, inputs)
        status = self._library.tandem_dense_forward(self._engine, self._step_address)
        del kept
        if status:
            raise self._error(status, inputs)
        return logits

    def _set_images(self, step: StepStruct, inputs: StepInputs) -> list[object]:
        """Let the step have what images show, and where it stands; returns what has to live on."""
        kept: list[object] = []
        if inputs.images is not None:
            rows = inputs.images.rows.float().contiguous()
            token_ids = inputs.token_ids.clone()
            token_ids[inputs.images.places] = self._model.vocab + torch.arange(rows.shape[1])
            step.num_deep, step.num_rows = rows.shape[0] - 1, rows.shape[1]
            step.rows = rows.data_ptr()
            step.token_ids = token_ids.data_ptr()
            kept += [rows, token_ids]
        if inputs.turns is not None:
            turns = inputs.turns.numpy()
            if turns.max() >= self._model.num_positions:
                raise self._error(_BAD_POSITION, inputs)
            is_turned = (turns != turns[0]).any(0)
            positions = turns[0].copy()
            positions[is_turned] = -1 - np.arange(is_turned.sum())
            step.positions = positions.ctypes.data
            step.num_turned = int(is_turned.sum())
            kept.append(positions)
            ropes = zip(self._weights.ropes, self._weights.tables, self._axes, strict=False)
            for rope, tables, axes in ropes:
                of_angles = np.ascontiguousarray(turns[:, is_turned][axes].T)  # [num_turned, half]
                cos, sin = (np.take_along_axis(table, of_angles, axis=0) for table in tables)
                rope.turned_cos, rope.turned_sin = cos.ctypes.data, sin.ctypes.data
                kept += [cos, sin]
        return kept

    def _error(self, status: int, inputs: StepInputs) -> Exception:
        if status == _OUT_OF_MEMORY:
            return MemoryError(f"no memory for a step of {inputs.num_tokens} tokens")
        if status == _BAD_TOKEN:
            top = int(inputs.token_ids.max())
            return InvalidStep(f"token {top} is not of the {self._model.vocab} that there are")
        top = int(inputs.positions.max())
        return InvalidStep(f"position {top} is past the last, {self._model.num_positions - 1}")

    def close(self) -> None:
        """End the threads and free the pool. `allocate` begins anew."""
        if self._engine is not None:
            self._library.tandem_dense_close(self._engine)
        self._engine = None
        self._pool = None
