"""Random messages for each call of a real shard; afterwards a router has to be served by it."""

import asyncio
import random
import re
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import grpc
import httpx

from bench.command_line import progress
from bench.processes import process, until
from launcher import BUNDLED_MODEL
from processes.addresses import free_port
from proto import generate_pb2

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
_BODY = {"inputs": "The weather in winter", "parameters": {"max_new_tokens": 16}}


def fuzz_shard(num_inputs: int, seed: int) -> tuple[Counter[str], list[str]]:
    """The outcomes, and those that must not be."""
    draw = random.Random(f"grpc {seed}")
    outcomes: Counter[str] = Counter()
    faults: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        log, path = Path(folder, "shard.log"), f"{folder}/shard"
        argv = ("model_server", "serve", str(BUNDLED_MODEL), "--uds-path", path, "--device", "cpu")
        with process(log, *argv) as shard:
            until(shard, log, re.compile("is ready at (.*)"))
            asyncio.run(_send(f"unix://{path}-0", num_inputs, draw, outcomes, faults))
            if shard.poll() is not None:
                faults.append(f"the shard ended: {log.read_text()[-600:]}")
            else:
                faults += _serve(Path(folder), f"{path}-0")
        # grpc itself logs bytes that are no message.
        faults += re.findall(r"^.* ERROR model_server.*$", log.read_text(), re.MULTILINE)
    return outcomes, faults


async def _send(
    url: str, num_inputs: int, draw: random.Random, outcomes: Counter[str], faults: list[str]
) -> None:
    async with grpc.aio.insecure_channel(url) as channel:
        for _ in progress(range(num_inputs), "grpc"):
            method = draw.choice(_SERVICE.methods)
            message = _random(method.input_type, draw, 0, method.name == "Warmup")
            sent = message.SerializeToString()
            if draw.random() < 0.1:
                sent = draw.randbytes(draw.randrange(64))
            call: Any = channel.unary_unary(f"/{_SERVICE.full_name}/{method.name}")
            try:
                await call(sent, timeout=_CALL_S)
                code, detail = "OK", ""
            except grpc.aio.AioRpcError as error:
                code, detail = error.code().name, error.details() or ""
            if _NO_MESSAGE in detail:
                code = "no message"
            elif code == "DEADLINE_EXCEEDED" and method.name in ("Prefill", "Decode"):
                code = "step of another order" if message.HasField("step") else code
            outcomes[code] += 1
            if code not in (*_EXPECTED, "no message", "step of another order"):
                faults.append(f"{method.name} {code}: {detail[:300]} of {str(message)[:300]}")
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
    port, log = free_port(), folder / "router.log"
    argv = ("router", "--port", str(port), "--master-shard-uds-path", path)
    with process(log, *argv, "--tokenizer-name", str(BUNDLED_MODEL)) as router:
        until(router, log, re.compile("ready at (.*)"))
        answer = httpx.post(f"http://127.0.0.1:{port}/generate", json=_BODY, timeout=30.0)
    return [] if answer.status_code == 200 else [f"afterwards: {answer.status_code} {answer.text}"]
