"""Lets a thread keep its core for long, once it has it.

Idle work (SCHED_IDLE) is not all idle: Linux owes it some thousandths of its core, and gives it
whole ticks, of 4 ms, when the slice of the thread that computes is over. A slice is 1 to 3 ms,
unless somebody asks for another one, and that of those who wait counts if it is shorter. So threads
of steps and idle work both ask for one that is longer than a step:

    default     | step 4 ms | idle work 4 ms | step 4 ms, done |
    both long   | step 8 ms, done | idle work, until it yields or a step's thread wakes up |

Threads that wake up beside them, with slices as they are, get their turns as before. Source: Linux,
kernel/sched/fair.c (EEVDF, slices by sched_setattr(2) since 6.12).
"""

import ctypes
import errno
import logging
import os
import sys
from collections.abc import Mapping

_log = logging.getLogger(__name__)

_SLICE_NS = 20_000_000
# The calling thread's number.
_OURS = 0
# The numbers of sched_setattr and sched_getattr: older libraries have no functions for them.
_SET = {"x86_64": 314, "aarch64": 274, "riscv64": 274}
_GET = {"x86_64": 315, "aarch64": 275, "riscv64": 275}


class _Attributes(ctypes.Structure):
    """The kernel's struct sched_attr in its first version."""

    _fields_ = (
        ("size", ctypes.c_uint32),
        ("policy", ctypes.c_uint32),
        ("flags", ctypes.c_uint64),
        ("nice", ctypes.c_int32),
        ("priority", ctypes.c_uint32),
        ("slice_ns", ctypes.c_uint64),
        ("deadline_ns", ctypes.c_uint64),
        ("period_ns", ctypes.c_uint64),
    )


def use_long_time_slices() -> None:
    """Asks for long slices for the calling thread, and what it starts and forks from here on.

    To be called before a thread becomes idle work: then it cannot be asked for any more, and stays.
    Elsewhere, in older kernels and in a sandbox that forbids it nothing changes: it is a matter of
    others' speed alone.
    """
    attributes = _attributes(_OURS)
    if attributes is None or attributes.policy != os.SCHED_OTHER:
        return
    attributes.slice_ns = _SLICE_NS
    error = _call(_SET, _OURS, ctypes.byref(attributes), 0)
    if error:
        _log.debug("a thread keeps its time slice: %s", os.strerror(error))


def slice_ns(thread_id: int = _OURS) -> int | None:
    """The slice of a thread, or of the calling one; None where the system does not tell."""
    attributes = _attributes(thread_id)
    return None if attributes is None else attributes.slice_ns


def _attributes(thread_id: int) -> _Attributes | None:
    if not sys.platform.startswith("linux"):
        return None
    attributes = _Attributes()
    size = ctypes.sizeof(attributes)
    error = _call(_GET, thread_id, ctypes.byref(attributes), size, 0)
    return None if error else attributes


def _call(numbers: Mapping[str, int], *arguments: object) -> int:
    """0 or an errno."""
    number = numbers.get(os.uname().machine)
    if number is None:
        return errno.ENOSYS
    library = ctypes.CDLL(None, use_errno=True)
    return 0 if library.syscall(number, *arguments) == 0 else ctypes.get_errno()
