"""Many short requests, a fifth of which hang up at random points: what stays behind?

    python -m bench.soak [--requests 10000] [--leavers 2000] [--url http://127.0.0.1:3000]

Without `--url` it starts a router over a shard that computes nothing; with one the server is one of
this machine that does nothing else. Half of the requests stream. Prints JSON: how the requests
ended, the KV blocks that are still taken when all is over, how long what the leavers left behind
stayed (the bucket's bound in which the 99th percentile lies), and the router's resident memory and
open descriptors after each tenth of the requests. Exit code 1 when a request failed, a block stayed
taken, the memory grew by more than a tenth behind the first one, or descriptors stayed open.
"""

import argparse
import asyncio
import json
import random
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import uvloop

from bench.command_line import parser_of, progress
from bench.processes import blocks_used, resident_mib
from bench.quick_shard import router_over_quick_shard
from bench.sse_client import HttpError, post_events

_SETTLE_S = 30.0
_LEAVE_WITHIN_S = 0.2
_NUM_PARTS = 10
# A connection of the last requests may be open still.
_SPARE_DESCRIPTORS = 64


async def _request(url: str, draw: random.Random, *, leaves: bool) -> str:
    output_len = draw.randint(1, 8)
    body = {
        "inputs": "Once there was " + draw.choice(("a fox", "a goat", "an old man", "a town")),
        "parameters": {"max_new_tokens": output_len, "ignore_eos": True},
    }
    if draw.random() < 0.5:
        return await _whole(url, json.dumps(body).encode(), draw if leaves else None)
    leave_after = draw.randint(0, output_len - 1) if leaves else output_len
    num_events = 0
    try:
        async for _ in post_events(f"{url}/generate_stream", json.dumps(body).encode()):
            num_events += 1
            if num_events > leave_after:
                return "left"
    except (HttpError, OSError, asyncio.IncompleteReadError) as error:
        return f"failed: {error}"
    if num_events != output_len:
        return f"failed: {num_events} events instead of {output_len}"
    return "done"


async def _whole(url: str, body: bytes, draw: random.Random | None) -> str:
    """A request that does not stream; with `draw` it leaves before its answer, most likely."""
    parts = httpx.URL(url)
    reader, writer = await asyncio.open_connection(parts.host, parts.port or 80)
    try:
        writer.write(
            b"POST /generate HTTP/1.1\r\nHost: bench\r\nConnection: close\r\n"
            b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
        )
        if draw is not None:
            await asyncio.sleep(draw.random() * _LEAVE_WITHIN_S)
            writer.transport.abort()
            return "left"
        answer = await reader.read()
    except OSError as error:
        return f"failed: {error}"
    finally:
        writer.close()
    return "done" if b'"generated_text":' in answer else f"failed: {answer[:100]!r}"


async def _soak(
    url: str, num_requests: int, num_leavers: int, concurrency: int, *, seed: int
) -> Counter[str]:
    draw = random.Random(seed)
    leavers = [True] * num_leavers + [False] * (num_requests - num_leavers)
    draw.shuffle(leavers)
    waiting = iter(leavers)
    ends: Counter[str] = Counter()

    async def client() -> None:
        for leaves in waiting:
            ends[await _request(url, draw, leaves=leaves)] += 1

    await asyncio.gather(*(client() for _ in range(concurrency)))
    return ends


async def _metrics(url: str) -> str:
    async with httpx.AsyncClient(timeout=10) as client:
        return (await client.get(f"{url}/metrics")).text


async def _blocks_used(url: str) -> float:
    """KV blocks held by requests, once that is zero or `_SETTLE_S` is over."""
    deadline_s = time.monotonic() + _SETTLE_S
    while True:
        num_blocks = blocks_used(await _metrics(url))
        if num_blocks == 0 or time.monotonic() > deadline_s:
            return num_blocks
        await asyncio.sleep(0.1)


async def _seconds_to_free(url: str) -> dict[str, float]:
    """From a client's leaving until nothing of it is anywhere: how many, and within what."""
    name = "tandem_cancel_to_free_seconds"
    text = await _metrics(url)
    rows = re.findall(rf'^{name}_bucket{{le="(\S+)"}} (\S+)$', text, re.MULTILINE)
    if not rows:
        raise ValueError(f"/metrics has no {name}: is this Tandem?")
    total = float(rows[-1][1])
    percentiles = {"num": total}
    for percent in (50, 99):
        within = next(le for le, count in rows if float(count) >= total * percent / 100)
        percentiles[f"p{percent}_at_most_s"] = float(within)
    return percentiles


def _router_pid(port: int) -> int:
    for folder in Path("/proc").glob("[0-9]*"):
        words = (folder / "cmdline").read_bytes().split(b"\0") if folder.exists() else []
        if b"router" in words and str(port).encode() in words:
            return int(folder.name)
    raise ValueError(f"no router of this machine listens at port {port}")


async def _run(url: str, pid: int, args: argparse.Namespace) -> dict[str, Any]:
    begun_s = time.monotonic()
    ends: Counter[str] = Counter()
    mib = []
    descriptors = []
    for part in progress(range(_NUM_PARTS), "tenths"):
        requests = args.requests // _NUM_PARTS
        leavers = args.leavers // _NUM_PARTS
        ends += await _soak(url, requests, leavers, args.concurrency, seed=part)
        mib.append(resident_mib(pid))
        descriptors.append(len(list(Path(f"/proc/{pid}/fd").iterdir())))
    return {
        "num_requests": sum(ends.values()),
        "ends": dict(ends),
        "requests_per_s": round(sum(ends.values()) / (time.monotonic() - begun_s), 1),
        "kv_blocks_used_at_the_end": await _blocks_used(url),
        "cancel_to_free": await _seconds_to_free(url),
        "router_mib": mib,
        "router_descriptors": descriptors,
    }


def _is_clean(report: dict[str, Any]) -> bool:
    mib = report["router_mib"]
    descriptors = report["router_descriptors"]
    failed = any(end.startswith("failed") for end in report["ends"])
    grew = mib[-1] > 1.1 * mib[0] or descriptors[-1] > descriptors[0] + _SPARE_DESCRIPTORS
    return not failed and not grew and not report["kv_blocks_used_at_the_end"]


def main(argv: Sequence[str]) -> int:
    """Answers the exit code."""
    parser = parser_of(__doc__)
    parser.add_argument("--url", help="a server to ask in place of one that is started")
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--leavers", type=int, default=2_000)
    parser.add_argument("--concurrency", type=int, default=64)
    args = parser.parse_args(argv)
    if args.url:
        url = args.url.rstrip("/")
        report = uvloop.run(_run(url, _router_pid(httpx.URL(url).port or 80), args))
    else:
        with (
            tempfile.TemporaryDirectory() as folder,
            router_over_quick_shard(Path(folder)) as started,
        ):
            url = f"http://127.0.0.1:{started.port}"
            report = uvloop.run(_run(url, started.router_pid, args))
    sys.stdout.write(json.dumps(report) + "\n")
    return 0 if _is_clean(report) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
