"""Runs the tests that need a GPU and prints a small table of step times.

    python -m bench.gpu_check        (make gpu-check)

Without a CUDA device it prints so and succeeds. Otherwise it fails when a test does.
"""

import importlib.metadata
import sys
import tempfile
from pathlib import Path

import pytest
import torch
import transformers

from bench import make_model
from bench.step import load, measure

_BATCH_SIZES = (1, 8, 32, 128)
_CONTEXT_LEN = 192
_NUM_STEPS = 100


def main() -> int:
    """Answers the exit code."""
    if not torch.cuda.is_available():
        print("gpu-check: skipped, torch finds no CUDA device here")
        return 0
    print(_versions())
    tests = Path(__file__).parents[1] / "tests"
    exit_code = int(pytest.main(["-q", "-m", "gpu", "-p", "no:cacheprovider", str(tests)]))
    if exit_code != 0:
        print(f"gpu-check: failed, pytest answered {exit_code}")
        return exit_code
    with tempfile.TemporaryDirectory() as folder:
        make_model.model(make_model.config()).save_pretrained(folder)
        _print_times(Path(folder))
    print("gpu-check: passed")
    return 0


def _versions() -> str:
    device = torch.cuda.get_device_properties(0)
    architecture = f"sm_{device.major}{device.minor}"
    versions = {
        "GPU": f"{device.name}, {device.total_memory / 2**30:.0f} GiB, {architecture}",
        "CUDA": torch.version.cuda,
        "torch": torch.__version__,
        "triton": _installed("triton"),
        "transformers": transformers.__version__,
    }
    return "\n".join(f"{name:13}{version}" for name, version in versions.items())


def _installed(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _print_times(folder: Path) -> None:
    model = load(folder, device=torch.device("cuda", 0), dtype="bfloat16", attention="auto")
    print(f"\ndecode steps of a 100 M Llama, {model.executor}, bfloat16,")
    print(f"context {_CONTEXT_LEN}, {_NUM_STEPS} steps:")
    print(f"{'batch':>6} {'min ms':>8} {'median ms':>10} {'tokens/s':>10} {'other ms':>9}")
    for batch_size in _BATCH_SIZES:
        times = measure(model, batch_size, _CONTEXT_LEN, _NUM_STEPS)
        print(
            f"{batch_size:>6} {times.min_ms:>8.3f} {times.median_ms:>10.3f}"
            f" {times.tokens_per_s:>10.0f} {times.other_ms:>9.3f}"
        )


if __name__ == "__main__":
    sys.exit(main())
