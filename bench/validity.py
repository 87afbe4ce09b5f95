"""Sampled answers under constraints of every kind, judged by others: how many are wrong?

    python -m bench.validity [--requests 2000] [--model FOLDER] [--concurrency 16]

Starts `launcher serve` on a model of random weights (only the masks make its
answers valid) and asks at temperature 1.5, a third of the time with a budget that is tight (the
shortest legal text and up to five tokens more), a third with stop strings. Every answer of status
200 must satisfy its constraint, by `jsonschema`, `re`, python `lark` and the plain evaluator of
`where`; a refusal must state its reason. Prints JSON; exit code 1 if one is wrong.
"""

import asyncio
import json
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from bench import make_model
from bench.command_line import parser_of, progress
from bench.constraint_pool import PooledConstraint, pool
from bench.processes import running, tandem
from processes.addresses import free_port

_STOPS = ("e", "\n", '"', "}", ".", " ", "ab", "0", "日", "</b>")
# Every legal text meets a stop string before its end (which is not always proven within the
# limits), or the shortest that meets none has no room.
_HONEST_REFUSALS = ("contradiction", "too_complex", "does_not_fit")
_TIMEOUT_S = 120.0
_MAX_TRIES, _PAUSE_S = 30, 1.0


@dataclass(slots=True)
class Tally:
    """Outcomes by kind of constraint."""

    num_valid: Counter[str] = field(default_factory=Counter)
    num_refused: Counter[str] = field(default_factory=Counter)
    wrong: list[dict[str, Any]] = field(default_factory=list)


async def _ask(
    client: httpx.AsyncClient, constraint: PooledConstraint, seed: int, tally: Tally
) -> None:
    draw = random.Random(seed)
    parameters: dict[str, Any] = {
        "grammar": constraint.grammar,
        "do_sample": True,
        "temperature": 1.5,
        "seed": seed,
        "max_new_tokens": 200,
        "details": True,
    }
    mode = draw.choice(("plain", "tight", "stops"))
    if mode == "tight":
        parameters["max_new_tokens"] = await _shortest_len(client, constraint) + draw.randint(0, 5)
    elif mode == "stops":
        parameters["stop"] = draw.sample(_STOPS, k=draw.randint(1, 2))
    answer = await _answer(client, parameters)
    body = answer.json()
    case = {"type": constraint.type, "value": constraint.value, "asked": parameters, "body": body}
    if answer.status_code != httpx.codes.OK:
        reason = str(body.get("constraint", {}).get("reason"))
        if mode == "stops" and reason in _HONEST_REFUSALS:
            tally.num_refused[f"{constraint.type}: {reason}"] += 1
        else:
            tally.wrong.append(case)
        return
    details = body["details"]
    num_tokens = sum(not token["special"] for token in details["tokens"])
    is_valid = constraint.judge(body["generated_text"], num_tokens)
    if is_valid and details["constraint_satisfied"] is True:
        tally.num_valid[f"{constraint.type}, {mode}"] += 1
    else:
        tally.wrong.append(case)


async def _answer(client: httpx.AsyncClient, parameters: dict[str, Any]) -> httpx.Response:
    """The answer, asked for again while the machine is too busy to judge the constraint."""
    for _ in range(_MAX_TRIES):
        answer = await client.post("/generate", json={"inputs": "Say:", "parameters": parameters})
        if answer.status_code != httpx.codes.TOO_MANY_REQUESTS:
            break
        await asyncio.sleep(_PAUSE_S)
    return answer


async def _shortest_len(client: httpx.AsyncClient, constraint: PooledConstraint) -> int:
    """The tokens that a refusal of one token names as needed; 1 if it is not refused."""
    parameters = {"grammar": constraint.grammar, "max_new_tokens": 1}
    answer = await _answer(client, parameters)
    if answer.status_code == httpx.codes.OK:
        return 1
    needed = answer.json().get("constraint", {}).get("needed_len")
    # A refusal of another kind comes again, and is reported then.
    return 200 if needed is None else int(needed)


async def _measure(url: str, num_requests: int, concurrency: int) -> Tally:
    tally = Tally()
    numbers = progress(range(num_requests), "requests")
    constraints = pool()

    async with httpx.AsyncClient(base_url=url, timeout=_TIMEOUT_S) as client:

        async def work() -> None:
            for number in numbers:
                await _ask(client, constraints[number % len(constraints)], number, tally)

        await asyncio.gather(*(work() for _ in range(concurrency)))
    return tally


def random_model(folder: Path) -> Path:
    """A small model of random weights with a vocabulary of 8 000 tokens."""
    make_model.model(make_model.config(8_000, 128, 2)).save_pretrained(folder)
    make_model.tokenizer(8_000).save_pretrained(folder)
    return folder


def main(argv: Sequence[str]) -> int:
    """The command line."""
    parser = parser_of(__doc__)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--concurrency", type=int, default=16)
    args = parser.parse_args(argv)
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        model = args.model or random_model(Path(folder))
        with running(tandem(model, port, ("--max-concurrent-requests", "256"))):
            url = f"http://127.0.0.1:{port}"
            tally = asyncio.run(_measure(url, args.requests, args.concurrency))
    report = {
        "num_requests": args.requests,
        "num_valid": sum(tally.num_valid.values()),
        "num_refused": sum(tally.num_refused.values()),
        "num_wrong": len(tally.wrong),
        "valid": dict(sorted(tally.num_valid.items())),
        "refused": dict(sorted(tally.num_refused.items())),
        "wrong": tally.wrong[:20],
    }
    sys.stdout.write(json.dumps(report, indent=2, ensure_ascii=False) + "\n")
    return 1 if tally.wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
