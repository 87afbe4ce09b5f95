"""A hybrid behind a router: greedy answers are transformers', whatever becomes of its states.

Together and again, when some step back for want of blocks, and when their shard is killed.
"""

import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.integration.server import RunningServer, launched, metric
from tests.model_server.checkpoint.tiny_models import greedy
from tests.model_server.masking.shard import save_hybrid

pytestmark = pytest.mark.slow

PROMPTS = (
    "Once there was a king who",
    "The weather",
    "Q: What is 3+4?\nA: 7. Q: What is 2+2 and why would anybody want to know?\nA:",
    "A",
    "Two friends went into a wood, and when they came out again they were five.",
)
NUM_NEW = 60
# They fill some 27 blocks of 16 tokens, and do not fit at once.
NUM_BLOCKS = 16
NOTE = "prefix caching is off"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_hybrid(tmp_path_factory.mktemp("hybrid"))


@pytest.fixture(scope="module", params=["recipe", pytest.param("class", marks=pytest.mark.nightly)])
def server(request: pytest.FixtureRequest, folder: Path) -> Iterator[RunningServer]:
    flags = ["--kv-blocks", str(NUM_BLOCKS), "--dtype", "float32", "--max-restarts", "1"]
    if request.param == "class":
        flags += ["--attention", "cpu"]
    with launched(*flags, model=folder) as running:
        yield running


def answer(server: RunningServer, prompt: str) -> list[int]:
    parameters = {"max_new_tokens": NUM_NEW, "ignore_eos": True, "details": True}
    body = {"inputs": prompt, "parameters": parameters}
    answered = server.http.post("/generate", json=body, timeout=120).json()
    return [token["id"] for token in answered["details"]["tokens"]]


def together(pool: ThreadPoolExecutor, server: RunningServer) -> list[Future[list[int]]]:
    return [pool.submit(answer, server, prompt) for prompt in PROMPTS]


def test_answers_are_transformers_together_again_and_after_a_kill(
    server: RunningServer, folder: Path
) -> None:
    info = server.http.get("/info").json()
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    tokens = [server.http.post("/tokenize", json={"inputs": prompt}).json() for prompt in PROMPTS]
    expected = [
        greedy(model, [token["id"] for token in each], NUM_NEW, min_new_tokens=NUM_NEW)
        for each in tokens
    ]

    with ThreadPoolExecutor(len(PROMPTS)) as pool:
        for _ in range(3):
            assert [each.result() for each in together(pool, server)] == expected
        assert metric(server, "tandem_preemptions_total") > 0
        answers = together(pool, server)
        while not metric(server, "tandem_states_used"):
            time.sleep(0.01)
        os.kill(server.pid_of("model_server"), signal.SIGKILL)
        assert [each.result() for each in answers] == expected

    assert metric(server, "tandem_shard_failures_total") == 1
    assert metric(server, "tandem_states_used") == 0
    assert "states: 0.0 MB a sequence" in server.said
    assert (NOTE in server.said) is not info["prefix_caching"]
