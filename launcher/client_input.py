"""Lines that people type, with a history, or that a pipe brings."""

import asyncio
import os
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Protocol

from prompt_toolkit import PromptSession
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.patch_stdout import patch_stdout

HISTORY_NAME = "client_history"


class Lines(Protocol):
    """Where lines come from; None at their end."""

    async def next(self) -> str | None: ...


class TypedLines:
    """A prompt on a terminal."""

    def __init__(self, history: History) -> None:
        self._session: PromptSession[str] = PromptSession(history=history)

    async def next(self) -> str | None:
        """A line; an empty one if it was given up by Ctrl-C, None for Ctrl-D."""
        try:
            # What the server says meanwhile goes above the prompt.
            with patch_stdout(raw=True):
                return await self._session.prompt_async("> ")
        except KeyboardInterrupt:
            return ""
        except EOFError:
            return None


class PipedLines:
    """The lines of a file descriptor, read by a thread: it may be a pipe, a file or a socket.

    Not by sys.stdin, whose lock a thread that still waits would hold when Python ends.
    """

    def __init__(self, fd: int) -> None:
        self._lines = _lines_of(fd)

    async def next(self) -> str | None:
        return await anext(self._lines, None)


async def _lines_of(fd: int) -> AsyncIterator[str]:
    loop = asyncio.get_running_loop()
    chunks: asyncio.Queue[bytes] = asyncio.Queue()

    def read() -> None:
        while chunk := os.read(fd, 1 << 16):
            loop.call_soon_threadsafe(chunks.put_nowait, chunk)
        loop.call_soon_threadsafe(chunks.put_nowait, b"")

    threading.Thread(target=read, name="stdin", daemon=True).start()
    rest = b""
    while chunk := await chunks.get():
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            yield line.decode(errors="replace")
    if rest:
        yield rest.decode(errors="replace")


def history_in(folder: Path) -> History:
    """The history file of a folder, which only its owner reads; in memory if that cannot be."""
    path = folder / HISTORY_NAME
    try:
        folder.mkdir(parents=True, exist_ok=True)
        os.close(os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600))
    except OSError:
        return InMemoryHistory()
    return FileHistory(path)
