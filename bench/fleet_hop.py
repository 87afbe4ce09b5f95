"""What the front of several models costs: the same server, asked through it and directly.

    python -m bench.fleet_hop [--streams 16] [--tokens 200] [--rounds 3] [--write FILE]

Both ways are taken in turns against one loaded model. The front's share is its own processor time
for each token, which does not depend on what else the machine does.
"""

import argparse
import asyncio
import json
import os
import platform
import time
from pathlib import Path
from statistics import median

import httpx

from launcher import BUNDLED_MODEL
from tests.integration.server import RunningServer, launched

_TICKS = os.sysconf("SC_CLK_TCK")


def cpu_s(pid: int) -> float:
    """Processor time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def socket_of(server: RunningServer) -> str:
    """The unix socket of the one loaded model's server."""
    for pid in server.descendants():
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        if b"router" in words and b"--http-uds" in words:
            return words[words.index(b"--http-uds") + 1].decode()
    raise SystemExit("no model is loaded")


async def stream(client: httpx.AsyncClient, num_tokens: int, seed: int) -> int:
    """One stream, read to its end. Answers its events."""
    parameters = {"max_new_tokens": num_tokens, "ignore_eos": True, "do_sample": True, "seed": seed}
    body = {"inputs": "Once there was", "parameters": parameters}
    num_events = 0
    async with client.stream("POST", "/generate_stream", json=body) as answer:
        async for chunk in answer.aiter_raw():
            num_events += chunk.count(b"data:")
    return num_events


async def run(client: httpx.AsyncClient, num_streams: int, num_tokens: int) -> tuple[float, int]:
    """Seconds and events of so many streams at a time."""
    started_s = time.perf_counter()
    events = await asyncio.gather(*(stream(client, num_tokens, n) for n in range(num_streams)))
    return time.perf_counter() - started_s, sum(events)


async def measure(server: RunningServer, args: argparse.Namespace) -> dict[str, object]:
    """Both ways in turns; medians over the rounds."""
    limits = httpx.Limits(max_connections=args.streams)
    direct = httpx.AsyncClient(
        transport=httpx.AsyncHTTPTransport(uds=socket_of(server), limits=limits),
        base_url="http://direct",
        timeout=300,
    )
    front = httpx.AsyncClient(base_url=server.url, timeout=300, limits=limits)
    rates: dict[str, list[float]] = {"direct": [], "front": []}
    costs_us = []
    async with direct, front:
        for _ in range(args.rounds):
            for name, client in (("direct", direct), ("front", front)):
                before_s = cpu_s(server.process.pid)
                duration_s, num_events = await run(client, args.streams, args.tokens)
                rates[name].append(num_events / duration_s)
                if name == "front":
                    costs_us.append(1e6 * (cpu_s(server.process.pid) - before_s) / num_events)
    told: dict[str, object] = {
        f"{name}_tokens_per_s": round(median(values), 1) for name, values in rates.items()
    }
    ratio = median(f / d for f, d in zip(rates["front"], rates["direct"], strict=True))
    return {
        **told,
        "front_over_direct": round(ratio, 3),
        "front_cpu_us_per_token": round(median(costs_us), 1),
    }


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--write", type=Path)
    args = parser.parse_args()
    folder = str(BUNDLED_MODEL.parent)
    with launched("--models-folder", folder, "--no-hub-models", model="auto") as server:
        name = BUNDLED_MODEL.name
        body = {"inputs": "x", "model": name, "parameters": {"max_new_tokens": 2}}
        httpx.post(f"{server.url}/generate", json=body, timeout=300).raise_for_status()
        result = {
            "machine": platform.processor() or platform.machine(),
            "cores": os.cpu_count(),
            "streams": args.streams,
            "tokens": args.tokens,
            "rounds": args.rounds,
            **asyncio.run(measure(server, args)),
        }
    text = json.dumps(result, indent=1)
    print(text)
    if args.write is not None:
        args.write.write_text(text + "\n")


if __name__ == "__main__":
    main()
