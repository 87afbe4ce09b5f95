"""What goes to a terminal, and what must not: colours and control characters."""

import os
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from enum import IntEnum
from typing import TextIO, cast

from rich.console import Console
from rich.text import Text

from client.calls import ServerNotice

# Windows has none: there keys show while an answer is written.
with suppress(ImportError):
    import termios

# All but tabs and line ends: a model's output must not move the cursor or rename the window.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


def harmless(text: str) -> str:
    """The text with its control characters made visible."""
    return _CONTROL.sub(lambda found: _visible(ord(found[0])), text)


def _visible(code: int) -> str:
    if code < 0x20:
        return chr(0x2400 + code)
    return "\u2421" if code == 0x7F else f"<{code:02x}>"


class ExitCode(IntEnum):
    """The exit codes of the commands.

    FAILED: no server, or it refuses or fails. AT_FAULT: the program or the command is wrong.
    NOT_SATISFIED: no text was found that keeps the program's conditions.
    """

    OK = 0
    FAILED = 1
    AT_FAULT = 2
    NOT_SATISFIED = 3
    INTERRUPTED = 130


@contextmanager
def unseen_keys(fd: int) -> Iterator[None]:
    """What is typed meanwhile is not shown on the terminal `fd`: it comes with the next line."""
    if "termios" not in sys.modules or not os.isatty(fd):
        yield
        return
    before = termios.tcgetattr(fd)
    local_modes = 3
    unseen = [*before]
    unseen[local_modes] &= ~(termios.ECHO | termios.ICANON)
    termios.tcsetattr(fd, termios.TCSANOW, unseen)
    try:
        yield
    finally:
        termios.tcsetattr(fd, termios.TCSANOW, before)


def notice_text(notice: ServerNotice) -> str:
    """A server's notice in a line; empty for `running`, which is seen anyway."""
    if notice.state == "running":
        return ""
    return f"[{notice.state}{': ' if notice.message else ''}{notice.message}]"


def _write(stream: TextIO, text: str) -> None:
    """Write and flush; from the first failure on, since nobody reads, `stream` leads to nowhere."""
    try:
        stream.write(text)
        stream.flush()
    except OSError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)


class Screen:
    """Two streams: `out` for results, `err` for notes and errors.

    On a terminal notes are dim, and no text of others controls it. Elsewhere all text goes out as
    it is.
    """

    def __init__(self, out: TextIO | None = None, err: TextIO | None = None) -> None:
        # None: sys.stdout and sys.stderr as they are then; a prompt puts others in their place.
        self.out = Console(file=out, highlight=False, soft_wrap=True)
        self._err = Console(file=err, stderr=err is None, highlight=False, soft_wrap=True)
        self._at_line_start = True

    def piece(self, text: str) -> None:
        """A piece of a line that goes on."""
        if not text:
            return
        if self.out.is_terminal:
            self.out.print(Text(harmless(text)), end="")
            self.out.file.flush()
        else:
            _write(cast("TextIO", self.out.file), text)
        self._at_line_start = text.endswith("\n")

    def end_line(self) -> None:
        """Ends a line that was started."""
        if not self._at_line_start:
            self.piece("\n")

    def lines(self, texts: Iterable[str]) -> None:
        """Whole lines of results."""
        self.end_line()
        for text in texts:
            self.piece(f"{text}\n")

    def note(self, text: str) -> None:
        self._say(text, "dim")

    def error(self, text: str) -> None:
        self._say(f"error: {text}", "red")

    def _say(self, text: str, style: str) -> None:
        if self.out.is_terminal:
            self.end_line()
        self._err.print(Text(harmless(text) if self._err.is_terminal else text, style=style))
        self._err.file.flush()
