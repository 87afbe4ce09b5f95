"""Runs queries that are texts or files, and single calls of a model: generate and score.

Each function except `watch` has a variant `..._sync` for use without an event loop.
"""

import math
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Unpack

from client.calls import Answer, Constraint, GenerateCall, Prompt, ScoreCall, Scored
from client.query.errors import BadProgram, TrimmedTracebacks
from client.query.program import Program
from client.query.reading.reader import read
from client.query.running.decoding import Choice, best_of, choice_of
from client.query.running.request_sender import watched
from client.query.running.results import Result, State
from client.query.session import (
    ModelLike,
    RunOptions,
    booked,
    choices_of,
    execute,
    opened,
    wait_for,
)
from client.sampling import SAMPLING_RULES, Sampling, SamplingOptions

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


class GenerateOptions(SamplingOptions, total=False):
    """What `generate` takes besides its prompt; see GenerateCall and Sampling."""

    max_tokens: int
    stop: Sequence[str]
    constraint: Constraint
    model: ModelLike
    url: str


@dataclass(frozen=True, slots=True)
class Scoring:
    """The log-probabilities of values as continuations of a prompt.

    totals: the log-probability of each, the sum over its tokens
    means:  the same per token
    """

    values: tuple[str, ...]
    scored: tuple[Scored, ...]

    @property
    def totals(self) -> Mapping[str, float]:
        return self._by_value([one.total for one in self.scored])

    @property
    def means(self) -> Mapping[str, float]:
        return self._by_value([one.mean for one in self.scored])

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

    def _by_value(self, numbers: Sequence[float]) -> Mapping[str, float]:
        return MappingProxyType(dict(zip(self.values, numbers, strict=True)))


async def generate(prompt: Prompt, **options: Unpack[GenerateOptions]) -> Answer:
    """Generate a continuation of a prompt in one request. Raises TypeError for other options."""
    unknown = options.keys() - GenerateOptions.__optional_keys__
    if unknown:
        raise TypeError(f"generate() has no options {', '.join(map(repr, sorted(unknown)))}")
    with TrimmedTracebacks():
        async with opened(options.get("model"), None, options.get("url")) as answering:
            call = replace(_generate_call(prompt, options), model=answering.name)
            return await booked(call, answering.model.generate(call))


def generate_sync(prompt: Prompt, **options: Unpack[GenerateOptions]) -> Answer:
    """`generate`, where no event loop runs."""
    return wait_for(generate(prompt, **options), "await generate(...)")


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
        async with opened(model, None, url) as answering:
            call = ScoreCall(prompt=prompt, values=wanted, model=answering.name)
            scores = await booked(call, answering.model.score(call))
            return Scoring(wanted, scores.values)


def score_sync(
    prompt: Prompt,
    values: Sequence[str],
    *,
    model: ModelLike | None = None,
    url: str | None = None,
) -> Scoring:
    """`score`, where no event loop runs."""
    return wait_for(score(prompt, values, model=model, url=url), "await score(...)")


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
