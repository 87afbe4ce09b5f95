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
# A progress bar redraws one "line" without end; what is longer is cut there.
_MAX_LINE_BYTES = 64 * 1024
_LAST_OUTPUT_S = 1.0


class ChildFailed(Exception):
    """A child process stopped by itself, failed, or did not become ready in time."""


class Child:
    """Owner of one process and all its descendants.

    Everything that the child writes appears on the console, a line at a time, with its name.
    """

    def __init__(self, name: str, process: asyncio.subprocess.Process, console: Console) -> None:
        self.name = name
        self._process = process
        self._console = console
        self._last_lines: deque[str] = deque(maxlen=_KEPT_LINES)
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
    ) -> "Child":
        """Start `argv` in a process group of its own.

        Not in a session of its own: Linux shares processors out between sessions before it looks
        at priorities in one (sched(7), autogroup), so the router's workers, which give way to
        everything, would not give way to a shard. `own_session` is for a whole server.
        """
        # uvloop knows no groups of processes.
        place: dict[str, Any] = {"start_new_session": True} if own_session else {"process_group": 0}
        process = await asyncio.create_subprocess_exec(
            *argv,
            env=dict(environ),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            **place,
            limit=_MAX_LINE_BYTES,
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
        """One paragraph: how it ended, and its last lines."""
        code = self.returncode
        if code is not None and code < 0:
            how = f"was ended by {signal.Signals(-code).name}"
        else:
            how = f"stopped with exit code {code}"
        lines = "".join(f"\n    {line}" for line in self._last_lines) or " (it said nothing)"
        return f"{self.name} {how}; its last lines:{lines}"

    async def _pass_on(self) -> None:
        assert self._process.stdout is not None
        while True:
            try:
                raw = await self._process.stdout.readline()
            except ValueError:
                # A line beyond the limit: readline dropped it.
                continue
            if not raw:
                return
            line = raw.decode(errors="replace").rstrip().rpartition("\r")[2]
            if not line:
                continue
            self._last_lines.append(line)
            self._console.pass_on(self.name, line)
