"""Copies between the host and the device that do not wait for what the device still computes.

    arrays -> | a | pad | b | pad | c |  pinned, on the host -> the same on the device -> a, b, c

A copy from pageable memory waits for the stream: for a whole forward, if one was launched before.
Pinned memory comes from torch's own allocator. It records an event with each copy and hands memory
out again only after that, so nothing overwrites what is still being copied, and the memory of one
step serves a later one.

It knows arrays and tensors, neither steps nor requests.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Array = npt.NDArray[Any]

# Of each array in a copy: the most that a load of one thread takes at once.
ALIGNMENT = 16


@dataclass(frozen=True, slots=True, eq=False)
class PackedArrays:
    """Where each of some arrays lies in one piece of memory, in bytes."""

    arrays: tuple[Array, ...]
    offsets: tuple[int, ...]
    num_bytes: int

    @classmethod
    def of(cls, arrays: Sequence[Array]) -> "PackedArrays":
        """Lay out arrays of any dtypes and shapes, each at a multiple of ALIGNMENT."""
        sizes = (-(-array.nbytes // ALIGNMENT) * ALIGNMENT for array in arrays)
        *offsets, num_bytes = accumulate(sizes, initial=0)
        return cls(tuple(arrays), tuple(offsets), num_bytes)

    def write(self, memory: npt.NDArray[np.uint8]) -> None:
        """Copy the arrays to `memory`, [num_bytes]."""
        for array, offset in zip(self.arrays, self.offsets, strict=True):
            part = memory[offset : offset + array.nbytes]
            part.view(array.dtype).reshape(array.shape)[...] = array

    def read(self, memory: Tensor) -> tuple[Tensor, ...]:
        """The arrays in `memory`, [num_bytes] uint8 on any device, as views of it."""
        return tuple(
            memory[offset : offset + array.nbytes].view(_dtype_of(array)).view(array.shape)
            for array, offset in zip(self.arrays, self.offsets, strict=True)
        )


@dataclass(frozen=True, slots=True, eq=False)
class Arrival:
    """A tensor on its way to the host."""

    _tensor: Tensor
    _event: torch.cuda.Event | None  # None: it has arrived

    @property
    def has_arrived(self) -> bool:
        """Whether `array` has nothing to wait for."""
        return self._event is None or self._event.query()

    def array(self) -> Array:
        """Wait until it has arrived."""
        if self._event is not None:
            self._event.synchronize()
        return self._tensor.numpy()


class PinnedStaging:
    """Copies to and from one device, on the current stream.

    On the host nothing is copied: tensor and array are the same memory.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def to_device(self, array: Array) -> Tensor:
        """A tensor of this array's dtype and shape. See `to_device_all`."""
        return self.to_device_all((array,))[0]

    def to_device_all(self, arrays: Sequence[Array]) -> tuple[Tensor, ...]:
        """Tensors of these arrays' dtypes and shapes, by one copy.

        An array may be changed once this returns, but on the host, where it is the tensor.
        """
        if self._device.type != "cuda":
            return tuple(torch.from_numpy(np.ascontiguousarray(array)) for array in arrays)
        packed = PackedArrays.of(arrays)
        memory = torch.empty(packed.num_bytes, dtype=torch.uint8, pin_memory=True)
        packed.write(memory.numpy())
        return packed.read(memory.to(self._device, non_blocking=True))

    def tensor_to_device(self, tensor: Tensor) -> Tensor:
        """A tensor of the host; one that is pinned is still being copied when this returns."""
        if tensor.is_pinned():
            return tensor.to(self._device, non_blocking=True)
        return self.to_device(tensor.numpy())

    def to_host(self, tensor: Tensor) -> Arrival:
        """Begin to copy a tensor; what is launched later does not hold it up."""
        if self._device.type != "cuda":
            return Arrival(tensor, None)
        memory = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        memory.copy_(tensor, non_blocking=True)
        event = torch.cuda.Event()
        event.record()
        return Arrival(memory, event)


def _dtype_of(array: Array) -> torch.dtype:
    return torch.from_numpy(np.empty(0, dtype=array.dtype)).dtype
