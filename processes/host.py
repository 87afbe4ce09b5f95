"""This machine: the memory that processes may still take, versions and hardware.

    /proc/meminfo        what the machine could give away
    /proc/self/cgroup    the group of this process; it and each one above it has a bound, or none

Children are born into their parent's group, so that one process asks for all of them. Pages of
files that a group counts as used are given back for more, as a checkpoint's that was read.
"""

import os
import platform
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path, PurePosixPath


@dataclass(frozen=True, slots=True)
class _Version:
    """The files of a version of control groups; `given_back` are lines of memory.stat."""

    limit: str
    used: str
    given_back: tuple[str, str]


_V1 = _Version(
    "memory.limit_in_bytes", "memory.usage_in_bytes", ("total_active_file", "total_inactive_file")
)
_V2 = _Version("memory.max", "memory.current", ("active_file", "inactive_file"))
# Version 1 writes "none" as the largest number of whole pages.
_UNBOUNDED = 1 << 62
_PACKAGES = (
    "torch", "transformers", "tokenizers", "safetensors", "accelerate", "grpcio", "protobuf",
    "starlette", "uvicorn", "triton",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class HostMemory:
    """Reads the kernel's files, below `proc` and `cgroups`."""

    proc: Path = Path("/proc")
    cgroups: Path = Path("/sys/fs/cgroup")

    def available_bytes(self) -> int | None:
        """What could still be taken, without swap; None where it is unknown.

        The least of what the machine has and what the process's groups leave, at least 0.
        """
        bounds = [self._of_machine(), *(_left(*group) for group in self._groups())]
        found = [number for number in bounds if number is not None]
        return max(0, min(found)) if found else None

    def _of_machine(self) -> int | None:
        kilobytes = _numbers(self.proc / "meminfo").get("MemAvailable:")
        return None if kilobytes is None else kilobytes * 1024

    def _groups(self) -> Iterator[tuple[Path, _Version]]:
        """The folders of this process's groups, up to the root of what is seen here."""
        named = {_V1: "/", _V2: "/"}
        for line in _lines(self.proc / "self/cgroup"):
            _, controllers, path = [*line.split(":", 2), "", ""][:3]
            if not controllers:
                named[_V2] = path
            elif "memory" in controllers.split(","):
                named[_V1] = path
        roots = {_V1: self.cgroups / "memory", _V2: self.cgroups}
        for version, root in roots.items():
            group = PurePosixPath("/", named[version])
            # A container may see its own group as the root, and read its name outside of it.
            for each in (group, *group.parents):
                if ".." not in each.parts:
                    yield root / each.relative_to("/"), version


def _left(group: Path, version: _Version) -> int | None:
    """What a group leaves; None for one without a bound, and where there is none."""
    limit = _number(group / version.limit)
    used = _number(group / version.used)
    if limit is None or used is None or limit >= _UNBOUNDED:
        return None
    stat = _numbers(group / "memory.stat")
    return limit - used + sum(stat.get(name, 0) for name in version.given_back)


def _number(path: Path) -> int | None:
    word = next(iter(_lines(path)), "").strip()
    return int(word) if word.isdecimal() else None


def _numbers(path: Path) -> dict[str, int]:
    """The numbers of a file by the words in front of them."""
    found = (line.split() for line in _lines(path))
    return {words[0]: int(words[1]) for words in found if len(words) > 1 and words[1].isdecimal()}


def _lines(path: Path) -> list[str]:
    """None for a file that is not there, or closed to us."""
    try:
        # Names of groups are bytes of anything.
        return path.read_text(errors="surrogateescape").splitlines()
    except OSError:
        return []


def describe() -> str:
    """Versions and hardware for a report of a problem: lines of `name: value`."""
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
    return _first_value(Path("/proc/cpuinfo"), "model name") or platform.processor() or "unknown"


def _gpus() -> list[str]:
    folders = sorted(Path("/proc/driver/nvidia/gpus").glob("*"))
    models = [_first_value(folder / "information", "Model") or "unknown" for folder in folders]
    return [f"gpu: {model}" for model in models or ["none"]]


def _first_value(path: Path, name: str) -> str | None:
    """Of the first line `name: value` of a file."""
    values = (line.partition(":")[2].strip() for line in _lines(path) if line.startswith(name))
    return next(values, None)
