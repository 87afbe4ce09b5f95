"""Two hundred hostile grammars beside plain streams: is each answered, and do the streams notice?

    python -m bench.hostile --model FOLDER [--streams 8] [--tokens 256] [--rounds 10] [--senders 4]

Starts `launcher serve` on the model. Each round measures the gaps between the streams' tokens
alone, and then while the senders post that round's share of `tests/constraints/hostile.py` to
/generate, each its next one as soon as it has an answer; with `--check` to /constraints/check,
which compiles them in the router's workers and not in the shard. Prints JSON: the gaps of both,
the ratios of their percentiles in this one run, and what came of the grammars and how late. Exit
code 1 when the 99th percentile beside them is over 1.1 times that alone, or an answer took 3 s.
"""

import argparse
import asyncio
import json
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from bench.compare import running, tandem
from bench.sse_client import post_events
from constraints.spec import Kind
from launcher.settings import free_port
from tests.constraints.hostile import Hostile, hostile

_TYPES = {Kind.JSON_SCHEMA: "json", Kind.REGEX: "regex", Kind.LARK: "lark", Kind.WHERE: "where"}
_MAX_RATIO, _MAX_ANSWER_S = 1.1, 3.0
_PERCENTILES = (50, 90, 99)


class Attack:
    """What was posted, what came back and after how many seconds."""

    def __init__(self, url: str, *, only_checks: bool) -> None:
        self._url = f"{url}/constraints/check" if only_checks else f"{url}/generate"
        self._only_checks = only_checks
        self.came: Counter[str] = Counter()
        self.answers_s: list[tuple[float, str]] = []

    async def run(self, grammars: Iterator[Hostile], num_senders: int) -> None:
        """Posts them all."""
        async with httpx.AsyncClient(timeout=60) as client:
            await asyncio.gather(*(self._send(client, grammars) for _ in range(num_senders)))

    async def _send(self, client: httpx.AsyncClient, grammars: Iterator[Hostile]) -> None:
        for each in grammars:
            body = _hostile_body(each, only_checks=self._only_checks)
            begun_s = time.perf_counter()
            try:
                answer = await client.post(
                    self._url,
                    content=body,
                    headers={"content-type": "application/json"},
                )
                self.came[_word(answer)] += 1
            except httpx.HTTPError as error:
                self.came[type(error).__name__] += 1
            self.answers_s.append((time.perf_counter() - begun_s, each.name))


def _hostile_body(each: Hostile, *, only_checks: bool) -> bytes:
    value: Any = each.spec.text
    if each.spec.kind is Kind.JSON_SCHEMA:
        value = json.loads(value)
    grammar = {"type": _TYPES[each.spec.kind], "value": value}
    if only_checks:
        return json.dumps({"grammar": grammar, "text": "a"}).encode()
    parameters = {"grammar": grammar, "max_new_tokens": 4}
    return json.dumps({"inputs": "Once", "parameters": parameters}).encode()


def _word(answer: httpx.Response) -> str:
    if answer.status_code == 422:
        return str(answer.json().get("constraint", {}).get("reason", "validation"))
    return str(answer.status_code)


async def _gaps_ms(url: str, num_tokens: int) -> list[float]:
    parameters = {"max_new_tokens": num_tokens, "ignore_eos": True}
    body = json.dumps({"inputs": "Once upon a time", "parameters": parameters}).encode()
    times = [time.perf_counter() async for _ in post_events(f"{url}/generate_stream", body)]
    return [1000 * (after - before) for before, after in pairwise(times)]


async def _streams(url: str, num_streams: int, num_tokens: int) -> list[float]:
    gaps = await asyncio.gather(*(_gaps_ms(url, num_tokens) for _ in range(num_streams)))
    return [gap for one in gaps for gap in one]


async def _measure(url: str, told: argparse.Namespace) -> dict[str, Any]:
    attack = Attack(url, only_checks=told.check)
    grammars = hostile()
    share = -(-len(grammars) // told.rounds)
    alone: list[float] = []
    beside: list[float] = []
    await _streams(url, told.streams, told.tokens)
    for first in range(0, len(grammars), share):
        alone += await _streams(url, told.streams, told.tokens)
        attacking = asyncio.create_task(
            attack.run(iter(grammars[first : first + share]), told.senders)
        )
        while not attacking.done():
            beside += await _streams(url, told.streams, told.tokens)
        await attacking
    return _report(alone, beside, attack)


def _report(alone: list[float], beside: list[float], attack: Attack) -> dict[str, Any]:
    quiet, busy = (np.percentile(gaps, _PERCENTILES) for gaps in (alone, beside))
    slowest = sorted(attack.answers_s, reverse=True)[:5]
    return {
        "gap_ms_alone": dict(zip(_PERCENTILES, quiet.round(3).tolist(), strict=True)),
        "gap_ms_beside": dict(zip(_PERCENTILES, busy.round(3).tolist(), strict=True)),
        "ratio": dict(zip(_PERCENTILES, (busy / quiet).round(3).tolist(), strict=True)),
        "num_gaps": [len(alone), len(beside)],
        "grammars": dict(attack.came),
        "slowest_answers_s": [[round(took_s, 3), name] for took_s, name in slowest],
    }


def main(argv: Sequence[str]) -> int:
    """Answers the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.hostile")
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--senders", type=int, default=4)
    parser.add_argument("--check", action="store_true")
    told = parser.parse_args(argv)
    port = free_port()
    with running(tandem(told.model, port, ())):
        report = asyncio.run(_measure(f"http://127.0.0.1:{port}", told))
    sys.stdout.write(json.dumps(report) + "\n")
    in_time = report["slowest_answers_s"][0][0] < _MAX_ANSWER_S
    return 0 if in_time and report["ratio"][99] <= _MAX_RATIO else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
