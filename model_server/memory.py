"""How much memory a device has to give, and how large a pool it allows.

It knows bytes and blocks, no model and no sequence.
"""

from collections.abc import Callable
from pathlib import Path

import torch

from model_server.errors import OutOfMemory

# A pool on the host competes with everything else there, so it takes its share and no more.
_HOST_SHARE = 0.25
_HOST_MAX_BYTES = 2 << 30

_MEMINFO = Path("/proc/meminfo")
_CGROUP_FILES = (
    (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")),
    (
        Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
        Path("/sys/fs/cgroup/memory/memory.usage_in_bytes"),
    ),
)


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
    device: torch.device, *, peak_bytes: int, memory_fraction: float, num_ranks: int
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
    available = host_available_bytes()
    share = _HOST_MAX_BYTES if available is None else int(available * _HOST_SHARE)
    return min(share, _HOST_MAX_BYTES) // num_ranks


def require_room(device: torch.device, needed_bytes: int) -> None:
    """Raise OutOfMemory when a device has less than that to give.

    The host grants memory that it does not have, and ends processes later.
    """
    if device.type == "cuda":
        available: int | None = torch.cuda.mem_get_info(device)[0]
    else:
        available = host_available_bytes()
    if available is not None and needed_bytes > available:
        raise OutOfMemory(
            f"a KV pool of {needed_bytes / 2**30:.2f} GiB does not fit into the"
            f" {available / 2**30:.2f} GiB that {device} has available"
        )


def host_available_bytes() -> int | None:
    """Memory that a process on this host could still take; None where the host does not tell.

    The least of what the machine has (`MemAvailable`) and what the control group leaves.
    """
    available = []
    if _MEMINFO.is_file():
        fields = (line.split() for line in _MEMINFO.read_text().splitlines())
        available += [int(words[1]) * 1024 for words in fields if words[0] == "MemAvailable:"]
    for limit_path, used_path in _CGROUP_FILES:
        if limit_path.is_file() and used_path.is_file():
            limit = limit_path.read_text().strip()
            if limit.isdecimal():
                available.append(int(limit) - int(used_path.read_text()))
    return max(0, min(available)) if available else None
