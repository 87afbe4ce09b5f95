"""Kernel-enforced limits of processes that compile hostile texts.

No limit depends on the process's own code: an engine in an endless loop or recursion is ended, too.
"""

import contextlib
import ctypes
import os
import resource
import signal
import sys
from pathlib import Path

_PR_SET_PDEATHSIG = 1
# Half of the usual stack of a thread: recursion that works in a worker works in a shard, too.
_STACK_BYTES = 4 << 20
# The weight of niceness 19 against 0 is 15 to 1024: nearly nothing while others need the core.
LOWEST_NICENESS = 19
# A third of the normal weight: 335 to 1024.
_STEP_BACK = 5


def limit_memory(memory_bytes: int) -> None:
    """Limit the growth of the address space, and of the stack to less; disable core files.

    A failed allocation is a MemoryError in Python and an abort elsewhere.
    """
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_STACK, (_STACK_BYTES, _STACK_BYTES))
    used_bytes = address_space_bytes()
    if used_bytes is not None:
        limit = used_bytes + memory_bytes
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def address_space_bytes() -> int | None:
    """Of this process. None if the system does not report it."""
    try:
        num_pages = int(Path("/proc/self/statm").read_text().split()[0])
    except OSError:
        return None
    return num_pages * resource.getpagesize()


def limit_cpu(cpu_s: float) -> None:
    """End this process by SIGPROF after so many CPU seconds; 0 removes the limit.

    CPU time and not wall time, so that the load of the machine does not matter.
    """
    signal.setitimer(signal.ITIMER_PROF, cpu_s)


def die_with_parent() -> None:
    """Have the kernel end this process when its parent ends. Call it right after a fork."""
    if sys.platform != "linux":
        return  # its channel closes instead, which it notices between two jobs
    parent_pid = os.getppid()
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if parent_pid == 1:
        os._exit(1)


def give_way(pid: int) -> None:
    """Give this process or thread idle priority; without privileges this is permanent.

    With niceness alone, a thread that wakes up on its core may have to wait for its time slice to
    end, which delays every step of a shard's threads. Idle work is preempted at once, and its core
    counts as free.
    """
    with contextlib.suppress(ProcessLookupError):
        os.setpriority(os.PRIO_PROCESS, pid, LOWEST_NICENESS)
    if sys.platform == "linux":
        # If a sandbox forbids it, only the niceness applies.
        with contextlib.suppress(OSError):
            os.sched_setscheduler(pid, os.SCHED_IDLE, os.sched_param(0))


def stop_giving_way(pid: int) -> None:
    """Give a process of idle priority a third of the normal weight, where that is permitted."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if sys.platform == "linux":
            os.sched_setscheduler(pid, os.SCHED_OTHER, os.sched_param(0))
        own = os.getpriority(os.PRIO_PROCESS, 0)
        os.setpriority(os.PRIO_PROCESS, pid, min(own + _STEP_BACK, LOWEST_NICENESS))


def lower_thread_priority(thread_id: int) -> None:
    """Lower the priority of a thread, which still makes progress under any load.

    For threads that may hold a lock: with idle priority they could not release it while any other
    program needs the core.
    """
    with contextlib.suppress(ProcessLookupError):
        niceness = os.getpriority(os.PRIO_PROCESS, thread_id) + _STEP_BACK
        os.setpriority(os.PRIO_PROCESS, thread_id, min(niceness, LOWEST_NICENESS))
