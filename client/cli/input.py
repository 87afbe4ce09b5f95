"""Lines that people type, with a history, or that a pipe brings."""

import asyncio
import contextlib
import os
import select
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Protocol

from prompt_toolkit import PromptSession
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.patch_stdout import patch_stdout

from client.errors import BadInput

HISTORY_NAME = "client_history"
_CHUNK_LEN = 1 << 16
# More than a server takes in a message.
_MAX_LINE_LEN = 1 << 24


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
    """The lines of a file descriptor, read by threads: it may be a pipe, a file or a socket.

    Not by sys.stdin, whose lock a thread that still waits would hold when Python ends. Nothing is
    read before it is asked for, so that what brings lines without end waits.
    """

    def __init__(self, fd: int) -> None:
        self._lines = _lines_of(fd)

    async def next(self) -> str | None:
        """The next line. Raises BadInput."""
        return await anext(self._lines, None)


async def _lines_of(fd: int) -> AsyncIterator[str]:
    rest = b""
    while chunk := await _chunk_of(fd):
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            yield line.decode(errors="replace")
        if len(rest) > _MAX_LINE_LEN:
            raise BadInput(f"stdin: a line has at most {_MAX_LINE_LEN} bytes")
    if rest:
        yield rest.decode(errors="replace")


async def _chunk_of(fd: int) -> bytes:
    """What comes next; nothing at the end. Raises BadInput."""
    loop = asyncio.get_running_loop()
    came: asyncio.Future[bytes] = loop.create_future()

    def finish(chunk: bytes, error: OSError | ValueError | None) -> None:
        if came.done():
            return
        if error is None:
            came.set_result(chunk)
        else:
            came.set_exception(BadInput(f"stdin cannot be read: {error}"))

    def read() -> None:
        chunk, failure = b"", None
        try:
            # It may have been left in the mode in which reading does not wait.
            select.select([fd], [], [])
            chunk = os.read(fd, _CHUNK_LEN)
        except (OSError, ValueError) as error:
            failure = error
        # The loop may be closed by now.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(finish, chunk, failure)

    threading.Thread(target=read, name="stdin", daemon=True).start()
    return await came


def history_in(folder: Path) -> History:
    """The history file of a folder, which only its owner reads; in memory if that cannot be."""
    path = folder / HISTORY_NAME
    try:
        folder.mkdir(parents=True, exist_ok=True)
        os.close(os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600))
    except OSError:
        return InMemoryHistory()
    return FileHistory(path)
