"""The unmodified lmql against Tandem and against LMQL's own server, on the same model.

    make conformance-install
    python -m bench.lmql_server --rounds 2

Both servers stay up, one works at a time: A B A B. Eight queries of lmql 0.7.3 at a time, each with
a connection of its own, greedy, in the same dtype on both: in float32 their texts are equal, in
bfloat16 rounding parts them. LMQL's server runs with Tandem's torch and transformers, since its own
environment has no torch. Prints JSON.
"""

import argparse
import contextlib
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
from dataclasses import asdict, dataclass
from pathlib import Path

from bench.compare import running, tandem
from launcher.settings import BUNDLED_MODEL, free_port

HERE = Path(__file__).parent
LMQL_PYTHON = HERE.parent / ".venv-conformance" / "lmql" / "bin" / "python"
_READY_TIMEOUT_S = 180.0
_ROUND_TIMEOUT_S = 300.0


@dataclass(frozen=True, slots=True)
class Round:
    """One server's texts, and how quickly its tokens came."""

    texts: tuple[str, ...]
    num_tokens: int
    wall_s: float

    @property
    def tokens_per_s(self) -> float:
        return self.num_tokens / self.wall_s


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


def ask(port: int, model: Path, args: argparse.Namespace, home: str) -> Round:
    """One process of lmql's: a warm-up and a measured round."""
    tokenizer = readable_tokenizer(model, Path(home) / "tokenizer")
    words = (f"127.0.0.1:{port}", str(model), tokenizer, str(args.parallel), str(args.tokens))
    done = subprocess.run(
        [str(LMQL_PYTHON), str(HERE / "lmql_client.py"), *words],
        capture_output=True,
        text=True,
        timeout=_ROUND_TIMEOUT_S,
        check=True,
        env=_environment(home),
    )
    told = json.loads(done.stdout.splitlines()[-1])
    return Round(tuple(told["texts"]), told["num_tokens"], told["wall_s"])


def _environment(home: str) -> Mapping[str, str]:
    """lmql keeps tokenizers and masks below its home."""
    return {**os.environ, "HOME": home, "HF_HUB_OFFLINE": "1"}


def main(argv: Sequence[str]) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.lmql_server", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--model", type=Path, default=BUNDLED_MODEL)
    parser.add_argument("--parallel", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))
    args = parser.parse_args(argv)
    # Ended by a signal, the servers must end as well: leave by an exception, not at once.
    signal.signal(signal.SIGTERM, lambda signum, frame: sys.exit(128 + signum))
    ours, theirs = free_port(), free_port()
    rounds: list[tuple[Round, Round]] = []
    with (
        tempfile.TemporaryDirectory() as home,
        running(tandem(args.model, ours, ("--dtype", args.dtype))),
        lmql_server(args.model, theirs, args.dtype, home),
    ):
        for number in range(args.rounds):
            pair = (ask(ours, args.model, args, home), ask(theirs, args.model, args, home))
            rounds.append(pair)
            speeds = " against ".join(f"{each.tokens_per_s:.1f}" for each in pair)
            sys.stderr.write(f"round {number + 1}: {speeds} tok/s\n")
    same = sum(a == b for x, y in rounds for a, b in zip(x.texts, y.texts, strict=True))
    report = {
        "parallel": args.parallel,
        "dtype": args.dtype,
        "rounds": [{"tandem": asdict(x), "lmql": asdict(y)} for x, y in rounds],
        "equal_texts": f"{same} of {args.parallel * args.rounds}",
        "tokens_per_s": [[round(each.tokens_per_s, 1) for each in pair] for pair in rounds],
        "median_ratio": round(
            statistics.median(x.tokens_per_s / y.tokens_per_s for x, y in rounds), 2
        ),
    }
    sys.stdout.write(json.dumps(report) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
