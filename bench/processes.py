"""Processes under measurement: started, waited for, and what they use."""

import contextlib
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bench.quick_shard import MAX_TOTAL_LEN
from tests.byte_tokenizer import save_byte_tokenizer

_LISTENING = re.compile(r"(listening)\n")
_READY = re.compile(r"ready at (http://\S+)\n")


@dataclass(frozen=True, slots=True)
class RouterOverQuickShard:
    """A running router and the quick shard behind it; `path` is the shard's socket."""

    port: int
    router_pid: int
    shard_pid: int
    path: str
    tokenizer_folder: Path


@contextlib.contextmanager
def process(log: Path, *argv: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process of this interpreter that ends with the block; it writes to `log`."""
    with log.open("wb") as output:
        child = subprocess.Popen([sys.executable, "-m", *argv], stdout=output, stderr=output)
    try:
        yield child
    finally:
        child.terminate()
        child.wait(timeout=20)


def until(child: subprocess.Popen[bytes], log: Path, pattern: re.Pattern[str]) -> str:
    """The first match's group in a process's log. Raises RuntimeError when it ends before."""
    while child.poll() is None:
        if found := pattern.search(log.read_text()):
            return found[1]
        time.sleep(0.02)
    raise RuntimeError(f"the process ended before it was ready: {log.read_text()}")


def cpu_s(pid: int) -> float:
    """User and system time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_mib(pid: int) -> float:
    """Memory that a process holds."""
    status = Path(f"/proc/{pid}/status").read_text()
    return round(int(status.split("VmRSS:")[1].split()[0]) / 1024, 1)


@contextlib.contextmanager
def quick_shard(folder: Path, step_s: float = 0.0) -> Iterator[tuple[str, int]]:
    """A quick shard's process: its socket and its pid. `folder` keeps its log and socket."""
    path, log = f"{folder}/shard-0", folder / "shard.log"
    with process(log, "bench.quick_shard", path, "--step-s", str(step_s)) as shard:
        until(shard, log, _LISTENING)
        yield path, shard.pid


@contextlib.contextmanager
def router_over_quick_shard(
    folder: Path, *flags: str, step_s: float = 0.0
) -> Iterator[RouterOverQuickShard]:
    """Both processes, for the time of the block. `folder` keeps their logs and socket."""
    tokenizer_folder = save_byte_tokenizer(folder / "tokenizer")
    with quick_shard(folder, step_s) as (path, shard_pid):
        router_flags = ["--master-shard-uds-path", path, "--tokenizer-name", str(tokenizer_folder)]
        router_flags += ["--port", "0", "--max-batch-prefill-tokens", str(MAX_TOTAL_LEN), *flags]
        log = folder / "router.log"
        with process(log, "router", *router_flags) as router:
            port = int(until(router, log, _READY).rpartition(":")[2])
            yield RouterOverQuickShard(port, router.pid, shard_pid, path, tokenizer_folder)
