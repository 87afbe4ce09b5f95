"""What a process that compiles hostile texts may take of the machine, enforced by the kernel.

Nothing here relies on the process's own code getting a turn: an engine that is in a loop, or that
recurses without end, is ended all the same.
"""

import contextlib
import ctypes
import os
import resource
import signal
import sys
from pathlib import Path

_PR_SET_PDEATHSIG = 1
# Half of what a thread commonly has: what a worker can recurse into, a shard's thread can too.
_STACK_BYTES = 4 << 20
# The weight of 19 against 0 is 15 to 1024: next to nothing while somebody else wants the core.
LOWEST_NICENESS = 19
# A third of what its equals have: 335 to 1024.
_STEP_BACK = 5


def limit_memory(memory_bytes: int) -> None:
    """Lets the address space grow by so much from here, the stack by less; writes no core files.

    What cannot be allocated then is a MemoryError in Python and an abort elsewhere.
    """
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_STACK, (_STACK_BYTES, _STACK_BYTES))
    used_bytes = address_space_bytes()
    if used_bytes is not None:
        limit = used_bytes + memory_bytes
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def address_space_bytes() -> int | None:
    """Of this process. None where the system does not tell."""
    try:
        num_pages = int(Path("/proc/self/statm").read_text().split()[0])
    except OSError:
        return None
    return num_pages * resource.getpagesize()


def limit_cpu(cpu_s: float) -> None:
    """End this process by SIGPROF once it has computed for so many seconds; 0 disarms.

    Seconds of computing and not of waiting, so that a busy machine makes no grammar complex.
    """
    signal.setitimer(signal.ITIMER_PROF, cpu_s)


def die_with_parent() -> None:
    """Have the kernel end this process when its parent ends. To be called right after a fork."""
    if sys.platform != "linux":
        return  # its channels close instead, which is seen between two jobs
    parent_pid = os.getppid()
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if parent_pid == 1:
        os._exit(1)


def give_way(pid: int) -> None:
    """Let everything else go before this process, or thread; without privileges it stays so.

    Niceness alone is a share: whoever wakes up on its core may have to wait for its turn to end,
    which threads in lockstep, as a shard's are, feel at every step. Idle work is cut short at once,
    and its core counts as free.
    """
    with contextlib.suppress(ProcessLookupError):
        os.setpriority(os.PRIO_PROCESS, pid, LOWEST_NICENESS)
    if sys.platform == "linux":
        # Where a sandbox forbids it, the niceness stands.
        with contextlib.suppress(OSError):
            os.sched_setscheduler(pid, os.SCHED_IDLE, os.sched_param(0))


def lower_thread_priority(thread_id: int) -> None:
    """Let others have more than this thread, which goes on all the same, however busy they are.

    For what may hold a lock that others wait for: idle work that holds one gets no turn to let go
    of it while any program wants the core.
    """
    with contextlib.suppress(ProcessLookupError):
        niceness = os.getpriority(os.PRIO_PROCESS, thread_id) + _STEP_BACK
        os.setpriority(os.PRIO_PROCESS, thread_id, min(niceness, LOWEST_NICENESS))
