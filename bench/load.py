"""Load on a server that speaks TGI's or OpenAI's API: throughput and latencies, as JSON.

    python -m bench.load --url http://127.0.0.1:3000 --api tgi --tokenizer models/demo \\
        --concurrency 8 --requests 64 --prompt-len 128 --output-len 128

Closed loop (`--concurrency N`): N clients, each sends its next request when the last has ended.
Open loop (`--rate R`): requests arrive at random, R a second on average, whatever the server does.
Prompts are random tokens of the named tokenizer, of exactly `--prompt-len` tokens, different for
each request, so that no prefix cache helps.
"""

import asyncio
import json
import random
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import repeat
from pathlib import Path

from tokenizers import Tokenizer

from bench.command_line import parser_of, progress
from bench.sse_client import HttpError, post_events

APIS = ("tgi", "openai", "chat")


@dataclass(frozen=True, slots=True)
class Target:
    """A server and how to speak to it; `extra` are fields of every body that others refuse."""

    url: str
    api: str
    model: str = "tgi"
    extra: Mapping[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.api not in APIS:
            raise ValueError(f"api {self.api!r}: must be one of {', '.join(APIS)}")


@dataclass(frozen=True, slots=True)
class Load:
    """The requests to send. Exactly one of `concurrency` and `rate` (requests a second) is set."""

    num_requests: int
    prompt_len: int
    output_len: int
    concurrency: int | None = None
    rate: float | None = None
    seed: int = 0
    temperature: float = 0.0

    def __post_init__(self) -> None:
        if (self.concurrency is None) == (self.rate is None):
            raise ValueError("give either concurrency or rate")
        if min(self.num_requests, self.prompt_len, self.output_len) < 1:
            raise ValueError("num_requests, prompt_len and output_len must be at least 1")


@dataclass(slots=True)
class Trace:
    """One request as its client saw it; times in seconds since `started_s`."""

    started_s: float
    token_times_s: list[float] = field(default_factory=list)
    num_tokens: int = 0
    error: str | None = None
    ended_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Report:
    """The figures of one run; latencies in milliseconds."""

    num_requests: int
    num_errors: int
    errors: dict[str, int]
    wall_s: float
    num_output_tokens: int
    output_tokens_per_s: float
    ttft_ms_p50: float
    ttft_ms_p99: float
    itl_ms_p50: float
    itl_ms_p99: float
    latency_ms_p50: float
    latency_ms_p99: float


def random_prompts(tokenizer: Tokenizer, load: Load) -> list[str]:
    """`num_requests` texts, each `prompt_len` tokens long when encoded again."""
    draw = random.Random(load.seed)
    words = plain_words(tokenizer)
    prompts = []
    for _ in range(load.num_requests):
        text = "".join(draw.choice(words) for _ in range(load.prompt_len))
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        # Neighbouring pieces may merge: add until it is long enough, then cut.
        while len(ids) < load.prompt_len:
            text += draw.choice(words)
            ids = tokenizer.encode(text, add_special_tokens=False).ids
        prompts.append(tokenizer.decode(ids[: load.prompt_len]))
    return prompts


def plain_words(tokenizer: Tokenizer) -> list[str]:
    """A space and letters each, of a token each. Raises ValueError where there are none."""
    texts = (tokenizer.decode([i]) for i in range(min(tokenizer.get_vocab_size(), 20000)))
    words = [
        text for text in texts if text.startswith(" ") and text[1:].isascii() and text[1:].isalpha()
    ]
    if not words:
        raise ValueError("the tokenizer has no token that is a space and ASCII letters")
    return words


async def run(
    target: Target, load: Load, prompts: Sequence[str], *, shows_progress: bool = False
) -> Report:
    """Send every prompt once and report."""
    asked = [body_of(target, load, prompt) for prompt in prompts]
    bodies = progress(asked, "requests") if shows_progress else iter(asked)
    url = target.url.rstrip("/") + _PATHS[target.api]
    started_s = time.perf_counter()
    if load.concurrency is not None:
        traces = await _closed_loop(url, bodies, load.concurrency)
    else:
        assert load.rate is not None
        traces = await open_loop(repeat(url), bodies, load.rate, random.Random(load.seed))
    return report(traces, time.perf_counter() - started_s)


async def _closed_loop(url: str, bodies: Iterator[bytes], concurrency: int) -> list[Trace]:
    traces: list[Trace] = []

    async def client() -> None:
        for body in bodies:
            traces.append(await _one(url, body))

    await asyncio.gather(*(client() for _ in range(concurrency)))
    return traces


async def open_loop(
    urls: Iterator[str], bodies: Iterator[bytes], rate: float, draw: random.Random
) -> list[Trace]:
    """What became of each body, posted to the next URL at random times, `rate` a second."""
    tasks = []
    for url, body in zip(urls, bodies, strict=False):
        tasks.append(asyncio.create_task(_one(url, body)))
        await asyncio.sleep(draw.expovariate(rate))
    return list(await asyncio.gather(*tasks))


async def _one(url: str, body: bytes) -> Trace:
    trace = Trace(started_s=time.perf_counter())
    try:
        async for payload in post_events(url, body):
            if payload == b"[DONE]":
                break
            _note(trace, payload)
    except HttpError as error:
        trace.error = f"HTTP {error.status}"
    except (OSError, asyncio.IncompleteReadError, ValueError) as error:
        trace.error = type(error).__name__
    trace.ended_s = time.perf_counter()
    if trace.error is None and trace.num_tokens == 0:
        trace.error = "no token"
    return trace


def _note(trace: Trace, payload: bytes) -> None:
    event = json.loads(payload)
    if "error" in event:
        trace.error = str(event.get("error_type") or event["error"])
        return
    usage = event.get("usage")
    if usage:
        trace.num_tokens = usage["completion_tokens"]
    if "token" in event or any(_says_something(choice) for choice in event.get("choices", ())):
        trace.token_times_s.append(time.perf_counter() - trace.started_s)
        if not usage:
            trace.num_tokens = max(trace.num_tokens, len(trace.token_times_s))


def _says_something(choice: dict[str, object]) -> bool:
    delta = choice.get("delta")
    text = delta.get("content") if isinstance(delta, dict) else choice.get("text")
    return bool(text)


def body_of(target: Target, load: Load, prompt: str) -> bytes:
    """The request for a prompt."""
    sampling = load.temperature > 0
    if target.api == "tgi":
        parameters: dict[str, object] = {"max_new_tokens": load.output_len, "ignore_eos": True}
        if sampling:
            parameters |= {"do_sample": True, "temperature": load.temperature, "seed": load.seed}
        return json.dumps({"inputs": prompt, "parameters": parameters}).encode()
    body: dict[str, object] = {
        "model": target.model,
        "max_tokens": load.output_len,
        "temperature": load.temperature,
        "stream": True,
        "stream_options": {"include_usage": True},
        **target.extra,
    }
    if target.api == "chat":
        return json.dumps(body | {"messages": [{"role": "user", "content": prompt}]}).encode()
    return json.dumps(body | {"prompt": prompt}).encode()


_PATHS = {"tgi": "/generate_stream", "openai": "/v1/completions", "chat": "/v1/chat/completions"}


def report(traces: Sequence[Trace], wall_s: float) -> Report:
    """The figures of requests that took `wall_s` seconds together."""
    good = [trace for trace in traces if trace.error is None]
    gaps = [
        later - earlier
        for trace in good
        for earlier, later in zip(trace.token_times_s, trace.token_times_s[1:], strict=False)
    ]
    first = [trace.token_times_s[0] for trace in good if trace.token_times_s]
    whole = [trace.ended_s - trace.started_s for trace in good]
    num_tokens = sum(trace.num_tokens for trace in good)
    return Report(
        num_requests=len(traces),
        num_errors=len(traces) - len(good),
        errors=dict(Counter(trace.error for trace in traces if trace.error is not None)),
        wall_s=round(wall_s, 3),
        num_output_tokens=num_tokens,
        output_tokens_per_s=round(num_tokens / wall_s, 1),
        ttft_ms_p50=_percentile_ms(first, 50),
        ttft_ms_p99=_percentile_ms(first, 99),
        itl_ms_p50=_percentile_ms(gaps, 50),
        itl_ms_p99=_percentile_ms(gaps, 99),
        latency_ms_p50=_percentile_ms(whole, 50),
        latency_ms_p99=_percentile_ms(whole, 99),
    )


def _percentile_ms(seconds: Sequence[float], percent: int) -> float:
    if len(seconds) < 2:
        return round(1000 * sum(seconds), 2)
    return round(1000 * statistics.quantiles(seconds, n=100, method="inclusive")[percent - 1], 2)


def main(argv: Sequence[str], write: Callable[[str], object] = sys.stdout.write) -> int:
    """Answers the exit code: 1 when any request failed."""
    parser = parser_of(__doc__)
    parser.add_argument("--url", default="http://127.0.0.1:3000")
    parser.add_argument("--api", choices=APIS, default="tgi")
    parser.add_argument("--model", default="tgi", help="model name for OpenAI's APIs")
    parser.add_argument("--tokenizer", type=Path, required=True, help="folder of the model")
    loop = parser.add_mutually_exclusive_group()
    loop.add_argument("--concurrency", type=int)
    loop.add_argument("--rate", type=float, help="requests a second")
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--prompt-len", type=int, default=128)
    parser.add_argument("--output-len", type=int, default=128)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(argv)
    concurrency = args.concurrency or (8 if args.rate is None else None)
    load = Load(
        num_requests=args.requests,
        prompt_len=args.prompt_len,
        output_len=args.output_len,
        concurrency=concurrency,
        rate=args.rate,
        seed=args.seed,
        temperature=args.temperature,
    )
    tokenizer = Tokenizer.from_file(str(args.tokenizer / "tokenizer.json"))
    target = Target(args.url, args.api, args.model)
    done = asyncio.run(run(target, load, random_prompts(tokenizer, load), shows_progress=True))
    write(json.dumps({"target": asdict(target), "load": asdict(load)} | asdict(done)) + "\n")
    return 1 if done.num_errors else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
