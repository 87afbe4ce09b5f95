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
import tempfile
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import httpx
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, WebSocketException

from bench.command_line import parser_of, progress
from bench.processes import blocks_used, process, running, tandem, until
from launcher import BUNDLED_MODEL
from processes.addresses import free_port
from proto import generate_pb2

_NUM_CLIENTS = 8
_END_S = 10.0
_LOG = Path("/tmp/bench-tandem.log")
_PROBE = {"inputs": "The weather in winter", "parameters": {"max_new_tokens": 16}}
_FLAGS = ("--dtype", "float32", "--device", "cpu", "--check-invariants", "--body-timeout", "2")
_MESSAGES = [{"role": "user", "content": "Who are you?"}]
_SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
_FUNCTION = {"name": "f", "description": "d", "parameters": _SCHEMA}
# A path and a body, which the bundled model answers within a few steps.
REQUESTS: tuple[tuple[str, dict[str, Any]], ...] = (
    (
        "/generate",
        {
            "inputs": "Once there was",
            "parameters": {
                "max_new_tokens": 3, "do_sample": True, "temperature": 0.5, "top_k": 5,
                "top_p": 0.9, "typical_p": 0.9, "repetition_penalty": 1.1, "seed": 7,
                "stop": ["x"], "details": True, "decoder_input_details": True,
                "top_n_tokens": 2, "best_of": 1, "truncate": 5, "watermark": False,
                "grammar": {"type": "regex", "value": "[a-z]{1,4}"},
            },
        },
    ),
    ("/generate_stream", {"inputs": "Once", "parameters": {"max_new_tokens": 3}}),
    ("/", {"inputs": "Once", "stream": True, "parameters": {"max_new_tokens": 3}}),
    ("/tokenize", {"inputs": "Once there was", "add_special_tokens": True}),
    ("/chat_tokenize", {"model": "tgi", "messages": _MESSAGES}),
    ("/constraints/check", {"grammar": {"type": "json", "value": _SCHEMA}, "texts": ["{}"]}),
    (
        "/v1/chat/completions",
        {
            "model": "tgi", "messages": _MESSAGES, "max_tokens": 3, "temperature": 0,
            "logprobs": True, "top_logprobs": 2, "n": 1, "stop": ["x"], "stream": False,
            "logit_bias": {"5": 1}, "seed": 1, "user": "u",
            "response_format": {
                "type": "json_schema", "json_schema": {"name": "s", "schema": _SCHEMA}
            },
            "tools": [{"type": "function", "function": _FUNCTION}], "tool_choice": "none",
            "stream_options": {"include_usage": True}, "metadata": {"a": "b"},
        },
    ),
    (
        "/v1/completions",
        {
            "model": "tgi", "prompt": ["Once", "Then"], "max_tokens": 2, "echo": True,
            "logprobs": 1, "n": 1, "best_of": 1, "suffix": None, "stream": True,
            "structured_outputs": {"where": "len(X) < 9"},
        },
    ),
    (
        "/v1/responses",
        {
            "model": "tgi", "input": [{"role": "user", "content": "Hm"}], "max_output_tokens": 16,
            "instructions": "i", "store": False, "stream": False,
            "text": {"format": {"type": "text"}}, "tools": [{"type": "function", **_FUNCTION}],
            "reasoning": {"effort": "low"}, "include": [], "truncation": "disabled",
        },
    ),
    (
        "/v1/messages",
        {
            "model": "tgi", "max_tokens": 3, "messages": _MESSAGES, "system": "s", "top_k": 3,
            "stop_sequences": ["x"], "metadata": {"user_id": "u"},
            "tools": [{"name": "f", "input_schema": _SCHEMA}], "tool_choice": {"type": "none"},
        },
    ),
)  # fmt: skip
FRAMES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("HELLO", {"stream_id": 0, "version": 2}),
    (
        "GENERATE",
        {
            "stream_id": 1, "text": "Once", "max_tokens": 3, "temperature": 0.5, "seed": 3,
            "top_logprobs": 2, "stop": ["time"], "logit_bias": {"262": 1}, "output": [1497],
            "constraint": {"type": "choice", "value": [" a", " b"]},
        },
    ),
    ("GENERATE", {"stream_id": 2, "prompt": [938, 1497], "max_tokens": 2}),
    ("GENERATE", {"stream_id": 3, "messages": _MESSAGES, "max_tokens": 2}),
    ("SCORE", {"stream_id": 4, "model": "tgi", "prompt": [302, 2872], "scored": [2075, 18]}),
    ("MODEL_INFO", {"stream_id": 5, "model": "tgi", "data": {"model": "tgi"}}),
    ("CANCEL", {"stream_id": 1}),
)  # fmt: skip
_VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 3, 2**31, 2**53, 2**64, -(2**70), 1e308, -0.0, 0.5, float("inf"),
    float("nan"), "", "a", "\0", "\ud800", "é" * 50, "{" * 40, "0", "tgi", "auto", [], [[]], [None],
    {}, {"": {}}, {"type": "text", "text": "x"}, {"type": "string", "pattern": "("}, ["a"] * 50,
    [{"role": "tool"}], {"$ref": "#"}, "<|end|>", "[" * 300, {"a": {"a": {"a": {"a": 1}}}},
)  # fmt: skip
_HEADERS = "Host: a\r\nContent-Type: application/json\r\nConnection: close\r\n"
_SERVICE = generate_pb2.DESCRIPTOR.services_by_name["TextGenerationService"]
# A router alone chooses them, and memory bounds them: not to be tried without it.
_SIZES = (1, 2, 7, 16, 64)
_NUMBERS = (0, 0, 1, 1, 2, 3, 7, 16, 64, 1024, 4095, 2**31, 2**32 - 1)
_FLOATS = (0.0, 1.0, 0.5, -1.0, 1e30, float("inf"), float("nan"))
_TEXTS = ("", "a", "[a-z]+", "(", '{"type": "object"}', "len(X) < 3", 'start: "a"', "\0", "é" * 99)
_EXPECTED = ("OK", "INVALID_ARGUMENT", "FAILED_PRECONDITION", "NOT_FOUND", "RESOURCE_EXHAUSTED")
# What grpc says of bytes that are no message.
_NO_MESSAGE = "DecodeError"
# A step waits for the one before, which may never come.
_CALL_S = 2.0


@dataclass(slots=True)
class Found:
    """How the inputs of one part ended, and those that must not end so."""

    outcomes: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)

    def note(self, outcome: str, sent: object, *, is_fault: bool) -> None:
        self.outcomes[outcome] += 1
        if is_fault:
            self.faults.append(f"{outcome}: {str(sent)[:600]}")


class _Client:
    """Sends one part's inputs to a server."""

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
        outcome = "answered"
        is_fault = False
        try:
            async with asyncio.timeout(_END_S), connect(f"ws://127.0.0.1:{self._port}/lmtp") as on:
                for frame in frames:
                    await on.send(frame)
                with contextlib.suppress(TimeoutError):
                    while True:
                        await asyncio.wait_for(on.recv(), 0.2)
        except ConnectionClosed as error:
            code = error.rcvd.code if error.rcvd is not None else None
            outcome = f"closed {code}"
            is_fault = code in (None, 1011)
        except (TimeoutError, WebSocketException, OSError) as error:
            outcome = type(error).__name__
            is_fault = True
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


def _fuzz_server(name: str, num_inputs: int, seed: int) -> Found:
    found = Found()
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    with running(tandem(BUNDLED_MODEL, port, _FLAGS)):
        before = _answer(url)
        client = _Client(port, found, random.Random(f"{name} {seed}"))
        one = {"json": client.body, "bytes": client.raw, "lmtp": client.frames}[name]
        asyncio.run(_by_turns(one, num_inputs, name))
        if (after := _answer(url)) != before:
            found.faults.append(f"another text: {after!r}, before {before!r}")
        num_blocks = blocks_used(httpx.get(f"{url}/metrics", timeout=10).text)
        if num_blocks:
            found.faults.append(f"{num_blocks:g} KV blocks are taken")
    lines = _LOG.read_text().splitlines()
    found.faults += [f"log: {line}" for line in lines if "Traceback" in line]
    return found


def _fuzz_shard(num_inputs: int, seed: int) -> Found:
    """A shard alone; afterwards a router has to be served by it."""
    found = Found()
    draw = random.Random(f"grpc {seed}")
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder, "shard.log")
        path = f"{folder}/shard"
        argv = ("model_server", "serve", str(BUNDLED_MODEL), "--uds-path", path, "--device", "cpu")
        with process(log, *argv) as shard:
            until(shard, log, re.compile("is ready at (.*)"))
            asyncio.run(_call_shard(f"unix://{path}-0", num_inputs, draw, found))
            if shard.poll() is not None:
                found.faults.append(f"the shard ended: {log.read_text()[-600:]}")
            else:
                found.faults += _serve(Path(folder), f"{path}-0")
        # grpc itself logs bytes that are no message.
        found.faults += re.findall(r"^.* ERROR model_server.*$", log.read_text(), re.MULTILINE)
    return found


async def _call_shard(url: str, num_inputs: int, draw: random.Random, found: Found) -> None:
    async with grpc.aio.insecure_channel(url) as channel:
        for _ in progress(range(num_inputs), "grpc"):
            method = draw.choice(_SERVICE.methods)
            message = _random(method.input_type, draw, 0, method.name == "Warmup")
            sent: Any = message.SerializeToString()
            if draw.random() < 0.1:
                sent = draw.randbytes(draw.randrange(64))
            path = f"/{_SERVICE.full_name}/{method.name}"
            call: Any = channel.unary_unary(path)
            if method.client_streaming:
                sent = iter([sent])
                call = channel.stream_unary(path)
            code = "OK"
            detail = ""
            try:
                await call(sent, timeout=_CALL_S)
            except grpc.aio.AioRpcError as error:
                code = error.code().name
                detail = error.details() or ""
            is_step = method.name in ("Prefill", "Decode") and message.HasField("step")
            if _NO_MESSAGE in detail:
                code = "no message"
            elif code == "DEADLINE_EXCEEDED" and is_step:
                code = "step of another order"
            is_fault = code not in (*_EXPECTED, "no message", "step of another order")
            found.note(code, f"{method.name}: {detail[:300]} of {message}", is_fault=is_fault)
            if code == "UNAVAILABLE":
                return


def _random(descriptor: Any, draw: random.Random, depth: int, is_warmup: bool) -> Any:
    message = generate_pb2.__dict__[descriptor.name]()
    for each in descriptor.fields:
        # A step with a number waits for those before it.
        if draw.random() < (0.98 if each.name == "step" else 0.25):
            continue
        if each.message_type is not None and each.message_type.GetOptions().map_entry:
            getattr(message, each.name)[draw.choice(_NUMBERS)] = draw.choice(_FLOATS)
        elif each.is_repeated:
            values = [_value(each, draw, depth, is_warmup) for _ in range(draw.choice((0, 1, 3)))]
            getattr(message, each.name).extend(each for each in values if each is not None)
        elif each.message_type is None:
            setattr(message, each.name, _value(each, draw, depth, is_warmup))
        elif depth < 4:
            inner = _value(each, draw, depth, is_warmup)
            getattr(message, each.name).CopyFrom(inner)
    return message


def _value(each: Any, draw: random.Random, depth: int, is_warmup: bool) -> Any:
    if each.message_type is not None:
        return _random(each.message_type, draw, depth + 1, is_warmup)
    if each.enum_type is not None:
        return draw.choice(each.enum_type.values).number
    if each.cpp_type == each.CPPTYPE_STRING:
        text = draw.choice(_TEXTS)
        return text.encode() if each.type == each.TYPE_BYTES else text
    if each.cpp_type == each.CPPTYPE_BOOL:
        return draw.random() < 0.5
    if each.cpp_type in (each.CPPTYPE_FLOAT, each.CPPTYPE_DOUBLE):
        return draw.choice(_FLOATS)
    if each.name == "epoch":
        # A later one would make all that follow stale.
        return draw.choice((0, 1, 1, 1, 1, 1, 1, 1))
    number = draw.choice(_SIZES if is_warmup else _NUMBERS)
    return min(number, 2**31 - 1) if each.cpp_type == each.CPPTYPE_INT32 else number


def _serve(folder: Path, path: str) -> list[str]:
    """A router over the shard, which has to answer."""
    port = free_port()
    log = folder / "router.log"
    argv = ("router", "--port", str(port), "--master-shard-uds-path", path)
    with process(log, *argv, "--tokenizer-name", str(BUNDLED_MODEL)) as router:
        until(router, log, re.compile("ready at (.*)"))
        answer = httpx.post(f"http://127.0.0.1:{port}/generate", json=_PROBE, timeout=30.0)
    return [] if answer.status_code == 200 else [f"afterwards: {answer.status_code} {answer.text}"]


def raw_request(path: str, body: bytes) -> bytes:
    """The bytes of a POST."""
    head = f"POST {path} HTTP/1.1\r\n{_HEADERS}Content-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def changed_json(value: Any, draw: random.Random) -> Any:
    """A copy in which one to three values are another one, gone, or doubled under another name."""
    copy = json.loads(json.dumps(value))
    for _ in range(draw.randint(1, 3)):
        holders = list(_holders(copy))
        if not holders:
            break
        holder, key = draw.choice(holders)
        way = draw.random()
        if way < 0.15:
            del holder[key]
        elif way < 0.25 and isinstance(holder, dict):
            holder[f"{key}_"] = holder[key]
        else:
            holder[key] = json.loads(json.dumps(draw.choice(_VALUES)))
    return copy


def _holders(value: Any) -> list[tuple[Any, Any]]:
    """Every place in a value: its dict or list, and its key or index."""
    places: list[tuple[Any, Any]] = []
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, inner in list(items) if isinstance(value, dict | list) else []:
        places.append((value, key))
        if isinstance(inner, dict | list):
            places += _holders(inner)
    return places


def changed_bytes(sent: bytes, draw: random.Random) -> bytes:
    """A copy in which some bytes are turned, left out, doubled, or everything behind them is."""
    copy = bytearray(sent)
    for _ in range(draw.choice((1, 1, 2, 5, 20))):
        at = draw.randrange(len(copy) + 1)
        length = draw.choice((1, 1, 2, 8, 64))
        way = draw.randrange(5)
        if way == 0:
            copy[at : at + length] = draw.randbytes(length)
        elif way == 1:
            del copy[at : at + length]
        elif way == 2:
            copy[at:at] = copy[at : at + length]
        elif way == 3:
            copy[at:at] = draw.choice((b"\r\n", b"\0", b"Transfer-Encoding: chunked\r\n", b"\xff"))
        elif draw.random() < 0.2:
            del copy[at:]
    return bytes(copy)


def main(argv: Sequence[str]) -> int:
    """Answers the exit code."""
    parser = parser_of(__doc__)
    parser.add_argument("--inputs", type=int, default=20_000, help="for each part")
    parser.add_argument("--parts", default="json,bytes,lmtp,grpc", help="separated by commas")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(argv)
    num_faults = 0
    for name in args.parts.split(","):
        if name == "grpc":
            found = _fuzz_shard(args.inputs, args.seed)
        else:
            found = _fuzz_server(name, args.inputs, args.seed)
        num_faults += len(found.faults)
        row = {"part": name, "outcomes": found.outcomes, "faults": found.faults[:20]}
        sys.stdout.write(json.dumps(row, ensure_ascii=False) + "\n")
        sys.stdout.flush()
    return 1 if num_faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
