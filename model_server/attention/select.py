"""The choice of the attention backend: by name, or the fastest that fits."""

import importlib.util
import logging
import shutil
from collections.abc import Callable, Mapping, Sequence

import torch

from model_server.attention.base import AttentionBackend, LayerGeometry
from model_server.attention.cpu_op import CpuOp, CpuOpAttention
from model_server.attention.reference import ReferenceAttention
from model_server.attention.sdpa import CpuAttention, GatherSdpaAttention
from model_server.errors import ConfigRefused, KernelsUnavailable
from native.library import NativeUnavailable

_log = logging.getLogger(__name__)

# As Triton looks for one: it compiles a launcher in C at the first launch of each kernel.
_COMPILERS = ("gcc", "clang", "cc")

_BY_NAME: Mapping[str, Callable[[], AttentionBackend]] = {
    "reference": ReferenceAttention,
    "cpu": CpuAttention,
    "sdpa": GatherSdpaAttention,
}


def select_backend(
    choice: str,
    device: torch.device,
    dtype: torch.dtype,
    geometries: Sequence[LayerGeometry],
    load_op: Callable[[], CpuOp] = CpuOp.load,
) -> AttentionBackend:
    """The backend called `choice`, or for "auto" the fastest that fits device, dtype and layers.

    "auto" takes the C++ operator on a CPU and Triton's kernels on CUDA, and torch alone, with a
    warning, where they cannot be compiled.

    Raises ConfigRefused when `choice` is unknown or cannot serve these layers.
    """
    if choice in _BY_NAME:
        return _BY_NAME[choice]()
    if choice == "cpu-op":
        try:
            return _cpu_op(device, dtype, geometries, load_op)
        except NativeUnavailable as error:
            raise ConfigRefused(f"--attention cpu-op: {error}") from error
    if choice == "triton":
        try:
            return _triton(device, dtype, geometries)
        except KernelsUnavailable as error:
            raise ConfigRefused(f"--attention triton: {error}") from error
    if choice != "auto":
        names = ", ".join(("auto", "cpu-op", "triton", *_BY_NAME))
        raise ConfigRefused(f"--attention {choice}: there are {names}")
    if device.type != "cpu":
        return _best_on_cuda(device, dtype, geometries)
    try:
        return _cpu_op(device, dtype, geometries, load_op)
    except NativeUnavailable as error:
        _log.warning("attention runs on torch alone, which is slower: %s", error)
        return CpuAttention()


def _cpu_op(
    device: torch.device,
    dtype: torch.dtype,
    geometries: Sequence[LayerGeometry],
    load_op: Callable[[], CpuOp],
) -> AttentionBackend:
    """Raises NativeUnavailable with the reason."""
    if device.type != "cpu":
        raise NativeUnavailable(f"the C++ operator serves CPUs, not {device}")
    for geometry in geometries:
        reason = CpuOpAttention.unfit_reason(geometry, dtype)
        if reason is not None:
            raise NativeUnavailable(f"the C++ operator does not fit: {reason}")
    return CpuOpAttention(load_op())


def _best_on_cuda(
    device: torch.device, dtype: torch.dtype, geometries: Sequence[LayerGeometry]
) -> AttentionBackend:
    try:
        return _triton(device, dtype, geometries)
    except KernelsUnavailable as error:
        _log.warning("attention gathers its keys for SDPA, which is slower: %s", error)
        return GatherSdpaAttention()


def _triton(
    device: torch.device, dtype: torch.dtype, geometries: Sequence[LayerGeometry]
) -> AttentionBackend:
    """Raises KernelsUnavailable with the reason."""
    if device.type != "cuda":
        raise KernelsUnavailable(f"the kernels are for CUDA, not for {device}")
    if importlib.util.find_spec("triton") is None:
        raise KernelsUnavailable("Triton is not installed")
    if not any(shutil.which(name) for name in _COMPILERS):
        raise KernelsUnavailable(f"there is no C compiler ({', '.join(_COMPILERS)})")
    from model_server.attention.triton import (  # noqa: PLC0415 - Triton is optional
        TritonAttention,
    )

    backend = TritonAttention()
    for geometry in geometries:
        reason = backend.unfit_reason(geometry, dtype)
        if reason is not None:
            raise KernelsUnavailable(f"the kernels do not fit: {reason}")
    return backend
