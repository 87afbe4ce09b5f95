"""A batch through killed routers and a killed shard: each line once, with its own text."""

import contextlib
import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.integration.server import RunningServer, launched
from tests.router.http.batches.harness import COMPLETIONS, lines

pytestmark = [pytest.mark.slow, pytest.mark.nightly]

NUM_LINES = 120


def body(number: int) -> dict[str, Any]:
    prompt = f"Once there were {number}"
    drawn = {"temperature": 0.9, "ignore_eos": True}
    # Half of the lines have no seed of their own.
    seed = {"seed": number} if number % 2 else {}
    return {"prompt": prompt, "max_tokens": 200, **drawn, **seed}


def batch_of(server: RunningServer, batch_id: str) -> dict[str, Any]:
    """As the router says it, which may just be starting."""
    deadline_s = time.monotonic() + 60
    while time.monotonic() < deadline_s:
        with contextlib.suppress(httpx.TransportError):
            answer = server.http.get(f"/v1/batches/{batch_id}")
            if answer.is_success:
                return dict(answer.json())
        time.sleep(0.05)
    raise AssertionError(server.said)


def until(server: RunningServer, batch_id: str, num_done: int) -> dict[str, Any]:
    deadline_s = time.monotonic() + 200
    while time.monotonic() < deadline_s:
        batch = batch_of(server, batch_id)
        if batch["request_counts"]["completed"] >= num_done:
            return batch
        time.sleep(0.05)
    raise AssertionError(server.said)


def test_each_line_has_one_answer_through_every_kill(tmp_path: Path) -> None:
    flags = ("--batch-file", str(tmp_path / "batches.db"), "--max-restarts", "20")
    with launched(*flags) as server:
        sent = [
            {"custom_id": f"line-{n}", "method": "POST", "url": COMPLETIONS, "body": body(n)}
            for n in range(NUM_LINES)
        ]
        form = {"file": ("in.jsonl", lines(sent))}
        file = server.http.post("/v1/files", files=form, data={"purpose": "batch"}).json()
        wanted = {"input_file_id": file["id"], "endpoint": COMPLETIONS, "completion_window": "24h"}
        batch_id = server.http.post("/v1/batches", json=wanted).json()["id"]
        for number, module in enumerate(("router", "model_server", "router"), 1):
            until(server, batch_id, number * NUM_LINES // 5)
            os.kill(server.pid_of(module), signal.SIGKILL)
            time.sleep(0.5)
        until(server, batch_id, NUM_LINES)
        while (batch := batch_of(server, batch_id))["status"] != "completed":
            time.sleep(0.05)

        content = server.http.get(f"/v1/files/{batch['output_file_id']}/content").text
        answers = [json.loads(line) for line in content.splitlines()]
        assert [each["custom_id"] for each in answers] == [f"line-{n}" for n in range(NUM_LINES)]
        assert batch["error_file_id"] is None
        for number in range(1, NUM_LINES, 24):
            direct = server.http.post(COMPLETIONS, json=body(number)).json()
            text = answers[number]["response"]["body"]["choices"][0]["text"]
            assert text == direct["choices"][0]["text"]
