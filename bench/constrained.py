"""All requests constrained against none: what do exact masks cost, or save?

    python -m bench.constrained --model FOLDER [--concurrency 32] [--requests 64] [--rounds 3]

Starts `launcher serve` on the model and, round after round, sends the same prompts with a JSON
schema, with a `where` expression, and plain. Each plain request is asked for exactly as many
tokens as its constrained twin made, so the lengths are the same; the ratios are those of output
tokens a second. `--first-token N` measures instead how much later the first token of N requests
comes, each with a JSON schema that the server has never seen, than that of plain ones beside them.
Prints JSON.
"""

import argparse
import asyncio
import json
import random
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from bench.command_line import parser_of, progress
from bench.load import Load, random_prompts
from bench.processes import running, tandem
from bench.sse_client import post_events
from processes.addresses import free_port

_PROMPT_LEN = 128
_OUTPUT_LEN = 192
_REST_S = 0.25
# Long enough to be worth measuring: rows of records, and sentences.
_JSON: Mapping[str, Any] = {
    "type": "array",
    "minItems": 3,
    "items": {
        "type": "object",
        "properties": {
            "name": {"type": "string", "minLength": 3, "maxLength": 24},
            "quantity": {"type": "integer", "minimum": 0, "maximum": 9999},
            "tags": {"type": "array", "items": {"enum": ["new", "old", "sold"]}, "maxItems": 3},
            "available": {"type": "boolean"},
        },
        "required": ["name", "quantity", "tags", "available"],
        "additionalProperties": False,
    },
}
_WHERE = (
    'len(words(X)) > 30 and len(X) < 1500 and "\\n" not in X and stops_at(X, ".")'
    ' and "Tweet" not in X'
)
_GRAMMARS: Mapping[str, Mapping[str, Any]] = {
    "json": {"type": "json", "value": _JSON},
    "where": {"type": "where", "value": _WHERE},
}


def _body(prompt: str, seed: int, output_len: int, grammar: Mapping[str, Any] | None) -> bytes:
    parameters: dict[str, Any] = {
        "max_new_tokens": output_len,
        "do_sample": True,
        "temperature": 1.0,
        "seed": seed,
    }
    if grammar is None:
        # The same length as the twin's, whatever the model wants.
        parameters["min_new_tokens"] = output_len
    else:
        parameters["grammar"] = grammar
    return json.dumps({"inputs": prompt, "parameters": parameters}).encode()


async def _answer(url: str, body: bytes) -> int:
    """Tokens of one answer."""
    num_tokens = 0
    async for payload in post_events(f"{url}/generate_stream", body):
        event = json.loads(payload)
        if "error" in event:
            raise ValueError(payload.decode())
        num_tokens += 1
    return num_tokens


async def _all(url: str, bodies: Sequence[bytes], concurrency: int) -> tuple[list[int], float]:
    """Each answer's tokens, and the seconds that all took."""
    gate = asyncio.Semaphore(concurrency)

    async def one(body: bytes) -> int:
        async with gate:
            return await _answer(url, body)

    started_s = time.perf_counter()
    lengths = await asyncio.gather(*(one(body) for body in bodies))
    return list(lengths), time.perf_counter() - started_s


async def _throughput(url: str, model: Path, args: argparse.Namespace) -> dict[str, object]:
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    ratios: dict[str, list[float]] = {kind: [] for kind in _GRAMMARS}
    rates: dict[str, list[float]] = {kind: [] for kind in (*_GRAMMARS, "plain")}
    mean_len: dict[str, float] = {}
    for round_number in progress(range(args.rounds), "rounds"):
        for kind, grammar in _GRAMMARS.items():
            seed = round_number * 2 + (kind == "json")
            # The twins have prompts of their own, so that no prefix cache helps one of them.
            prompts, twins = (
                random_prompts(tokenizer, Load(args.requests, _PROMPT_LEN, _OUTPUT_LEN, 1, seed=at))
                for at in (seed, seed + 1000)
            )
            bodies = [_body(p, i, _OUTPUT_LEN, grammar) for i, p in enumerate(prompts)]
            lengths, took_s = await _all(url, bodies, args.concurrency)
            bodies = [_body(p, i, lengths[i], None) for i, p in enumerate(twins)]
            plain_lengths, plain_s = await _all(url, bodies, args.concurrency)
            rate, plain_rate = sum(lengths) / took_s, sum(plain_lengths) / plain_s
            mean_len[kind] = statistics.mean(lengths)
            rates[kind].append(round(rate, 1))
            rates["plain"].append(round(plain_rate, 1))
            ratios[kind].append(round(rate / plain_rate, 3))
    return {
        "ratio": {kind: statistics.median(found) for kind, found in ratios.items()},
        "ratios": ratios,
        "tokens_per_s": rates,
        "mean_output_len": mean_len,
    }


def _new_schema(draw: random.Random) -> dict[str, Any]:
    """A schema that nobody has asked for before."""
    names = ["".join(draw.choices("abcdefghijklmnopqrstuvwxyz", k=8)) for _ in range(6)]
    kinds: list[dict[str, Any]] = [
        {"type": "string"},
        {"type": "integer"},
        {"type": "array", "items": {"type": "string"}, "maxItems": 5},
        {"type": "object", "properties": {names[0]: {"type": "number"}}, "required": [names[0]]},
        {"enum": draw.sample(names, k=3)},
    ]
    properties = {name: draw.choice(kinds) for name in names}
    return {
        "type": "object",
        "properties": properties,
        "required": names[: draw.randint(1, 6)],
        "additionalProperties": False,
    }


async def _first_token_s(url: str, body: bytes) -> float:
    """Of a request to a server at rest: what the one before it left behind is over."""
    await asyncio.sleep(_REST_S)
    started_s = time.perf_counter()
    async for payload in post_events(f"{url}/generate_stream", body):
        if "error" in json.loads(payload):
            raise ValueError(payload.decode())
        return time.perf_counter() - started_s
    raise ValueError("no token came")


async def _first_tokens(url: str, num_schemas: int) -> dict[str, object]:
    draw = random.Random(0)
    await _first_token_s(url, _body("Warm", 0, 256, {"type": "json", "value": _new_schema(draw)}))
    delays_ms = []
    for number in range(num_schemas):
        grammar = {"type": "json", "value": _new_schema(draw)}
        prompt = f"Record {draw.random()}"
        plain_s = await _first_token_s(url, _body(f"{prompt} p", number, 256, None))
        new_s = await _first_token_s(url, _body(f"{prompt} c", number, 256, grammar))
        delays_ms.append((new_s - plain_s) * 1e3)
    cuts = statistics.quantiles(delays_ms, n=100, method="inclusive")
    return {
        "num_schemas": num_schemas,
        "delay_ms": {"p50": cuts[49], "p90": cuts[89], "p99": cuts[98], "max": max(delays_ms)},
    }


def main(argv: Sequence[str]) -> int:
    """The command line."""
    parser = parser_of(__doc__)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--concurrency", type=int, default=32)
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--first-token", type=int, default=0, metavar="N")
    args = parser.parse_args(argv)
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    with running(tandem(args.model, port, ("--max-concurrent-requests", "256"))):
        if args.first_token:
            report = asyncio.run(_first_tokens(url, args.first_token))
        else:
            report = asyncio.run(_throughput(url, args.model, args))
    sys.stdout.write(json.dumps(report, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
