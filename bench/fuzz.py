"""Random nonsense for HTTP, LMTP and the shard's gRPC: who falls, and does anything stay behind?

    python -m bench.fuzz [--inputs 20000] [--parts json,bytes,lmtp,grpc] [--seed 0]

    json    valid bodies with a value exchanged for another kind of value, for each route that posts
    bytes   valid requests with bytes turned, left out, doubled or cut off
    lmtp    valid frames, as json and as bytes
    grpc    messages of random fields, in any order, for each call of a shard

Served is the bundled model, which answers one known prompt before and after. Prints a JSON line for
each part: the outcomes, and what must not be: an answer of 500 or above but 503, a socket closed as
if by a bug (1011), no end within 10 s, a traceback in the log, another text than before, a KV block
that is still taken. Exit code 1 when there was one.
"""

import asyncio
import contextlib
import json
import random
import re
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import httpx
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, WebSocketException

from bench.command_line import parser_of, progress
from bench.fuzz_inputs import FRAMES, REQUESTS, changed_bytes, changed_json, raw_request
from bench.fuzz_shard import fuzz_shard
from bench.processes import blocks_used, running, tandem
from launcher import BUNDLED_MODEL
from processes.addresses import free_port

_NUM_CLIENTS = 8
_END_S = 10.0
_LOG = Path("/tmp/bench-tandem.log")
_PROBE = {"inputs": "The weather in winter", "parameters": {"max_new_tokens": 16}}
_FLAGS = ("--dtype", "float32", "--device", "cpu", "--check-invariants", "--body-timeout", "2")


@dataclass(slots=True)
class Found:
    """How the inputs of one part ended, and those that must not end so."""

    outcomes: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)

    def note(self, outcome: str, sent: object, *, is_fault: bool) -> None:
        self.outcomes[outcome] += 1
        if is_fault:
            self.faults.append(f"{outcome}: {str(sent)[:300]}")


class _Fuzz:
    """One part's inputs for one server."""

    def __init__(self, port: int, found: Found, draw: random.Random) -> None:
        self._port = port
        self._found = found
        self._draw = draw

    async def body(self) -> None:
        """A body of JSON with a value of another kind."""
        path, body = self._draw.choice(REQUESTS)
        sent = json.dumps(changed_json(body, self._draw)).encode(errors="surrogatepass")
        await self._exchange(raw_request(path, sent), (path, sent), is_whole=True)

    async def raw(self) -> None:
        """A request whose bytes are wrong somewhere."""
        path, body = self._draw.choice(REQUESTS)
        sent = changed_bytes(raw_request(path, json.dumps(body).encode()), self._draw)
        await self._exchange(sent, sent, is_whole=False)

    async def _exchange(self, request: bytes, shown: object, *, is_whole: bool) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        try:
            async with asyncio.timeout(_END_S):
                with contextlib.suppress(ConnectionError):
                    writer.write(request)
                    if not is_whole:
                        # Else the server waits for the rest.
                        writer.write_eof()
                    await writer.drain()
                with contextlib.suppress(ConnectionError):
                    answer = await reader.read()
                    self._note_status(answer, shown)
        except TimeoutError:
            self._found.note("no end", shown, is_fault=True)
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    def _note_status(self, answer: bytes, shown: object) -> None:
        status = re.match(rb"HTTP/1\.1 (\d+)", answer)
        code = int(status[1]) if status else 0
        outcome = str(code) if status else "closed"
        self._found.note(outcome, shown, is_fault=code >= 500 and code not in (501, 503, 505))

    async def frames(self) -> None:
        """A socket with three frames, of which most are wrong."""
        frames = []
        for command, body in self._draw.choices(FRAMES, k=3):
            text = f"{command} {json.dumps(changed_json(body, self._draw))}"
            if self._draw.random() < 0.3:
                text = changed_bytes(text.encode(), self._draw).decode(errors="replace")
            frames.append(text)
        outcome, is_fault = "answered", False
        try:
            async with asyncio.timeout(_END_S), connect(f"ws://127.0.0.1:{self._port}/lmtp") as on:
                for frame in frames:
                    await on.send(frame)
                with contextlib.suppress(TimeoutError):
                    while True:
                        await asyncio.wait_for(on.recv(), 0.2)
        except ConnectionClosed as error:
            code = error.rcvd.code if error.rcvd is not None else None
            outcome, is_fault = f"closed {code}", code in (None, 1011)
        except (TimeoutError, WebSocketException, OSError) as error:
            outcome, is_fault = type(error).__name__, True
        self._found.note(outcome, frames, is_fault=is_fault)


async def _by_turns(one: Callable[[], Awaitable[None]], num_inputs: int, name: str) -> None:
    numbers = progress(range(num_inputs), name)

    async def client() -> None:
        for _ in numbers:
            await one()

    await asyncio.gather(*(client() for _ in range(_NUM_CLIENTS)))


def _answer(url: str) -> str:
    answer = httpx.post(f"{url}/generate", json=_PROBE, timeout=30.0)
    return str(answer.raise_for_status().json()["generated_text"])


def _part(name: str, num_inputs: int, seed: int) -> Found:
    found, draw, port = Found(), random.Random(f"{name} {seed}"), free_port()
    url = f"http://127.0.0.1:{port}"
    with running(tandem(BUNDLED_MODEL, port, _FLAGS)):
        before = _answer(url)
        fuzz = _Fuzz(port, found, draw)
        one = {"json": fuzz.body, "bytes": fuzz.raw, "lmtp": fuzz.frames}[name]
        asyncio.run(_by_turns(one, num_inputs, name))
        if (after := _answer(url)) != before:
            found.faults.append(f"another text: {after!r}, before {before!r}")
        num_blocks = blocks_used(httpx.get(f"{url}/metrics", timeout=10).text)
        if num_blocks:
            found.faults.append(f"{num_blocks:g} KV blocks are taken")
    found.faults += [
        f"log: {line}" for line in _LOG.read_text().splitlines() if "Traceback" in line
    ]
    return found


def main(argv: Sequence[str]) -> int:
    """The command line; answers the exit code."""
    parser = parser_of(__doc__)
    parser.add_argument("--inputs", type=int, default=20_000, help="for each part")
    parser.add_argument("--parts", default="json,bytes,lmtp,grpc", help="separated by commas")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(argv)
    num_faults = 0
    for name in args.parts.split(","):
        if name == "grpc":
            outcomes, faults = fuzz_shard(args.inputs, args.seed)
        else:
            found = _part(name, args.inputs, args.seed)
            outcomes, faults = found.outcomes, found.faults
        num_faults += len(faults)
        row = {"part": name, "outcomes": dict(outcomes), "faults": faults[:20]}
        sys.stdout.write(json.dumps(row, ensure_ascii=False) + "\n")
        sys.stdout.flush()
    return 1 if num_faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
