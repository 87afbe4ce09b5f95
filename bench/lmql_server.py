"""The unmodified lmql against Tandem and against LMQL's own server, on the same model.

    make conformance-install
    python -m bench.lmql_server --rounds 2

Both servers stay up, one works at a time: A B A B. Eight queries of lmql 0.7.3 at a time, each with
a connection of its own, in the same dtype on both: in float32 their greedy texts are equal, in
bfloat16 rounding parts them. What is asked is in `bench/lmql_queries.py`; beside the ratio of each
kind of query stands their geometric mean, in which every kind counts the same. LMQL's server runs
with Tandem's torch and transformers, since its own environment has no torch. Prints JSON.
"""

import argparse
import contextlib
import itertools
import json
import os
import signal
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from tokenizers import Tokenizer

from bench.compare import running, tandem
from bench.lmql_queries import FewShot, few_shot, short
from launcher import BUNDLED_MODEL
from processes.addresses import free_port

HERE = Path(__file__).parent
LMQL_PYTHON = HERE.parent / ".venv-conformance" / "lmql" / "bin" / "python"
_READY_TIMEOUT_S = 180.0
_ROUND_TIMEOUT_S = 900.0
_SAMPLE, _BEAM = "sample(n=2, temperature=0.9)", "beam(n=2)"
_SHORT = {"short": "argmax", "short-sample": _SAMPLE, "short-beam": _BEAM}
_FEW_SHOT = {
    "few-shot": FewShot(),
    "few-shot-sample": FewShot(decoder=_SAMPLE),
    "few-shot-beam": FewShot(decoder=_BEAM),
    "distribution": FewShot(distributes=True),
}
_QUERIES = (*_SHORT, *_FEW_SHOT)
_WARM_UP_TOKENS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """One server's texts, hole by hole, and how quickly its tokens came.

    `client_s`: what lmql's own process computed meanwhile.
    """

    texts: tuple[tuple[str, ...], ...]
    num_tokens: int
    wall_s: float
    client_s: float

    @property
    def tokens_per_s(self) -> float:
        return self.num_tokens / self.wall_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """One round on either server."""

    tandem: Round
    lmql: Round

    @property
    def ratio(self) -> float:
        return self.tandem.tokens_per_s / self.lmql.tokens_per_s

    @property
    def num_equal(self) -> int:
        return sum(a == b for a, b in zip(self.tandem.texts, self.lmql.texts, strict=True))


@contextlib.contextmanager
def lmql_server(model: Path, port: int, dtype: str, home: str) -> Iterator[None]:
    """LMQL's own server; ended with the block."""
    words = (sysconfig.get_path("purelib"), str(model), str(port), dtype)
    log = Path(home) / "lmql-server.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [str(LMQL_PYTHON), str(HERE / "lmql_peer.py"), *words],
            stdout=output,
            stderr=output,
            env=_environment(home),
        )
    try:
        deadline_s = time.monotonic() + _READY_TIMEOUT_S
        while b"ready on device" not in log.read_bytes():
            if process.poll() is not None or time.monotonic() > deadline_s:
                raise RuntimeError(f"LMQL's server did not start: {log.read_text()}")
            time.sleep(0.2)
        yield
    finally:
        process.terminate()
        process.wait(20)


def readable_tokenizer(model: Path, folder: Path) -> str:
    """A folder with the model's tokenizer under the class name that transformers 4 knows."""
    folder.mkdir(exist_ok=True)
    (folder / "tokenizer.json").write_bytes((model / "tokenizer.json").read_bytes())
    config = json.loads((model / "tokenizer_config.json").read_text())
    config["tokenizer_class"] = "PreTrainedTokenizerFast"
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return str(folder)


def ask(port: int, model: Path, programs: Mapping[str, Sequence[str]], home: str) -> Round:
    """One process of lmql's: a warm-up and a measured round."""
    tokenizer = readable_tokenizer(model, Path(home) / "tokenizer")
    asked = Path(home) / "programs.json"
    asked.write_text(json.dumps(programs))
    words = (f"127.0.0.1:{port}", str(model), tokenizer, str(asked))
    done = subprocess.run(
        [str(LMQL_PYTHON), str(HERE / "lmql_client.py"), *words],
        capture_output=True,
        text=True,
        timeout=_ROUND_TIMEOUT_S,
        env=_environment(home),
    )
    if done.returncode:
        raise RuntimeError(f"lmql ended with {done.returncode}:\n{done.stderr}")
    told = json.loads(done.stdout.splitlines()[-1])
    told["texts"] = tuple(map(tuple, told["texts"]))
    return Round(**told)


def programs_of(queries: str, number: int, args: argparse.Namespace) -> dict[str, list[str]]:
    """The programs of one round: some to warm up with, and those that are measured."""
    if decoder := _SHORT.get(queries):
        return {
            "warm_up": short(args.parallel, _WARM_UP_TOKENS, decoder),
            "measured": short(args.parallel, args.tokens, decoder),
        }
    tokenizer = Tokenizer.from_file(str(args.model / "tokenizer.json"))
    lengths = {"examples_len": args.examples_tokens, "reasoning_len": args.reasoning_tokens}
    asked = replace(_FEW_SHOT[queries], **lengths)
    seed = f"{queries}/{number}"
    return {
        # One: LMQL's own server takes long for many.
        "warm_up": few_shot(1, tokenizer, f"warm-up/{seed}", asked),
        "measured": few_shot(args.parallel, tokenizer, f"round/{seed}", asked),
    }


def _environment(home: str) -> Mapping[str, str]:
    """lmql keeps tokenizers and masks below its home."""
    return {**os.environ, "HOME": home, "HF_HUB_OFFLINE": "1"}


def main(argv: Sequence[str]) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.lmql_server", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--model", type=Path, default=BUNDLED_MODEL)
    parser.add_argument("--queries", nargs="+", choices=_QUERIES, default=_QUERIES)
    parser.add_argument("--parallel", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=64, help="of a short query")
    parser.add_argument("--examples-tokens", type=int, default=600, help="of a few-shot query")
    parser.add_argument(
        "--reasoning-tokens", type=int, help="of a few-shot query, where the model does not end it"
    )
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))
    parser.add_argument("--threads", type=int, help="of either server (default: one per core)")
    args = parser.parse_args(argv)
    if args.threads is not None:
        os.environ["OMP_NUM_THREADS"] = str(args.threads)
    # Ended by a signal, the servers must end as well: leave by an exception, not at once.
    signal.signal(signal.SIGTERM, lambda signum, frame: sys.exit(128 + signum))
    ours, theirs = free_port(), free_port()
    pairs: dict[str, list[Pair]] = {queries: [] for queries in args.queries}
    with (
        tempfile.TemporaryDirectory() as home,
        running(tandem(args.model, ours, ("--dtype", args.dtype))),
        lmql_server(args.model, theirs, args.dtype, home),
    ):
        for number, queries in itertools.product(range(args.rounds), args.queries):
            programs = programs_of(queries, number, args)
            pair = Pair(
                tandem=ask(ours, args.model, programs, home),
                lmql=ask(theirs, args.model, programs, home),
            )
            pairs[queries].append(pair)
            speeds = f"{pair.tandem.tokens_per_s:.1f} against {pair.lmql.tokens_per_s:.1f}"
            sys.stderr.write(f"{queries}, round {number + 1}: {speeds} tok/s\n")
    report = {queries: summary(measured) for queries, measured in pairs.items()}
    mean = statistics.geometric_mean(median_ratio(measured) for measured in pairs.values())
    asked = {"model": str(args.model), "parallel": args.parallel, "dtype": args.dtype}
    told = {**asked, "threads": args.threads, "mean_ratio": round(mean, 2), **report}
    sys.stdout.write(json.dumps(told) + "\n")
    return 0


def summary(pairs: Sequence[Pair]) -> dict[str, object]:
    """What is said of one kind of queries."""
    num_texts = sum(len(pair.tandem.texts) for pair in pairs)
    return {
        "rounds": [asdict(pair) for pair in pairs],
        "equal_texts": f"{sum(pair.num_equal for pair in pairs)} of {num_texts}",
        "tokens_per_s": [
            [round(each.tokens_per_s, 1) for each in (pair.tandem, pair.lmql)] for pair in pairs
        ],
        "client_share": [
            [round(each.client_s / each.wall_s, 2) for each in (pair.tandem, pair.lmql)]
            for pair in pairs
        ],
        "median_ratio": round(median_ratio(pairs), 2),
    }


def median_ratio(pairs: Sequence[Pair]) -> float:
    """Of the rounds of one kind of queries."""
    return statistics.median(pair.ratio for pair in pairs)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
