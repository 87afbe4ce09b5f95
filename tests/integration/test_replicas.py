"""Replicas end to end: one front, two whole servers, one of which is killed under streams."""

import json
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.integration.server import RunningServer, descendants_of, launched

pytestmark = [pytest.mark.slow, pytest.mark.nightly]
TEXT = "Tell me a long story of the sea."
MESSAGES = [{"role": "user", "content": TEXT}]
# By API: the path, and a body whose answer is the same each time.
ASKED: dict[str, tuple[str, dict[str, Any]]] = {
    "tgi": (
        "/generate_stream",
        {"inputs": TEXT, "parameters": {"max_new_tokens": 300, "do_sample": True, "seed": 5}},
    ),
    "chat": (
        "/v1/chat/completions",
        {"messages": MESSAGES, "max_tokens": 300, "seed": 5, "n": 2, "stream": True},
    ),
    "responses": (
        "/v1/responses",
        {"input": TEXT, "max_output_tokens": 300, "temperature": 0, "stream": True},
    ),
    "messages": (
        "/v1/messages",
        {"messages": MESSAGES, "max_tokens": 300, "temperature": 0, "stream": True},
    ),
}


class Streaming(threading.Thread):
    """Reads one stream. `texts` are by choice, `ids` what its events are called."""

    def __init__(self, server: RunningServer, path: str, body: dict[str, Any]) -> None:
        super().__init__()
        self._server = server
        self._path = path
        self._body = body
        self.has_begun = threading.Event()
        self.texts: dict[int, str] = {}
        self.ids: set[str] = set()
        self.numbers: list[int] = []
        self.errors: list[object] = []
        self.start()

    def run(self) -> None:
        with (
            httpx.Client(base_url=self._server.url, timeout=120) as client,
            client.stream("POST", self._path, json=self._body) as got,
        ):
            for line in got.iter_lines():
                if line.startswith(":") or got.status_code != 200:
                    self.errors.append(line)
                if line.startswith("data: {"):
                    self._read(json.loads(line.removeprefix("data: ")))

    def _read(self, event: dict[str, Any]) -> None:
        if event.get("error"):
            self.errors.append(event)
        if "sequence_number" in event:
            self.numbers.append(event["sequence_number"])
        if "choices" in event:
            self.ids.add(event["id"])
        choices = [
            (each["index"], each["delta"].get("content")) for each in event.get("choices", ())
        ]
        delta = event.get("delta")
        text = delta if isinstance(delta, str) else (delta or {}).get("text")
        for choice, part in [*choices, (0, text or event.get("token", {}).get("text"))]:
            if part:
                self.texts[choice] = self.texts.get(choice, "") + part
                self.has_begun.set()


@pytest.mark.parametrize("killed", ["all of it", "its router"])
def test_a_killed_replica_takes_no_stream_with_it(killed: str, tmp_path: Path) -> None:
    flags = ("--replicas", "2", "--kv-blocks", "500", "--no-standby-shards")
    with launched(*flags, "--batch-file", str(tmp_path / "batches")) as server:
        until_ready(server)
        before = [Streaming(server, path, body) for path, body in ASKED.values()]
        for each in before:
            each.join()
        upload = {"file": ("x.jsonl", b"{}\n")}
        file = server.http.post("/v1/files", files=upload, data={"purpose": "batch"}).json()
        during = [Streaming(server, path, body) for path, body in ASKED.values()]
        assert all(each.has_begun.wait(60) for each in during)
        doomed = replicas(server)[0]
        processes = [doomed, *descendants_of(doomed)]
        for pid in processes if killed == "all of it" else [router_of(processes)]:
            os.kill(pid, signal.SIGKILL)
        for each in during:
            each.join()
        assert [each.errors for each in during] == [[]] * 4
        assert [each.texts for each in during] == [each.texts for each in before]
        assert len(during[1].texts) == 2
        assert len(during[1].ids) == 1
        assert during[2].numbers == list(range(len(during[2].numbers)))
        # It is back, and both know what one was given.
        until_ready(server)
        found = [server.http.get(f"/v1/files/{file['id']}").json() for _ in range(4)]
        assert found == [file] * 4


def replicas(server: RunningServer) -> list[int]:
    """The launchers."""
    return [pid for pid in server.descendants() if "launcher" in words_of(pid)]


def router_of(pids: list[int]) -> int:
    return next(pid for pid in pids if "router" in words_of(pid))


def words_of(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    except OSError:
        return []  # it has ended


def until_ready(server: RunningServer) -> None:
    """Until both replicas take requests."""
    deadline_s = time.monotonic() + 120
    while "tandem_fleet_ready_replicas 2.0" not in server.http.get("/metrics").text:
        assert time.monotonic() < deadline_s, server.said
        time.sleep(0.2)
