"""Servers and processes under measurement: started, waited for, and their use of CPU and memory."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from bench.load import Target

_READY_TIMEOUT_S = 300.0


@dataclass(frozen=True, slots=True)
class Server:
    """A server to start: its command, where it answers, and how to speak to it."""

    name: str
    command: tuple[str, ...]
    ready_url: str
    target: Target
    environ: Mapping[str, str] = field(default_factory=dict)


def tandem(model: Path, port: int, flags: Sequence[str]) -> Server:
    """Tandem as a user starts it, but that no shard stands by: its imports would be measured."""
    url = f"http://127.0.0.1:{port}"
    command = (sys.executable, "-m", "launcher", "serve", str(model), "--port", str(port), *flags)
    target = Target(url, "openai", str(model))
    return Server("tandem", command, f"{url}/health", target, {"STANDBY_SHARDS": "false"})


@contextlib.contextmanager
def running(server: Server) -> Iterator[int]:
    """Start it, wait until it answers, and end its whole process group at the end.

    Answers the number of its process.
    """
    # Else it would outlive a bench that `timeout` ends.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    log = Path(f"/tmp/bench-{server.name}.log")
    with log.open("wb") as output:
        process = subprocess.Popen(
            server.command,
            stdout=output,
            stderr=subprocess.STDOUT,
            process_group=0,
            env={**os.environ, "HF_HUB_OFFLINE": "1", **server.environ},
        )
    try:
        _wait_until_ready(server, process, log)
        yield process.pid
    finally:
        _signal_tree(process.pid, signal.SIGCONT)
        process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(20)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _wait_until_ready(server: Server, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline_s = time.monotonic() + _READY_TIMEOUT_S
    # One client: to make one reads certificates for 0.04 s, which would be taken from the start.
    with httpx.Client(verify=False, timeout=2.0) as client:
        while time.monotonic() < deadline_s:
            if process.poll() is not None:
                raise RuntimeError(f"{server.name} stopped with {process.returncode}; see {log}")
            with contextlib.suppress(httpx.TransportError):
                if client.get(server.ready_url).status_code == 200:
                    return
            time.sleep(0.2)
    raise RuntimeError(f"{server.name} did not answer within {_READY_TIMEOUT_S:.0f} s; see {log}")


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


def blocks_used(metrics: str) -> float:
    """KV blocks that requests hold, from the text of Tandem's metrics, of all replicas together.

    Raises ValueError.
    """
    found = re.findall(r"^tandem_kv_blocks_used(?:\{.*\})? (\S+)$", metrics, re.MULTILINE)
    if not found:
        raise ValueError("/metrics has no tandem_kv_blocks_used: is this Tandem?")
    return sum(map(float, found))


def cpu_s(pid: int) -> float:
    """User and system time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def tree(pid: int) -> list[int]:
    """A process and all that descend from it."""
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parent = int(path.read_text().rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(path.parent.name))
    found = [pid]
    for each in found:
        found += children.get(each, [])
    return found


@contextlib.contextmanager
def awake(pid: int) -> Iterator[None]:
    """A server works while this lasts, and stops then: no other one takes its neighbour's cores."""
    _signal_tree(pid, signal.SIGCONT)
    try:
        yield
    finally:
        _signal_tree(pid, signal.SIGSTOP)


def _signal_tree(pid: int, signum: signal.Signals) -> None:
    for each in tree(pid):
        with contextlib.suppress(ProcessLookupError):
            os.kill(each, signum)


def peak_mib(pid: int) -> float:
    """The most memory that each process of a tree has held, added up."""
    return round(sum(_status_mib(each, "VmHWM") for each in tree(pid)), 1)


def resident_mib(pid: int) -> float:
    """Memory that a process holds."""
    return round(_status_mib(pid, "VmRSS"), 1)


def _status_mib(pid: int, name: str) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split(f"{name}:")[1].split()[0]) / 1024
