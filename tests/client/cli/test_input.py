"""Lines from pipes, files and what is neither: in order, as they are asked for, or why not."""

import asyncio
import contextlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from client.cli.input import PipedLines
from client.errors import BadInput


@contextmanager
def piped(*pieces: bytes) -> Iterator[PipedLines]:
    """The lines of a pipe that brings this, and ends."""
    reading, writing = os.pipe()
    for piece in pieces:
        os.write(writing, piece)
    os.close(writing)
    yield PipedLines(reading)
    os.close(reading)


async def all_of(lines: PipedLines) -> list[str]:
    found = []
    while (line := await lines.next()) is not None:
        found.append(line)
    return found


async def test_the_last_line_needs_no_end_and_what_is_no_utf_8_is_marked() -> None:
    with piped(b"one\n\ntw", b"o\n", "drei\U0001f600".encode(), b"\xff") as lines:
        assert await all_of(lines) == ["one", "", "two", "drei\U0001f600\ufffd"]
        assert await lines.next() is None


async def test_a_pipe_that_does_not_wait_is_waited_for() -> None:
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    asking = asyncio.create_task(PipedLines(reading).next())
    await asyncio.sleep(0.05)
    assert not asking.done()
    os.write(writing, b"here\n")
    assert await asyncio.wait_for(asking, 10) == "here"
    os.close(writing)
    os.close(reading)


def fill(writing: int) -> int:
    """Writes into a pipe until it takes no more, 16 MiB at most; answers how much it took."""
    written = 0
    with contextlib.suppress(BlockingIOError):
        while written < 1 << 24:
            written += os.write(writing, b"yes\n" * 1000)
    return written


async def test_what_nobody_asks_for_is_not_read() -> None:
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    lines = PipedLines(reading)
    fill(writing)
    assert await lines.next() == "yes"
    await asyncio.sleep(0.1)
    assert fill(writing) < 1 << 20
    os.close(writing)
    os.close(reading)


async def test_what_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    folder = os.open(tmp_path, os.O_RDONLY)
    with pytest.raises(BadInput, match="Is a directory"):
        await PipedLines(folder).next()
    os.close(folder)
    with pytest.raises(BadInput, match="Bad file descriptor"):
        await PipedLines(folder).next()


async def test_a_line_without_an_end_is_refused() -> None:
    zeros = os.open("/dev/zero", os.O_RDONLY)
    with pytest.raises(BadInput, match="at most 16777216 bytes"):
        await PipedLines(zeros).next()
    os.close(zeros)
