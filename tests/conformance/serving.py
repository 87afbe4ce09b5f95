"""The servers that clients are tried against: processes of Tandem's own environment.

This file runs in the clients' environments, so it knows the standard library alone.
"""

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
MODEL = ROOT / "models" / "demo"
_START_TIMEOUT_S = 120.0
_STOP_TIMEOUT_S = 20.0


def tandem_python() -> str:
    """The interpreter of Tandem's own environment."""
    return os.environ.get("TANDEM_PYTHON", str(ROOT / ".venv" / "bin" / "python"))


@dataclass(frozen=True, slots=True)
class Served:
    """A running server. `model` is a name that requests may use: a folder's path where it has a
    folder, since some clients read the tokenizer there."""

    url: str
    model: str

    @property
    def openai_url(self) -> str:
        """What OpenAI's clients call the base URL."""
        return f"{self.url}/v1"


@dataclass(frozen=True, slots=True)
class Fake(Served):
    """The real router over a shard without a model: a letter for each token, quickly.

    What it says depends on the prompt alone; a token's text is one character.
    """

    process: "subprocess.Popen[str]"
    router_pid: int

    def order(self, **fault: object) -> None:
        """What the shard is to do from now on; see `fake_server.py`."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(fault) + "\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == "ok\n"

    def kill(self) -> None:
        """End the router in the middle of whatever it does."""
        os.kill(self.router_pid, signal.SIGKILL)

    def stop_amid_an_answer(self) -> None:
        """Ask the router to end, once it computes something."""
        while b"\ntgi_batch_current_size 1" not in get(f"{self.url}/metrics"):
            time.sleep(0.05)
        os.kill(self.router_pid, signal.SIGTERM)


@contextlib.contextmanager
def launched(*flags: str, model: Path = MODEL) -> Iterator[Served]:
    """`launcher serve` on the bundled model, or another, ready; ended with the block."""
    with _launched(str(model), str(model), *flags) as served:
        yield served


@contextlib.contextmanager
def fleeted(*flags: str) -> Iterator[Served]:
    """`launcher serve auto`, which has loaded nothing: the bundled model as demo, and one that
    cannot be loaded as broken."""
    with tempfile.TemporaryDirectory(prefix="tandem-models-") as folder:
        shutil.copytree(MODEL, Path(folder, "demo"))
        Path(folder, "broken").mkdir()
        Path(folder, "broken", "config.json").write_text('{"model_type": "llama"}')
        where = ("--models-folder", folder, "--no-hub-models")
        with _launched("auto", "demo", *where, *flags) as served:
            yield served


@contextlib.contextmanager
def fronted(*servers: Served) -> Iterator[Served]:
    """`launcher serve --replica URL ...`, once all are ready."""
    port = free_port()
    words = ["-m", "launcher", "serve", "--port", str(port)]
    words += [word for server in servers for word in ("--replica", server.url)]
    with _process(*words) as (process, said):
        served = Served(f"http://127.0.0.1:{port}", servers[0].model)
        _wait_until_ready(served, process, said)
        wanted = f"tandem_fleet_ready_replicas {len(servers)}.0"
        while wanted not in get(f"{served.url}/metrics").decode():
            time.sleep(0.05)
        yield served


@contextlib.contextmanager
def _launched(model_id: str, name: str, *flags: str) -> Iterator[Served]:
    port = free_port()
    words = ("-m", "launcher", "serve", model_id)
    with _process(*words, "--port", str(port), "--device", "cpu", *flags) as (process, said):
        served = Served(f"http://127.0.0.1:{port}", name)
        _wait_until_ready(served, process, said)
        yield served


@contextlib.contextmanager
def faked(*flags: str) -> Iterator[Fake]:
    """The router over a fake shard, ready, with these flags of `python -m router`."""
    words = (tandem_python(), "-m", "tests.conformance.fake_server", *flags)
    with subprocess.Popen(
        words, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        try:
            told = json.loads(process.stdout.readline())
            yield Fake(told["url"], told["model"], process, told["router_pid"])
        finally:
            with contextlib.suppress(BrokenPipeError):
                process.communicate(timeout=_STOP_TIMEOUT_S)


def get(url: str) -> bytes:
    """The body of a page; an error for every status but 200."""
    with urllib.request.urlopen(url, timeout=10) as answer:
        assert answer.status == 200
        body: bytes = answer.read()
    return body


def post(url: str, body: object) -> Any:
    """The JSON answer to a JSON body; an error for every status but 200."""
    payload = json.dumps(body).encode()
    request = urllib.request.Request(url, payload, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.loads(answer.read())


@contextlib.contextmanager
def occupied(server: Served, num_tokens: int = 100) -> Iterator[None]:
    """One stream is being generated on the server for the time of the block."""
    body = {"inputs": "busy", "parameters": {"max_new_tokens": num_tokens, "ignore_eos": True}}
    request = urllib.request.Request(
        f"{server.url}/generate_stream",
        json.dumps(body).encode(),
        {"content-type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        assert answer.readline().startswith(b"data:")
        yield


@contextlib.contextmanager
def _process(*words: str) -> Iterator[tuple["subprocess.Popen[str]", Sequence[str]]]:
    """A process of Tandem's environment, and what it says; terminated with the block."""
    process = subprocess.Popen(
        (tandem_python(), *words),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    said: list[str] = []
    assert process.stdout is not None
    reader = threading.Thread(target=said.extend, args=(process.stdout,), daemon=True)
    reader.start()
    try:
        yield process, said
    finally:
        process.terminate()
        try:
            process.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        reader.join(5)
        process.stdout.close()


def _wait_until_ready(
    served: Served, process: "subprocess.Popen[str]", said: Sequence[str]
) -> None:
    deadline_s = time.monotonic() + _START_TIMEOUT_S
    while process.poll() is None and time.monotonic() < deadline_s:
        with contextlib.suppress(urllib.error.URLError, ConnectionError, TimeoutError):
            get(f"{served.url}/health")
            return
        time.sleep(0.05)
    raise AssertionError("the server did not become ready; it said:\n" + "".join(said))


def free_port() -> int:
    """A port that nobody listens at."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port
