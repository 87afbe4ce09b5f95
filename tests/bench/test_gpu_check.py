"""The check of a GPU runs to its end where there is none, and fails where a bound is not kept."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bench.gpu_check.rows import Row, failed, markdown

ROOT = Path(__file__).parents[2]


@pytest.mark.nightly
def test_a_rehearsal_fills_the_table(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "bench.gpu_check", "--rehearse", "--out", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((tmp_path / "gpu-check.json").read_text())
    assert list(found) == ["machine", "tests", "speed", "serving", "adapters", "peer"]
    table = (tmp_path / "gpu-check.md").read_text()
    assert "batch 3 at 64: share of the roofline" in table
    assert "batch 3 at 64: step with an adapter of rank 16" in table


def test_a_bound_that_is_not_kept_fails_the_check() -> None:
    rows = [Row("idle", 4.0, "%", wanted=3.0, is_most=True), Row("rate", 9.0, "tok/s", wanted=8)]
    assert failed({"serving": rows})
    assert not failed({"serving": rows[1:]})
    assert "| serving | idle | 4 % | <= 3 | **no** |" in markdown({"serving": rows})
