"""Three times more clients than the server takes: does goodput hold, and does Retry-After?

    python -m bench.overload [--queue 16] [--factor 3] [--rounds 5] [--seconds 120]

Starts `launcher serve` on the bundled model, or `--model FOLDER`, with `--max-batch-size BATCH` and
places for QUEUE more that wait; both together are its capacity. As many clients, each with one
request at a time, make the peak; FACTOR times as many make the overload, and obey: one that is
refused waits as long as `retry-after` says and asks again. Each round is a peak and an overload of
SECONDS each, so that a machine that slows down slows both. Prints JSON. Exit code 1 when a figure
misses its mark: the median goodput below 95 % of the peaks' median, a refusal without
`retry-after`, another error than 429, or fewer than 95 % of the requests served in the end.

Goodput counts the tokens of answers that came whole, each at the moment when it arrived: those
between a phase's start-up and its end, however long the answers around them run.
"""

import argparse
import asyncio
import json
import random
import statistics
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bench.command_line import parser_of
from bench.processes import running, tandem
from bench.sse_client import HttpError, post_events
from launcher import BUNDLED_MODEL
from processes.addresses import free_port

_MAX_OUTPUT_LEN = 256
# Of a phase: until the clients no longer begin all at once.
_START_UP_S = 15.0
_SUBJECTS = ("a fox", "a goat", "an old man", "a town", "two sisters", "a miller")


@dataclass(slots=True)
class Phase:
    """What the clients of one phase saw. `num_tries` counts, for each served request, its tries.

    `num_tokens` are those that arrived from `counts_from_s` to `ends_s`.
    """

    counts_from_s: float
    ends_s: float
    num_tokens: int = 0
    num_refusals: int = 0
    num_without_wait: int = 0
    num_tries: Counter[int] = field(default_factory=Counter)
    waits_s: list[float] = field(default_factory=list)
    retry_after_s: list[float] = field(default_factory=list)
    errors: Counter[str] = field(default_factory=Counter)
    num_given_up: int = 0

    def is_over(self) -> bool:
        return time.perf_counter() > self.ends_s

    def count(self, arrivals_s: Sequence[float]) -> None:
        """Counts the tokens of a complete answer, one for each time of arrival."""
        self.num_tokens += sum(self.counts_from_s <= at_s < self.ends_s for at_s in arrivals_s)


async def _client(url: str, phase: Phase, draw: random.Random, patience_s: float) -> None:
    while not phase.is_over():
        output_len = draw.randint(_MAX_OUTPUT_LEN // 4, _MAX_OUTPUT_LEN)
        body = {
            "prompt": "Once there was " + draw.choice(_SUBJECTS),
            "max_tokens": output_len,
            "ignore_eos": True,
            "stream": True,
        }
        await _served(url, json.dumps(body).encode(), phase, patience_s)


async def _served(url: str, body: bytes, phase: Phase, patience_s: float) -> None:
    begun_s = time.perf_counter()
    num_tries = 0
    while True:
        num_tries += 1
        try:
            arrivals_s = await _arrivals_s(url, body)
        except HttpError as error:
            if error.status != 429:
                phase.errors[f"HTTP {error.status}"] += 1
                return
            wait_s = _retry_after_s(error, phase)
            # After the phase, a client waits no longer than its patience.
            if time.perf_counter() + wait_s > phase.ends_s + patience_s:
                phase.num_given_up += 1
                return
            await asyncio.sleep(wait_s)
            continue
        except (OSError, asyncio.IncompleteReadError, ValueError) as error:
            phase.errors[type(error).__name__] += 1
            return
        phase.num_tries[num_tries] += 1
        phase.waits_s.append(time.perf_counter() - begun_s)
        phase.count(arrivals_s)
        return


async def _arrivals_s(url: str, body: bytes) -> list[float]:
    """When each token of an answer came. Raises what `post_events` does, and ValueError."""
    arrivals_s = []
    async for payload in post_events(f"{url}/v1/completions", body):
        if payload != b"[DONE]":
            event = json.loads(payload)
            if "error" in event:
                raise ValueError(payload.decode())
            if event["choices"][0]["finish_reason"] is None:
                arrivals_s.append(time.perf_counter())
    return arrivals_s


def _retry_after_s(error: HttpError, phase: Phase) -> float:
    phase.num_refusals += 1
    if "retry-after" not in error.headers:
        phase.num_without_wait += 1
        return 1.0
    milliseconds = error.headers.get("retry-after-ms")
    wait_s = float(milliseconds) / 1000 if milliseconds else float(error.headers["retry-after"])
    phase.retry_after_s.append(wait_s)
    return wait_s


async def _run_phase(url: str, num_clients: int, seconds: float, patience_s: float) -> Phase:
    """`seconds` that count, after a start-up."""
    counts_from_s = time.perf_counter() + _START_UP_S
    phase = Phase(counts_from_s, counts_from_s + seconds)
    draws = [random.Random(f"{num_clients} {number}") for number in range(num_clients)]
    await asyncio.gather(*(_client(url, phase, draw, patience_s) for draw in draws))
    return phase


def _summary(phase: Phase, num_clients: int, seconds: float) -> dict[str, object]:
    num_served = sum(phase.num_tries.values())
    return {
        "num_clients": num_clients,
        "goodput_tokens_per_s": round(phase.num_tokens / seconds, 1),
        "num_served": num_served,
        "num_given_up": phase.num_given_up,
        "num_refusals": phase.num_refusals,
        "num_refusals_without_retry_after": phase.num_without_wait,
        "retry_after_s": _quantiles(phase.retry_after_s),
        "served_at_try": {str(tries): n for tries, n in sorted(phase.num_tries.items())},
        "seconds_to_the_end": _quantiles(phase.waits_s),
        "errors": dict(phase.errors),
    }


def _quantiles(values: Sequence[float]) -> dict[str, float]:
    if len(values) < 2:
        return {}
    cuts = statistics.quantiles(values, n=100, method="inclusive")
    return {"p50": round(cuts[49], 2), "p99": round(cuts[98], 2), "max": round(max(values), 2)}


async def _measure(url: str, args: argparse.Namespace) -> dict[str, object]:
    capacity = args.batch + args.queue
    many = capacity * args.factor
    peaks = []
    crowds = []
    for _ in range(args.rounds):
        peaks.append(await _run_phase(url, capacity, args.seconds, 0.0))
        crowds.append(await _run_phase(url, many, args.seconds, args.patience))
    peak = statistics.median(phase.num_tokens for phase in peaks)
    ratio = statistics.median(phase.num_tokens for phase in crowds) / peak
    num_served = sum(sum(phase.num_tries.values()) for phase in crowds)
    share_served = num_served / max(1, num_served + sum(phase.num_given_up for phase in crowds))
    is_honest = not any(phase.num_without_wait or phase.errors for phase in (*peaks, *crowds))
    return {
        "goodput_ratio": round(ratio, 3),
        "share_served": round(share_served, 3),
        "peaks": [_summary(phase, capacity, args.seconds) for phase in peaks],
        "overloads": [_summary(phase, many, args.seconds) for phase in crowds],
        "is_good": ratio >= 0.95 and is_honest and share_served >= 0.95,
    }


def main(argv: Sequence[str]) -> int:
    """Answers the exit code."""
    parser = parser_of(__doc__)
    parser.add_argument("--model", type=Path, default=BUNDLED_MODEL)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--queue", type=int, default=16)
    parser.add_argument("--factor", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=5, help="a peak and an overload each")
    parser.add_argument("--seconds", type=float, default=120.0, help="of each phase")
    parser.add_argument("--patience", type=float, default=60.0, help="seconds after the phase")
    args = parser.parse_args(argv)
    port = free_port()
    places = str(args.batch + args.queue)
    flags = ("--max-batch-size", str(args.batch), "--max-concurrent-requests", places)
    with running(tandem(args.model, port, flags)):
        report = asyncio.run(_measure(f"http://127.0.0.1:{port}", args))
    sys.stdout.write(json.dumps(report, indent=2) + "\n")
    return 0 if report["is_good"] else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
