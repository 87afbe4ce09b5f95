"""Runs programs: texts, files, and queries; and single calls of a model: generate and score.

A run has its caller's options: model, decoder, trace file. A query called by a program's Python
code gets its surroundings from a context variable: the caller's model, and the caller's log, in
which its requests are recorded, too.

Each function except `watch` has a variant `..._sync` for use without an event loop, each of which
runs an event loop of its own.
"""

import asyncio
import math
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Mapping,
    Sequence,
)
from contextlib import aclosing, asynccontextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import update_wrapper
from pathlib import Path
from types import MappingProxyType
from typing import Any, ParamSpec, TypeAlias, TypedDict, TypeVar, Unpack

from client.calls import Answer, Constraint, GenerateCall, Model, Prompt, ScoreCall, Scored
from client.config import read_config
from client.lmtp.address import read_address
from client.lmtp.connection import OnNotice
from client.lmtp.model import LmtpModel, ignore_notice
from client.query.errors import BadProgram, TrimmedTracebacks
from client.query.program import Program
from client.query.reading.program_errors import locate, located_errors
from client.query.reading.reader import read
from client.query.running.decoders import Decoding, clause_decoding, decoding
from client.query.running.decoding import (
    Choice,
    TraceEnd,
    best_of,
    choice_of,
    messages_of,
    spans_of,
    text_of,
)
from client.query.running.request_sender import OnState, RequestSender, ended, watched
from client.query.running.results import (
    AnswerT,
    Call,
    CallerTrace,
    CallFile,
    Recorder,
    RequestLog,
    RequestSubject,
    Result,
    State,
    total,
)
from client.query.running.traces import Job, Traces
from client.sampling import SAMPLING_RULES, Sampling, SamplingOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSurroundings:
    """The surroundings of a job. `caller_trace`: in which its requests are recorded, too."""

    model: Model
    model_name: str | None = None
    calls: CallFile | None = None
    on_state: OnState | None = None
    caller_trace: CallerTrace | None = None


_SURROUNDINGS: ContextVar[RunSurroundings | None] = ContextVar("_SURROUNDINGS", default=None)


def surroundings() -> RunSurroundings | None:
    """Those of the calling program; None: outside of programs."""
    return _SURROUNDINGS.get()


async def booked(call: Call, answering: Awaitable[AnswerT]) -> AnswerT:
    """The answer to a call without a program; recorded with the calling program, if any."""
    around = surroundings()
    if around is None or around.caller_trace is None:
        return await answering
    recorder = Recorder(around.caller_trace.request_log, around.calls)
    return await recorder.recorded(RequestSubject(around.caller_trace.trace), call, answering)


async def run_job(
    job: Job, decoding: Decoding, within: RunSurroundings
) -> tuple[Result[object], ...]:
    """All results of the decoder in its order."""
    request_log = RequestLog(within.caller_trace)
    sender = RequestSender(
        model=within.model,
        recorder=Recorder(request_log, within.calls),
        model_name=within.model_name,
        normalised=decoding.options.normalised,
        on_state=within.on_state,
    )
    traces = Traces(job, decoding.options, lambda index: _enter(within, request_log, index))
    try:
        made = await decoding.decoder.decode(traces.start, sender)
    finally:
        await traces.close()
    if within.on_state is not None:
        for trace in made:
            within.on_state(ended(trace.index, trace.prompt_parts))
    return tuple(_result(trace, request_log) for trace in made)


def _enter(within: RunSurroundings, request_log: RequestLog, trace: int) -> None:
    """Set the surroundings for queries called in this trace; they report no states."""
    _SURROUNDINGS.set(replace(within, on_state=None, caller_trace=CallerTrace(request_log, trace)))


def _result(trace: TraceEnd, request_log: RequestLog) -> Result[object]:
    requests = request_log.of_trace(trace.index)
    is_chat = any(part.role is not None for part in trace.prompt_parts)
    return Result(
        prompt=text_of(trace.prompt_parts),
        spans=spans_of(trace.prompt_parts),
        messages=messages_of(trace.prompt_parts) if is_chat else (),
        variables=trace.variables,
        value=trace.value,
        distributions=MappingProxyType(
            {
                hole.name: hole.answer.choice
                for hole in trace.finished
                if hole.answer.choice is not None
            }
        ),
        logprob=trace.logprob,
        usage=total(requests),
        requests=requests,
    )


@dataclass(frozen=True, slots=True)
class Server:
    """A served model. `name` None: the only model there; `key`: the server's API key, if any.

    `url` None: TANDEM_URL of the environment, or http://127.0.0.1:3000. `on_notice` is called with
    notices of the server: queued, loading, draining.
    """

    name: str | None = None
    url: str | None = None
    key: str | None = None
    on_notice: OnNotice = ignore_notice


# A Model, a Server, a URL (it has a ://), or the name of a model at the default URL.
ModelLike: TypeAlias = Model | Server | str


def model(name: str | None = None, *, url: str | None = None, key: str | None = None) -> Server:
    """A model for `from` clauses and `model=`: its name, the server's URL and key."""
    return Server(name, url, key)


@asynccontextmanager
async def opened(
    wanted: ModelLike | None, clause: object, url: str | None
) -> AsyncIterator[tuple[Model, str | None]]:
    """The model of a query, and the name that is sent with every call; closes a connection made for
    it.

    Precedence: `wanted`, the program's `from` clause, the model of the calling program. A Server
    without a name takes that of the clause. `url`: the server for names.
    """
    around = surroundings()
    chosen = _chosen(wanted, clause)
    if isinstance(chosen, Server) and chosen.url is None and url is None and around is not None:
        yield around.model, chosen.name or around.model_name
    elif isinstance(chosen, Server):
        config = read_config()
        place = chosen.url or url or config.url
        key = chosen.key or read_address(place).key or config.api_key
        async with LmtpModel(place, key=key, on_notice=chosen.on_notice) as connected:
            yield connected, chosen.name
    else:
        yield chosen, None


def _chosen(wanted: ModelLike | None, clause: object) -> Model | Server:
    if wanted is None:
        return model_like(clause)
    chosen = model_like(wanted)
    if isinstance(chosen, Server) and chosen.name is None and clause is not None:
        said = model_like(clause)
        return replace(chosen, name=said.name) if isinstance(said, Server) else chosen
    return chosen


def model_like(value: object) -> Model | Server:
    """Convert a value to a model. Raises BadProgram."""
    if value is None:
        return Server()
    if isinstance(value, str):
        return Server(url=value) if "://" in value else Server(value)
    if isinstance(value, Server):
        return value
    asks = [getattr(value, name, None) for name in ("stream", "generate", "score")]
    if all(map(callable, asks)) and not isinstance(value, type):
        return value  # type: ignore[return-value]
    raise BadProgram(
        f"a model is its name, a URL, model(...) or an object that is one. Given: {value!r}"
    )


P = ParamSpec("P")
T = TypeVar("T")


def wait_for(coroutine: Coroutine[Any, Any, T], instead: str) -> T:
    """The coroutine's result. `instead`: what to call if an event loop is running."""
    if _a_loop_runs():
        coroutine.close()
        raise RuntimeError(f"an event loop runs here, which this call would block: use {instead}")
    with TrimmedTracebacks():
        return asyncio.run(coroutine)


def blocking(function: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, T]:
    """The function for where no event loop runs, named `..._sync` in tracebacks, too."""
    name = f"{function.__name__}_sync"

    def called(*args: P.args, **kwargs: P.kwargs) -> T:
        return wait_for(function(*args, **kwargs), f"await {function.__name__}(...)")

    called.__code__ = called.__code__.replace(co_name=name)
    update_wrapper(called, function)
    called.__name__ = called.__qualname__ = name
    return called


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


def choices_of(options: RunOptions, before: RunOptions | None = None) -> RunOptions:
    """The options, with defaults from `before`. Raises TypeError for other options."""
    known = RunOptions.__annotations__
    unknown = sorted(options.keys() - known.keys())
    if unknown:
        raise TypeError(
            f"there is no option {', '.join(map(repr, unknown))}; there are {', '.join(known)}"
        )
    given: object = options.get("decoder")
    if not isinstance(given, Decoding | str | None):
        what = "decoder must be argmax(), sample(n), beam(n) or the name of one"
        raise TypeError(f"{what}. Given: {given!r}")
    return {**(before or {}), **options}


async def execute(
    program: Program,
    choices: RunOptions,
    arguments: tuple[object, ...] = (),
    keywords: Mapping[str, object] | None = None,
    on_state: OnState | None = None,
) -> tuple[Result[object], ...]:
    """All results. Raises QueryErrors, and TandemErrors of the model."""
    job = Job(program=program, arguments=arguments, keywords=keywords or {})
    with TrimmedTracebacks():
        return await _executed(job, choices, on_state)


async def _executed(
    job: Job, choices: RunOptions, on_state: OnState | None
) -> tuple[Result[object], ...]:
    chosen = choices.get("decoder") or _decoding(job)
    if isinstance(chosen, str):
        chosen = decoding(chosen, (), {})
    around = surroundings()
    trace = choices.get("trace")
    with CallFile(trace) if trace is not None else nullcontext() as calls:
        async with opened(choices.get("model"), _model(job), choices.get("url")) as (
            answering,
            name,
        ):
            within = RunSurroundings(
                model=answering,
                model_name=name,
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


run_sync = blocking(run)
run_all_sync = blocking(run_all)
run_file_sync = blocking(run_file)


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


class GenerateOptions(SamplingOptions, total=False):
    """What `generate` takes besides its prompt; see GenerateCall and Sampling."""

    max_tokens: int
    stop: Sequence[str]
    constraint: Constraint
    model: ModelLike
    url: str


@dataclass(frozen=True, slots=True)
class Scoring:
    """The log-probabilities of values as continuations of a prompt."""

    values: tuple[str, ...]
    scored: tuple[Scored, ...]

    @property
    def choice(self) -> Choice:
        """Log-probabilities over these values only, plain and normalised by length."""
        return choice_of(self.values, self.scored)

    def probability(self, value: str, *, normalised: bool = False) -> float:
        """The probability of one value among these, from 0 to 1."""
        choice = self.choice
        return math.exp((choice.normalised if normalised else choice.plain)[value])

    def best(self, *, normalised: bool = False) -> str:
        """The most probable value; on a tie the first."""
        return best_of(self.choice, normalised=normalised)


async def generate(prompt: Prompt, **options: Unpack[GenerateOptions]) -> Answer:
    """Generate a continuation of a prompt in one request. Raises TypeError for other options."""
    unknown = options.keys() - GenerateOptions.__optional_keys__
    if unknown:
        raise TypeError(f"generate() has no options {', '.join(map(repr, sorted(unknown)))}")
    with TrimmedTracebacks():
        async with opened(options.get("model"), None, options.get("url")) as (answering, name):
            call = replace(_generate_call(prompt, options), model=name)
            return await booked(call, answering.generate(call))


async def score(
    prompt: Prompt,
    values: Sequence[str],
    *,
    model: ModelLike | None = None,
    url: str | None = None,
) -> Scoring:
    """Score each of the values as a continuation of the prompt, in one request."""
    wanted = tuple(dict.fromkeys(values))
    if isinstance(values, str) or not wanted or "" in wanted:
        raise ValueError(f"values must be a list of texts, none of them empty. Given: {values!r}")
    with TrimmedTracebacks():
        async with opened(model, None, url) as (answering, name):
            call = ScoreCall(prompt=prompt, values=wanted, model=name)
            scores = await booked(call, answering.score(call))
            return Scoring(wanted, scores.values)


generate_sync = blocking(generate)
score_sync = blocking(score)


def _generate_call(prompt: Prompt, options: GenerateOptions) -> GenerateCall:
    drawn = {key: value for key, value in options.items() if key in SAMPLING_RULES}
    return GenerateCall(
        prompt=prompt,
        # The TypedDict's fields of these names have the types of Sampling's.
        sampling=Sampling(**drawn),  # type: ignore[arg-type]
        max_tokens=options.get("max_tokens"),
        constraint=options.get("constraint"),
        stop=tuple(options.get("stop", ())),
    )
