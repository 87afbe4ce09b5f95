"""The tests that run on a GPU: kernels against their references, whole steps against transformers,
replayed steps against launched ones.
"""

import re
import subprocess
import sys
from pathlib import Path

from bench.gpu_check.rows import Row, Sizes

_ROOT = Path(__file__).parents[2]
_RUNS = {
    "kernels, steps and graphs": ("-m", "not slow", "tests/kernels"),
    "engine and sampler": ("-m", "gpu", "tests/model_server"),
}


def run(sizes: Sizes) -> list[Row]:
    """See rows.Part. A rehearsal only collects them."""
    rows = []
    for name, arguments in _RUNS.items():
        # Each process compiles kernels, which takes longer than to run them.
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:benchmark",
            "-n",
            "8",
            *arguments,
        ]
        if sizes.is_rehearsal:
            folder = "tests/model_server/engine"
            command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-m", "gpu", folder]
        done = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, check=False)
        sys.stdout.write(done.stdout[-3000:] if done.returncode else "")
        found = re.findall(r"(\d+) (passed|failed|error)", done.stdout)
        counts = {word: int(count) for count, word in found}
        failed = counts.get("failed", 0) + counts.get("error", 0) + (done.returncode not in (0, 1))
        rows.append(Row(f"{name}: passed", counts.get("passed", 0)))
        rows.append(Row(f"{name}: failed", failed, wanted=0, is_most=True))
    return rows
