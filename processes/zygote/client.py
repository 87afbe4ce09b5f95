"""The asyncio side of the zygote and its workers: sends jobs, priorities and kills.

It keeps a zygote and a few idle workers, and replaces those that end, with a growing delay.
"""

import asyncio
import contextlib
import json
import logging
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from native.cpu_yield import CpuYield
from processes.zygote.frames import HEADER, MAX_FRAME_BYTES, Frame

_MAX_READ = 1 << 18
_MAX_TOLD = 4096
_LAST_WORDS_S = 2.0
_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 30.0
# A zygote that lived so long resets the delay.
_PROVEN_S = 60.0
_NUM_SPARES = 2

_logger = logging.getLogger("processes")


class ZygoteDown(Exception):
    """The zygote could not start, or has ended; the text is the reason."""


class ZygoteFailed(ZygoteDown):
    """The zygote can never start: what it has to load is not usable."""


@dataclass(frozen=True, slots=True)
class Exit:
    """How a worker ended.

    status: exit code, or negative signal number; None: it ended with the zygote
    cpu_s:  its total CPU seconds
    """

    status: int | None
    cpu_s: float


@dataclass(frozen=True, slots=True)
class Program:
    """What a zygote runs: `python -m module` with these arguments, and two of its own.

    --control-fd N    the socket to its owner
    --cpu-yield PATH  a library for idle work; absent: there is none

    environment: all that it has beside the path of its imports and what its forks need
    noun: what log lines call it
    """

    module: str
    arguments: Sequence[str]
    noun: str
    environment: Mapping[str, str] = field(default_factory=dict)


class WorkerEnded(Exception):
    """The worker ended before it had answered."""

    def __init__(self, how: Exit) -> None:
        super().__init__(f"a worker ended with status {how.status}")
        self.how = how


class WorkerProcess:
    """The handle of one worker. Used by one task at a time.

    gives_way: its priority was lowered
    hurries:   it was raised again, for the end of one job
    used_s:    its CPU seconds at its last answer
    """

    def __init__(self, number: int, channel: socket.socket, zygote_client: "ZygoteClient") -> None:
        self.number = number
        self.gives_way = False
        self.hurries = False
        self.used_s = 0.0
        self._asking: asyncio.Task[Frame] | None = None
        self.ended: asyncio.Future[Exit] = asyncio.get_running_loop().create_future()
        self._channel = channel
        self._zygote_client = zygote_client

    async def ask(self, *message: bytes, timeout_s: float | None = None) -> Frame | None:
        """The answer to a frame and its data; None: it takes longer than `timeout_s`.

        Raises WorkerEnded.
        """
        self._asking = asyncio.get_running_loop().create_task(self._exchange(message))
        return await self.answer(timeout_s)

    async def answer(self, timeout_s: float | None = None) -> Frame | None:
        """Wait further for the answer to `ask`; None: it takes longer. Raises WorkerEnded."""
        assert self._asking is not None
        await asyncio.wait({self._asking}, timeout=timeout_s)
        return self._asking.result() if self._asking.done() else None

    async def _exchange(self, message: tuple[bytes, ...]) -> Frame:
        loop = asyncio.get_running_loop()
        try:
            for part in message:
                await loop.sock_sendall(self._channel, part)
            num_bytes, num_data_bytes = HEADER.unpack(await self._read(HEADER.size))
            fields = json.loads(await self._read(num_bytes))
            return Frame(fields, await self._read(num_data_bytes))
        except (EOFError, OSError):
            self._channel.close()
            raise WorkerEnded(await asyncio.shield(self.ended)) from None
        except asyncio.CancelledError:
            self._channel.close()
            raise

    def mark_ended(self, how: Exit) -> None:
        """Note that it has ended. A waiting reader finds the channel closed."""
        self.ended.set_result(how)
        if self._asking is None or self._asking.done():
            self._channel.close()

    def give_way(self) -> None:
        """Lower its priority permanently."""
        self.gives_way = True
        self._zygote_client.send(f"lower {self.number}")

    def hurry(self) -> None:
        """Raise its priority, as far as privileges go; one that somebody has stopped goes on."""
        self.hurries = True
        self._zygote_client.send(f"raise {self.number}")

    def kill(self) -> None:
        """Kill it; `ended` is set when it has ended."""
        self._zygote_client.send(f"kill {self.number}")
        if self._asking is not None:
            self._asking.add_done_callback(_ignore_answer)

    def close_channel(self) -> None:
        """Close its channel: an idle worker then ends by itself."""
        self._channel.close()

    async def _read(self, num_bytes: int) -> bytearray:
        if num_bytes > MAX_FRAME_BYTES:
            raise EOFError  # not a valid frame
        loop = asyncio.get_running_loop()
        # A bytearray: appending to bytes would copy a megabyte of a translation repeatedly.
        received = bytearray()
        while len(received) < num_bytes:
            part = await loop.sock_recv(self._channel, min(num_bytes - len(received), _MAX_READ))
            if not part:
                raise EOFError
            received += part
        return received


class ZygoteClient:
    """Owner of the zygote, which ends with this process; workers end with the zygote."""

    def __init__(self, process: asyncio.subprocess.Process, control: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        self.ready: asyncio.Future[Mapping[str, Any]] = loop.create_future()
        self._process = process
        self._control = control
        self._workers: dict[int, WorkerProcess] = {}
        self._num_forked = 0
        self._words: list[str] = []
        self._last_words = loop.create_task(self._read_stderr())
        self.over = loop.create_task(self._listen())

    @classmethod
    async def start(cls, program: Program) -> "ZygoteClient":
        """Start it; `ready`: it serves, and what it says about itself.

        It gets no environment, since it reads hostile input.
        """
        control, theirs = socket.socketpair()
        control.setblocking(False)
        environ = {
            "PYTHONPATH": ":".join(path for path in sys.path if path),
            # Threads of numeric libraries do not survive a fork.
            "OPENBLAS_NUM_THREADS": "1",
            # With huge pages a vocabulary of 128 000 tokens is forked in 2.4 ms instead of 7.6.
            "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
            **program.environment,
        }
        control_fd = str(theirs.fileno())
        argv = ["-m", program.module, "--control-fd", control_fd, *program.arguments]
        with contextlib.ExitStack() as unless_started, theirs:
            unless_started.callback(control.close)
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                *argv,
                env=environ,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.PIPE,
                pass_fds=(theirs.fileno(),),
            )
            unless_started.pop_all()
        return cls(process, control)

    @property
    def pid(self) -> int:
        return self._process.pid

    def fork(self) -> WorkerProcess:
        """A new worker; jobs wait until it has started. Raises ZygoteDown."""
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        number = self._num_forked
        self._num_forked += 1
        worker = WorkerProcess(number, ours, self)
        with theirs:
            try:
                socket.send_fds(self._control, [b"fork %d\n" % number], [theirs.fileno()])
            except OSError as error:
                ours.close()
                raise ZygoteDown(f"no worker can be started: {error}") from error
        self._workers[number] = worker
        return worker

    def send(self, words: str) -> None:
        """Send a command to the zygote; without effect if it has ended, as workers have, too."""
        with contextlib.suppress(OSError):
            self._control.send(words.encode() + b"\n")

    async def close(self) -> None:
        """End the zygote and its workers."""
        with contextlib.suppress(OSError):
            self._control.shutdown(socket.SHUT_WR)
        ending = asyncio.create_task(self._process.wait())
        await asyncio.wait({ending}, timeout=_LAST_WORDS_S)
        if not ending.done():
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
        await ending
        await self.over
        if not self.ready.cancelled():
            self.ready.exception()  # nobody need have waited for it

    async def _listen(self) -> None:
        """Read messages until the zygote has ended."""
        loop = asyncio.get_running_loop()
        unread = b""
        try:
            while part := await loop.sock_recv(self._control, _MAX_READ):
                *lines, unread = (unread + part).split(b"\n")
                for line in lines:
                    self._handle(json.loads(line))
        except ConnectionError:
            pass  # it was killed
        finally:
            self._end_workers()
        await asyncio.wait({self._last_words}, timeout=_LAST_WORDS_S)
        self._last_words.cancel()
        if not self.ready.done():
            said = "".join(self._words).strip().rpartition("\n")[2]
            self.ready.set_exception(ZygoteDown(f"it did not start: {said}"))

    def _handle(self, message: Mapping[str, Any]) -> None:
        if "ready" in message:
            self.ready.set_result(message["ready"])
        elif "failed" in message:
            self.ready.set_exception(ZygoteFailed(message["failed"]))
        else:
            worker = self._workers.pop(message["exited"])
            worker.mark_ended(Exit(message["status"], message["cpu_s"]))

    def _end_workers(self) -> None:
        """Mark all workers as ended: the kernel ends them with the zygote."""
        self._control.close()
        for worker in self._workers.values():
            worker.mark_ended(Exit(None, 0.0))
        self._workers.clear()

    async def _read_stderr(self) -> None:
        """Read the zygote's standard error; workers have none."""
        assert self._process.stderr is not None
        while part := await self._process.stderr.read(_MAX_TOLD):
            self._words = [*self._words, part.decode(errors="replace")][-2:]


class IdleWorkers:
    """Owner of the zygote. `max_low`: the most idle workers with low priority."""

    def __init__(self, program: Program, max_low: int) -> None:
        self._program = program
        self._max_low = max_low
        self._up: asyncio.Future[ZygoteClient] = asyncio.get_running_loop().create_future()
        self._spawned = asyncio.Event()
        self._ready: list[WorkerProcess] = []
        self._low: list[WorkerProcess] = []
        self._keeping = asyncio.get_running_loop().create_task(self._keep())

    async def zygote_client(self) -> ZygoteClient:
        """The running one; waits until it runs. Raises ZygoteFailed if it cannot start."""
        return await asyncio.shield(self._up)

    async def wait_spawned(self) -> None:
        """Return once the first attempt has forked this process, or has failed to."""
        await self._spawned.wait()

    async def take(self, *, low: bool) -> WorkerProcess:
        """A worker for one job; `low`: prefer one with low priority.

        Raises ZygoteFailed.
        """
        while True:
            zygote_client = await self.zygote_client()
            self._ready = [each for each in self._ready if not each.ended.done()]
            self._low = [each for each in self._low if not each.ended.done()]
            if low and self._low:
                return self._low.pop()
            try:
                worker = self._ready.pop() if self._ready else zygote_client.fork()
                while len(self._ready) < _NUM_SPARES:
                    self._ready.insert(0, zygote_client.fork())
                return worker
            except ZygoteDown:
                # It has just ended; the next one forks.
                await asyncio.wait({zygote_client.over})
                await asyncio.sleep(0)

    def put_back(self, worker: WorkerProcess) -> None:
        """Return a worker after its job."""
        if worker.ended.done():
            # It ended while its answer was read.
            worker.close_channel()
        elif not worker.gives_way:
            self._ready.append(worker)
        elif len(self._low) < self._max_low:
            self._low.append(worker)
        else:
            worker.close_channel()

    async def close(self) -> None:
        self._keeping.cancel()
        await asyncio.wait({self._keeping})
        if not self._up.done():
            self._up.set_exception(ZygoteFailed("the workers were stopped"))
        with contextlib.suppress(ZygoteDown):
            await (await self._up).close()

    async def _keep(self) -> None:
        loop = asyncio.get_running_loop()
        pause_s = _FIRST_PAUSE_S
        while True:
            begun_s = loop.time()
            try:
                zygote_client = await self._begin()
                self._up.set_result(zygote_client)
                await asyncio.wait({zygote_client.over})
                reason = "it ended"
            except ZygoteFailed as error:
                self._up.set_exception(error)
                return
            except (ZygoteDown, OSError) as error:
                reason = str(error)
            finally:
                self._spawned.set()
            if loop.time() - begun_s > _PROVEN_S:
                pause_s = _FIRST_PAUSE_S
            _logger.error("%s: %s; again in %g s", self._program.noun, reason, pause_s)
            if self._up.done():
                self._up = loop.create_future()
            self._ready = []
            self._low = []
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    async def _begin(self) -> ZygoteClient:
        """Start a zygote and wait until it serves. Raises ZygoteDown, OSError."""
        # Compiled here if necessary: the zygote has no environment and so no compiler.
        cpu_yield = await asyncio.to_thread(CpuYield.load)
        program = self._program
        if cpu_yield.path is not None:
            with_library = (*program.arguments, "--cpu-yield", str(cpu_yield.path))
            program = replace(program, arguments=with_library)
        zygote_client = await ZygoteClient.start(program)
        self._spawned.set()
        try:
            # Shielded: a cancelled start still reads from the zygote while ending it.
            await asyncio.shield(zygote_client.ready)
        except BaseException:
            await zygote_client.close()
            raise
        return zygote_client


def _ignore_answer(asking: "asyncio.Task[Any]") -> None:
    """Retrieve the result of an abandoned read, so that no warning is logged."""
    if not asking.cancelled():
        asking.exception()
