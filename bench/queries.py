"""Random query programs on a served model, each finished hole judged by Python: how many are wrong?

    python -m bench.queries [--programs 1000] [--seed 0] [--model FOLDER] [--concurrency 16]

Starts `launcher serve` and runs programs of one to three holes (tests/client/query/conditions):
types, conditions on text and numbers, on earlier holes and on holes to come, Python's own
functions, stop phrases. A result must satisfy all conditions of its program: Python evaluates each
clause as it is written, without the planner or the server. A program that cannot be satisfied must
end in an error that says so. Prints JSON; exit code 1 if a condition is broken or an
error is none of these.
"""

import asyncio
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from bench.command_line import parser_of, progress
from bench.processes import running, tandem
from client.calls import Model
from client.errors import ConstraintRefused, TandemError
from client.lmtp.model import LmtpModel
from client.query import NotSatisfied, Result, Unsatisfiable, run
from launcher import BUNDLED_MODEL
from processes.addresses import free_port
from tests.client.query.conditions.clauses import Made, RandomProgram, random_program

# Errors that a program may end in.
_EXPECTED_ERRORS = (Unsatisfiable, NotSatisfied)


@dataclass(slots=True)
class Tally:
    """Counts of the outcomes."""

    num_finished: int = 0
    num_holes: int = 0
    num_conditions: int = 0
    num_requests: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    wrong: list[dict[str, Any]] = field(default_factory=list)
    num_asked: Counter[int] = field(default_factory=Counter)


async def _judge(model: Model, seed: int, folder: Path, tally: Tally) -> None:
    program = random_program(Random(seed))
    trace = folder / f"{seed}.jsonl"
    try:
        result = await run(program.text, model=model, trace=trace)
    except _EXPECTED_ERRORS as error:
        tally.refused[_why(error)] += 1
        return
    except TandemError as error:
        message = f"{type(error).__name__}: {error}"
        tally.wrong.append({"seed": seed, "program": program.text, "error": message})
        return
    made = _made(program, result, trace)
    broken = program.broken(made)
    tally.num_finished += 1
    tally.num_holes += len(program.holes)
    tally.num_conditions += len(program.clauses)
    tally.num_requests += len(result.requests)
    tally.num_asked.update(Counter(row.hole for row in result.requests).values())
    if broken:
        shown = {name: repr(one) for name, one in made.items()}
        tally.wrong.append(
            {"seed": seed, "program": program.text, "broken": broken, "holes": shown}
        )


def _why(error: Unsatisfiable | NotSatisfied) -> str:
    """The error class, and the reason of the server where it refused the constraint."""
    cause = error.__cause__
    while cause is not None and not isinstance(cause, ConstraintRefused):
        cause = cause.__cause__
    reason = "" if cause is None else f" ({cause.details.get('reason', cause.error_type)})"
    return type(error).__name__ + reason


def _made(program: RandomProgram, result: Result[object], trace: Path) -> dict[str, Made]:
    """The last text of each hole in the prompt, and its tokens in the trace's last call."""
    texts = {span.hole: result.prompt[span.start : span.end] for span in result.spans}
    tokens = {
        row["hole"]: sum(not token["is_end"] for token in row["answer"]["tokens"])
        for row in map(json.loads, trace.read_text().splitlines())
        if isinstance(row["answer"], dict)
    }
    return {
        hole.name: Made(result.variables[hole.name], texts[hole.name], tokens[hole.name])
        for hole in program.holes
    }


async def _judge_all(url: str, seeds: Sequence[int], concurrency: int) -> Tally:
    tally = Tally()
    todo = progress(seeds, "programs")

    async def work(model: Model, folder: Path) -> None:
        for seed in todo:
            await _judge(model, seed, folder, tally)

    with tempfile.TemporaryDirectory() as folder:
        async with LmtpModel(url) as model, asyncio.TaskGroup() as group:
            for _ in range(concurrency):
                group.create_task(work(model, Path(folder)))
    return tally


def main(argv: Sequence[str] | None = None) -> int:
    """Answers the exit code."""
    parser = parser_of(__doc__)
    parser.add_argument("--programs", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0, help="of the first program")
    parser.add_argument("--model", type=Path, default=BUNDLED_MODEL)
    parser.add_argument("--concurrency", type=int, default=16)
    options = parser.parse_args(argv)
    port = free_port()
    seeds = range(options.seed, options.seed + options.programs)
    with running(tandem(options.model, port, ("--device", "cpu"))):
        began_s = time.perf_counter()
        tally = asyncio.run(_judge_all(f"http://127.0.0.1:{port}", seeds, options.concurrency))
        duration_s = time.perf_counter() - began_s
    report = {
        "programs": options.programs,
        "finished": tally.num_finished,
        "holes": tally.num_holes,
        "conditions": tally.num_conditions,
        "requests": tally.num_requests,
        "times_a_hole_was_asked": dict(sorted(tally.num_asked.items())),
        "refused": dict(tally.refused),
        "wrong": len(tally.wrong),
        "duration_s": round(duration_s, 1),
    }
    for wrong in tally.wrong[:10]:
        sys.stderr.write(f"bench | {json.dumps(wrong, ensure_ascii=False)}\n")
    sys.stdout.write(json.dumps({"queries": report}) + "\n")
    return 1 if tally.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
