"""What a report of a problem should say about this machine: versions and hardware."""

import os
import platform
from importlib import metadata

_PACKAGES = (
    "torch", "transformers", "tokenizers", "safetensors", "accelerate", "grpcio", "protobuf",
    "starlette", "uvicorn", "triton",
)  # fmt: skip


def describe() -> str:
    """Several lines of `name: value`, for people."""
    lines = [
        f"tandem: {_version('tandem')}",
        f"python: {platform.python_version()}",
        f"system: {platform.platform()}",
        f"cpu: {_cpu_model()}, {len(os.sched_getaffinity(0))} cores usable",
        f"memory: {os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.1f} GiB",
    ]
    lines += [f"{package}: {_version(package)}" for package in _PACKAGES]
    return "\n".join([*lines, *_gpus()])


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def _cpu_model() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            for line in file:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:
        return platform.processor() or "unknown"
    return platform.machine()


def _gpus() -> list[str]:
    folder = "/proc/driver/nvidia/gpus"
    if not os.path.isdir(folder):
        return ["gpu: none"]
    return [f"gpu: {_gpu_model(os.path.join(folder, name))}" for name in sorted(os.listdir(folder))]


def _gpu_model(folder: str) -> str:
    with open(os.path.join(folder, "information"), encoding="utf-8") as file:
        for line in file:
            if line.startswith("Model"):
                return line.partition(":")[2].strip()
    return "unknown"
