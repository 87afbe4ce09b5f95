"""What a comparison with peers has found: medians, ratios of each round, a table and a plot."""

import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from bench.chart import Panel, bars
from bench.load import Report

TANDEM = "tandem"
_RATE = "output_tokens_per_s"


@dataclass(frozen=True, slots=True)
class Sample:
    """One peer in one round. `kind`: alone, busy (beside others), or a long prompt cold or warm."""

    peer: str
    kind: str
    round: int
    concurrency: int
    report: Report


class Findings:
    """Answers questions about samples. Raises statistics.StatisticsError where there is none."""

    def __init__(self, samples: Sequence[Sample]) -> None:
        self._samples = samples
        self.peers = tuple(dict.fromkeys(sample.peer for sample in samples))
        self.concurrencies = sorted({each.concurrency for each in samples if each.kind == "alone"})
        self.has_neighbours = any(sample.kind == "busy" for sample in samples)

    def values(self, peer: str, kind: str, concurrency: int, metric: str = _RATE) -> list[float]:
        """Of every round."""
        return [
            getattr(sample.report, metric)
            for sample in self._samples
            if (sample.peer, sample.kind, sample.concurrency) == (peer, kind, concurrency)
        ]

    def median(self, peer: str, kind: str, concurrency: int, metric: str = _RATE) -> float:
        """The median round."""
        return statistics.median(self.values(peer, kind, concurrency, metric))

    def ratio(self, one: Sequence[float], other: Sequence[float]) -> float:
        """The median over rounds of one value to the other of the same round."""
        return statistics.median(a / b for a, b in zip(one, other, strict=True))

    def lead(self, peer: str, concurrency: int) -> float:
        """How many times as many tokens a second Tandem makes."""
        return self.ratio(*(self.values(each, "alone", concurrency) for each in (TANDEM, peer)))

    def kept(self, peer: str, concurrency: int) -> float:
        """The share of its own rate that a peer keeps beside the neighbours."""
        return self.ratio(*(self.values(peer, kind, concurrency) for kind in ("busy", "alone")))


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


def write(
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
