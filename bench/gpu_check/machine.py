"""The GPU, the versions, and what the machine reaches: copies and matrix products."""

import importlib.metadata
from collections.abc import Callable
from functools import cache
from pathlib import Path

import torch
import transformers

from bench.gpu_check.rows import Row, Sizes

_DRIVER = Path("/proc/driver/nvidia/version")


def run(sizes: Sizes) -> list[Row]:
    """See rows.Part."""
    rows = [
        Row("torch", torch.__version__),
        Row("triton", _installed("triton")),
        Row("transformers", transformers.__version__),
    ]
    if sizes.device.type == "cuda":
        device = torch.cuda.get_device_properties(sizes.device)
        rows += [
            Row("GPU", f"{device.name}, sm_{device.major}{device.minor}"),
            Row("memory", device.total_memory / 2**30, "GiB"),
            Row("driver", _DRIVER.read_text().splitlines()[0] if _DRIVER.exists() else "unknown"),
        ]
    return [
        *rows,
        Row("copies, read and written", copy_bytes_per_s(sizes) / 1e12, "TB/s"),
        Row("products in bfloat16", matmul_flops(sizes) / 1e12, "TFLOP/s"),
    ]


@cache
def copy_bytes_per_s(sizes: Sizes) -> float:
    """Of a copy within the device's memory, counting what is read and what is written."""
    num_bytes = 1 << (20 if sizes.is_rehearsal else 32)
    source = torch.ones(num_bytes, dtype=torch.uint8, device=sizes.device)
    target = torch.empty_like(source)
    return 2 * num_bytes / median_s(sizes, lambda: target.copy_(source))


@cache
def matmul_flops(sizes: Sizes) -> float:
    """Floating-point operations a second of a large product."""
    width = 64 if sizes.is_rehearsal else 8192
    left = torch.randn(width, width, dtype=torch.bfloat16, device=sizes.device)
    return 2 * width**3 / median_s(sizes, lambda: left @ left)


def median_s(sizes: Sizes, run: Callable[[], object], num_runs: int = 15) -> float:
    """The median time of some runs on the device, after a few that do not count."""
    for _ in range(3):
        run()
    if sizes.device.type != "cuda":
        return 1e-3
    times_s = []
    for _ in range(num_runs):
        started, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        started.record()
        run()
        ended.record()
        ended.synchronize()
        times_s.append(started.elapsed_time(ended) / 1e3)
    return sorted(times_s)[num_runs // 2]


def _installed(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"
