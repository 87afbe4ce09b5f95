"""A whole server as a user starts it: `launcher serve` in a process of its own."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx

from launcher import BUNDLED_MODEL
from processes.addresses import free_port

START_TIMEOUT_S = 300.0
FRONT_SECRET = "of-sixteen-characters"


@dataclass(slots=True)
class RunningServer:
    """Owner of one launcher process and of what it said."""

    process: subprocess.Popen[str]
    url: str
    port: int
    lines: list[str]
    http: httpx.Client

    @property
    def said(self) -> str:
        return "".join(self.lines)

    def descendants(self) -> list[int]:
        """Process ids of the launcher's children and theirs."""
        return descendants_of(self.process.pid)

    def pid_of(self, module: str) -> int:
        """The process that runs `python -m module` for us, or stood by until it did."""
        for pid in self.descendants():
            with contextlib.suppress(OSError):
                words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
                if b"-m" in words and words[words.index(b"-m") + 1] == module.encode():
                    return pid
                name = Path(f"/proc/{pid}/comm").read_text().strip()
                if (module, name) == ("model_server", "tandem-shard"):
                    return pid
        raise AssertionError(f"no process runs {module}")

    def signal(self, signum: signal.Signals) -> None:
        self.process.send_signal(signum)

    def wait(self, timeout_s: float = 30.0) -> int:
        return self.process.wait(timeout_s)


def descendants_of(root: int) -> list[int]:
    parents: dict[int, list[int]] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            stat = (folder / "stat").read_text()
            parent = int(stat.rpartition(")")[2].split()[1])
            parents.setdefault(parent, []).append(int(folder.name))
    found, todo = [], [root]
    while todo:
        children = parents.get(todo.pop(), [])
        found += children
        todo += children
    return found


def is_alive(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def wait_until_gone(pids: list[int], timeout_s: float = 30.0) -> list[int]:
    """Those of `pids` that are still alive after `timeout_s`."""
    deadline_s = time.monotonic() + timeout_s
    while (left := [pid for pid in pids if is_alive(pid)]) and time.monotonic() < deadline_s:
        time.sleep(0.05)
    return left


@contextlib.contextmanager
def launched(
    *flags: str, model: Path | str = BUNDLED_MODEL, wait: bool = True, **environ: str
) -> Iterator[RunningServer]:
    """`launcher serve` on a free port; ended, with all that it started, when the block ends."""
    port = free_port()
    argv = [sys.executable, "-m", "launcher"]
    argv += ["serve", str(model), "--port", str(port), "--device", "cpu", *flags]
    process = subprocess.Popen(
        argv,
        env={**os.environ, **environ},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    lines: list[str] = []
    reader = threading.Thread(target=_collect, args=(process, lines), daemon=True)
    reader.start()
    url = f"http://127.0.0.1:{port}"
    # To read the certificates that a client may trust takes it 0.04 s; each request has its own
    # connection, so that none is left to a server that ends.
    limits = httpx.Limits(max_keepalive_connections=0)
    http = httpx.Client(base_url=url, verify=False, limits=limits, timeout=60)
    server = RunningServer(process, url, port, lines, http)
    started: list[int] = []
    try:
        if wait:
            _wait_until_ready(server)
            started = server.descendants()
        yield server
    finally:
        started = started or server.descendants()
        for signum in (signal.SIGTERM, signal.SIGTERM):
            if process.poll() is None:
                process.send_signal(signum)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(10)
        if process.poll() is None:
            process.kill()
        process.wait()
        for pid in wait_until_gone(started):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        reader.join(5)
        http.close()


def _collect(process: subprocess.Popen[str], lines: list[str]) -> None:
    assert process.stdout is not None
    with process.stdout:
        lines.extend(process.stdout)


def _wait_until_ready(server: RunningServer) -> None:
    deadline_s = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline_s:
        if server.process.poll() is not None:
            break
        with contextlib.suppress(httpx.TransportError):
            if server.http.get("/health", timeout=2).status_code == 200:
                return
        time.sleep(0.05)
    raise AssertionError(f"the server did not become ready; it said:\n{server.said}")


def metric(server: RunningServer, name: str) -> float:
    """The value of a metric without labels."""
    text = server.http.get("/metrics", timeout=10).text
    found = re.search(rf"^{re.escape(name)} (\S+)$", text, re.MULTILINE)
    assert found, f"/metrics has no {name}"
    return float(found.group(1))
