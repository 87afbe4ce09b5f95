"""Tandem against what a user would run on a CPU instead: the same model, one load, in turns.

    python -m bench.peers --install vllm             (or openvino, llama, transformers)
    python -m bench.make_model /tmp/llama-100m
    python -m bench.peers --model /tmp/llama-100m --out /tmp/peers [--neighbours 1] [--rounds 3]
    python -m bench.peers --model MODEL.gguf --peers llama --out /tmp/peers

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
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from tokenizers import Tokenizer

from bench.chart import Panel, bars
from bench.command_line import parser_of
from bench.load import Load, Report, random_prompts, run
from bench.peer_recipes import DEFAULT_CACHE, RECIPES, Recipe
from bench.processes import awake, peak_mib, running, tandem
from model_server.checkpoint.gguf_conversion import convert
from processes.addresses import free_port

TANDEM = "tandem"
_NO_DRAFTS = ("--speculate", "0")
_PREFIX_LEN = 1024
_END_LEN = 32
_LONG_SEED = 10_000
_WARM_UP_SEED = 20_000
_RATE = "output_tokens_per_s"


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
    python = cache / recipe.name / "bin" / "python"
    worker = subprocess.Popen(
        [str(python), "-m", "bench.openvino_worker", str(recipe.prepared(cache, model))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[1],
    )
    requests = worker.stdin
    answers = worker.stdout
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


def _tokenizer_of(model: Path) -> Tokenizer:
    """A folder's, or the one in a GGUF file's metadata."""
    if model.is_dir():
        return Tokenizer.from_file(str(model / "tokenizer.json"))
    with tempfile.TemporaryDirectory() as folder:
        convert(model, Path(folder))
        return Tokenizer.from_file(f"{folder}/tokenizer.json")


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


@dataclass(frozen=True, slots=True)
class Sample:
    """One peer in one round. `kind`: alone, busy (beside others), or a long prompt cold or warm."""

    peer: str
    kind: str
    round: int
    concurrency: int
    report: Report


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


class Findings:
    """Answers questions about samples. Raises statistics.StatisticsError where there is none."""

    def __init__(self, samples: Sequence[Sample]) -> None:
        self._samples = samples
        self.peers = tuple(dict.fromkeys(sample.peer for sample in samples))
        self.concurrencies = sorted({each.concurrency for each in samples if each.kind == "alone"})
        self.has_neighbours = any(sample.kind == "busy" for sample in samples)

    def values(self, peer: str, kind: str, concurrency: int, metric: str = _RATE) -> list[float]:
        """One of each round."""
        return [
            getattr(sample.report, metric)
            for sample in self._samples
            if (sample.peer, sample.kind, sample.concurrency) == (peer, kind, concurrency)
        ]

    def median(self, peer: str, kind: str, concurrency: int, metric: str = _RATE) -> float:
        return statistics.median(self.values(peer, kind, concurrency, metric))

    def ratio(self, one: Sequence[float], other: Sequence[float]) -> float:
        """The median over rounds of one value to the other of the same round."""
        return statistics.median(a / b for a, b in zip(one, other, strict=True))

    def lead(self, peer: str, concurrency: int) -> float:
        """How many times as many tokens a second Tandem makes."""
        own = self.values(TANDEM, "alone", concurrency)
        return self.ratio(own, self.values(peer, "alone", concurrency))

    def kept(self, peer: str, concurrency: int) -> float:
        """The share of its own rate that a peer keeps beside the neighbours."""
        busy = self.values(peer, "busy", concurrency)
        return self.ratio(busy, self.values(peer, "alone", concurrency))


def table(found: Findings, memory_mib: Mapping[str, float]) -> str:
    """Markdown: a row for each peer."""
    rows = [_row(found, peer) | {"peak MiB": f"{memory_mib[peer]:.0f}"} for peer in found.peers]
    lines = [[*rows[0]], ["---"] * len(rows[0]), *([*row.values()] for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _row(found: Findings, peer: str) -> dict[str, str]:
    at = found.concurrencies
    middle = 8 if 8 in at else at[-1]

    def each(format_spec: str, value: Callable[[str, int], float]) -> str:
        return " / ".join(format(value(peer, concurrency), format_spec) for concurrency in at)

    def ms(metric: str, kind: str = "alone", concurrency: int = middle) -> str:
        return f"{found.median(peer, kind, concurrency, metric):.0f}"

    row = {
        "": peer,
        f"tok/s, {' / '.join(map(str, at))} at a time": each(
            ".0f", lambda name, number: found.median(name, "alone", number)
        ),
        "Tandem to it": each(".2f", found.lead),
        f"TTFT p50 ms at {middle}": ms("ttft_ms_p50"),
        f"ITL p50 / p99 ms at {middle}": f"{ms('itl_ms_p50')} / {ms('itl_ms_p99')}",
        "TTFT ms of 1024 tokens, cold / warm": " / ".join(
            ms("ttft_ms_p50", kind, 1) for kind in ("cold", "warm")
        ),
    }
    if found.has_neighbours:
        row["share kept beside busy neighbours"] = each(".2f", found.kept)
    return row


def write_findings(
    folder: Path, samples: Sequence[Sample], memory_mib: Mapping[str, float], missing: Sequence[str]
) -> None:
    """peers.json with every sample, peers.md and peers.svg, into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    found = Findings(samples)
    kept = [asdict(sample) for sample in samples]
    document = {"missing": missing, "peak_mib": memory_mib, "samples": kept}
    (folder / "peers.json").write_text(json.dumps(document) + "\n")
    rounds = len({sample.round for sample in samples})
    absent = f"Not installed: {', '.join(missing)}.\n" if missing else ""
    text = f"{table(found, memory_mib)}\nMedians of {rounds} rounds, ratios within each. {absent}"
    (folder / "peers.md").write_text(text.rstrip() + "\n")
    panels = [
        Panel(f"{at} at a time", {peer: found.median(peer, "alone", at) for peer in found.peers})
        for at in found.concurrencies
    ]
    (folder / "peers.svg").write_text(bars("Output tokens a second", panels))


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
        session = Session(peers, _tokenizer_of(args.model), args.neighbours)
        session.warm_up()
        for number in range(args.rounds):
            session.round(number, loads)
        memory = {peer.name: peak_mib(peer.pid) for peer in peers}
    write_findings(args.out, session.samples, memory, missing)
    sys.stdout.write((args.out / "peers.md").read_text())


def main(argv: Sequence[str]) -> int:
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
