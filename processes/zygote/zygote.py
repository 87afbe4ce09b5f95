"""The zygote: a process that has loaded what its work needs, and forks workers with limits.

    owner --control socket--> zygote --fork--> worker --job socket--> owner

So a killed worker is replaced in milliseconds, while loading a vocabulary of 128 000 tokens takes a
second, and transformers ten. The zygote has one thread, reads nothing hostile, and ends with its
owner; workers end with the zygote. Workers are identified by numbers from the owner, so that no
signal goes to a process that has reused an id.

    owner says   fork N (with a socket) | lower N | raise N | kill N
    zygote says  ready ABOUT | failed REASON | exited N STATUS CPU_S

No limit depends on the worker's own code: an engine in an endless loop or recursion is ended, too.
"""

import contextlib
import ctypes
import gc
import json
import os
import resource
import selectors
import signal
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn, Protocol

from native.cpu_yield import CpuYield
from processes.zygote.frames import Frame, frame, receive

Data = bytes | bytearray | memoryview

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


_MAX_READ = 4096
_MAX_FDS = 16

# Memory that stays allocated reduces the next job's limit, so a worker leaves in time.
_OLD_PART = 4


class Work(Protocol):
    """What workers do."""

    def answer_frame(self, job: Frame) -> tuple[dict[str, Any], Sequence[Data]]:
        """The fields and the data of the answer to a job; errors are answers, too."""


class Worker:
    """One after the other of the jobs of a process, each with a CPU limit.

    cpu_s:        CPU seconds of a job
    memory_bytes: the growth of the process; the kernel enforces it
    cpu_yield:    makes idle work leave its core regularly, see `native/cpu_yield.py`
    """

    def __init__(self, work: Work, cpu_s: float, memory_bytes: int, cpu_yield: CpuYield) -> None:
        self._work = work
        self._cpu_s = cpu_s
        self._memory_bytes = memory_bytes
        self._cpu_yield = cpu_yield

    def serve(self, channel: socket.socket) -> None:
        """Answer jobs until the channel closes, or until this process has to leave.

        Each answer has `leaves`, whether the process leaves, and `used_s`, its total CPU time.
        """
        start_bytes = address_space_bytes() or 0
        is_old = False
        while not is_old and (job := receive(channel)) is not None:
            limit_cpu(self._cpu_s)
            with self._cpu_yield.yielding():
                fields, data = self._work.answer_frame(job)
            limit_cpu(0.0)
            del job
            grown_bytes = (address_space_bytes() or 0) - start_bytes
            is_old = _OLD_PART * grown_bytes > self._memory_bytes
            fields = fields | {"leaves": is_old, "used_s": time.process_time()}
            channel.sendall(frame(fields, sum(memoryview(each).nbytes for each in data)))
            for each in data:
                channel.sendall(each)


class Zygote:
    """Owner of the workers' processes. `about`: sent to its owner once it is ready."""

    def __init__(
        self,
        control: socket.socket,
        worker: Worker,
        memory_bytes: int,
        about: Mapping[str, Any] | None = None,
    ) -> None:
        self._control = control
        self._worker = worker
        self._memory_bytes = memory_bytes
        self._about = dict(about or {})
        self._pids: dict[int, int] = {}
        self._unread = b""
        self._fds: list[int] = []

    def run(self) -> None:
        """Serve until the owner has ended; then end all workers."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        wakeup, wake = socket.socketpair()
        wake.setblocking(False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wake.fileno())
        # A garbage collection would copy every page that is shared with the workers.
        gc.collect()
        gc.freeze()
        self.say({"ready": self._about})
        with selectors.DefaultSelector() as selector:
            selector.register(self._control, selectors.EVENT_READ)
            selector.register(wakeup, selectors.EVENT_READ)
            while True:
                for key, _ in selector.select():
                    if key.fileobj is wakeup:
                        wakeup.recv(_MAX_READ)
                        self._reap()
                    elif not self._handle_command((wakeup, wake)):
                        self._end()
                        return

    def say(self, message: Mapping[str, Any]) -> None:
        """Send a message to the owner, which may have ended."""
        with contextlib.suppress(OSError):
            self._control.sendall(json.dumps(message).encode() + b"\n")

    def _handle_command(self, wakeups: tuple[socket.socket, socket.socket]) -> bool:
        """Execute a command of the owner. False: the owner has ended."""
        try:
            data, fds, _, _ = socket.recv_fds(self._control, _MAX_READ, _MAX_FDS)
        except ConnectionError:
            return False
        self._fds += fds
        *lines, self._unread = (self._unread + data).split(b"\n")
        for line in lines:
            verb, number = line.decode().split()
            if verb == "fork":
                self._fork(int(number), wakeups)
            else:
                self._signal(verb, self._pids.get(int(number)))
        return bool(data)

    def _signal(self, verb: str, pid: int | None) -> None:
        if pid is None:
            return  # it has ended, and the owner will be notified
        if verb == "lower":
            give_way(pid)
            return
        if verb == "raise":
            stop_giving_way(pid)
            # Somebody may have stopped it while it was idle.
            os.kill(pid, signal.SIGCONT)
            return
        os.kill(pid, signal.SIGKILL)

    def _fork(self, number: int, wakeups: tuple[socket.socket, socket.socket]) -> None:
        fd = self._fds.pop(0)
        try:
            pid = os.fork()
        except OSError as error:
            os.close(fd)
            self.say({"exited": number, "status": error.errno, "cpu_s": 0.0})
            return
        if not pid:
            self._become_worker(fd, wakeups)
        os.close(fd)
        self._pids[number] = pid

    def _become_worker(self, fd: int, wakeups: tuple[socket.socket, socket.socket]) -> NoReturn:
        status = 1
        try:
            die_with_parent()
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for inherited in (self._control, *wakeups):
                inherited.close()
            for other in self._fds:
                os.close(other)
            # Output of aborting engines does not belong into the owner's log.
            devnull = os.open(os.devnull, os.O_RDWR)
            for standard in (0, 1, 2):
                os.dup2(devnull, standard)
            limit_memory(self._memory_bytes)
            with socket.socket(fileno=fd) as channel:
                self._worker.serve(channel)
            status = 0
        finally:
            # Without interpreter shutdown, which would close objects of the zygote.
            os._exit(status)

    def _reap(self) -> None:
        for number, pid in list(self._pids.items()):
            ended, status, usage = os.wait4(pid, os.WNOHANG)
            if ended:
                del self._pids[number]
                cpu_s = usage.ru_utime + usage.ru_stime
                code = os.waitstatus_to_exitcode(status)
                self.say({"exited": number, "status": code, "cpu_s": cpu_s})

    def _end(self) -> None:
        for pid in self._pids.values():
            os.kill(pid, signal.SIGKILL)
        for pid in self._pids.values():
            os.waitpid(pid, 0)
