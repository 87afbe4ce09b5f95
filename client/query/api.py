"""Runs queries that are texts or files.

Each function except `watch` has a variant `..._sync` for use without an event loop.
"""

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from pathlib import Path
from typing import Unpack

from client.query.errors import BadProgram
from client.query.execution import RunOptions, choices_of, execute, wait_for
from client.query.program import Program
from client.query.reading.reader import read
from client.query.running.request_sender import watched
from client.query.running.results import Result, State

Variables = Mapping[str, object]


async def run(
    program: str | Program, variables: Variables | None = None, **options: Unpack[RunOptions]
) -> Result[object]:
    """Run a program; returns its result, the first one if the decoder makes several.

    program:   its text, or the result of `read_file`
    variables: names that a text can use
    Raises QueryErrors, and TandemErrors of the model.
    """
    return (await run_all(program, variables, **options))[0]


async def run_all(
    program: str | Program, variables: Variables | None = None, **options: Unpack[RunOptions]
) -> tuple[Result[object], ...]:
    """All results of the program's decoder, in its order."""
    return await execute(_read(program, variables), choices_of(options))


async def run_file(
    path: str | Path, variables: Variables | None = None, **options: Unpack[RunOptions]
) -> Result[object]:
    """`run` of a program in a file."""
    return await run(read_file(path, variables), **options)


def run_sync(
    program: str | Program, variables: Variables | None = None, **options: Unpack[RunOptions]
) -> Result[object]:
    """`run`, where no event loop runs."""
    return wait_for(run(program, variables, **options), "await run(...)")


def run_all_sync(
    program: str | Program, variables: Variables | None = None, **options: Unpack[RunOptions]
) -> tuple[Result[object], ...]:
    """`run_all`, where no event loop runs."""
    return wait_for(run_all(program, variables, **options), "await run_all(...)")


def run_file_sync(
    path: str | Path, variables: Variables | None = None, **options: Unpack[RunOptions]
) -> Result[object]:
    """`run_file`, where no event loop runs."""
    return wait_for(run_file(path, variables, **options), "await run_file(...)")


async def watch(
    program: str | Program, variables: Variables | None = None, **options: Unpack[RunOptions]
) -> AsyncGenerator[State | Result[object], None]:
    """The partial states of a program as they come, then its results."""
    known = _read(program, variables)
    choices = choices_of(options)
    states = watched(lambda on_state: execute(known, choices, on_state=on_state))
    async with aclosing(states):
        async for state in states:
            yield state


def read_file(path: str | Path, variables: Variables | None = None) -> Program:
    """The program in a file. Raises BadProgram, OSError."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise BadProgram(f"{path} is no UTF-8: {error}") from None
    return read(text, name=str(path), namespace=variables)


def _read(program: object, variables: Variables | None) -> Program:
    if isinstance(program, str):
        return read(program, namespace=variables)
    if not isinstance(program, Program):
        what = "a program is its text, or what read_file made of it"
        instead = "a query is called by itself, and has `run`, `run_all` and `watch` of its own"
        raise TypeError(f"{what}; {instead}. Given: {program!r}")
    return program
