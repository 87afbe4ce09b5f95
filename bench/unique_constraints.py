"""Thousands of large constraints, each another one: is what the server keeps of them bounded?

    python -m bench.unique_constraints [--constraints 2000] [--cache-mib 256]

Starts `launcher serve` on the bundled model with `--constraint-cache-mib` and sends requests, four
at a time, each under a schema of its own: 150 properties with names, patterns and words that no
other has, some 15 kB. Prints JSON: how the requests ended, and after each tenth of them the
resident memory of the shard, and of the router with its workers. Exit code 1 when one failed, or
when either grew by more than a tenth in the second half.
"""

import argparse
import asyncio
import json
import random
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx

from bench.command_line import parser_of, progress
from bench.processes import resident_mib, running, tandem, tree
from launcher import BUNDLED_MODEL
from processes.addresses import free_port

_NUM_PARTS = 10
_NUM_PROPERTIES = 150
_LETTERS = "abcdefghijklmnopqrstuvwxyz"


def _schema(draw: random.Random) -> dict[str, Any]:
    """An object whose shortest instance is `{}`, with hundreds of words that were drawn."""

    def word() -> str:
        return "".join(draw.choices(_LETTERS, k=8))

    def value() -> dict[str, Any]:
        if draw.random() < 0.5:
            return {"enum": [word() for _ in range(6)]}
        return {"type": "string", "pattern": f"^{word()}[0-9]{{1,6}}{word()}$"}

    properties = {word(): value() for _ in range(_NUM_PROPERTIES)}
    return {"type": "object", "properties": properties, "additionalProperties": False}


async def _send(url: str, schemas: Sequence[dict[str, Any]]) -> Counter[str]:
    ends: Counter[str] = Counter()
    waiting = iter(schemas)

    async def client() -> None:
        async with httpx.AsyncClient(timeout=60) as http:
            for schema in waiting:
                parameters = {"max_new_tokens": 32, "grammar": {"type": "json", "value": schema}}
                body = {"inputs": "Once upon a time", "parameters": parameters}
                answer = await http.post(f"{url}/generate", json=body)
                ends["done" if answer.is_success else f"failed: {answer.text[:100]}"] += 1

    await asyncio.gather(*(client() for _ in range(4)))
    return ends


def _memory_mib(launcher: int) -> tuple[float, float]:
    """Of the shard, and of all others behind the launcher."""
    shard = rest = 0.0
    for pid in tree(launcher):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        if b"model_server" in words:
            shard += resident_mib(pid)
        elif pid != launcher:
            rest += resident_mib(pid)
    return round(shard, 1), round(rest, 1)


def _grew(mib: Sequence[float]) -> bool:
    return mib[-1] > 1.1 * mib[len(mib) // 2]


def _run(args: argparse.Namespace) -> dict[str, Any]:
    draw = random.Random(0)
    port = free_port()
    # A pool's pages count once they are used: a small one is used up in the first tenth.
    flags = ("--constraint-cache-mib", str(args.cache_mib), "--kv-blocks", "512")
    ends: Counter[str] = Counter()
    shard, rest = [], []
    with running(tandem(BUNDLED_MODEL, port, flags)) as launcher:
        for _ in progress(range(_NUM_PARTS), "tenths"):
            schemas = [_schema(draw) for _ in range(args.constraints // _NUM_PARTS)]
            ends += asyncio.run(_send(f"http://127.0.0.1:{port}", schemas))
            shard_mib, rest_mib = _memory_mib(launcher)
            shard.append(shard_mib)
            rest.append(rest_mib)
    return {"ends": dict(ends), "shard_mib": shard, "router_and_workers_mib": rest}


def main(argv: Sequence[str]) -> int:
    """The command line."""
    parser = parser_of(__doc__)
    parser.add_argument("--constraints", type=int, default=2000)
    parser.add_argument("--cache-mib", type=int, default=256)
    report = _run(parser.parse_args(argv))
    sys.stdout.write(json.dumps(report) + "\n")
    grew = _grew(report["shard_mib"]) or _grew(report["router_and_workers_mib"])
    return 1 if grew or any(end != "done" for end in report["ends"]) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
