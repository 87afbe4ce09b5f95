"""A command of the launcher on a terminal of its own."""

import asyncio
import os
import pty
import re
import sys
import termios
from asyncio.subprocess import Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

LAUNCHER = (sys.executable, "-m", "launcher")
ARGV = (*LAUNCHER, "client")


@dataclass
class Terminal:
    """A command on a terminal; `said` is all that was written to it."""

    process: Process
    fd: int
    is_over: asyncio.Event
    said: str = ""

    async def read_until(self, text: str) -> str:
        """What was written up to and with `text`, without colours; taken away from `said`."""
        async with asyncio.timeout(30):
            while text not in _plain(self.said):
                await asyncio.sleep(0.02)
        head, _, _ = _plain(self.said).partition(text)
        self.said = _plain(self.said)[len(head) + len(text) :]
        return head + text

    def type(self, text: str) -> None:
        os.write(self.fd, text.encode())


def _plain(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b[()][A-Z0-9]|\x1b[=>]", "", text)


@asynccontextmanager
async def on_a_terminal(
    *args: str, command: str = "client", **environ: str
) -> AsyncIterator[Terminal]:
    ours, theirs = pty.openpty()
    # Wide enough for paths: a line that wraps is drawn anew.
    termios.tcsetwinsize(theirs, (24, 240))
    process = await asyncio.create_subprocess_exec(
        *LAUNCHER,
        command,
        *args,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**os.environ, "TERM": "xterm-256color", **environ},
        preexec_fn=_take_terminal,
    )
    os.close(theirs)
    terminal = Terminal(process, ours, asyncio.Event())

    def read() -> None:
        try:
            chunk = os.read(ours, 1 << 16)
        except OSError:
            chunk = b""
        terminal.said += chunk.decode(errors="replace")
        if not chunk:
            loop.remove_reader(ours)
            terminal.is_over.set()

    loop = asyncio.get_running_loop()
    loop.add_reader(ours, read)
    try:
        yield terminal
    finally:
        loop.remove_reader(ours)
        if process.returncode is None:
            process.kill()
        await process.wait()
        os.close(ours)


def _take_terminal() -> None:
    os.setsid()
    os.close(os.open(os.ttyname(0), os.O_RDWR))
