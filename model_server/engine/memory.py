"""The memory of a device: what is available, how large a pool it allows, what stays allocated.

It knows bytes and blocks, no model and no sequence.
"""

import ctypes
import sys
from collections.abc import Callable

import torch

from model_server.errors import OutOfMemory
from processes.host import HostMemory
from proto.contract import NUM_OWN_STATES

# A pool on the host competes with other processes, so it takes a share and no more.
_HOST_SHARE = 0.25
_HOST_MAX_BYTES = 2 << 30

# mallopt(3). The threshold is the largest that glibc accepts: greater pieces are still mapped.
_TRIM_THRESHOLD = -1
_MMAP_THRESHOLD = -3
_MMAP_THRESHOLD_BYTES = 32 * 2**20

_HOST = HostMemory()


def peak_of(device: torch.device, run: Callable[[], object]) -> int:
    """The most bytes that CUDA's allocator held during `run`; 0 on the host."""
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


def has_room(device: torch.device, num_bytes: int) -> bool:
    """Whether CUDA's allocator can hand out so many bytes now; on the host always."""
    if device.type != "cuda":
        return True
    for _ in range(2):
        try:
            torch.empty(num_bytes, dtype=torch.uint8, device=device)
            return True
        except torch.OutOfMemoryError:
            # What is free may lie in pieces.
            torch.cuda.empty_cache()
    return False


def release(device: torch.device) -> None:
    """Give back what CUDA's allocator holds and nobody uses."""
    if device.type == "cuda":
        torch.cuda.empty_cache()


def pool_bytes(
    device: torch.device,
    *,
    peak_bytes: int,
    memory_fraction: float,
    num_ranks: int,
    reserved_bytes: int = 0,
    host: HostMemory = _HOST,
) -> int:
    """The bytes that a pool may take on this device, beside `reserved_bytes` of this rank.

    CUDA: `memory_fraction` of the whole device, less what others hold and what the largest step
    takes. Host: a quarter of what is available, at most 2 GiB, shared by the ranks.
    """
    if device.type == "cuda":
        torch.cuda.empty_cache()
        free_bytes, total_bytes = torch.cuda.mem_get_info(device)
        others_bytes = total_bytes - free_bytes - torch.cuda.memory_reserved(device)
        return int(total_bytes * memory_fraction) - others_bytes - peak_bytes - reserved_bytes
    available = host.available_bytes()
    if available is not None:
        available -= reserved_bytes * num_ranks
    return host_pool_bytes(available, num_ranks)


def host_pool_bytes(available: int | None, num_ranks: int) -> int:
    """The bytes of each rank's pool on a host that has so many available; None: unknown."""
    share = _HOST_MAX_BYTES if available is None else int(available * _HOST_SHARE)
    return min(share, _HOST_MAX_BYTES) // num_ranks


def states_that_fit(
    device: torch.device,
    state_bytes: int,
    room_bytes: int,
    *,
    max_batch_size: int,
    keeps_states: bool,
) -> int:
    """The slots for states that fit on this rank: two for each sequence of the largest batch, and
    as many to keep, in half of the room at most. Raises OutOfMemory where no sequence has its two.
    """
    most = room_bytes // 2 // state_bytes
    if most < NUM_OWN_STATES:
        raise OutOfMemory(
            f"{max(0, room_bytes)} bytes are left for pools on {device}, and a sequence has"
            f" two states of {state_bytes}, beside its keys and values"
        )
    return min(most, (2 if keeps_states else 1) * NUM_OWN_STATES * max_batch_size)


def require_room(device: torch.device, needed_bytes: int, host: HostMemory = _HOST) -> None:
    """Raise OutOfMemory when a device has less than that free for a KV pool.

    The host grants memory that it does not have, and ends processes later.
    """
    available = available_bytes(device, host)
    if available is not None and needed_bytes > available:
        raise OutOfMemory(
            f"a KV pool of {needed_bytes / 2**30:.2f} GiB does not fit into the"
            f" {available / 2**30:.2f} GiB that {device} has available"
        )


def available_bytes(device: torch.device, host: HostMemory = _HOST) -> int | None:
    """The bytes that a device has free now; None where the host does not report them."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
        return torch.cuda.mem_get_info(device)[0]
    return host.available_bytes()


def weights_of_all(device: torch.device, rank_bytes: int, num_ranks: int) -> int:
    """The bytes of all ranks' weights in the memory that this rank computes in.

    A GPU belongs to one rank; the host is shared.
    """
    return rank_bytes if device.type == "cuda" else rank_bytes * num_ranks


def require_weights_fit(device: torch.device, needed_bytes: int, available: int | None) -> None:
    """Raise OutOfMemory when weights need more than is available; None: unknown, so it is tried."""
    if available is not None and needed_bytes > available:
        raise OutOfMemory(
            f"weights of {needed_bytes / 2**30:.2f} GiB do not fit into the"
            f" {available / 2**30:.2f} GiB that {device} has available"
        )


def keep_freed_memory(kept_bytes: int = 512 * 2**20) -> bool:
    """Let up to `kept_bytes` of memory that is freed from here on stay with the process.

    Eager torch on a CPU allocates and frees tensors of megabytes all the time. glibc returns them
    to the kernel at once, which fills the next ones with zeros, page by page: a sampling step of 32
    rows over 32 000 tokens takes up to three times as long.

    To be called once, after the weights are loaded, so that the loading's memory is returned. False
    where the C library has no such setting; then nothing has changed.
    """
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    settings = ((_MMAP_THRESHOLD, _MMAP_THRESHOLD_BYTES), (_TRIM_THRESHOLD, kept_bytes))
    return all(mallopt(name, value) == 1 for name, value in settings)
