"""Paged attention on a CPU by the C++ of `native/cpu_op.cpp`: the fastest way, and invariant.

A row's result has the same bits whatever its batch mates, its chunk, the threads and the order of
its blocks; `native/tile.h` documents the layout and the proof. The library is called through
ctypes, which releases the GIL. Loaded after torch, it shares torch's OpenMP threads.
"""

import ctypes
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from model_server.attention.base import LayerCache, LayerGeometry, LayerOptions
from model_server.step import StepInputs
from native.library import NativeUnavailable, load_native

_SOURCE = Path(__file__).parents[1] / "native" / "cpu_op.cpp"
_BLOCK_SIZE = 16  # kBlock of the C++
# Elements of a 32-bit word.
_PACK = {torch.float32: 1, torch.bfloat16: 2}


class _Call(ctypes.Structure):
    """`struct Call` of native/tile.h, field by field."""

    _fields_ = (
        *(
            (name, ctypes.c_int64)
            for name in (
                *("num_seqs", "num_heads", "num_kv_heads", "head_dim", "value_dim"),
                *("max_blocks", "window_len", "chunk_len", "num_threads"),
                *("query_token_stride", "query_head_stride"),
                *("key_token_stride", "key_head_stride"),
                *("value_token_stride", "value_head_stride"),
            )
        ),
        *((name, ctypes.c_double) for name in ("scale", "softcap")),
        *(
            (name, ctypes.c_void_p)
            for name in (
                *("query", "key", "value", "output", "keys", "values"),
                *("slots", "cu_query_lens", "context_lens", "block_tables", "sinks"),
                "key_ends",
            )
        ),
    )


class CpuOp:
    """The loaded library: one function per dtype. Raises NativeUnavailable when it is not ours."""

    def __init__(self, library: ctypes.CDLL) -> None:
        library.tandem_call_bytes.restype = ctypes.c_int64
        if library.tandem_call_bytes() != ctypes.sizeof(_Call):
            raise NativeUnavailable(f"{library._name} expects another call than this version makes")
        self._functions = {
            torch.float32: _function(library.tandem_attend_f32),
            torch.bfloat16: _function(library.tandem_attend_bf16),
        }

    @classmethod
    def load(cls, cache_dir: Path | None = None) -> "CpuOp":
        """Load the library, compiled before or now. Raises NativeUnavailable with the reason."""
        return cls(load_native(_SOURCE, cache_dir))

    def __call__(self, dtype: torch.dtype, call: _Call) -> None:
        """Run one layer of one step. Raises MemoryError."""
        if self._functions[dtype](ctypes.byref(call)):
            raise MemoryError("attention found no memory for its scratch")


def _function(symbol: Callable[..., int]) -> Callable[..., int]:
    symbol.argtypes = (ctypes.POINTER(_Call),)  # type: ignore[attr-defined]
    symbol.restype = ctypes.c_int32  # type: ignore[attr-defined]
    return symbol


class CpuOpAttention:
    """The backend around the library. One thread at a time."""

    name = "cpu-op"
    block_size = _BLOCK_SIZE

    def __init__(self, op: CpuOp) -> None:
        self._op = op
        self._call = _Call()
        self._step: StepInputs | None = None
        self._num_blocks = 0  # that the tables of self._step name

    @staticmethod
    def unfit_reason(geometry: LayerGeometry, dtype: torch.dtype) -> str | None:
        """Why such a layer cannot be served, or None when it can."""
        if dtype not in _PACK:
            return f"it serves float32 and bfloat16, not {dtype}"
        if geometry.head_dim % _PACK[dtype]:
            return f"head_dim {geometry.head_dim} must be even"
        if geometry.value_dim % 16:
            return f"value_dim {geometry.value_dim} must be a multiple of 16"
        return None

    def allocate(
        self, num_blocks: int, geometry: LayerGeometry, dtype: torch.dtype, device: torch.device
    ) -> LayerCache:
        """See AttentionBackend.allocate. Raises ValueError for a layer that is unfit."""
        reason = self.unfit_reason(geometry, dtype)
        if reason is not None or device.type != "cpu":
            raise ValueError(f"cpu-op cannot serve this layer: {reason or f'it is on {device}'}")
        pack = _PACK[dtype]
        blocks = (num_blocks, geometry.num_kv_heads)
        key_shape = (*blocks, geometry.head_dim // pack, _BLOCK_SIZE, pack)
        value_shape = (*blocks, _BLOCK_SIZE // pack, geometry.value_dim, pack)
        return LayerCache(
            geometry,
            torch.zeros(key_shape, dtype=dtype, device=device),
            torch.zeros(value_shape, dtype=dtype, device=device),
        )

    def bytes_per_block(self, geometry: LayerGeometry, dtype: torch.dtype) -> int:
        """See AttentionBackend.bytes_per_block."""
        per_token = geometry.num_kv_heads * (geometry.head_dim + geometry.value_dim)
        return _BLOCK_SIZE * per_token * dtype.itemsize

    def attend(
        self,
        cache: LayerCache,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        step: StepInputs,
        options: LayerOptions,
    ) -> Tensor:
        """See AttentionBackend.attend. Raises ValueError where C++ would read past a tensor."""
        if step is not self._step:
            self._take_step(step)
        call = self._call
        query, call.query_token_stride, call.query_head_stride = _strided(query)
        key, call.key_token_stride, call.key_head_stride = _strided(key)
        value, call.value_token_stride, call.value_head_stride = _strided(value)
        num_tokens, call.num_heads, call.head_dim = query.shape
        _, call.num_kv_heads, call.value_dim = value.shape
        self._check(cache, query, key, value, step)
        output = query.new_empty((num_tokens, call.num_heads, call.value_dim))
        sinks = None if options.sinks is None else options.sinks.float().contiguous()
        call.window_len = options.window_len or 0
        call.chunk_len = options.chunk_len or 0
        call.scale = options.scale
        call.softcap = options.softcap or 0.0
        call.query = query.data_ptr()
        call.key = key.data_ptr()
        call.value = value.data_ptr()
        call.output = output.data_ptr()
        call.keys = cache.keys.data_ptr()
        call.values = cache.values.data_ptr()
        call.sinks = None if sinks is None else sinks.data_ptr()
        self._op(query.dtype, call)
        return output

    def _take_step(self, step: StepInputs) -> None:
        """Fill in what all layers of a step share."""
        call = self._call
        call.num_seqs, call.max_blocks = step.block_tables.shape
        call.num_threads = torch.get_num_threads()
        call.slots = step.slot_mapping.data_ptr()
        call.cu_query_lens = step.cu_query_lens.data_ptr()
        call.context_lens = step.device_context_lens.data_ptr()
        call.block_tables = step.block_tables.data_ptr()
        call.key_ends = None if step.key_ends is None else step.key_ends.data_ptr()
        self._num_blocks = int(step.block_tables.max()) + 1
        self._step = step

    def _check(
        self, cache: LayerCache, query: Tensor, key: Tensor, value: Tensor, step: StepInputs
    ) -> None:
        """Whether the call stays inside of its buffers."""
        geometry = cache.geometry
        call = self._call
        num_tokens = step.num_tokens
        rows = (num_tokens, geometry.num_kv_heads)
        if (
            call.head_dim != geometry.head_dim
            or call.num_heads % geometry.num_kv_heads
            or query.shape[0] != num_tokens
            or key.shape != (*rows, geometry.head_dim)
            or value.shape != (*rows, geometry.value_dim)
        ):
            raise ValueError(
                f"query {tuple(query.shape)}, key {tuple(key.shape)} and value"
                f" {tuple(value.shape)} do not fit {num_tokens} tokens of {geometry}"
            )
        if not query.dtype == key.dtype == value.dtype == cache.keys.dtype:
            raise ValueError(
                f"query, key and value of {query.dtype}, {key.dtype} and {value.dtype}"
                f" met a cache of {cache.keys.dtype}"
            )
        if self._num_blocks > cache.keys.shape[0]:
            raise ValueError(
                f"the step names block {self._num_blocks - 1},"
                f" the cache has {cache.keys.shape[0]} blocks"
            )


def _strided(x: Tensor) -> tuple[Tensor, int, int]:
    """The tensor with its last axis dense, and the strides of its other two."""
    token_stride, head_stride, dim_stride = x.stride()
    if dim_stride != 1:
        x = x.contiguous()
        token_stride, head_stride, _ = x.stride()
    return x, token_stride, head_stride
