"""`launcher serve --num-shard 2`: one model over two processes."""

import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from launcher import BUNDLED_MODEL
from tests.collector import Collector, Span, collecting
from tests.integration.server import RunningServer, launched, wait_until_gone
from tests.listeners import is_every_interface, listening_at

pytestmark = pytest.mark.slow

TRACE_ID, SPAN_ID = "ab" * 16, "cd" * 8
KEY = "sk-hush-hush"
MINE = {"authorization": f"Bearer {KEY}"}


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    with collecting() as running:
        yield running


@pytest.fixture(scope="module")
def server(collector: Collector) -> Iterator[RunningServer]:
    traces = ("--otlp-endpoint", collector.endpoint, "--otlp-service-name", "mine")
    ranks = ("--num-shard", "2", "--dtype", "float32", "--max-restarts", "1")
    with launched(*ranks, *traces, API_KEY=f"sk-other,{KEY}") as running:
        yield running


def generate(server: RunningServer, inputs: str, **headers: str) -> str:
    body = {"inputs": inputs, "parameters": {"max_new_tokens": 20, "ignore_eos": True}}
    answer = server.http.post("/generate", json=body, headers=MINE | headers, timeout=60)
    text: str = answer.json()["generated_text"]
    return text


def test_they_answer_as_transformers_does(server: RunningServer) -> None:
    tokenizer = AutoTokenizer.from_pretrained(BUNDLED_MODEL)
    model: Any = AutoModelForCausalLM.from_pretrained(BUNDLED_MODEL, dtype=torch.float32)
    for prompt in ("Once there was", "The weather was", "Q: What is 3+4?\nA:"):
        token_ids = tokenizer(prompt, return_tensors="pt")["input_ids"]
        with torch.inference_mode():
            whole = model.generate(
                token_ids, do_sample=False, min_new_tokens=20, max_new_tokens=20, eos_token_id=-1
            )
        expected = tokenizer.decode(whole[0, token_ids.shape[1] :], skip_special_tokens=True)
        assert generate(server, prompt) == expected


def test_they_are_in_one_trace(server: RunningServer, collector: Collector) -> None:
    generate(server, "Once there was", traceparent=f"00-{TRACE_ID}-{SPAN_ID}-01")
    (inference,) = (
        span
        for span in collector.wait_for(TRACE_ID, {"mine: inference"})
        if span.name == "inference"
    )
    deadline_s = time.monotonic() + 30
    decodes: list[Span] = []
    while len(decodes) < 2 and time.monotonic() < deadline_s:
        time.sleep(0.05)
        decodes = [span for span in collector.of(TRACE_ID) if span.name == "decode"]
    assert sorted(span.attributes["tandem.rank"] for span in decodes) == [0, 1]
    assert {span.parent_id for span in decodes} == {inference.span_id}


def test_no_process_listens_at_every_interface(server: RunningServer) -> None:
    addresses = [one for pid in server.descendants() for one in listening_at(pid)]
    assert len(addresses) > 1
    assert not [one for one in addresses if is_every_interface(one)]


def test_no_secret_is_in_a_log_a_command_line_or_a_shard(server: RunningServer) -> None:
    assert KEY not in server.said
    for pid in [server.process.pid, *server.descendants()]:
        assert KEY not in Path(f"/proc/{pid}/cmdline").read_text(errors="replace")
    shard = Path(f"/proc/{server.pid_of('model_server')}/environ").read_text(errors="replace")
    assert "PATH=" in shard
    assert KEY not in shard
    assert KEY in Path(f"/proc/{server.pid_of('router')}/environ").read_text(errors="replace")


@pytest.mark.nightly
def test_a_stream_outlives_the_death_of_one_and_too_many_deaths_stop_everything(
    server: RunningServer,
) -> None:
    """The last test of this file: the server is gone afterwards."""
    parameters = {"max_new_tokens": 80, "ignore_eos": True, "do_sample": True, "seed": 3}
    body = {"inputs": "Once there was", "parameters": parameters}
    expected = server.http.post("/generate", json=body, headers=MINE, timeout=120).json()
    with ThreadPoolExecutor(1) as thread:
        answer = thread.submit(server.http.post, "/generate", json=body, headers=MINE, timeout=240)
        time.sleep(0.3)
        os.kill(server.pid_of("model_server"), signal.SIGKILL)
        assert answer.result().json() == expected
    pids = server.descendants()
    os.kill(server.pid_of("model_server"), signal.SIGKILL)
    assert server.wait() == 1
    assert wait_until_gone(pids) == []
    assert "was ended by SIGKILL; its last lines:" in server.said
    assert "1 restarts within 600 s are the most (--max-restarts)" in server.said
