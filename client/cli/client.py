"""`launcher client`: a chat on the terminal, whose tokens are printed as they come.

    type a line -> Chat -> GenerateCall -> LmtpModel -> pieces on the screen

Each message has a connection of its own, so that Ctrl-C, which ends it, frees the request at the
server. On a terminal the client goes on then. Where stdin is no terminal, each line of it is a
message, and Ctrl-C ends the client.
"""

import asyncio
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from client.calls import ServerNotice
from client.cli.chat import COMMANDS, Chat
from client.cli.terminal import ExitCode, Screen, notice_text, unseen_keys
from client.errors import BadInput
from client.lmtp.model import LmtpModel

# Some builds of Python lack it: then lines are typed without editing and history.
with suppress(ImportError):
    import readline

HISTORY_NAME = "client_history"
_HISTORY_LEN = 1000


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """Where the server is, and where the history of prompts is kept."""

    url: str
    api_key: str | None
    model: str | None
    state_folder: Path


def run_client(settings: ClientSettings) -> ExitCode:
    """The command. Raises a TandemError if nobody is there to talk to, BadInput."""
    if sys.stdin is None:
        raise BadInput("stdin is closed; prompts come from there")
    screen = Screen()

    def show_notice(notice: ServerNotice) -> None:
        if text := notice_text(notice):
            screen.note(text)

    def connect() -> LmtpModel:
        return LmtpModel(
            settings.url, key=settings.api_key, name=settings.model, on_notice=show_notice
        )

    chat = Chat(connect, screen, sys.stdin.isatty())
    asyncio.run(chat.greet())
    if not chat.is_interactive:
        return _answer_pipe(chat)
    with _history_in(settings.state_folder):
        _answer_terminal(chat)
    return ExitCode.OK


def _answer_pipe(chat: Chat) -> ExitCode:
    code = ExitCode.OK
    sys.stdin.reconfigure(errors="replace")  # type: ignore[union-attr]
    try:
        for line in sys.stdin:
            if line.strip() in ("/quit", "/exit"):
                break
            if not asyncio.run(chat.answer(line.strip())):
                code = ExitCode.FAILED
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED
    return code


def _answer_terminal(chat: Chat) -> None:
    while True:
        try:
            line = input("raw> " if chat.conversation.is_raw else "> ").strip()
        except EOFError:
            return
        except KeyboardInterrupt:
            chat.screen.lines([""])
            continue
        if line in ("/quit", "/exit"):
            return
        try:
            with unseen_keys(sys.stdin.fileno()):
                asyncio.run(chat.answer(line))
        except KeyboardInterrupt:
            chat.screen.note("[cancelled]")


@contextmanager
def _history_in(folder: Path) -> Iterator[None]:
    """Keep what is typed in a file of the folder, which only its owner reads, if that can be."""
    path = folder / HISTORY_NAME
    has_readline = "readline" in sys.modules
    if has_readline:
        _complete_commands()
    is_kept = has_readline and _read_history(path)
    try:
        yield
    finally:
        if is_kept:
            readline.set_history_length(_HISTORY_LEN)
            with suppress(OSError):
                readline.write_history_file(path)


def _read_history(path: Path) -> bool:
    """Read the file, made if it is missing; False: that cannot be."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600))
        readline.read_history_file(path)
    except OSError:
        return False
    return True


def _complete_commands() -> None:
    """The tabulator completes /commands."""
    names = [usage.split()[0] for usage in COMMANDS]

    def complete(text: str, state: int) -> str | None:
        found = [name for name in names if name.startswith(text)] if text.startswith("/") else []
        return found[state] if state < len(found) else None

    readline.set_completer_delims(" ")
    readline.set_completer(complete)
    readline.parse_and_bind("tab: complete")
