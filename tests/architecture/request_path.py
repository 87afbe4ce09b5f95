"""Lists the product files that one plain `/generate` passes in both tiers.

python -m tests.architecture.request_path        or: make figures

A real server on the bundled model runs with a profile function in every process, which notes the
file of each function that is called. Two requests come first, so that nothing is counted that only
the first one needs.
"""

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LIMIT = 52
_TIMEOUT_S = 120.0
# Python runs a file of this name at the start of each process that finds it on its path.
_SITE = """
import os, sys, threading, time
from pathlib import Path

folder = Path(os.environ["TRACE_FOLDER"])
passed = set()

def note(frame, event, arg):
    if event == "call":
        passed.add(frame.f_code.co_filename)

def watch():
    while not (folder / "clear").exists():
        time.sleep(0.05)
    passed.clear()
    (folder / f"{os.getpid()}.cleared").touch()
    while not (folder / "write").exists():
        time.sleep(0.05)
    found = folder / f"{os.getpid()}.tmp"
    found.write_text("\\n".join(sorted(passed)))
    found.rename(folder / f"{os.getpid()}.txt")

if Path(sys.argv[0] if hasattr(sys, "argv") else "").name != "forkserver":
    threading.Thread(target=watch, daemon=True).start()
    threading.setprofile(note)
    sys.setprofile(note)
"""


def main() -> int:
    files = passed_files()
    print("\n".join(files))
    print(f"{'files that a plain /generate passes':40} {len(files):8} {LIMIT:8}")
    return int(len(files) > LIMIT)


def passed_files() -> list[str]:
    """Their paths below the repository, in order, of the router's and the shard's process."""
    with tempfile.TemporaryDirectory(prefix="tandem-trace-") as name:
        folder = Path(name)
        (folder / "sitecustomize.py").write_text(_SITE)
        with _served(folder) as url:
            for _ in range(2):
                _generate(url)
            (folder / "clear").touch()
            _wait_for(folder, "*.cleared")
            _generate(url)
            (folder / "write").touch()
            _wait_for(folder, "*.txt")
        lines = {line for path in folder.glob("*.txt") for line in path.read_text().splitlines()}
    found = {
        str(Path(line).relative_to(ROOT))
        for line in lines
        if Path(line).is_relative_to(ROOT) and ".venv" not in line and "_pb2" not in line
    }
    return sorted(path for path in found if path.split("/")[0] in {"router", "model_server"})


@contextmanager
def _served(folder: Path) -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    environ = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)]),
        "TRACE_FOLDER": str(folder),
    }
    argv = [sys.executable, "-m", "launcher", "serve", "--port", str(port), "--device", "cpu"]
    with subprocess.Popen(argv, env=environ, cwd=ROOT, stdout=subprocess.DEVNULL) as server:
        try:
            _wait_until_ready(f"http://127.0.0.1:{port}", server)
            yield f"http://127.0.0.1:{port}"
        finally:
            server.terminate()


def _wait_until_ready(url: str, server: "subprocess.Popen[bytes]") -> None:
    deadline = time.monotonic() + _TIMEOUT_S
    while time.monotonic() < deadline and server.poll() is None:
        try:
            with urllib.request.urlopen(f"{url}/health", timeout=5):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.2)
    raise RuntimeError("the server does not get ready")


def _generate(url: str) -> None:
    body = {"inputs": "Once there was", "parameters": {"max_new_tokens": 5}}
    headers = {"content-type": "application/json"}
    request = urllib.request.Request(f"{url}/generate", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=60) as answer:
        assert json.load(answer)["generated_text"]


def _wait_for(folder: Path, pattern: str) -> None:
    """Until router and shard have both written such a file, and a moment longer for others."""
    deadline = time.monotonic() + _TIMEOUT_S
    while len(list(folder.glob(pattern))) < 3 and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(0.5)


if __name__ == "__main__":
    sys.exit(main())
