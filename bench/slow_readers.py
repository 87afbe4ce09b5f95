"""Readers that take a byte a second, beside readers that keep up: do these notice?

    python -m bench.slow_readers [--slow 200] [--normal 32] [--step-ms 25] [--rounds 4]

The real router over a shard that takes `--step-ms` for each step and answers every row. Each round
measures the normal streams' gaps between tokens alone, and then beside the slow readers, who have
been there long enough for their buffers to be full. Prints JSON: the gaps of both, their ratios,
the router's memory, and how many of the slow ones were cut. Exit code 1 when the 99th percentile
beside them is over 1.1 times that alone.
"""

import argparse
import asyncio
import contextlib
import json
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import uvloop

from bench.processes import RouterOverQuickShard, resident_mib, router_over_quick_shard
from bench.sse_client import post_events

_SLOW_LEN = 4000
_RECEIVE_BYTES = 4096


def _body(num_tokens: int) -> bytes:
    parameters = {"max_new_tokens": num_tokens, "top_n_tokens": 0}
    return json.dumps({"inputs": "Once upon a time", "parameters": parameters}).encode()


async def _gaps_ms(port: int, num_tokens: int) -> list[float]:
    times: list[float] = []
    async for _ in post_events(f"http://127.0.0.1:{port}/generate_stream", _body(num_tokens)):
        times.append(time.perf_counter())
    if len(times) != num_tokens:
        raise RuntimeError(f"a normal stream had {len(times)} tokens instead of {num_tokens}")
    return [1000 * (b - a) for a, b in pairwise(times)]


async def _normal(port: int, num_streams: int, num_tokens: int) -> list[float]:
    gaps = await asyncio.gather(*(_gaps_ms(port, num_tokens) for _ in range(num_streams)))
    return [gap for one in gaps for gap in one]


class SlowReader:
    """One client that asks for a long answer and takes a byte of it a second."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.was_cut = False

    async def run(self) -> None:
        """Reads until it is cut, or cancelled."""
        body = _body(_SLOW_LEN)
        head = (
            "POST /generate_stream HTTP/1.1\r\nHost: bench\r\nConnection: close\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        loop = asyncio.get_running_loop()
        with socket.socket() as slow:
            slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BYTES)
            slow.setblocking(False)
            await loop.sock_connect(slow, ("127.0.0.1", self._port))
            await loop.sock_sendall(slow, head.encode() + body)
            with contextlib.suppress(OSError):  # a reset: cut, as an end is
                while await loop.sock_recv(slow, 1):  # noqa: ASYNC110 (slowness is the point)
                    await asyncio.sleep(1.0)
            self.was_cut = True


async def _measure(served: RouterOverQuickShard, args: argparse.Namespace) -> dict[str, object]:
    port = served.port
    num_tokens = max(8, round(args.seconds * 1000 / args.step_ms))
    await _normal(port, args.normal, 8)
    idle_mib = resident_mib(served.router_pid)
    alone: list[list[float]] = []
    beside: list[list[float]] = []
    most_mib, num_cut = idle_mib, 0
    for _ in range(args.rounds):
        alone.append(await _normal(port, args.normal, num_tokens))
        readers = [SlowReader(port) for _ in range(args.slow)]
        tasks = [asyncio.create_task(reader.run()) for reader in readers]
        await asyncio.sleep(args.settle)
        beside.append(await _normal(port, args.normal, num_tokens))
        most_mib = max(most_mib, resident_mib(served.router_pid))
        num_cut += sum(reader.was_cut for reader in readers)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(1.0)
    return {
        "num_slow": args.slow,
        "num_normal": args.normal,
        "alone_ms": _summary(alone),
        "beside_ms": _summary(beside),
        "p99_ratio": round(_p99(beside) / _p99(alone), 3),
        "router_mib": {"idle": idle_mib, "most": most_mib, "end": resident_mib(served.router_pid)},
        "num_slow_cut": num_cut,
        "num_slow_in_all": args.slow * args.rounds,
    }


def _p99(rounds: Sequence[Sequence[float]]) -> float:
    """The median over the rounds of each one's 99th percentile."""
    return statistics.median(statistics.quantiles(one, n=100)[98] for one in rounds)


def _summary(rounds: Sequence[Sequence[float]]) -> dict[str, float]:
    return {
        "p50": round(statistics.median(gap for one in rounds for gap in one), 2),
        "p99": round(_p99(rounds), 2),
        "max": round(max(gap for one in rounds for gap in one), 2),
    }


def main(argv: Sequence[str]) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.slow_readers", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--slow", type=int, default=200)
    parser.add_argument("--normal", type=int, default=32)
    parser.add_argument("--step-ms", type=float, default=25.0)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=10.0, help="of each measurement")
    parser.add_argument("--settle", type=float, default=15.0, help="seconds before the second")
    args = parser.parse_args(argv)
    flags = ("--max-concurrent-requests", str(2 * (args.slow + args.normal)))
    with (
        tempfile.TemporaryDirectory() as folder,
        router_over_quick_shard(Path(folder), *flags, step_s=args.step_ms / 1000) as served,
    ):
        report = uvloop.run(_measure(served, args))
    sys.stdout.write(json.dumps(report, indent=2) + "\n")
    return 0 if float(str(report["p99_ratio"])) <= 1.1 else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
