"""Models on demand, end to end: one front, real processes, tiny models, HTTP and LMTP.

The tests are in order: each finds the models loaded that the one before it used.
"""

import asyncio
import json
import os
import shutil
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.asyncio.client import connect

from launcher import BUNDLED_MODEL
from tests.integration.server import RunningServer, launched, wait_until_gone

pytestmark = pytest.mark.slow
KEY = "secret"
HEADERS = {"authorization": f"Bearer {KEY}"}
PROMPT = "Once there was"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two models, one whose weights are cut off, and a folder that is none."""
    root = tmp_path_factory.mktemp("models")
    for name in ("one", "two", "cut"):
        shutil.copytree(BUNDLED_MODEL, root / name)
    (root / "cut" / "model.safetensors").write_bytes(b"cut")
    (root / "none").mkdir()
    return root


@pytest.fixture(scope="module")
def front(folder: Path) -> Iterator[RunningServer]:
    """It has room for two models, and a key."""
    with launched_front(folder) as server:
        yield server


@contextmanager
def launched_front(folder: Path) -> Iterator[RunningServer]:
    flags = ("--max-loaded-models", "2", "--no-hub-models", "--kv-blocks", "100")
    with launched("--models-folder", str(folder), *flags, model="auto", API_KEY=KEY) as server:
        yield server


def generate(server: RunningServer, **body: Any) -> httpx.Response:
    body = {"inputs": PROMPT, "parameters": {"max_new_tokens": 8}, **body}
    return server.http.post("/generate", json=body, headers=HEADERS, timeout=120)


def states(server: RunningServer) -> dict[str, str]:
    cards = server.http.get("/v1/models", headers=HEADERS, timeout=10).json()["data"]
    return {card["id"]: card["state"] for card in cards}


class Streaming:
    """Reads one stream of /generate_stream in a thread."""

    def __init__(self, server: RunningServer, model: str, num_tokens: int) -> None:
        self._http = server.http
        parameters = {"max_new_tokens": num_tokens, "ignore_eos": True}
        self._body = {"inputs": PROMPT, "model": model, "parameters": parameters}
        self._has_begun = threading.Event()
        self._thread = threading.Thread(target=self._read)
        self._thread.start()
        self.events: list[dict[str, Any]] = []

    def _read(self) -> None:
        with self._http.stream(
            "POST", "/generate_stream", json=self._body, headers=HEADERS, timeout=120
        ) as got:
            for line in got.iter_lines():
                if line.startswith("data:"):
                    self.events.append(json.loads(line.removeprefix("data:")))
                    self._has_begun.set()

    def until_begun(self) -> None:
        assert self._has_begun.wait(120)

    def text(self) -> str:
        """The whole text, once the stream has ended."""
        self._thread.join(120)
        assert "generated_text" in self.events[-1], self.events[-1]
        return str(self.events[-1]["generated_text"])


async def generate_by_lmtp(server: RunningServer, model: str) -> tuple[str, list[str]]:
    """The text of a stream, and the states of which the client was notified."""
    url = server.url.replace("http", "ws") + "/lmtp"
    async with connect(url, additional_headers=HEADERS, proxy=None, max_size=None) as socket:
        await socket.send('HELLO {"stream_id": 1, "version": 2}')
        request = {"stream_id": 2, "model": model, "text": PROMPT, "max_tokens": 8}
        await socket.send(f"GENERATE {json.dumps(request)}")
        notified: list[str] = []
        while True:
            message = await asyncio.wait_for(socket.recv(decode=True), 120)
            command, _, body = message.partition(" ")
            objects = json.loads(body)
            if command == "DONE":
                return objects[0]["text"], notified
            notified += [each["state"] for each in objects if "state" in each]


def test_nothing_is_loaded_until_a_request_with_a_key_names_it(front: RunningServer) -> None:
    assert states(front) == {"cut": "absent", "one": "absent", "two": "absent"}
    refused = generate(front)
    assert refused.status_code == 400
    assert "`model` is required" in refused.json()["error"]
    body = {"inputs": PROMPT, "model": "one"}
    assert front.http.post("/generate", json=body, timeout=10).status_code == 401
    assert set(states(front).values()) == {"absent"}


def test_two_models_answer_at_a_time_over_http_and_lmtp(front: RunningServer) -> None:
    stream = Streaming(front, "one", 8)
    text, notified = asyncio.run(generate_by_lmtp(front, "two"))
    assert notified[0] == "loading"
    # They are copies of one model.
    assert text == stream.text()
    assert states(front) == {"cut": "absent", "one": "ready", "two": "ready"}
    chat = {"model": "two", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 5}
    answer = front.http.post("/v1/chat/completions", json=chat, headers=HEADERS, timeout=120)
    assert answer.json()["model"] == "two"
    page = front.http.get("/metrics", timeout=10).text
    assert 'tgi_request_count_total{model="one"} ' in page
    assert 'tandem_fleet_requests_total{model="two"} 2.0' in page
    document = front.http.get("/api-doc/openapi.json", headers=HEADERS, timeout=10).json()
    assert "/generate" in document["paths"]


@pytest.mark.nightly
def test_a_stream_outlives_the_shard_of_its_model(front: RunningServer) -> None:
    shard = shard_of(front, "/two")
    stream = Streaming(front, "two", 500)
    stream.until_begun()
    os.kill(shard, signal.SIGKILL)
    assert stream.text()
    assert len(stream.events) == 500
    assert wait_until_gone([shard]) == []


def shard_of(server: RunningServer, model: str) -> int:
    for pid in server.descendants():
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        if b"model_server" in words and any(word.endswith(model.encode()) for word in words):
            return pid
    raise AssertionError(f"no shard holds {model}")


@pytest.mark.nightly
def test_a_model_that_left_for_one_that_is_broken_is_loaded_again(front: RunningServer) -> None:
    answers = [generate(front, model="cut") for _ in range(2)]
    assert [each.status_code for each in answers] == [503, 503]
    assert all("is no whole safetensors file" in each.json()["error"] for each in answers)
    assert front.said.count("loading cut") <= 1
    # The one that was not used for longest has left.
    assert states(front) == {"cut": "failed", "one": "absent", "two": "ready"}
    assert generate(front, model="one").status_code == 200


def test_a_drain_ends_streams_well_and_leaves_nothing_behind(front: RunningServer) -> None:
    """The last use of this front."""
    pids = front.descendants()
    stream = Streaming(front, "one", 300)
    stream.until_begun()
    front.signal(signal.SIGTERM)
    assert stream.text()
    assert len(stream.events) == 300
    assert front.wait() == 0
    assert wait_until_gone(pids) == []


@pytest.mark.nightly
def test_a_front_that_is_killed_leaves_no_process(folder: Path) -> None:
    with launched_front(folder) as front:
        assert generate(front, model="one").status_code == 200
        pids = front.descendants()
        assert len(pids) >= 3
        front.process.kill()
        assert wait_until_gone(pids, 20) == []
