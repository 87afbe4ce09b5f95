"""The zygote and its workers, as asyncio sees them: processes to ask, to slow down and to end."""

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
    """The zygote could not begin, or has ended; the text says why."""


class ZygoteFailed(ZygoteDown):
    """And it never will begin: its tokenizer will not do."""


@dataclass(frozen=True, slots=True)
class Exit:
    """How a worker ended.

    status: its code, or the negative number of the signal; None: together with the zygote
    cpu_s:  seconds that it computed in its life
    """

    status: int | None
    cpu_s: float


class WorkerEnded(Exception):
    """The worker ended before it had answered."""

    def __init__(self, how: Exit) -> None:
        super().__init__(f"a worker ended with status {how.status}")
        self.how = how


class WorkerProcess:
    """One worker, seen from outside. Asked by one task at a time.

    gives_way: its priority was lowered
    used_s:    seconds that it had computed when it answered last
    """

    def __init__(self, number: int, channel: socket.socket, zygote_client: "ZygoteClient") -> None:
        self.number = number
        self.gives_way = False
        self.used_s = 0.0
        self._asking: asyncio.Task[Any] | None = None
        self.ended: asyncio.Future[Exit] = asyncio.get_running_loop().create_future()
        self._channel = channel
        self._zygote_client = zygote_client

    async def ask(self, message: bytes, timeout_s: float | None = None) -> Any:
        """The answer to a frame; None when it takes longer, see `answer`. Raises WorkerEnded."""
        self._asking = asyncio.get_running_loop().create_task(self._exchange(message))
        return await self.answer(timeout_s)

    async def answer(self, timeout_s: float | None = None) -> Any:
        """The answer that `ask` did not wait for; None when it takes longer. Raises WorkerEnded."""
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
        """It has ended. Whoever waits for its answer finds the channel closed on the other side."""
        self.ended.set_result(how)
        if self._asking is None or self._asking.done():
            self._channel.close()

    def give_way(self) -> None:
        """Lower its priority, once and for all."""
        self.gives_way = True
        self._zygote_client.send(f"lower {self.number}")

    def pause(self) -> None:
        """Take all computing from it."""
        self._zygote_client.send(f"pause {self.number}")

    def resume(self) -> None:
        """Let a paused one go on."""
        self._zygote_client.send(f"resume {self.number}")

    def kill(self) -> None:
        """End it now; `ended` tells when it has."""
        self._zygote_client.send(f"kill {self.number}")
        if self._asking is not None:
            self._asking.add_done_callback(_ignore_answer)

    def close_channel(self) -> None:
        """Close its channel: one that is at no job ends by itself."""
        self._channel.close()

    async def _read(self, num_bytes: int) -> bytearray:
        if num_bytes > MAX_FRAME_BYTES:
            raise EOFError  # not one of ours
        loop = asyncio.get_running_loop()
        # Not bytes: a translation may have a megabyte, and each part would copy what was there.
        received = bytearray()
        while len(received) < num_bytes:
            part = await loop.sock_recv(self._channel, min(num_bytes - len(received), _MAX_READ))
            if not part:
                raise EOFError
            received += part
        return received


class ZygoteClient:
    """Owner of the zygote. Workers end with it, and it with this process."""

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
        """Starts `python -m constraints.worker` with these arguments; `ready` tells when it serves.

        It gets no environment: there is nothing in ours that a reader of hostile texts should see.
        """
        control, theirs = socket.socketpair()
        control.setblocking(False)
        environ = {
            "PYTHONPATH": ":".join(path for path in sys.path if path),
            # A thread of a numeric library would not live on in a forked worker.
            "OPENBLAS_NUM_THREADS": "1",
            # In huge pages a vocabulary of 128 000 tokens is forked in 2.4 ms instead of 7.6.
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
        """The zygote's."""
        return self._process.pid

    def fork(self) -> WorkerProcess:
        """A new worker; what it is asked waits until it is there. Raises ZygoteDown."""
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
        """Have the zygote do something; if it is gone, so is everything that it could do it to."""
        with contextlib.suppress(OSError):
            self._control.send(words.encode() + b"\n")

    async def close(self) -> None:
        """Ends zygote and workers."""
        with contextlib.suppress(OSError):
            self._control.shutdown(socket.SHUT_WR)
        ending = asyncio.create_task(self._process.wait())
        await asyncio.wait({ending}, timeout=_LAST_WORDS_S)
        if not ending.done():
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
        await ending
        await self.over

    async def _listen(self) -> None:
        """Until the zygote is gone."""
        loop = asyncio.get_running_loop()
        unread = b""
        try:
            while part := await loop.sock_recv(self._control, _MAX_READ):
                *lines, unread = (unread + part).split(b"\n")
                for line in lines:
                    self._handle(json.loads(line))
        except ConnectionError:
            pass  # it was killed: as good an end as any
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
        """The kernel ends what the zygote leaves behind."""
        self._control.close()
        for worker in self._workers.values():
            worker.mark_ended(Exit(None, 0.0))
        self._workers.clear()

    async def _read_stderr(self) -> None:
        """What the zygote says of its own end; workers say nothing."""
        assert self._process.stderr is not None
        while part := await self._process.stderr.read(_MAX_TOLD):
            self._words = [*self._words, part.decode(errors="replace")][-2:]


def _ignore_answer(asking: "asyncio.Task[Any]") -> None:
    """Nobody waits for this answer any more, whether or not there is one."""
    if not asking.cancelled():
        asking.exception()
