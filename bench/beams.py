"""Tokens per second of a query with beams on a served model, beside one greedy trace.

    python -m bench.beams [--model FOLDER] [--rounds 5] [--num-tokens 32] [--beams 4] [--budget 128]

Starts `launcher serve` and runs one hole behind a long prompt, the decoders in turn. Prints JSON:
of each the median seconds, the tokens of all its live traces per second, and of the last round what
the server counted: requests, and tokens of prompts that had to be computed, since they were not in
the prefix cache. Where beams fork that is the block that is not full yet, for each token.
"""

import argparse
import asyncio
import json
import statistics
import time
from pathlib import Path
from typing import Any

import httpx

from bench.compare import running, tandem
from client.lmtp.model import LmtpModel
from client.query import Decoding, argmax, beam, best_k, run_all, sample
from launcher import BUNDLED_MODEL
from processes.addresses import free_port

_PROMPT = "Ann and Bob walked along the river and talked about the fish that they saw. " * 16


_COUNTERS = ("tgi_request_count", "tandem_prompt_tokens", "tandem_prefix_cache_hit_tokens")


async def _timed(model: LmtpModel, decoder: Decoding, prompt: str) -> tuple[float, Any]:
    begun_s = time.perf_counter()
    results = await run_all("f'{PROMPT}[X]'", {"PROMPT": prompt}, model=model, decoder=decoder)
    return time.perf_counter() - begun_s, results


async def _counted(url: str) -> dict[str, float]:
    """What the server has counted by now."""
    async with httpx.AsyncClient() as http:
        page = (await http.get(f"{url}/metrics")).text
    lines = (line.split() for line in page.splitlines() if not line.startswith("#"))
    found = {line[0].removesuffix("_total"): line[1] for line in lines if len(line) == 2}
    return {name: float(found[name]) for name in _COUNTERS}


async def _measured(url: str, decoders: dict[str, Decoding], rounds: int) -> dict[str, Any]:
    durations: dict[str, list[float]] = {name: [] for name in decoders}
    last: dict[str, Any] = {}
    counted: dict[str, Any] = {}
    async with LmtpModel(url) as model:
        for number in range(rounds + 1):
            for name, decoder in decoders.items():
                # Each has a prompt of its own, so that nobody finds what another one computed.
                before = await _counted(url)
                duration_s, last[name] = await _timed(model, decoder, f"{name} {number} {_PROMPT}")
                after = await _counted(url)
                counted[name] = {each: after[each] - before[each] for each in _COUNTERS}
                if number:
                    durations[name].append(duration_s)
    return {name: _told(durations[name], last[name], counted[name]) for name in decoders}


def _told(durations: list[float], results: Any, counted: dict[str, float]) -> dict[str, Any]:
    # Traces of beams share their requests, those that run side by side have their own.
    requests = list(dict.fromkeys(request for result in results for request in result.requests))
    num_tokens = sum(request.usage.num_output_tokens for request in requests)
    num_requests, num_sent, num_cached = (int(counted[name]) for name in _COUNTERS)
    return {
        "median_s": round(statistics.median(durations), 4),
        "tokens_per_s": round(num_tokens / statistics.median(durations), 1),
        "tokens": num_tokens,
        "requests": num_requests,
        "prompt_tokens_computed": num_sent - num_cached,
        "logprobs": [round(result.logprob, 3) for result in results],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--model", type=Path, default=BUNDLED_MODEL)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--num-tokens", type=int, default=32)
    parser.add_argument("--beams", type=int, default=4)
    parser.add_argument("--budget", type=int, default=128, help="of best_k")
    arguments = parser.parse_args()
    most, n = arguments.num_tokens, arguments.beams
    decoders = {
        "argmax": argmax(max_tokens=most),
        f"sample({n})": sample(n, seed=1, max_tokens=most),
        "beam(1)": beam(1, max_tokens=most),
        f"beam({n})": beam(n, max_tokens=most),
        f"best_k({n})": best_k(n, budget=arguments.budget, max_tokens=most),
    }
    port = free_port()
    with running(tandem(arguments.model, port, ())):
        url = f"http://127.0.0.1:{port}"
        measured = asyncio.run(_measured(url, decoders, arguments.rounds))
    print(json.dumps(measured, indent=2))


if __name__ == "__main__":
    main()
