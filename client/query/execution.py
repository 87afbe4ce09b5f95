"""Runs a program with its caller's options: model, decoder, trace file.

Synchronous calls each run an event loop of their own.
"""

import asyncio
from collections.abc import Coroutine, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypedDict, TypeVar

from client.query.errors import BadProgram, TrimmedTracebacks
from client.query.program import Program
from client.query.reading.program_errors import locate, located_errors
from client.query.running.decoders import Decoding, clause_decoding, decoding
from client.query.running.execution import Job
from client.query.running.request_sender import OnState
from client.query.running.results import CallFile, Result
from client.query.running.session import RunSurroundings, run_job, surroundings
from client.query.serving import ModelLike, model_like, opened

T = TypeVar("T")


def wait_for(coroutine: Coroutine[Any, Any, T], instead: str) -> T:
    """The coroutine's result. `instead`: what to call if an event loop is running."""
    if _a_loop_runs():
        coroutine.close()
        raise RuntimeError(f"an event loop runs here, which this call would block: use {instead}")
    with TrimmedTracebacks():
        return asyncio.run(coroutine)


def _a_loop_runs() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


class RunOptions(TypedDict, total=False):
    """The options of a run.

    model:    overrides the program's `from` clause
    url:      the server, if the model is given by name
    decoder:  overrides the program's decoder clause: argmax(), sample(n), beam(n), or a name
    trace:    a file for all calls of the model, as JSON lines
    """

    model: ModelLike
    url: str
    decoder: Decoding | str
    trace: str | Path


def _check_decoder(given: object) -> None:
    if not isinstance(given, Decoding | str | None):
        what = "decoder must be argmax(), sample(n), beam(n) or the name of one"
        raise TypeError(f"{what}. Given: {given!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """RunOptions, frozen."""

    model: ModelLike | None = None
    url: str | None = None
    decoder: Decoding | str | None = None
    trace: str | Path | None = None

    def __post_init__(self) -> None:
        _check_decoder(self.decoder)


_NOTHING = Choices()


def choices_of(options: RunOptions, before: Choices = _NOTHING) -> Choices:
    """The options, with defaults from `before`. Raises TypeError for other options."""
    unknown = sorted(options.keys() - RunOptions.__annotations__.keys())
    if unknown:
        message = ", ".join(map(repr, unknown))
        raise TypeError(
            f"there is no option {message}; there are {', '.join(RunOptions.__annotations__)}"
        )
    return replace(before, **options)


async def execute(
    program: Program,
    choices: Choices,
    arguments: tuple[object, ...] = (),
    keywords: Mapping[str, object] | None = None,
    on_state: OnState | None = None,
) -> tuple[Result[object], ...]:
    """All results. Raises QueryErrors, and TandemErrors of the model."""
    job = Job(program=program, arguments=arguments, keywords=keywords or {})
    with TrimmedTracebacks():
        return await _executed(job, choices, on_state)


async def _executed(
    job: Job, choices: Choices, on_state: OnState | None
) -> tuple[Result[object], ...]:
    chosen = choices.decoder or _decoding(job)
    if isinstance(chosen, str):
        chosen = decoding(chosen, (), {})
    around = surroundings()
    with CallFile(choices.trace) if choices.trace is not None else nullcontext() as calls:
        async with opened(choices.model, _model(job), choices.url) as answering:
            within = RunSurroundings(
                model=answering.model,
                model_name=answering.name,
                calls=calls or (around.calls if around else None),
                on_state=on_state,
                caller_trace=around.caller_trace if around else None,
            )
            return await run_job(job, chosen, within)


def _decoding(job: Job) -> Decoding:
    program = job.program
    if program.decoder is None:
        return decoding("argmax", (), {})
    with located_errors(lambda _: program):
        clause = program.decoder(*job.arguments, **job.keywords)
    return clause_decoding(clause, program.source)


def _model(job: Job) -> object:
    program = job.program
    if program.model is None:
        return None
    with located_errors(lambda _: program):
        clause = program.model(*job.arguments, **job.keywords)
    try:
        model_like(clause.value)
    except BadProgram as error:
        locate(error, clause.place, program.source)
        raise
    return clause.value
