"""Tandem against a peer on the same model, interleaved, as ratios.

    python -m bench.compare --model /path/to/model --peer transformers --concurrency 8 --rounds 3

The peer lives in an environment of its own (`pip install "transformers[serving]" accelerate` and
our torch), whose bin folder is `--peer-bin`. Both servers stay up all the time and only one of them
works at a moment: A B A B ... A machine whose speed drifts then slows both alike, so the ratio of
each pair holds where single figures do not. `--peer-url` compares with a server that runs already.
"""

import argparse
import asyncio
import contextlib
import json
import shlex
import signal
import statistics
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

from tokenizers import Tokenizer

from bench.load import Load, Report, Target, random_prompts, run
from bench.processes import Server, running, tandem

_METRICS = ("output_tokens_per_s", "ttft_ms_p50", "itl_ms_p50", "itl_ms_p99", "latency_ms_p50")


def transformers_serve(model: Path, port: int, peer_bin: Path) -> Server:
    """`transformers serve` with continuous batching, as its documentation says.

    Without a number of blocks it would take most of the free memory for its KV cache.
    """
    url = f"http://127.0.0.1:{port}"
    command = (
        str(peer_bin / "transformers"),
        *("serve", str(model), "--device", "cpu", "--dtype", "bfloat16", "--port", str(port)),
        *("--continuous-batching", "--cb-block-size", "16", "--cb-num-blocks", "1024"),
        *("--cb-max-batch-tokens", "2048"),
    )
    return Server("transformers", command, f"{url}/health", Target(url, "openai", str(model)))


def compare(
    a: Target, b: Target, load: Load, tokenizer: Tokenizer, rounds: int
) -> dict[str, object]:
    """A B A B ...; the figures of each round and the median ratio A/B of each metric."""
    warm_up = replace(load, num_requests=4, output_len=8, concurrency=4, seed=load.seed - 1)
    for target in (a, b):
        asyncio.run(run(target, warm_up, random_prompts(tokenizer, warm_up)))
    pairs: list[tuple[Report, Report]] = []
    for number in range(rounds):
        # New prompts each round: a prefix cache is not what is compared here.
        part = replace(load, seed=load.seed + number)
        prompts = random_prompts(tokenizer, part)
        pair = (asyncio.run(run(a, part, prompts)), asyncio.run(run(b, part, prompts)))
        pairs.append(pair)
        sys.stderr.write(f"round {number + 1}: {_line(pair[0])} against {_line(pair[1])}\n")
    ratios = {
        metric: round(
            statistics.median(getattr(x, metric) / getattr(y, metric) for x, y in pairs), 3
        )
        for metric in _METRICS
    }
    return {
        "a": asdict(a),
        "b": asdict(b),
        "load": asdict(load),
        "rounds": [{"a": asdict(x), "b": asdict(y)} for x, y in pairs],
        "median_ratio_a_to_b": ratios,
    }


def _line(report: Report) -> str:
    return (
        f"{report.output_tokens_per_s:.0f} tok/s, TTFT {report.ttft_ms_p50:.0f} ms, "
        f"ITL {report.itl_ms_p50:.1f} ms, {report.num_errors} errors"
    )


def main(argv: Sequence[str]) -> int:
    """The command line; prints one JSON object."""
    parser = argparse.ArgumentParser(prog="python -m bench.compare", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--peer", choices=("transformers",), default="transformers")
    parser.add_argument(
        "--peer-bin",
        type=Path,
        default=Path(sys.executable).parent,
        help="bin folder of the environment in which transformers[serving] is installed",
    )
    parser.add_argument("--peer-url", help="a peer that runs already (OpenAI's completions)")
    parser.add_argument("--concurrency", type=int, default=8)
    parser.add_argument("--requests", type=int)
    parser.add_argument("--prompt-len", type=int, default=128)
    parser.add_argument("--output-len", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--port", type=int, default=18300)
    parser.add_argument("--tandem-flags", default="", help="further flags of launcher serve")
    args = parser.parse_args(argv)
    # Ended by a signal, the servers must end as well: leave by an exception, not at once.
    signal.signal(signal.SIGTERM, lambda signum, frame: sys.exit(128 + signum))
    load = Load(
        num_requests=args.requests or 4 * args.concurrency,
        prompt_len=args.prompt_len,
        output_len=args.output_len,
        concurrency=args.concurrency,
    )
    tokenizer = Tokenizer.from_file(str(args.model / "tokenizer.json"))
    ours = tandem(args.model, args.port, shlex.split(args.tandem_flags))
    peer = transformers_serve(args.model, args.port + 1, args.peer_bin)
    with contextlib.ExitStack() as stack:
        stack.enter_context(running(ours))
        if args.peer_url:
            other = Target(args.peer_url, "openai", str(args.model))
        else:
            stack.enter_context(running(peer))
            other = peer.target
        result = compare(ours.target, other, load, tokenizer, args.rounds)
    sys.stdout.write(json.dumps(result) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
