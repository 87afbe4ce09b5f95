"""One child process: its own process group, its output passed on, its last lines kept."""

import asyncio
import contextlib
import os
import signal
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from processes.logs import Console

_KEPT_LINES = 20
# How a process that waits to be called up says that it can be.
STANDING_BY = "standing by"
# What the kernel calls it, before and after.
STANDBY_COMM = "tandem-standby"
SHARD_COMM = "tandem-shard"
# The exit code of a shard that is fit itself, and has lost those of other machines.
LOST_OTHERS = 3
# How a process of Tandem says, as its last line, why it ends.
_ERROR = "error: "
# A longer one is cut there.
_MAX_LINE_BYTES = 64 * 1024
_LAST_OUTPUT_S = 1.0


class ChildFailed(Exception):
    """A child process stopped by itself, failed, or did not become ready in time."""


class Child:
    """Owner of one process and all its descendants.

    Everything that the child writes appears on the console, a line at a time, with its name; but
    for progress bars, and the error that ends it, which is its `death_notice`.
    """

    def __init__(self, name: str, process: asyncio.subprocess.Process, console: Console) -> None:
        self.name = name
        self._process = process
        self._console = console
        self._last_lines: deque[str] = deque(maxlen=_KEPT_LINES)
        self._error: str | None = None
        # The line that it has not ended yet, a progress bar as a rule.
        self.progress: str | None = None
        self._relay = asyncio.create_task(self._pass_on())
        self._exit = asyncio.create_task(process.wait())

    @classmethod
    async def start(
        cls,
        name: str,
        argv: Sequence[str],
        environ: Mapping[str, str],
        console: Console,
        *,
        own_session: bool = False,
        waits: bool = False,
        draws_bars: bool = False,
    ) -> "Child":
        """Start `argv` in a process group of its own.

        Not in a session of its own: Linux shares processors out between sessions before it looks
        at priorities in one (sched(7), autogroup), so the router's workers, which give way to
        everything, would not give way to a shard. `own_session` is for a whole server. What `waits`
        has a pipe as its stdin, for `call_up`. With `draws_bars` its stderr is ours, and stdout
        alone is passed on.
        """
        # uvloop knows no groups of processes.
        place: dict[str, Any] = {"start_new_session": True} if own_session else {"process_group": 0}
        process = await asyncio.create_subprocess_exec(
            *argv,
            env=dict(environ),
            stdin=asyncio.subprocess.PIPE if waits else asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=None if draws_bars else asyncio.subprocess.STDOUT,
            **place,
        )
        return cls(name, process, console)

    @property
    def pid(self) -> int:
        """Its number, and that of its group; of its session, if it has one of its own."""
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """None while it runs; negative: the signal that ended it."""
        return self._process.returncode

    @property
    def last_lines(self) -> tuple[str, ...]:
        """The last lines of its output, oldest first."""
        return tuple(self._last_lines)

    @property
    def error(self) -> str | None:
        """What it gave as its last line for the reason of its end; None: nothing, or it runs."""
        return self._error if self.returncode else None

    @property
    def has_lost_others(self) -> bool:
        """Whether it ended for the sake of shards of other machines."""
        return self.returncode == LOST_OTHERS

    @property
    def stands_by(self) -> bool:
        """Whether it has said that it waits for `call_up`, and still runs."""
        has_said = any(line.startswith(STANDING_BY) for line in self._last_lines)
        return self.returncode is None and has_said

    def call_up(self) -> None:
        """Write the line that a child which `waits` waits for. One that is dead stays so."""
        stdin = self._process.stdin
        assert stdin is not None
        with contextlib.suppress(OSError):
            stdin.write(b"\n")

    async def wait(self) -> int:
        """Wait for its end, and for the last of its output. Answers the exit code."""
        code = await asyncio.shield(self._exit)
        # Output ends when the last descendant closes it; do not wait for a stray one for ever.
        await asyncio.wait({self._relay}, timeout=_LAST_OUTPUT_S)
        return code

    def signal(self, signum: signal.Signals) -> None:
        """Signal the child itself, if it still runs."""
        if self.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(signum)

    def kill_group(self) -> None:
        """End the child and everything that it started, at once."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)

    async def stop(self, timeout_s: float) -> None:
        """Ask it to end; after `timeout_s` seconds end its group."""
        self.signal(signal.SIGTERM)
        await asyncio.wait({self._exit}, timeout=timeout_s)
        self.kill_group()
        # The process is dead; only a stray descendant outside its group could keep its output open.
        await asyncio.wait({self._exit}, timeout=_LAST_OUTPUT_S)
        self._relay.cancel()

    def death_notice(self) -> str:
        """The reason that it gave, or one paragraph: how it ended, and its last lines."""
        if self.error is not None:
            return f"{self.name}: {self.error}"
        code = self.returncode
        if code is not None and code < 0:
            how = f"was ended by {signal.Signals(-code).name}"
        else:
            how = f"stopped with exit code {code}"
        lines = "".join(f"\n    {line}" for line in self._last_lines) or " (it said nothing)"
        return f"{self.name} {how}; its last lines:{lines}"

    async def _pass_on(self) -> None:
        assert self._process.stdout is not None
        rest = b""
        while chunk := await self._process.stdout.read(_MAX_LINE_BYTES):
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                self._take(line)
            # A progress bar redraws one "line" without end; by its carriage return it is known.
            rest = rest[max(0, rest.rstrip(b"\r").rfind(b"\r")) :]
            self.progress = _shown(rest) or None
            if len(rest) > _MAX_LINE_BYTES:
                self._take(rest)
                rest = b""
        self._take(rest)

    def _take(self, data: bytes) -> None:
        line = _shown(data)
        if not line:
            return
        if self._error is not None:
            # It was not the last one.
            self._console.pass_on(self.name, _ERROR + self._error, "ERROR")
            self._error = None
        self._last_lines.append(line)
        if line.startswith(_ERROR):
            self._error = line.removeprefix(_ERROR)
        elif b"\r" not in data.rstrip(b"\r"):
            self._console.pass_on(self.name, line)


def _shown(line: bytes) -> str:
    """What a terminal would show of it in the end."""
    return line.decode(errors="replace").rstrip().rpartition("\r")[2]
