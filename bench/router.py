"""The router alone: what a token costs between a shard and a client.

    python -m bench.router [--streams 64] [--tokens 256] [--rounds 5]

Three processes: a fake shard that answers at once, the real router (`python -m router`), and this
one, whose clients read `--streams` streams of `--tokens` tokens over real HTTP. Prints JSON.

`tokens_per_s` is by the wall clock, so that on a busy machine, or one of few cores, it includes the
neighbours as well; `router_cpu_us_per_token` is the router process's own time, and its inverse,
`tokens_per_s_of_one_core`, what one free core would do.

The parts are measured one by one in this process, on the same steps: scheduler (schedule, apply),
text (detokenizer, events), gRPC (messages and calls, real ones to the shard), SSE (frames). The
rest of the total is HTTP, ASGI and the event loop.
"""

import asyncio
import json
import os
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import cast

import uvloop

from bench.command_line import parser_of, progress
from bench.processes import cpu_s
from bench.quick_shard import (
    BLOCK_SIZE,
    RouterOverQuickShard,
    quick_shard,
    router_over_quick_shard,
)
from proto.contract import PlainRow, SamplingParams, StepResult, StopParams
from router.engine.stream import Stream
from router.http.request_record import RequestRecord
from router.http.tgi import GenerateFrames
from router.request.request import Event, GenerateRequest
from router.scheduler.allocator import Allocator
from router.scheduler.scheduler import Scheduler, SchedulerLimits
from router.shards.shards import Shards, ShardTimeouts
from router.text.tokenizer import Tokenizer
from tests.byte_tokenizer import byte_ids

_PROMPT = "Once upon a time there was a little"
_NUM_STEPS = 200


class _Client(asyncio.Protocol):
    """One POST, whose tokens are counted as they come."""

    def __init__(self, request: bytes, done: "asyncio.Future[int]") -> None:
        self._request = request
        self._done = done
        self._num_tokens = 0
        self._end = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are no asyncio.Transport by class.
        cast(asyncio.Transport, transport).write(self._request)

    def data_received(self, data: bytes) -> None:
        """Frames are small and written whole, so that none is cut in practice."""
        self._num_tokens += data.count(b'{"index":')

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._done.done():
            self._done.set_result(self._num_tokens)


async def load(port: int, num_streams: int, num_tokens: int) -> float:
    """Seconds until all streams are read. Raises RuntimeError when a token is missing."""
    body = json.dumps({"inputs": _PROMPT, "parameters": {"max_new_tokens": num_tokens}}).encode()
    request = (
        b"POST /generate_stream HTTP/1.1\r\nHost: bench\r\nConnection: close\r\n"
        b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
    )
    loop = asyncio.get_running_loop()
    dones = [loop.create_future() for _ in range(num_streams)]
    begun_s = time.perf_counter()
    for done in dones:
        await loop.create_connection(partial(_Client, request, done), "127.0.0.1", port)
    counts = await asyncio.gather(*dones)
    if set(counts) != {num_tokens}:
        raise RuntimeError(f"streams of {sorted(set(counts))} tokens, not {num_tokens}")
    return time.perf_counter() - begun_s


@dataclass(frozen=True, slots=True)
class Round:
    """One run of all streams. CPU times in microseconds per token."""

    tokens_per_s: float
    router_us: float
    shard_us: float
    client_us: float


def measure_round(served: RouterOverQuickShard, num_streams: int, num_tokens: int) -> Round:
    pids = (served.router_pid, served.shard_pid)
    before = (*map(cpu_s, pids), _own_cpu_s())
    wall_s = uvloop.run(load(served.port, num_streams, num_tokens))
    after = (*map(cpu_s, pids), _own_cpu_s())
    total = num_streams * num_tokens
    micros = [1e6 * (end - begin) / total for begin, end in zip(before, after, strict=True)]
    return Round(total / wall_s, *micros)


def _own_cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _requests(num_streams: int) -> list[GenerateRequest]:
    stop = StopParams(max_new_tokens=_NUM_STEPS + 10)
    prompt_ids = tuple(byte_ids(_PROMPT))
    return [
        GenerateRequest(prompt_ids, _PROMPT, SamplingParams(), stop) for _ in range(num_streams)
    ]


def _rows(request_ids: Iterable[int]) -> list[PlainRow]:
    (token_id,) = byte_ids("e")
    return [(request_id, token_id, -0.75) for request_id in request_ids]


def scheduler_us(num_streams: int) -> float:
    """Schedule and apply, per token."""
    scheduler = _scheduler(num_streams)
    used_s = 0.0
    num_tokens = 0
    for _ in range(_NUM_STEPS):
        begun_s = time.process_time()
        batch = scheduler.schedule(0.0)
        used_s += time.process_time() - begun_s
        assert batch is not None
        held_ids = (*batch.running_ids, *(new.request_id for new in batch.new))
        result = StepResult(batch.step_id, (), held_ids, plain=_rows(held_ids))
        num_tokens += len(held_ids)
        begun_s = time.process_time()
        scheduler.expired(0.0)
        scheduler.apply(result, 0.0)
        scheduler.stats()
        used_s += time.process_time() - begun_s
    return 1e6 * used_s / num_tokens


def _scheduler(num_streams: int) -> Scheduler:
    allocator = Allocator(1 << 15, BLOCK_SIZE)
    limits = SchedulerLimits(num_streams * len(_PROMPT), num_streams)
    scheduler = Scheduler(limits, allocator)
    for request_id, request in enumerate(_requests(num_streams)):
        scheduler.add(request_id, request, 0.0)
    return scheduler


def text_and_sse_us(tokenizer: Tokenizer, num_streams: int) -> tuple[float, float]:
    """Tokens to events, and events to frames, per token."""
    streams = [
        Stream(request_id, request, tokenizer, 0.0)
        for request_id, request in enumerate(_requests(num_streams))
    ]
    frames = [
        GenerateFrames(RequestRecord("bench", 0.0), with_details=False, prefix="") for _ in streams
    ]
    text_s = sse_s = 0.0
    for _ in range(_NUM_STEPS):
        rows = _rows(range(num_streams))
        begun_s = time.process_time()
        for stream, (_, token_id, logprob) in zip(streams, rows, strict=True):
            stream.add_token(token_id, logprob, 0.0)
        text_s += time.process_time() - begun_s
        bursts = [_taken(stream) for stream in streams]
        begun_s = time.process_time()
        for frame, burst in zip(frames, bursts, strict=True):
            frame.render(0, burst)
        sse_s += time.process_time() - begun_s
    scale = 1e6 / (_NUM_STEPS * num_streams)
    return text_s * scale, sse_s * scale


def _taken(stream: Stream) -> Sequence[Event]:
    taking = stream.take()
    try:
        taking.send(None)
    except StopIteration as stopped:
        burst: Sequence[Event] = stopped.value
        return burst
    raise RuntimeError("the stream had nothing to take")


async def grpc_us(path: str, num_streams: int) -> float:
    """Messages and calls of decode steps, per token."""
    shards = await Shards.connect(path, ShardTimeouts(), time.time_ns())
    scheduler = _scheduler(num_streams)
    used_s = 0.0
    num_tokens = 0
    for _ in range(_NUM_STEPS):
        batch = scheduler.schedule(0.0)
        assert batch is not None
        begun_s = time.process_time()
        result = await shards.step(batch)
        if not batch.new:
            used_s += time.process_time() - begun_s
            num_tokens += len(result.generations)
        scheduler.apply(result, 0.0)
    await shards.reset()
    await shards.close()
    return 1e6 * used_s / num_tokens


def best(measure: Callable[[], float], num_tries: int = 3) -> float:
    """The least of some tries: what disturbs only adds."""
    return min(measure() for _ in range(num_tries))


def run(num_streams: int, num_tokens: int, num_rounds: int) -> dict[str, object]:
    with tempfile.TemporaryDirectory() as folder:
        with router_over_quick_shard(
            Path(folder), "--max-concurrent-requests", str(2 * num_streams)
        ) as served:
            measure_round(served, num_streams, min(32, num_tokens))
            rounds = [
                measure_round(served, num_streams, num_tokens)
                for _ in progress(range(num_rounds), "rounds")
            ]
            tokenizer = Tokenizer.load(served.tokenizer_folder)
        with quick_shard(Path(folder)) as (path, _):
            grpc = best(lambda: uvloop.run(grpc_us(path, num_streams)))
        tries = [text_and_sse_us(tokenizer, num_streams) for _ in range(3)]
        parts = {
            "scheduler": best(lambda: scheduler_us(num_streams)),
            "text": min(text for text, _ in tries),
            "grpc": grpc,
            "sse": min(sse for _, sse in tries),
        }
        tokenizer.close()
    return _report(num_streams, num_tokens, rounds, parts)


def _report(
    num_streams: int, num_tokens: int, rounds: Sequence[Round], parts: dict[str, float]
) -> dict[str, object]:
    router_us = statistics.median(one.router_us for one in rounds)
    rest = {"http_and_event_loop": router_us - sum(parts.values())}
    return {
        "num_streams": num_streams,
        "num_tokens": num_tokens,
        "tokens_per_s": round(statistics.median(one.tokens_per_s for one in rounds)),
        "tokens_per_s_best": round(max(one.tokens_per_s for one in rounds)),
        "tokens_per_s_of_one_core": round(1e6 / router_us),
        "router_cpu_us_per_token": round(router_us, 1),
        "shard_cpu_us_per_token": round(statistics.median(one.shard_us for one in rounds), 1),
        "client_cpu_us_per_token": round(statistics.median(one.client_us for one in rounds), 1),
        "parts_us_per_token": {name: round(value, 2) for name, value in (parts | rest).items()},
        "num_cores": os.cpu_count(),
        "load_average": round(os.getloadavg()[0], 1),
    }


def main(argv: Sequence[str]) -> int:
    parser = parser_of(__doc__)
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args(argv)
    if min(args.streams, args.tokens, args.rounds) < 1:
        parser.error("--streams, --tokens and --rounds must be at least 1")
    report = json.dumps(run(args.streams, args.tokens, args.rounds), indent=2)
    sys.stdout.write(report + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
