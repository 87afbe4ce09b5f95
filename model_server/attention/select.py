"""The choice of the attention backend: by name, or the fastest that fits."""

import logging
from collections.abc import Callable, Mapping, Sequence

import torch

from model_server.attention.base import AttentionBackend, LayerGeometry
from model_server.attention.cpu_op import CpuOp, CpuOpAttention
from model_server.attention.reference import ReferenceAttention
from model_server.attention.sdpa import CpuAttention, GatherSdpaAttention
from model_server.errors import ConfigRefused
from native.library import NativeUnavailable

_log = logging.getLogger(__name__)

_BY_NAME: Mapping[str, Callable[[], AttentionBackend]] = {
    "reference": ReferenceAttention,
    "cpu": CpuAttention,
    "cuda": GatherSdpaAttention,
}


def select_backend(
    choice: str,
    device: torch.device,
    dtype: torch.dtype,
    geometries: Sequence[LayerGeometry],
    load_op: Callable[[], CpuOp] = CpuOp.load,
) -> AttentionBackend:
    """The backend called `choice`, or for "auto" the fastest that fits device, dtype and layers.

    "auto" takes the C++ operator on a CPU, and torch alone, with a warning, where it cannot be
    compiled; another device gets the gathering backend.

    Raises ConfigRefused when `choice` is unknown or cannot serve these layers.
    """
    if choice in _BY_NAME:
        return _BY_NAME[choice]()
    if choice == "cpu-op":
        try:
            return _cpu_op(device, dtype, geometries, load_op)
        except NativeUnavailable as error:
            raise ConfigRefused(f"--attention cpu-op: {error}") from error
    if choice != "auto":
        names = ", ".join(("auto", "cpu-op", *_BY_NAME))
        raise ConfigRefused(f"--attention {choice}: there are {names}")
    if device.type != "cpu":
        return GatherSdpaAttention()
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
