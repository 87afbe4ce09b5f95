"""The asyncio side of the zygote and its workers: sends jobs, priorities and kills."""

import asyncio
import contextlib
import json
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from constraints.worker.jobs import HEADER, MAX_FRAME_BYTES

_MAX_READ = 1 << 16
_MAX_TOLD = 4096
_LAST_WORDS_S = 2.0


class ZygoteDown(Exception):
    """The zygote could not start, or has ended; the text is the reason."""


class ZygoteFailed(ZygoteDown):
    """The zygote can never start: its tokenizer is not usable."""


@dataclass(frozen=True, slots=True)
class Exit:
    """How a worker ended.

    status: exit code, or negative signal number; None: it ended with the zygote
    cpu_s:  its total CPU seconds
    """

    status: int | None
    cpu_s: float


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
        self._asking: asyncio.Task[Any] | None = None
        self.ended: asyncio.Future[Exit] = asyncio.get_running_loop().create_future()
        self._channel = channel
        self._zygote_client = zygote_client

    async def ask(self, message: bytes, timeout_s: float | None = None) -> Any:
        """The answer to a frame; None: it takes longer than `timeout_s`. Raises WorkerEnded."""
        self._asking = asyncio.get_running_loop().create_task(self._exchange(message))
        return await self.answer(timeout_s)

    async def answer(self, timeout_s: float | None = None) -> Any:
        """Wait further for the answer to `ask`; None: it takes longer. Raises WorkerEnded."""
        assert self._asking is not None
        await asyncio.wait({self._asking}, timeout=timeout_s)
        return self._asking.result() if self._asking.done() else None

    async def _exchange(self, message: bytes) -> Any:
        loop = asyncio.get_running_loop()
        try:
            await loop.sock_sendall(self._channel, message)
            (num_bytes,) = HEADER.unpack(await self._read(HEADER.size))
            return json.loads(await self._read(num_bytes))
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
        """Raise its priority, which needs privileges; without them nothing changes."""
        self.hurries = True
        self._zygote_client.send(f"raise {self.number}")

    def pause(self) -> None:
        """Stop it with a signal."""
        self._zygote_client.send(f"pause {self.number}")

    def resume(self) -> None:
        """Continue a paused one."""
        self._zygote_client.send(f"resume {self.number}")

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
        self.ready: asyncio.Future[None] = loop.create_future()
        self._process = process
        self._control = control
        self._workers: dict[int, WorkerProcess] = {}
        self._num_forked = 0
        self._words: list[str] = []
        self._last_words = loop.create_task(self._read_stderr())
        self.over = loop.create_task(self._listen())

    @classmethod
    async def start(cls, arguments: Sequence[str]) -> "ZygoteClient":
        """Start `python -m constraints.worker` with these arguments; `ready`: it serves.

        It gets no environment, since it parses hostile texts.
        """
        control, theirs = socket.socketpair()
        control.setblocking(False)
        environ = {
            "PYTHONPATH": ":".join(path for path in sys.path if path),
            # Threads of numeric libraries do not survive a fork.
            "OPENBLAS_NUM_THREADS": "1",
            # With huge pages a vocabulary of 128 000 tokens is forked in 2.4 ms instead of 7.6.
            "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
        }
        argv = ["-m", "constraints.worker", "--control-fd", str(theirs.fileno()), *arguments]
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
            self.ready.set_exception(ZygoteDown(f"the compiling process did not start: {said}"))

    def _handle(self, message: Mapping[str, Any]) -> None:
        if "ready" in message:
            self.ready.set_result(None)
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


def _ignore_answer(asking: "asyncio.Task[Any]") -> None:
    """Retrieve the result of an abandoned read, so that no warning is logged."""
    if not asking.cancelled():
        asking.exception()
