"""Tandem against what a user would run on a CPU instead: the same model, one load, in turns.

    python -m bench.peers --install vllm             (or openvino, llama, transformers)
    python -m bench.make_model /tmp/llama-100m
    python -m bench.peers --model /tmp/llama-100m --out /tmp/peers [--neighbours 1] [--rounds 3]

All servers are up all the time and one of them works, the others are stopped: A B C A B C ... A
machine whose speed drifts slows all alike, so ratios within a round hold where figures do not. The
load: prompts of random tokens, new ones each round, greedy, EOS ignored, over OpenAI's completions
(OpenVINO GenAI in process). `--neighbours N` repeats it beside N busy loops of pure Python. Then a
prompt of 1024 tokens, new (cold) and again with another end (warm). A peer that is not installed
is left out and named. Tandem has no draft tokens: a random model's answers repeat themselves more
than a text does, and no peer guesses unasked. Writes peers.json, peers.md and peers.svg into
`--out`.
"""

import argparse
import asyncio
import contextlib
import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from tokenizers import Tokenizer

from bench import peer_report
from bench.command_line import parser_of
from bench.load import Load, Report, random_prompts, run
from bench.peer_recipes import DEFAULT_CACHE, RECIPES, Recipe
from bench.peer_report import TANDEM, Sample
from bench.processes import awake, peak_mib, running, tandem
from processes.addresses import free_port

_PREFIX_LEN, _END_LEN = 1024, 32
_NO_DRAFTS = ("--speculate", "0")
_LONG_SEED, _WARM_UP_SEED = 10_000, 20_000


@dataclass(frozen=True, slots=True)
class Peer:
    """A server that sleeps until it is measured."""

    name: str
    pid: int
    measure: Callable[[Load, Sequence[str]], Report]


@contextlib.contextmanager
def _served(
    recipe: Recipe | None, model: Path, cache: Path, flags: Sequence[str]
) -> Iterator[Peer]:
    """Tandem, or the peer of a recipe."""
    if recipe is not None and recipe.start is None:
        with _worker(recipe, cache, model) as peer:
            yield peer
        return
    if recipe is None or recipe.start is None:
        server = tandem(model, free_port(), (*_NO_DRAFTS, *flags))
    else:
        server = recipe.start(cache / recipe.name, recipe.prepared(cache, model), free_port())
    with running(server) as pid:
        yield Peer(
            server.name, pid, lambda load, texts: asyncio.run(run(server.target, load, texts))
        )


@contextlib.contextmanager
def _worker(recipe: Recipe, cache: Path, model: Path) -> Iterator[Peer]:
    python, folder = cache / recipe.name / "bin" / "python", recipe.prepared(cache, model)
    command = [str(python), "-m", "bench.openvino_worker", str(folder)]
    root, pipe = Path(__file__).parents[1], subprocess.PIPE
    worker = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, cwd=root)
    requests, answers = worker.stdin, worker.stdout
    assert requests is not None
    assert answers is not None

    def measure(load: Load, prompts: Sequence[str]) -> Report:
        requests.write(json.dumps({"load": asdict(load), "prompts": prompts}) + "\n")
        requests.flush()
        return Report(**json.loads(answers.readline()))

    try:
        if answers.readline() != "ready\n":
            raise RuntimeError(f"{recipe.name} did not start; it says why above")
        yield Peer(recipe.name, worker.pid, measure)
    finally:
        worker.kill()
        worker.wait()


@contextlib.contextmanager
def _busy(num_neighbours: int) -> Iterator[None]:
    """That many cores' worth of somebody else's work."""
    loops = [
        subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(num_neighbours)
    ]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


class Session:
    """Measures peers in turns; keeps every sample."""

    def __init__(self, peers: Sequence[Peer], tokenizer: Tokenizer, num_neighbours: int) -> None:
        self._peers = peers
        self._tokenizer = tokenizer
        self._num_neighbours = num_neighbours
        self.samples: list[Sample] = []

    def warm_up(self) -> None:
        """Kernels are chosen, pools are touched; then everybody sleeps."""
        load = Load(num_requests=4, prompt_len=128, output_len=8, concurrency=4, seed=_WARM_UP_SEED)
        for peer in self._peers:
            with awake(peer.pid):
                peer.measure(load, random_prompts(self._tokenizer, load))

    def round(self, number: int, loads: Sequence[Load]) -> None:
        """Every load, every peer, beginning with another peer each round."""
        first = number % len(self._peers)
        in_turn = [*self._peers[first:], *self._peers[:first]]
        for load in loads:
            # New prompts each round: a prefix cache is not what is compared here.
            fresh = replace(load, seed=2 * number)
            prompts = random_prompts(self._tokenizer, fresh)
            for peer in in_turn:
                self._measure(peer, "alone", number, fresh, prompts)
            if self._num_neighbours:
                others = random_prompts(self._tokenizer, replace(fresh, seed=2 * number + 1))
                for peer in in_turn:
                    with _busy(self._num_neighbours):
                        self._measure(peer, "busy", number, fresh, others)
        for peer in in_turn:
            self._measure_prefix(peer, number)

    def _measure_prefix(self, peer: Peer, number: int) -> None:
        """One long prompt, and the same one with two other ends."""
        long = Load(1, _PREFIX_LEN, 1, concurrency=1, seed=_LONG_SEED + number)
        ends = Load(3, _END_LEN, 1, concurrency=1, seed=_LONG_SEED + number)
        (prefix,) = random_prompts(self._tokenizer, long)
        cold, *warm = (prefix + end for end in random_prompts(self._tokenizer, ends))
        asked = replace(ends, num_requests=1, prompt_len=_PREFIX_LEN + _END_LEN, output_len=8)
        self._measure(peer, "cold", number, asked, [cold])
        self._measure(peer, "warm", number, replace(asked, num_requests=2), warm)

    def _measure(
        self, peer: Peer, kind: str, number: int, load: Load, prompts: Sequence[str]
    ) -> None:
        with awake(peer.pid):
            report = peer.measure(load, prompts)
        at = load.concurrency or 1
        self.samples.append(Sample(peer.name, kind, number, at, report))
        sys.stderr.write(
            f"round {number + 1}, {kind}, {at} at a time, {peer.name}: "
            f"{report.output_tokens_per_s:.0f} tok/s, TTFT {report.ttft_ms_p50:.0f} ms, "
            f"ITL {report.itl_ms_p50:.1f} ms, {report.num_errors} errors {report.errors}\n"
        )


def _compare(args: argparse.Namespace) -> None:
    asked = [name for name in args.peers if name != TANDEM]
    missing = [name for name in asked if not RECIPES[name].is_installed(args.cache)]
    for name in missing:
        sys.stderr.write(f"left out: {name}; install it: python -m bench.peers --install {name}\n")
    recipes = [None, *(RECIPES[name] for name in asked if name not in missing)]
    loads = [
        Load(max(4, args.waves * at), args.prompt_len, args.output_len, concurrency=at)
        for at in args.concurrency
    ]
    with contextlib.ExitStack() as stack:
        peers = [
            stack.enter_context(_served(recipe, args.model, args.cache, args.tandem_flags.split()))
            for recipe in recipes
        ]
        tokenizer = Tokenizer.from_file(str(args.model / "tokenizer.json"))
        session = Session(peers, tokenizer, args.neighbours)
        session.warm_up()
        for number in range(args.rounds):
            session.round(number, loads)
        memory = {peer.name: peak_mib(peer.pid) for peer in peers}
    peer_report.write(args.out, session.samples, memory, missing)
    sys.stdout.write((args.out / "peers.md").read_text())


def main(argv: Sequence[str]) -> int:
    """The command line."""
    parser = parser_of(__doc__)
    parser.add_argument("--install", choices=RECIPES, help="install one peer, and no more")
    parser.add_argument("--cache", type=Path, default=DEFAULT_CACHE, help="where peers live")
    parser.add_argument("--model", type=Path)
    parser.add_argument("--peers", nargs="*", choices=RECIPES, default=list(RECIPES))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--waves", type=int, default=2, help="requests of each client")
    parser.add_argument("--prompt-len", type=int, default=128)
    parser.add_argument("--output-len", type=int, default=128)
    parser.add_argument("--neighbours", type=int, default=0, help="busy loops beside the server")
    parser.add_argument("--out", type=Path, default=Path("."))
    parser.add_argument("--tandem-flags", default="", help="further flags of launcher serve")
    args = parser.parse_args(argv)
    # Ended by a signal, the servers must end as well: leave by an exception, not at once.
    signal.signal(signal.SIGTERM, lambda signum, frame: sys.exit(128 + signum))
    if args.install:
        RECIPES[args.install].install_into(args.cache)
        return 0
    if args.model is None:
        parser.error("--model FOLDER, or --install NAME")
    _compare(args)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
