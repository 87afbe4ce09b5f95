"""One case study against a running server: all cases, some at a time, counted."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx
from prometheus_client.parser import text_string_to_metric_families
from tokenizers import Tokenizer

from bench.paper.baselines import arithmetic, date_understanding, odd_one_out, react
from bench.paper.cases import Case
from bench.paper.counted import CountedModel
from bench.paper.counting import Counts, Request, as_program, as_sent, in_full_chunks, total
from bench.paper.generating import Generator
from client import query
from client.lmtp.model import LmtpModel

HERE = Path(__file__).parent
BASELINES = {
    "odd_one_out": odd_one_out.solve,
    "date_understanding": date_understanding.solve,
    "react": react.solve,
    "arithmetic": arithmetic.solve,
}
# The hole that holds the answer of a program that returns none, and what is around it.
_ANSWERS = {
    "odd_one_out": ("RESULT", " "),
    "date_understanding": ("RESULT", " "),
    "react": ("SUBJECT", "'"),
    "arithmetic": ("", ""),
}
_TIMEOUT_S = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Solved:
    """A case's answer and what was asked for it."""

    answer: str
    requests: tuple[Request, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Means over the cases of one run.

    `counted` is the paper's count, `in_full` the same if no chunk were ended by the model, `sent`
    that of the requests as they were sent; `computed_tokens` are those of `sent` that the server
    did not find in its prefix cache. `wall_s`: the whole run.
    """

    num_cases: int
    accuracy: float
    counted: Counts
    in_full: Counts
    sent: Counts
    computed_tokens: float
    wall_s: float


Solve = Callable[[Case], Awaitable[Solved]]
Count = Callable[[Iterable[Request]], Counts]


async def measure_generate(
    url: str, tokenizer: Tokenizer, study: str, cases: Sequence[Case], chunk: int, at_a_time: int
) -> Measured:
    """The baseline, in chunks of so many tokens."""
    async with httpx.AsyncClient(base_url=url, timeout=_TIMEOUT_S) as client:

        async def solve(case: Case) -> Solved:
            model = Generator(client, tokenizer)
            answer = await BASELINES[study](model, case, chunk)
            return Solved(answer=answer, requests=tuple(model.requests))

        return await _measure(url, cases, solve, as_sent, in_full_chunks, at_a_time)


async def measure_query(
    url: str, tokenizer: Tokenizer, study: str, cases: Sequence[Case], at_a_time: int
) -> Measured:
    """The query program."""
    hole, around = _ANSWERS[study]
    async with LmtpModel(url) as served:

        async def solve(case: Case) -> Solved:
            model = CountedModel(served, tokenizer)
            variables: dict[str, object] = {"OPTIONS": case.options, "PAGES": case.pages}
            variables |= {"QUESTIONS": case.questions, "QUESTION": case.questions[0]}
            variables["EXAMPLES"] = case.examples
            result = await query.run_file(program_file(study), variables, model=model)
            answer = str(result[hole]).strip(around) if hole else str(result.value)
            return Solved(answer=answer, requests=tuple(model.requests))

        return await _measure(url, cases, solve, as_program, as_program, at_a_time)


def program_file(study: str) -> Path:
    """Where the study's query program is."""
    return HERE / "programs" / f"{study}.query"


def baseline_files(study: str) -> tuple[Path, ...]:
    """Where the study's baseline is, and the loop of chunks that two of them share."""
    own = HERE / "baselines" / f"{study}.py"
    shared = HERE / "baselines" / "chunks.py"
    return (own, shared) if "decode_until" in own.read_text() else (own,)


async def _measure(
    url: str,
    cases: Sequence[Case],
    solve: Solve,
    count: Count,
    count_in_full: Count,
    at_a_time: int,
) -> Measured:
    places = asyncio.Semaphore(at_a_time)

    async def solved(case: Case) -> Solved:
        async with places:
            return await solve(case)

    cached_before, began_s = await _cached_tokens(url), time.perf_counter()
    answers = await asyncio.gather(*map(solved, cases))
    wall_s = time.perf_counter() - began_s
    cached = (await _cached_tokens(url) - cached_before) / len(cases)
    sent = total(as_sent(each.requests) for each in answers).per(len(cases))
    right = sum(each.answer == case.target for each, case in zip(answers, cases, strict=True))
    return Measured(
        num_cases=len(cases),
        accuracy=right / len(cases),
        counted=total(count(each.requests) for each in answers).per(len(cases)),
        in_full=total(count_in_full(each.requests) for each in answers).per(len(cases)),
        sent=sent,
        computed_tokens=sent.billable_tokens - cached,
        wall_s=wall_s,
    )


async def _cached_tokens(url: str) -> float:
    """Tokens of prompts that the server has found in its prefix cache up to now."""
    async with httpx.AsyncClient(base_url=url, timeout=_TIMEOUT_S) as client:
        page = (await client.get("/metrics")).text
    samples = (s for family in text_string_to_metric_families(page) for s in family.samples)
    return sum(s.value for s in samples if s.name == "tgi_request_skipped_tokens_sum")
