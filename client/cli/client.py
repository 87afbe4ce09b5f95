"""`launcher client`: an interactive client that sends prompts and prints tokens as they come.

    type a line -> Line -> GenerateCall -> LmtpModel -> pieces on the screen

Ctrl-C cancels the running stream, not the client. Where stdin is no terminal, each line of it is a
prompt; a second Ctrl-C within a second then ends the client.
"""

import asyncio
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import aclosing, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

from client.calls import Answer, GenerateCall, ServerNotice
from client.cli.input import Lines, PipedLines, TypedLines, history_in
from client.cli.line import KEYS, call_of, read_line
from client.cli.terminal import ExitCode, Screen, notice_text
from client.errors import BadInput, TandemError
from client.lmtp.model import LmtpModel

_TWICE_S = 1.0

HELP = f"""Type a prompt, with parameters at its end if you like:

    Once upon a time max_tokens=50 temperature=0.7 stop="\\n" where="len(words(X)) < 5"

Parameters alone hold for all prompts that follow; key= takes one back.
A prompt in quotes has escapes ("two\\nlines") and may end as a parameter would.
Parameters: {", ".join(KEYS)}
/info: the server and its models. /help: this. /quit or Ctrl-D: leave.
Ctrl-C cancels what is running."""


@dataclass
class Chat:
    """A session with one model. Owner of the parameters that hold and of the running stream."""

    model: LmtpModel
    screen: Screen
    is_interactive: bool
    clock: Callable[[], float] = time.monotonic
    _kept: dict[str, object | None] = field(default_factory=dict)
    _has_failed: bool = False
    _running: asyncio.Task[None] | None = None
    _interrupted_s: float = float("-inf")
    _leaves: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self, lines: Lines) -> ExitCode:
        """From the first line to the last. Raises a TandemError if nobody is there to talk to."""
        greeting = await self.model.server()
        if self.is_interactive:
            self.screen.note(f"{greeting.server} serves {', '.join(greeting.models)}; try /help")
        # A prompt on a terminal has a handler of its own while it is read.
        with nullcontext() if self.is_interactive else self._interruptible():
            while (line := await self._next(lines)) is not None:
                if line.strip() in ("/quit", "/exit"):
                    break
                with self._interruptible() if self.is_interactive else nullcontext():
                    await self._answer(line.strip())
        if self._leaves.is_set():
            return ExitCode.INTERRUPTED
        return ExitCode.FAILED if self._has_failed and not self.is_interactive else ExitCode.OK

    def interrupt(self) -> None:
        """Ctrl-C: cancels the running stream; without one, or twice, ends a client of pipes."""
        now_s = self.clock()
        is_second = now_s - self._interrupted_s < _TWICE_S
        self._interrupted_s = now_s
        if self._running is not None:
            self._running.cancel()
        if not self.is_interactive and (is_second or self._running is None):
            self._leaves.set()

    @contextmanager
    def _interruptible(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGINT, self.interrupt)
        try:
            yield
        finally:
            loop.remove_signal_handler(signal.SIGINT)

    async def _next(self, lines: Lines) -> str | None:
        reading = asyncio.ensure_future(lines.next())
        leaving = asyncio.ensure_future(self._leaves.wait())
        try:
            await asyncio.wait({reading, leaving}, return_when=asyncio.FIRST_COMPLETED)
            return None if self._leaves.is_set() else reading.result()
        finally:
            reading.cancel()
            leaving.cancel()

    async def _answer(self, line: str) -> None:
        try:
            if line == "/help":
                self.screen.lines(HELP.splitlines())
            elif line == "/info":
                await self._info()
            elif line.startswith("/") and line[1:].isidentifier():
                raise BadInput(f"{line}: no such command; there are /info, /help and /quit")
            elif line:
                await self._ask(line)
        except TandemError as error:
            self._has_failed = True
            self.screen.error(str(error))

    async def _info(self) -> None:
        facts = (await self.model.server()).facts
        self.screen.lines(f"{name}: {_shown(value)}" for name, value in facts.items())

    async def _ask(self, text: str) -> None:
        line = read_line(text)
        together = {**self._kept, **line.parameters}
        call = call_of(line.prompt or "", together)
        if line.prompt is None:
            self._kept = {key: value for key, value in together.items() if value is not None}
            kept = " ".join(f"{key}={_shown(value)}" for key, value in self._kept.items())
            self.screen.note(f"[from now on: {kept or 'no parameters'}]")
            return
        self._running = asyncio.ensure_future(self._show(call))
        try:
            await self._running
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            self._has_failed = True
            self.screen.note("[cancelled]")
        finally:
            self._running = None
            self.screen.end_line()

    async def _show(self, call: GenerateCall) -> None:
        started_s, num_shown = self.clock(), 0
        async with aclosing(self.model.stream(call)) as stream:
            async for part in stream:
                if isinstance(part, Answer):
                    self.screen.piece(part.text[num_shown:])
                    self.screen.end_line()
                    self._summarize(part, self.clock() - started_s)
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


async def run_client(settings: ClientSettings) -> ExitCode:
    """The command. Raises a TandemError if nobody is there to talk to, BadInput."""
    if sys.stdin is None:
        raise BadInput("stdin is closed; prompts come from there")
    is_interactive = sys.stdin.isatty()
    screen = Screen()
    lines: Lines = (
        TypedLines(history_in(settings.state_folder))
        if is_interactive
        else PipedLines(sys.stdin.fileno())
    )

    def show_notice(notice: ServerNotice) -> None:
        if text := notice_text(notice):
            screen.note(text)

    async with LmtpModel(
        settings.url,
        key=settings.api_key,
        name=settings.model,
        on_notice=show_notice,
    ) as model:
        return await Chat(model, screen, is_interactive).run(lines)
