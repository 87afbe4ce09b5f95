"""Large bodies beside streams: how long does each hold up a health check, or a stream?

    python -m bench.hostile_bodies [--streams 4] [--repeats 5] [--only NAME,...]

Starts `launcher serve` on the bundled model. While streams run and `/health/live` is asked every
5 ms, a process of its own posts each body of 2 MB, `--repeats` times one after the other. Prints a
line of JSON for each body: the answer's status, the slowest health check, and of the gaps between
the streams' tokens the 99th percentile and the longest, in milliseconds; the first line is the same
without any body. Exit code 1 when a health check or a percentile is over 50 ms.
"""

import argparse
import asyncio
import contextlib
import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from bench.command_line import parser_of, progress
from bench.processes import running, tandem
from bench.sse_client import HttpError, post_events
from launcher import BUNDLED_MODEL
from processes.addresses import free_port

_BODY_LEN = 1_990_000
_MAX_MS = 50.0
_HEALTH_INTERVAL_S = 0.005
_ALONE_S = 3.0
_CHAT, _TGI, _SOCKET = "/v1/chat/completions", "/generate", "/lmtp"


def _filled(head: str, item: str, tail: str) -> bytes:
    """As often as there is room; `{}` in the item is its number."""
    items, room = [], _BODY_LEN - len(head) - len(tail)
    number = 0
    while room > 0:
        items.append(item.replace("{}", str(number)))
        room -= len(items[-1]) + 1
        number += 1
    return f"{head}{','.join(items[:-1])}{tail}".encode()


def bodies() -> Mapping[str, tuple[str, bytes]]:
    """Paths and bodies, by name."""
    message = '{"role":"user","content":"a"}'
    turn = f'{{"messages":[{message}],'
    call = '{"function":{"name":"f"}}'
    tgi = '{"inputs":"a","parameters":{'
    seed = '{"inputs":"a","parameters":{"seed":99999999999999999999999,"stop":['
    grammar = f'{tgi}"grammar":{{"type":"choice","value":['
    part = '{"type":"text","text":"a"}'
    # As many as may be.
    long_message = message.replace('"a"', f'"{112 * "a b "}"')
    long_part = part.replace('"a"', f'"{112 * "a b "}"')
    long_call = call.replace('"f"', f'"{450 * "f"}"')
    schema = f'{tgi}"grammar":{{"type":"json","value":{{"properties":{{'
    long_property = f'"k{{}}":{{"type":"string","description":"{450 * "d"}"}}'
    said = '{"messages":[{"role":"user","content":"'
    calls = '{"messages":[{"role":"assistant","tool_calls":'
    shapes = {
        "messages": (_CHAT, '{"messages":[', message, "]}"),
        "messages-in-bounds": (_CHAT, '{"messages":[', long_message, "]}"),
        "parts-in-bounds": (_CHAT, '{"messages":[{"role":"user","content":[', long_part, "]}]}"),
        "calls-in-bounds": (_CHAT, f"{calls}[", long_call, "]}]}"),
        "choice-in-bounds": (_TGI, grammar, '"{} is the number of a choice"', "]}}}"),
        "schema": (_TGI, schema, long_property, "}}}}}"),
        "anthropic-in-bounds": ("/v1/messages", '{"max_tokens":1,"messages":[', long_message, "]}"),
        "responses-in-bounds": ("/v1/responses", '{"input":[', long_message, "]}"),
        "parts": (_CHAT, '{"messages":[{"role":"user","content":[', part, "]}]}"),
        "calls": (_CHAT, f"{calls}[", call, "]}]}"),
        "keys": (_CHAT, turn, '"k{}":1', "}"),
        "message-keys": (_CHAT, '{"messages":[{"role":"user","content":"a",', '"k{}":1', "}]}"),
        "metadata": (_CHAT, f'{turn}"metadata":{{', '"k{}":1', "}}"),
        "tools": (_CHAT, f'{turn}"tools":[', '{"type":"function","function":{"name":"f"}}', "]}"),
        "wrong-types": (_CHAT, '{"messages":[', '{"role":1,"content":1,"refusal":1}', "]}"),
        "tgi-keys": (_TGI, '{"inputs":"a",', '"k{}":1', "}"),
        "stop-ids": (_TGI, f'{tgi}"stop_token_ids":[', "1", "]}}"),
        "stops": (_TGI, f'{tgi}"stop":[', '"a"', "]}}"),
        "large-seed": (_TGI, seed, '"a"', "]}}"),
        "choice": (_TGI, grammar, '"c{}"', "]}}}"),
        "prompt-ids": ("/v1/completions", '{"prompt":[', "1", "]}"),
        "prompts": ("/v1/completions", '{"prompt":[', '"a"', "]}"),
        "logit-bias": ("/v1/completions", '{"prompt":"a","logit_bias":{', '"{}":1', "}}"),
        "long-text": (_TGI, '{"inputs":"', "a word", '"}'),
        "long-chat": (_CHAT, said, "a word", '"}]}'),
        "control-tokens": (_CHAT, said, "<|end|>", '"}]}'),
        "tokenize": ("/tokenize", '{"inputs":"', "a word", '"}'),
        "tokenize-letters": ("/tokenize", '{"inputs":"', "ä ö", '"}'),
        "chat-tokenize": ("/chat_tokenize", said, "a", '"}]}'),
        "anthropic": ("/v1/messages", '{"max_tokens":1,"messages":[', message, "]}"),
        "count": ("/v1/messages/count_tokens", said, "a", '"}]}'),
        "responses": ("/v1/responses", '{"input":[', message, "]}"),
        "instances": ("/vertex", '{"instances":[', '{"inputs":"a"}', "]}"),
        "socket-ids": (_SOCKET, 'GENERATE {"stream_id":1,"max_tokens":1,"prompt":[', "1", "]}"),
        "socket-text": (_SOCKET, 'GENERATE {"stream_id":1,"max_tokens":1,"text":"', "a b", '"}'),
        "socket-scores": (_SOCKET, 'SCORE {"stream_id":1,"prompt":[1],"scored":[', "[1]", "]}"),
    }  # fmt: skip
    return {name: (path, _filled(*shape)) for name, (path, *shape) in shapes.items()}


def _post(url: str, path: str, body: bytes) -> str:
    """In a process of its own. Answers what came of it."""
    if path == _SOCKET:
        with connect(url.replace("http", "ws", 1) + path, max_size=None) as socket:
            socket.send(body.decode())
            try:
                return str(socket.recv(60))[:60]
            except ConnectionClosed as error:
                return str(error)[:60]
    answer = httpx.post(
        url + path, content=body, headers={"content-type": "application/json"}, timeout=60
    )
    return str(answer.status_code)


@dataclass(slots=True)
class _Seen:
    """What the health checks and the streams saw, in seconds."""

    checks_s: list[float] = field(default_factory=list)
    gaps_s: list[float] = field(default_factory=list)

    def row(self) -> dict[str, float]:
        """In milliseconds."""
        gaps_ms = 1e3 * np.array(self.gaps_s)
        return {
            "live_max_ms": round(1e3 * max(self.checks_s), 1),
            "gap_p50_ms": round(float(np.percentile(gaps_ms, 50)), 1),
            "gap_p99_ms": round(float(np.percentile(gaps_ms, 99)), 1),
            "gap_max_ms": round(float(gaps_ms.max()), 1),
        }


class _Watch:
    """Streams and health checks that go on all the time; `seen` is exchanged for each body."""

    def __init__(self, url: str, num_streams: int) -> None:
        self._url = url
        self._num_streams = num_streams
        self.seen = _Seen()

    async def run(self) -> None:
        """Until it is cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._check_health())
            for number in range(self._num_streams):
                tasks.create_task(self._stream(number))

    async def _check_health(self) -> None:
        async with httpx.AsyncClient(timeout=60) as client:
            while True:
                begun_s = time.monotonic()
                (await client.get(f"{self._url}/health/live")).raise_for_status()
                self.seen.checks_s.append(time.monotonic() - begun_s)
                await asyncio.sleep(_HEALTH_INTERVAL_S)

    async def _stream(self, number: int) -> None:
        parameters = {"max_new_tokens": 900, "ignore_eos": True}
        body = json.dumps({"inputs": f"Once {number}", "parameters": parameters}).encode()
        while True:
            times_s: list[float] = []
            async for _ in post_events(f"{self._url}/generate_stream", body):
                times_s.append(time.monotonic())
                self.seen.gaps_s += [after - before for before, after in pairwise(times_s[-2:])]


async def _measure(url: str, args: argparse.Namespace) -> list[dict[str, Any]]:
    rows, chosen = [], list(_chosen(args.only))
    watch = _Watch(url, args.streams)
    loop = asyncio.get_running_loop()
    with ProcessPoolExecutor(1) as sender:
        await loop.run_in_executor(sender, time.monotonic)
        watching = asyncio.create_task(watch.run())
        await asyncio.sleep(_ALONE_S)
        watch.seen = _Seen()
        await asyncio.sleep(_ALONE_S)
        rows.append({"body": "none", **watch.seen.row()})
        for name, (path, body) in progress(chosen, "bodies"):
            watch.seen = _Seen()
            for _ in range(args.repeats):
                came = await loop.run_in_executor(sender, _post, url, path, body)
                await asyncio.sleep(0.2)
            rows.append({"body": name, "answer": came, **watch.seen.row()})
            sys.stdout.write(json.dumps(rows[-1]) + "\n")
            sys.stdout.flush()
        watching.cancel()
        with contextlib.suppress(asyncio.CancelledError, HttpError):
            await watching
    return rows


def _chosen(only: str) -> Iterator[tuple[str, tuple[str, bytes]]]:
    names = only.split(",") if only else None
    return ((name, each) for name, each in bodies().items() if names is None or name in names)


def main(argv: Sequence[str]) -> int:
    """Answers the exit code."""
    parser = parser_of(__doc__)
    parser.add_argument("--model", type=Path, default=BUNDLED_MODEL)
    parser.add_argument("--streams", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--only", default="", help="names of bodies, separated by commas")
    args = parser.parse_args(argv)
    port = free_port()
    with running(tandem(args.model, port, ())):
        rows = asyncio.run(_measure(f"http://127.0.0.1:{port}", args))
    slow = [row["body"] for row in rows if max(row["live_max_ms"], row["gap_p99_ms"]) > _MAX_MS]
    sys.stdout.write(json.dumps({"none": rows[0], "too_slow": slow}) + "\n")
    return int(bool(slow))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
