"""`launcher query`: runs a program of the query language and shows its results.

    file, or stdin -> program -> watch -> LiveView on a terminal -> results, or JSON

stdout gets the results alone, without a control character where it is no terminal; everything
else goes to stderr.
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

from rich.live import Live

from client.calls import ServerNotice, Usage
from client.cli.query_view import LiveView, Palette, finished, outcome, probabilities
from client.cli.terminal import ExitCode, Screen, notice_text
from client.errors import BadInput, TandemError
from client.query import (
    BadCondition,
    BadProgram,
    Program,
    ProgramFailed,
    QueryError,
    Request,
    Result,
    Server,
    plain,
    read_file,
    watch,
)
from client.query.execution import RunOptions
from client.query.reading.reader import read
from client.query.running.request_log import total
from client.query.running.to_json import json_line

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
    fields: dict[str, object] = {
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
        "logprob": result.logprob,
        "usage": _usage(result.usage),
        "requests": [_row(request) for request in result.requests],
    }
    return {name: _strict(value) for name, value in fields.items()}


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


def _strict(value: object) -> object:
    """JSON knows no infinity, and nothing that is no number."""
    if isinstance(value, dict):
        return {name: _strict(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_strict(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _summary(results: Sequence[Result[object]], duration_s: float) -> str:
    # Traces that were searched together share their requests.
    requests = list(dict.fromkeys(request for result in results for request in result.requests))
    usage = total(requests)
    return (
        f"[requests: {len(requests)}, in {duration_s:.1f} s; tokens of prompts: "
        f"{usage.num_prompt_tokens}, {usage.num_cached_tokens} of them cached; "
        f"made: {usage.num_output_tokens}]"
    )
