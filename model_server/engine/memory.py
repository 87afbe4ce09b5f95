"""How much memory a device has to give, and how large a pool it allows.

It knows bytes and blocks, no model and no sequence.
"""

from collections.abc import Callable

import torch

from model_server.errors import OutOfMemory
from processes.host import HostMemory

# A pool on the host competes with everything else there, so it takes its share and no more.
_HOST_SHARE = 0.25
_HOST_MAX_BYTES = 2 << 30

_HOST = HostMemory()


def peak_of(device: torch.device, run: Callable[[], None]) -> int:
    """Bytes that CUDA's allocator held at most while `run` was under way; 0 on the host."""
    if device.type != "cuda":
        run()
        return 0
    torch.cuda.synchronize(device)
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(device)
    run()
    torch.cuda.synchronize(device)
    return torch.cuda.max_memory_reserved(device)


def is_exhausted(error: BaseException) -> bool:
    """Whether an error says that memory ran out; torch has no class of its own for the host's."""
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    return isinstance(error, RuntimeError) and "DefaultCPUAllocator" in str(error)


def pool_bytes(
    device: torch.device,
    *,
    peak_bytes: int,
    memory_fraction: float,
    num_ranks: int,
    host: HostMemory = _HOST,
) -> int:
    """What a pool may take on this device.

    CUDA: `memory_fraction` of the whole device, less what others hold and what the largest step
    takes. Host: a quarter of what is available, at most 2 GiB, shared by the ranks.
    """
    if device.type == "cuda":
        torch.cuda.empty_cache()
        free_bytes, total_bytes = torch.cuda.mem_get_info(device)
        others_bytes = total_bytes - free_bytes - torch.cuda.memory_reserved(device)
        return int(total_bytes * memory_fraction) - others_bytes - peak_bytes
    available = host.available_bytes()
    share = _HOST_MAX_BYTES if available is None else int(available * _HOST_SHARE)
    return min(share, _HOST_MAX_BYTES) // num_ranks


def require_room(device: torch.device, needed_bytes: int, host: HostMemory = _HOST) -> None:
    """Raise OutOfMemory when a device has less than that to give to a KV pool.

    The host grants memory that it does not have, and ends processes later.
    """
    available = available_bytes(device, host)
    if available is not None and needed_bytes > available:
        raise OutOfMemory(
            f"a KV pool of {needed_bytes / 2**30:.2f} GiB does not fit into the"
            f" {available / 2**30:.2f} GiB that {device} has available"
        )


def available_bytes(device: torch.device, host: HostMemory = _HOST) -> int | None:
    """What a device has to give now; None where the host does not tell."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    return host.available_bytes()


def weights_of_all(device: torch.device, rank_bytes: int, num_ranks: int) -> int:
    """What the weights of all ranks take of the memory that this one computes in.

    Each GPU is one rank's; the host is everybody's.
    """
    return rank_bytes if device.type == "cuda" else rank_bytes * num_ranks


def require_weights_fit(device: torch.device, needed_bytes: int, available: int | None) -> None:
    """Raise OutOfMemory when weights need more than that; None: whatever they need, it is tried."""
    if available is not None and needed_bytes > available:
        raise OutOfMemory(
            f"weights of {needed_bytes / 2**30:.2f} GiB do not fit into the"
            f" {available / 2**30:.2f} GiB that {device} has available"
        )


def require_share(device: torch.device, needed_bytes: int, memory_fraction: float) -> None:
    """Raise OutOfMemory when weights cannot fit on a GPU, whatever leaves it."""
    limit = int(torch.cuda.get_device_properties(device).total_memory * memory_fraction)
    if needed_bytes > limit:
        raise OutOfMemory(
            f"weights of {needed_bytes / 2**30:.2f} GiB do not fit into the"
            f" {limit / 2**30:.2f} GiB that the model may fill of {device}"
            " (--cuda-memory-fraction)"
        )
