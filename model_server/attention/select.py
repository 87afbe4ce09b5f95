"""Which attention backend serves a model here: by name, or the fastest that fits."""

from collections.abc import Callable, Mapping, Sequence

import torch

from model_server.attention.base import AttentionBackend
from model_server.attention.cpu import CpuAttention
from model_server.attention.cuda import CudaAttention
from model_server.attention.reference import ReferenceAttention
from model_server.errors import ConfigRefused
from model_server.kv_cache import LayerGeometry

AUTO = "auto"
_BY_NAME: Mapping[str, Callable[[], AttentionBackend]] = {
    "reference": ReferenceAttention,
    "cpu": CpuAttention,
    "cuda": CudaAttention,
}


def select_backend(
    choice: str,
    device: torch.device,
    dtype: torch.dtype,
    geometries: Sequence[LayerGeometry],
) -> AttentionBackend:
    """The backend called `choice`, or for "auto" the fastest that fits device, dtype and layers.

    Raises ConfigRefused when there is no such backend, or it cannot serve these layers.
    """
    if choice == AUTO:
        return CpuAttention() if device.type == "cpu" else CudaAttention()
    if choice not in _BY_NAME:
        names = ", ".join((AUTO, *_BY_NAME))
        raise ConfigRefused(f"--attention {choice}: there are {names}")
    return _BY_NAME[choice]()
