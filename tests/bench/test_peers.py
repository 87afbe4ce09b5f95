"""A comparison is one of rounds: ratios within each, and then the median."""

import json
from pathlib import Path

from bench.load import Report, Trace, report
from bench.peers import TANDEM, Findings, Sample, table, write_findings


def one(rate: float) -> Report:
    """Two tokens of a request that took 2 / rate seconds."""
    times_s = [1 / rate, 2 / rate]
    return report([Trace(0.0, times_s, num_tokens=2, ended_s=2 / rate)], 2 / rate)


def samples() -> list[Sample]:
    rates = {TANDEM: (100.0, 50.0, 200.0), "slow": (50.0, 10.0, 50.0)}
    return [
        Sample(peer, kind, number, concurrency, one(rate / (2 if kind == "busy" else 1)))
        for peer, of_rounds in rates.items()
        for number, rate in enumerate(of_rounds)
        for kind, concurrency in (("alone", 8), ("busy", 8), ("cold", 1), ("warm", 1))
    ]


def test_a_lead_is_the_median_of_the_rounds_ratios() -> None:
    found = Findings(samples())
    assert found.median(TANDEM, "alone", 8) == 100
    assert found.lead("slow", 8) == 4
    assert found.kept("slow", 8) == 0.5


def test_a_row_for_each_peer() -> None:
    lines = table(Findings(samples()), {TANDEM: 1000.0, "slow": 2000.0}).splitlines()
    assert [line.split(" | ")[0] for line in lines[2:]] == ["| tandem", "| slow"]
    assert lines[3] == "| slow | 50 | 4.00 | 20 | 20 / 20 | 20 / 20 | 0.50 | 2000 |"


def test_what_was_measured_is_kept_and_who_was_missing_is_named(tmp_path: Path) -> None:
    write_findings(tmp_path, samples(), {TANDEM: 1000.0, "slow": 2000.0}, ["vllm"])
    assert len(json.loads((tmp_path / "peers.json").read_text())["samples"]) == 24
    assert "Not installed: vllm." in (tmp_path / "peers.md").read_text()
    assert (tmp_path / "peers.svg").read_text().startswith("<svg")
