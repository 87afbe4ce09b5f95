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


def require_weights_fit(
    device: torch.device, rank_bytes: int, *, num_ranks: int, memory_fraction: float, to_come: int
) -> None:
    """Raise OutOfMemory when weights of `rank_bytes` on each rank cannot fit, whatever leaves.

    CUDA: into `memory_fraction` of a whole device. Host: into what is available and the bytes
    `to_come` that others give back, all ranks together.
    """
    if device.type == "cuda":
        total_bytes = torch.cuda.get_device_properties(device).total_memory
        needed, limit = rank_bytes, int(total_bytes * memory_fraction)
        where = f"that the model may fill of {device} (--cuda-memory-fraction)"
    else:
        available = host_available_bytes()
        if available is None:
            return
        needed, limit = rank_bytes * num_ranks, available + to_come
        where = f"that {device} could have available"
    if needed > limit:
        raise OutOfMemory(
            f"weights of {needed / 2**30:.2f} GiB do not fit into the {limit / 2**30:.2f} GiB"
            f" {where}"
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
                used = int(used_path.read_text()) - _file_bytes(used_path.with_name("memory.stat"))
                available.append(int(limit) - used)
    return max(0, min(available)) if available else None


def _file_bytes(stat: Path) -> int:
    """What a control group counts as used that holds pages of files, and is given back for more.

    A checkpoint that was read, say.
    """
    if not stat.is_file():
        return 0
    told = dict(line.split(maxsplit=1) for line in stat.read_text().splitlines())
    return sum(int(told.get(name, 0)) for name in ("active_file", "inactive_file"))
