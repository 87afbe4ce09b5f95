"""Chooses tokens by `native/sample.cpp`: the same as by torch, for rows on the CPU.

What it does not know (typical decoding, alternatives to report) stays with torch.
"""

import ctypes
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from model_server.sampling.choosing import Choice, choose_by_torch
from model_server.sampling.masses import mass_bits
from model_server.sampling.plan import Group, Kind
from native.library import NativeUnavailable, Threads, load_native

_SOURCE = Path(__file__).parents[1] / "native" / "sample.cpp"


class _Sample(ctypes.Structure):
    """`struct Sample`, field by field."""

    _fields_ = (
        ("num_rows", ctypes.c_int64),
        ("width", ctypes.c_int64),
        *((name, ctypes.c_void_p) for name in ("scores", "rows", "uniforms", "temperature")),
        ("filters", ctypes.c_void_p * 3),
        ("tokens", ctypes.c_void_p),
        ("logprobs", ctypes.c_void_p),
        ("mass_bits", ctypes.c_int64),
    )


class NativeChooser:
    """Chooses the tokens that `choose_by_torch` does.

    threads: those that there are at present; None: the caller alone
    """

    def __init__(self, threads: Callable[[], Threads | None] = lambda: None) -> None:
        """Raises NativeUnavailable."""
        library = load_native(_SOURCE)
        library.tandem_sample_size.restype = ctypes.c_int64
        if library.tandem_sample_size() != ctypes.sizeof(_Sample):
            raise NativeUnavailable(f"{library._name} expects other structs than this version has")
        self._sample = library.tandem_sample
        self._sample.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
        self._sample.restype = ctypes.c_int32
        self._threads = threads

    def __call__(self, group: Group, scores: Tensor, uniforms: Tensor) -> Choice:
        """See `Choose`. Raises MemoryError."""
        if group.top is not None or group.filters.typical_p is not None:
            return choose_by_torch(group, scores, uniforms)
        num_rows = len(group.places)
        tokens = torch.empty(num_rows, dtype=torch.int64)
        logprobs = torch.empty(num_rows, dtype=torch.float64)
        sample = _Sample(
            num_rows=num_rows,
            width=scores.shape[-1],
            scores=scores.data_ptr(),
            rows=_address(group.rows),
            uniforms=None if group.kind is Kind.GREEDY else uniforms.data_ptr(),
            temperature=group.temperature.data_ptr(),
            filters=tuple(map(_address, group.filters.of_prefixes)),
            tokens=tokens.data_ptr(),
            logprobs=logprobs.data_ptr(),
            mass_bits=mass_bits(scores.shape[-1]),
        )
        threads = self._threads()
        each, team = (None, None) if threads is None else (threads.each, threads.team)
        if not self._sample(ctypes.addressof(sample), each, team):
            raise MemoryError(f"no memory to sample {num_rows} rows")
        return Choice(tokens, logprobs, None, None)


def _address(values: Tensor | None) -> int | None:
    return None if values is None else values.data_ptr()
