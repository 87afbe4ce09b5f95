"""`launcher query`: runs a program of the query language and shows its results.

    file, or stdin -> program -> watch -> LiveView on a terminal -> results, or JSON

The view is the prompt with its holes coloured, while it fills in and when it is done. stdout gets
the results alone, without a control character where it is no terminal; everything else goes to
stderr.
"""

import asyncio
import json
import keyword
import math
import sys
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager, nullcontext, redirect_stdout
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.live import Live
from rich.text import Text

from client.calls import Constraint, ServerNotice, Usage
from client.cli.terminal import ExitCode, Screen, harmless, notice_text
from client.errors import BadInput, TandemError
from client.query import (
    BadCondition,
    BadProgram,
    Choice,
    Program,
    ProgramFailed,
    QueryError,
    Request,
    Result,
    Server,
    Span,
    State,
    plain,
    read_file,
    watch,
)
from client.query.api import RunOptions
from client.query.conditions.terms import rename_subject
from client.query.reading.reader import read
from client.query.running.results import json_line, total

_COLOURS = ("cyan", "green", "yellow", "magenta", "blue", "red")
_MAX_CONSTRAINT_LEN = 300
_BAR_LEN = 20
# Lines that the view leaves free, so that it never scrolls.
_NUM_SPARE_LINES = 2


class Palette:
    """A colour for each hole, in the order in which they come. Owner of that order."""

    def __init__(self) -> None:
        self._names: list[str] = []

    def style(self, hole: str) -> str:
        if hole not in self._names:
            self._names.append(hole)
        return _COLOURS[self._names.index(hole) % len(_COLOURS)]

    def coloured(self, prompt: str, spans: Sequence[Span], current: str | None = None) -> Text:
        """A prompt with its holes; the last one called `current` is where it grows."""
        text = Text()
        end = 0
        for span in spans:
            text.append(harmless(prompt[end : span.start]))
            style = self.style(span.hole)
            text.append(harmless(prompt[span.start : span.end]), style=f"bold {style}")
            end = span.end
            if current == span.hole and span is spans[-1]:
                text.append("\u2588", style=style)
        text.append(harmless(prompt[end:]))
        return text


class LiveView:
    """All traces of a query under way, as much of their ends as the screen holds."""

    def __init__(self, palette: Palette) -> None:
        self._palette = palette
        self._states: dict[int, State] = {}
        self._notice = ""

    def show(self, state: State) -> None:
        """A trace's newest state."""
        self._states[state.trace] = state
        self._notice = ""

    def show_notice(self, notice: str) -> None:
        """A notice of the server, shown until a trace has a new state."""
        self._notice = notice

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        states = [self._states[index] for index in sorted(self._states)]
        num_lines = max(options.size.height - _NUM_SPARE_LINES, 4)
        for index, state in enumerate(states):
            share = max(num_lines // len(states), 2)
            if len(states) > 1:
                yield Text(f"--- {index + 1} of {len(states)} ---", style="dim")
                share = max(share - 1, 2)
            yield from self._trace(state, console, options.max_width, share)
        if self._notice:
            yield Text(harmless(self._notice), style="dim")

    def _trace(
        self, state: State, console: Console, width: int, num_lines: int
    ) -> Sequence[RenderableType]:
        below = [] if state.hole is None else [self._asked(state, state.hole)]
        num_below = sum(len(text.wrap(console, width)) for text in below)
        text = self._palette.coloured(state.prompt, state.spans, state.hole)
        return [*text.wrap(console, width)[-max(num_lines - num_below, 1) :], *below]

    def _asked(self, state: State, hole: str) -> Text:
        text = described(state.constraint, state.stop, hole)
        return Text(f"  [{hole}] {text}".rstrip(), style=f"dim {self._palette.style(hole)}")


def described(constraint: Constraint | None, stop: Sequence[str], hole: str) -> str:
    """What a hole is held to, in a line; conditions call it by its name."""
    parts = []
    if constraint is not None:
        value = constraint.value if isinstance(constraint.value, str) else repr(constraint.value)
        if constraint.type == "where":
            value = rename_subject(value, hole)
        shown = harmless(value.replace("\n", " "))
        if len(shown) > _MAX_CONSTRAINT_LEN:
            shown = shown[:_MAX_CONSTRAINT_LEN] + " ..."
        parts.append(f"{constraint.type}: {shown}")
    if stop:
        parts.append(f"stops at {', '.join(map(repr, stop))}")
    return "; ".join(parts)


def finished(result: Result[object], palette: Palette, *, returns: bool) -> Group:
    """A result in colours, for a terminal."""
    head = palette.coloured(result.prompt, result.spans)
    lines = [Text(line) for line in outcome(result, returns=returns)]
    for line in lines:
        line.plain = harmless(line.plain)
        line.highlight_regex(r"^\w+(?= = )", "bold")
    return Group(head, Text(), *lines)


def outcome(result: Result[object], *, returns: bool) -> list[str]:
    """What is known at the end, line by line: variables, distributions, what was returned."""
    lines = [f"{name} = {value!r}" for name, value in result.variables.items()]
    if returns:
        lines.append(f"returned {result.value!r}")
    for name, choice in result.distributions.items():
        lines += _bars(name, choice)
    return lines


def probabilities(logprobs: Mapping[str, float]) -> dict[str, float]:
    """Log-probabilities by value as probabilities, the most probable first."""
    ranked = sorted(logprobs.items(), key=lambda item: -item[1])
    return {value: math.exp(logprob) for value, logprob in ranked}


def _bars(name: str, choice: Choice) -> list[str]:
    shares = probabilities(choice.plain)
    normalised = probabilities(choice.normalised)
    width = max(len(repr(value)) for value in shares)
    head = f"P({name})"
    head = f"{head:{width + 2}}  {'':{_BAR_LEN}}  plain   by length"
    return [head] + [
        f"  {value!r:{width}}  {'#' * round(_BAR_LEN * share):{_BAR_LEN}}  "
        f"{share:6.4f}  {normalised[value]:6.4f}"
        for value, share in shares.items()
    ]


_REFRESHES_PER_S = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class QuerySettings:
    """What is run and how. `file` "-": stdin; `variables` are names that the program sees."""

    file: str
    variables: Mapping[str, object]
    url: str
    api_key: str | None
    model: str | None = None
    trace: Path | None = None
    as_json: bool = False


def read_variables(settings: Sequence[str]) -> dict[str, object]:
    """Values that are JSON mean what that says, all others are text. Raises BadInput."""
    variables: dict[str, object] = {}
    for setting in settings:
        name, equals, value = setting.partition("=")
        if not equals or not name.isidentifier() or keyword.iskeyword(name):
            raise BadInput(f"--set must be NAME=VALUE with a name of Python. Given: {setting!r}")
        try:
            variables[name] = json.loads(value)
        except ValueError:
            variables[name] = value
    return variables


def query(settings: QuerySettings) -> ExitCode:
    """The command. Errors go to stderr."""
    screen = Screen()
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("default")
        code = _query(settings, screen)
    for warning in warned:
        screen.note(f"warning: {warning.message}")
    return code


def _query(settings: QuerySettings, screen: Screen) -> ExitCode:
    try:
        with _modules_beside(settings.file):
            asyncio.run(_run(settings, screen))
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED
    except TandemError as error:
        screen.error("\n".join([str(error), *getattr(error, "__notes__", ())]))
        return _exit_code(error)
    except OSError as error:
        screen.error(f"{error.filename}: {error.strerror}")
        return ExitCode.AT_FAULT
    return ExitCode.OK


@contextmanager
def _modules_beside(file: str) -> Iterator[None]:
    """A program may import what lies beside it, or in the working folder if it comes from stdin."""
    folder = str(Path.cwd() if file == "-" else Path(file).resolve().parent)
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        sys.path.remove(folder)


def _exit_code(error: TandemError) -> ExitCode:
    if isinstance(error, BadProgram | BadCondition | ProgramFailed):
        return ExitCode.AT_FAULT
    return ExitCode.NOT_SATISFIED if isinstance(error, QueryError) else ExitCode.FAILED


async def _run(settings: QuerySettings, screen: Screen) -> None:
    program = _program(settings)
    started_s = time.monotonic()
    palette = Palette()
    if settings.as_json or not screen.out.is_terminal:
        # What the program prints is no result.
        with redirect_stdout(sys.stderr) if settings.as_json else nullcontext():
            results = await _results(settings, program, screen, None)
    else:
        view = LiveView(palette)
        with Live(view, console=screen.out, refresh_per_second=_REFRESHES_PER_S, transient=True):
            results = await _results(settings, program, screen, view)
    if settings.as_json:
        screen.lines(json_line(as_object(result)) for result in results)
        return
    for index, result in enumerate(results):
        if len(results) > 1:
            screen.lines([f"--- result {index + 1} of {len(results)} ---"])
        if screen.out.is_terminal:
            screen.out.print(finished(result, palette, returns=program.returns))
        else:
            screen.lines([result.prompt, "", *outcome(result, returns=program.returns)])
    screen.note(_summary(results, time.monotonic() - started_s))


def _program(settings: QuerySettings) -> Program:
    if settings.file == "-":
        return read(sys.stdin.read(), name="<stdin>", namespace=settings.variables)
    return read_file(settings.file, settings.variables)


async def _results(
    settings: QuerySettings, program: Program, screen: Screen, view: LiveView | None
) -> list[Result[object]]:
    def notice(news: ServerNotice) -> None:
        text = notice_text(news)
        if text and view is not None:
            view.show_notice(text)
        elif text:
            screen.note(text)

    server = Server(settings.model, settings.url, settings.api_key, notice)
    results: list[Result[object]] = []
    options = RunOptions(model=server)
    if settings.trace is not None:
        options["trace"] = settings.trace
    async with aclosing(watch(program, **options)) as states:
        async for state in states:
            if isinstance(state, Result):
                results.append(state)
            elif view is not None:
                view.show(state)
    return results


def as_object(result: Result[object]) -> dict[str, object]:
    """A result for programs: JSON's types alone."""
    return {
        "prompt": result.prompt,
        "messages": plain(result.messages),
        "variables": plain(result.variables),
        "value": plain(result.value),
        "distributions": {
            name: {
                "plain": probabilities(choice.plain),
                "normalised": probabilities(choice.normalised),
            }
            for name, choice in result.distributions.items()
        },
        "logprob": plain(result.logprob),
        "usage": _usage(result.usage),
        "requests": [_row(request) for request in result.requests],
    }


def _row(request: Request) -> dict[str, object]:
    return {
        "kind": request.kind,
        "query": request.query,
        "hole": request.hole,
        "trace": request.trace,
        **_usage(request.usage),
        "duration_s": round(request.duration_s, 6),
        "finish_reason": request.finish_reason,
        "error": request.error,
    }


def _usage(usage: Usage) -> dict[str, int]:
    return {
        "prompt_tokens": usage.num_prompt_tokens,
        "cached_tokens": usage.num_cached_tokens,
        "output_tokens": usage.num_output_tokens,
    }


def _summary(results: Sequence[Result[object]], duration_s: float) -> str:
    # Traces that were searched together share their requests.
    requests = list(dict.fromkeys(request for result in results for request in result.requests))
    usage = total(requests)
    return (
        f"[requests: {len(requests)}, in {duration_s:.1f} s; tokens of prompts: "
        f"{usage.num_prompt_tokens}, {usage.num_cached_tokens} of them cached; "
        f"made: {usage.num_output_tokens}]"
    )
