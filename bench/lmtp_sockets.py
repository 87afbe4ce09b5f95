"""Five hundred sockets with twenty streams each, a fifth of them dropped midway: what is lost?

    python -m bench.lmtp_sockets [--sockets 500] [--streams 20] [--tokens 32] [--url URL]

Without `--url` a router is started over a shard that answers at once with the same letter
(`bench/quick_shard.py`), so that every stream's text is known. With one, a server that does nothing
else is asked, and the text of each stream is compared with what the same prompt brought alone.

Prints JSON: how the streams ended, tokens per second, how long after the last stream all KV blocks
were back, and what the sockets left open. Exit code 1 when a stream of a socket that stayed was not
whole, a block stayed taken, or a socket or stream stayed open.
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
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import uvloop
from websockets.asyncio.client import ClientConnection, connect

from bench.processes import cpu_s, router_over_quick_shard

_SETTLE_S = 30.0
_PROMPTS = ("Once upon a time", "There was a fox", "In a small town", "The old man said")


@dataclass(slots=True)
class _Told:
    """What came of one stream."""

    num_tokens: int = 0
    text: str = ""
    end: dict[str, Any] | None = None


@dataclass(slots=True)
class _Load:
    """The same for every socket. `texts`: what each prompt brings, by its words."""

    url: str
    num_streams: int
    num_tokens: int
    texts: dict[str, str] = field(default_factory=dict)
    ends: Counter[str] = field(default_factory=Counter)
    num_tokens_heard: int = 0


def _frame(load: _Load, stream_id: int, prompt: str) -> str:
    fields = {
        "stream_id": stream_id,
        "text": prompt,
        "max_tokens": load.num_tokens,
        "ignore_eos": True,
    }
    return f"GENERATE {json.dumps(fields)}"


async def _hear(socket: ClientConnection, told: dict[int, _Told]) -> int:
    """Takes one frame; answers how many streams it ended."""
    text = await socket.recv()
    assert isinstance(text, str)
    command, _, body = text.partition(" ")
    num_ended = 0
    for each in json.loads(body):
        stream = told.get(each["stream_id"])
        if stream is None:
            continue
        if command == "DONE" or "error" in each:
            stream.end = each
            num_ended += 1
        elif command == "TOKEN":
            stream.num_tokens += 1
            stream.text += each["text"]
    return num_ended


async def _socket(load: _Load, draw: random.Random, *, leaves: bool) -> None:
    """One socket and its streams; one that leaves is cut somewhere on the way."""
    async with connect(load.url, max_size=None, open_timeout=120, compression=None) as socket:
        await socket.send('HELLO {"stream_id": 0, "version": 2}')
        prompts = {index: draw.choice(_PROMPTS) for index in range(1, load.num_streams + 1)}
        told = {stream_id: _Told() for stream_id in prompts}
        for stream_id, prompt in prompts.items():
            await socket.send(_frame(load, stream_id, prompt))
        num_left, last = load.num_streams, draw.randint(1, load.num_tokens)
        while num_left:
            num_left -= await _hear(socket, told)
            if leaves and sum(stream.num_tokens for stream in told.values()) >= last:
                socket.transport.abort()
                load.ends["dropped"] += load.num_streams
                return
    for stream_id, prompt in prompts.items():
        load.num_tokens_heard += told[stream_id].num_tokens
        load.ends[_verdict(load, prompt, told[stream_id])] += 1


def _verdict(load: _Load, prompt: str, told: _Told) -> str:
    end = told.end or {}
    if "error" in end:
        return f"failed: {end['error_type']}"
    if end.get("text") != told.text + end.get("tail", ""):
        return "failed: the texts of its tokens are not its text"
    if told.num_tokens != load.num_tokens or end["usage"]["output_tokens"] != load.num_tokens:
        return f"failed: {told.num_tokens} tokens"
    return "whole" if end["text"] == load.texts[prompt] else "failed: another text"


async def _alone(load: _Load, prompt: str) -> str:
    async with connect(load.url, max_size=None, compression=None) as socket:
        await socket.send('HELLO {"stream_id": 0, "version": 2}')
        await socket.send(_frame(load, 1, prompt))
        told = {1: _Told()}
        while not await _hear(socket, told):
            pass
    assert told[1].end is not None
    return str(told[1].end["text"])


async def _gauges(url: str) -> dict[str, float]:
    """KV blocks in use, open sockets and streams, as /metrics tells."""
    async with httpx.AsyncClient(timeout=30) as client:
        text = (await client.get(f"{url}/metrics")).text
    names = ("tandem_kv_blocks_used", "tandem_sockets", "tandem_socket_streams")
    found = {name: re.search(rf"^{name} (\S+)$", text, re.MULTILINE) for name in names}
    return {name: float(match.group(1)) for name, match in found.items() if match is not None}


async def _run(args: argparse.Namespace, url: str) -> dict[str, Any]:
    load = _Load(url.replace("http", "ws", 1) + "/lmtp", args.streams, args.tokens)
    for prompt in _PROMPTS:
        load.texts[prompt] = await _alone(load, prompt)
    draw = random.Random(0)
    leavers = [index < args.sockets // 5 for index in range(args.sockets)]
    draw.shuffle(leavers)
    begun_s = time.monotonic()
    sockets = (
        _socket(load, random.Random(index), leaves=leaves) for index, leaves in enumerate(leavers)
    )
    await asyncio.gather(*sockets)
    ended_s = time.monotonic()
    gauges = await _gauges(url)
    while any(gauges.values()) and time.monotonic() < ended_s + _SETTLE_S:
        await asyncio.sleep(0.05)
        gauges = await _gauges(url)
    return {
        "num_sockets": args.sockets,
        "num_streams": args.sockets * args.streams,
        "ends": dict(load.ends),
        "tokens_per_s_of_those_that_stayed": round(load.num_tokens_heard / (ended_s - begun_s)),
        "seconds": round(ended_s - begun_s, 1),
        "seconds_until_all_is_back": round(time.monotonic() - ended_s, 2),
        "left": gauges,
    }


def main(argv: Sequence[str]) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.lmtp_sockets", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--url")
    parser.add_argument("--sockets", type=int, default=500)
    parser.add_argument("--streams", type=int, default=20)
    parser.add_argument("--tokens", type=int, default=32)
    args = parser.parse_args(argv)
    if args.url is not None:
        report = uvloop.run(_run(args, args.url.rstrip("/")))
    else:
        flags = ("--max-concurrent-requests", str(args.sockets * args.streams))
        with (
            tempfile.TemporaryDirectory() as folder,
            router_over_quick_shard(Path(folder), *flags) as router,
        ):
            report = uvloop.run(_run(args, f"http://127.0.0.1:{router.port}"))
            report["router_cpu_s"] = round(cpu_s(router.router_pid), 1)
    sys.stdout.write(json.dumps(report) + "\n")
    failed = any(end.startswith("failed") for end in report["ends"])
    return 1 if failed or any(report["left"].values()) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
