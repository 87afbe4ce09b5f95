"""The hub's answers without a network: by rule, from its cache, offline."""

import asyncio
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Collection, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from processes.hub import (
    HuggingFaceHub,
    has_weights_cached,
    result_unless_stalled,
    run_in_daemon_thread,
)
from processes.model_folders import NotOnHub

ASK = """
import sys
from processes.hub import HuggingFaceHub
from processes.model_folders import HubError
for name in sys.argv[1].split():
    try:
        HuggingFaceHub().require(name)
        print("there")
    except HubError as error:
        print(type(error).__name__, error)
"""

_ENDS = """
import asyncio, threading
from contextlib import suppress
from processes.hub import run_in_daemon_thread
async def main():
    with suppress(TimeoutError):
        async with asyncio.timeout(0.05):
            await asyncio.wrap_future(run_in_daemon_thread(threading.Event().wait))
asyncio.run(main())
print("ended")
"""


def cached(home: Path, name: str = "name") -> Path:
    """The snapshot's folder of org/name in this hub's cache, with a config."""
    folder = home / "hub" / f"models--org--{name}"
    snapshot = folder / "snapshots" / ("0" * 40)
    snapshot.mkdir(parents=True)
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text("0" * 40)
    (snapshot / "config.json").write_text("{}")
    return snapshot


def asked(name: str, home: Path, script: str = ASK, **environ: str) -> str:
    """What a process with this hub's home finds of a model."""
    return subprocess.run(
        [sys.executable, "-c", script, name],
        env={**os.environ, "HF_HOME": str(home), **environ},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    ).stdout


@pytest.mark.parametrize("name", ["a/b/c", "-a", "a..b", "a--b", "a b", "ä", "/a", "a/", "x" * 100])
def test_what_can_be_no_model_of_the_hub_is_not_asked_for(name: str) -> None:
    with pytest.raises(NotOnHub, match="NAME or OWNER/NAME"):
        HuggingFaceHub().require(name)


def test_a_model_in_the_cache_is_there(tmp_path: Path) -> None:
    cached(tmp_path)
    assert asked("org/name", tmp_path, HF_HUB_OFFLINE="1") == "there\n"


def at_hand(home: Path, models: Collection[str]) -> dict[str, bool]:
    """Of these models of org, which have all their weights in the cache, says one process."""
    script = (
        "import sys; from processes.hub import has_weights_cached as has\n"
        "for name in sys.argv[1].split(): print(has(f'org/{name}'))"
    )
    said = asked(" ".join(models), home, script).splitlines()
    return {name: each == "True" for name, each in zip(models, said, strict=True)}


def test_a_model_is_at_hand_when_all_its_weights_are_cached(tmp_path: Path) -> None:
    files = {
        "one-file": ["model.safetensors"],
        "all-parts": ["model.safetensors.index.json", "a", "b"],
        "a-part-is-missing": ["model.safetensors.index.json", "a"],
        "config-alone": [],
    }
    for model, names in files.items():
        snapshot = cached(tmp_path, model)
        for name in names:
            (snapshot / name).write_text('{"weight_map": {"x": "a", "y": "b"}}')
    expected = {model: model in ("one-file", "all-parts") for model in files}
    assert at_hand(tmp_path, files) == expected


def test_an_index_that_cannot_be_read_has_no_weights(tmp_path: Path) -> None:
    texts = ("", "[]", "{}", '{"weight_map": 5}', '{"weight_map": {}}', '"x"')
    models = {f"name-{number}": text for number, text in enumerate(texts)}
    for model, text in models.items():
        (cached(tmp_path, model) / "model.safetensors.index.json").write_text(text)
    assert at_hand(tmp_path, models) == dict.fromkeys(models, False)


def test_what_is_no_hub_id_is_not_cached() -> None:
    assert not any(has_weights_cached(name) for name in ("a b", "/models/x", "../x", ""))


def test_offline_what_is_not_in_the_cache_does_not_exist(tmp_path: Path) -> None:
    answer = asked("org/none", tmp_path, HF_HUB_OFFLINE="1")
    assert answer.startswith("NotOnHub ")
    assert f"HF_HUB_OFFLINE is set, and the cache {tmp_path}/hub lacks it; unset it" in answer


@pytest.mark.slow
def test_a_hub_that_is_not_reached_is_no_reason_to_say_that_a_model_does_not_exist(
    tmp_path: Path,
) -> None:
    answer = asked("org/none", tmp_path, HF_ENDPOINT="http://127.0.0.1:9", HF_HUB_OFFLINE="0")
    assert answer.startswith("HubError ")
    assert "http://127.0.0.1:9 cannot be reached ([Errno 111] Connection refused)" in answer


class _Refusals(BaseHTTPRequestHandler):
    """A hub that gives nothing: a model's name is the status and the hub's word for the reason."""

    def do_GET(self) -> None:
        found = re.search(r"/(\d+)-(\w+)", self.path)
        status, word = (found[1], found[2]) if found else ("404", "Unknown")
        self.send_response(int(status))
        header = "X-Error-Message" if word == "key" else "X-Error-Code"
        value = "Invalid credentials in Authorization header" if word == "key" else word
        self.send_header(header, value)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Quiet."""


@pytest.fixture
def refusing_hub() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Refusals) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("token", "reasons"),
    [
        (
            "",
            {
                "404-RepoNotFound": "or it is a private one for which HF_TOKEN must be set",
                "403-GatedRepo": "it is gated; ask for access at {hub}/403-GatedRepo, and set HF_T",
                "404-RevisionNotFound": "on the hub it has no revision 'main'",
                "500-x": "{hub} answered 500; try again later, or name a folder",
            },
        ),
        (
            "t",
            {
                "404-RepoNotFound": "or it is a private one that HF_TOKEN may not read",
                "403-GatedRepo": "{hub}/403-GatedRepo, with the account of HF_TOKEN",
                "401-key": "{hub} refuses HF_TOKEN (401); set it to a valid one, or unset it",
            },
        ),
    ],
    ids=["no-token", "token"],
)
def test_why_the_hub_gives_nothing_is_said_with_what_to_do(
    tmp_path: Path, refusing_hub: str, token: str, reasons: dict[str, str]
) -> None:
    environ = {"HF_ENDPOINT": refusing_hub, "HF_HUB_OFFLINE": "0", "HF_TOKEN": token}
    answers = asked(" ".join(reasons), tmp_path, **environ).splitlines()
    for answer, reason in zip(answers, reasons.values(), strict=True):
        assert reason.format(hub=refusing_hub) in answer


def test_what_comes_slowly_is_waited_for() -> None:
    begun_s = time.monotonic()

    def work() -> str:
        time.sleep(1.0)
        return "done"

    def progress() -> tuple[int, int]:
        return int(10 * (time.monotonic() - begun_s)), 0

    assert result_unless_stalled(work, progress, stall_timeout_s=0.4) == "done"
    assert result_unless_stalled(work, lambda: (0, 0), stall_timeout_s=0.4) is None


def test_what_fails_meanwhile_is_raised_as_it_is() -> None:
    def work() -> str:
        raise OSError("no route")

    with pytest.raises(OSError, match="no route"):
        result_unless_stalled(work, lambda: (0, 0), stall_timeout_s=5.0)


async def test_a_call_returns_or_raises_what_it_does_in_its_thread() -> None:
    assert (
        await asyncio.wrap_future(run_in_daemon_thread(threading.get_ident))
        != threading.get_ident()
    )
    with pytest.raises(ZeroDivisionError):
        run_in_daemon_thread(lambda: 1 // 0).result(30)


def test_what_would_end_only_its_thread_is_raised_too() -> None:
    with pytest.raises(RuntimeError, match="SystemExit: 3"):
        run_in_daemon_thread(lambda: sys.exit(3)).result(30)


async def test_a_cancelled_call_goes_on_without_its_caller() -> None:
    goes_on, has_ended = threading.Event(), threading.Event()

    def work() -> None:
        goes_on.wait(30)
        has_ended.set()

    waiting = asyncio.wrap_future(run_in_daemon_thread(work))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    goes_on.set()
    await asyncio.to_thread(has_ended.wait, 30)
    await asyncio.sleep(0)


def test_a_process_ends_whatever_its_threads_wait_for() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", _ENDS], capture_output=True, text=True, timeout=60, check=True
    )
    assert (ended.stdout, ended.stderr) == ("ended\n", "")
