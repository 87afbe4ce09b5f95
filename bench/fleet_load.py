"""Replicas of a model under prompts that share their beginnings: a front, and in turns round robin.

    python -m bench.fleet_load --model /tmp/llama-100m [--rates 2,4] [--system-len 512] [--rounds 3]

Starts four servers of one thread each and a front that knows them by `--replica`. A load is of
conversations below system prompts, which some ask for more often than others (Zipf's law); new
texts each time, so that nobody knows them before. Round robin sends them to the servers themselves,
one after the other. KV pools hold two thirds of the system prompts. Prints a line of JSON for each
load: milliseconds to the first token, and goodput: the tokens a second of requests whose first came
in time. The first quarter warms up. Exit code 1 when a request failed.
"""

import asyncio
import contextlib
import json
import random
import signal
import statistics
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import cycle
from pathlib import Path

from tokenizers import Tokenizer

from bench.command_line import parser_of, progress
from bench.load import Load, Target, Trace, body_of, open_loop, plain_words
from bench.processes import Server, running, tandem
from processes.addresses import free_port

_NUM_REPLICAS = 4
_NUM_SYSTEMS = 12
_NUM_USERS = 24
_NUM_TURNS = 4
_MESSAGE_LEN = 24
_OUTPUT_LEN = 16
_BLOCK_LEN = 16
_MAX_TOTAL_LEN = 4096
_ONE_THREAD = {"OMP_NUM_THREADS": "1"}


def prompts_of(words: Sequence[str], num_requests: int, system_len: int, seed: int) -> list[str]:
    """Each is a system prompt and a conversation so far, which grows by four turns."""
    draw = random.Random(seed)
    weights = [1 / number**0.8 for number in range(1, _NUM_SYSTEMS + 1)]
    systems = ["".join(draw.choices(words, k=system_len)) for _ in weights]
    of_users = draw.choices(systems, weights, k=_NUM_USERS)
    histories: list[list[str]] = [[] for _ in of_users]
    prompts = []
    for _ in range(num_requests):
        user = draw.randrange(_NUM_USERS)
        if len(histories[user]) == _NUM_TURNS:
            histories[user].clear()
        histories[user].append("".join(draw.choices(words, k=_MESSAGE_LEN)))
        prompts.append(of_users[user] + "".join(histories[user]))
    return prompts


@contextlib.contextmanager
def _served(model: Path, system_len: int) -> Iterator[tuple[str, list[str]]]:
    """The URLs of a front and of its replicas."""
    num_blocks = max(_NUM_SYSTEMS * system_len * 2 // 3, _MAX_TOTAL_LEN) // _BLOCK_LEN
    flags = ("--kv-blocks", str(num_blocks), "--max-total-tokens", str(_MAX_TOTAL_LEN))
    with contextlib.ExitStack() as stack:
        urls = []
        for number in range(_NUM_REPLICAS):
            server = tandem(model, free_port(), flags)
            own = {**server.environ, **_ONE_THREAD}
            stack.enter_context(running(replace(server, name=f"replica-{number}", environ=own)))
            urls.append(server.target.url)
        port = free_port()
        words = [word for url in urls for word in ("--replica", url)]
        command = (sys.executable, "-m", "launcher", "serve", *words, "--port", str(port))
        front = Target(f"http://127.0.0.1:{port}", "tgi")
        stack.enter_context(running(Server("front", command, f"{front.url}/health/ready", front)))
        yield front.url, urls


def figures_of(traces: Sequence[Trace], good_s: float) -> dict[str, float]:
    """Of all but the first quarter, by the time of their arrival."""
    begun_s = traces[0].started_s
    warm_s = begun_s + (traces[-1].started_s - begun_s) / 4
    counted = [trace for trace in traces if trace.started_s >= warm_s]
    served = [trace for trace in counted if trace.error is None]
    firsts_s = [trace.token_times_s[0] for trace in served]
    cuts = statistics.quantiles(firsts_s, n=100, method="inclusive")
    good = [trace for trace in served if trace.token_times_s[0] <= good_s]
    ended_s = max(trace.ended_s for trace in counted)
    return {
        "num_requests": len(counted),
        "num_errors": sum(trace.error is not None for trace in traces),
        "ttft_ms_p50": round(1000 * cuts[49], 1),
        "ttft_ms_p99": round(1000 * cuts[98], 1),
        "goodput_tokens_per_s": round(sum(x.num_tokens for x in good) / (ended_s - warm_s), 1),
        "good_share": round(len(good) / len(counted), 3),
    }


def main(argv: Sequence[str]) -> int:
    """Answers the exit code."""
    parser = parser_of(__doc__)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--rates", default="4", help="requests a second in all, one after another")
    parser.add_argument("--system-len", type=int, default=512, help="tokens of a system prompt")
    parser.add_argument("--requests", type=int, default=140, help="of each load")
    parser.add_argument("--rounds", type=int, default=3, help="a load by each way at each rate")
    parser.add_argument("--seed", type=int, default=0, help="of the first round")
    parser.add_argument("--good", type=float, default=1.0, help="seconds to a first token in time")
    args = parser.parse_args(argv)
    words = plain_words(Tokenizer.from_file(str(args.model / "tokenizer.json")))
    # So that no server is left behind.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    num_errors = 0
    with _served(args.model, args.system_len) as (front, urls):
        rates = [float(rate) for rate in args.rates.split(",")] * args.rounds
        for number, rate in enumerate(progress(rates, "rates"), start=args.seed):
            ways = {"round robin": urls, "front": [front]}
            for way in sorted(ways, reverse=bool(number % 2)):
                seed = 2 * number + (way == "front")
                load = Load(args.requests, 1, _OUTPUT_LEN, rate=rate, seed=number)
                bodies = [
                    body_of(Target(front, "tgi"), load, prompt)
                    for prompt in prompts_of(words, args.requests, args.system_len, seed)
                ]
                posted = [f"{url}/generate_stream" for url in ways[way]]
                draw = random.Random(number)
                traces = asyncio.run(open_loop(cycle(posted), iter(bodies), rate, draw))
                figures = figures_of(traces, args.good)
                num_errors += sum(trace.error is not None for trace in traces)
                row = {"way": way, "rate": rate, **figures}
                sys.stdout.write(json.dumps(row) + "\n")
                sys.stdout.flush()
    return 1 if num_errors else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
