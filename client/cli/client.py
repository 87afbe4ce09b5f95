"""`launcher client`: an interactive client that sends prompts and prints tokens as they come.

    type a line -> Line -> GenerateCall -> LmtpModel -> pieces on the screen

Each prompt has a connection of its own, so that Ctrl-C, which ends it, frees the request at the
server. On a terminal the client goes on then. Where stdin is no terminal, each line of it is a
prompt, and Ctrl-C ends the client.
"""

import asyncio
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import aclosing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from client.calls import Answer, GenerateCall, ServerNotice
from client.cli.line import KEYS, call_of, read_line
from client.cli.terminal import ExitCode, Screen, notice_text
from client.errors import BadInput, TandemError
from client.lmtp.model import LmtpModel

# Some builds of Python lack it: then lines are typed without editing and history.
with suppress(ImportError):
    import readline

HISTORY_NAME = "client_history"
_HISTORY_LEN = 1000

HELP = f"""Type a prompt, with parameters at its end if you like:

    Once upon a time max_tokens=50 temperature=0.7 stop="\\n" where="len(words(X)) < 5"

Parameters alone hold for all prompts that follow; key= takes one back.
A prompt in quotes has escapes ("two\\nlines") and may end as a parameter would.
Parameters: {", ".join(KEYS)}
/info: the server and its models. /help: this. /quit or Ctrl-D: leave.
Ctrl-C cancels what is running."""


@dataclass
class Chat:
    """A session with one model. Owner of the parameters that hold."""

    connect: Callable[[], LmtpModel]
    screen: Screen
    is_interactive: bool
    _kept: dict[str, object | None] = field(default_factory=dict)

    async def greet(self) -> None:
        """Raises a TandemError if nobody is there to talk to."""
        async with self.connect() as model:
            greeting = await model.server()
        if self.is_interactive:
            self.screen.note(f"{greeting.server} serves {', '.join(greeting.models)}; try /help")

    async def answer(self, line: str) -> bool:
        """Answer a line; False: it was wrong, or failed."""
        try:
            if line == "/help":
                self.screen.lines(HELP.splitlines())
            elif line == "/info":
                async with self.connect() as model:
                    facts = (await model.server()).facts
                self.screen.lines(f"{name}: {_shown(value)}" for name, value in facts.items())
            elif line.startswith("/") and line[1:].isidentifier():
                raise BadInput(f"{line}: no such command; there are /info, /help and /quit")
            elif line:
                await self._ask(line)
        except TandemError as error:
            self.screen.error(str(error))
            return False
        finally:
            self.screen.end_line()
        return True

    async def _ask(self, text: str) -> None:
        line = read_line(text)
        together = {**self._kept, **line.parameters}
        call = call_of(line.prompt or "", together)
        if line.prompt is None:
            self._kept = {key: value for key, value in together.items() if value is not None}
            kept = " ".join(f"{key}={_shown(value)}" for key, value in self._kept.items())
            self.screen.note(f"[from now on: {kept or 'no parameters'}]")
            return
        async with self.connect() as model:
            await self._show(model, call)

    async def _show(self, model: LmtpModel, call: GenerateCall) -> None:
        started_s, num_shown = time.monotonic(), 0
        async with aclosing(model.stream(call)) as stream:
            async for part in stream:
                if isinstance(part, Answer):
                    self.screen.piece(part.text[num_shown:])
                    self.screen.end_line()
                    self._summarize(part, time.monotonic() - started_s)
                else:
                    self.screen.piece(part.text)
                    num_shown += len(part.text)

    def _summarize(self, answer: Answer, duration_s: float) -> None:
        usage = answer.usage
        if answer.constraint_satisfied is False:
            self.screen.note(f"[the constraint does not hold: {answer.violation or 'cut short'}]")
        if self.is_interactive:
            seed = "" if answer.seed is None else f", seed={answer.seed}"
            self.screen.note(
                f"[{answer.finish_reason}: {usage.num_output_tokens} tokens in {duration_s:.1f} s, "
                f"{usage.num_cached_tokens} of the prompt's {usage.num_prompt_tokens} cached{seed}]"
            )


def _shown(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


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
            line = input("> ").strip()
        except EOFError:
            return
        except KeyboardInterrupt:
            chat.screen.lines([""])
            continue
        if line in ("/quit", "/exit"):
            return
        try:
            asyncio.run(chat.answer(line))
        except KeyboardInterrupt:
            chat.screen.note("[cancelled]")


@contextmanager
def _history_in(folder: Path) -> Iterator[None]:
    """Keep what is typed in a file of the folder, which only its owner reads, if that can be."""
    path = folder / HISTORY_NAME
    is_kept = "readline" in sys.modules and _read_history(path)
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
