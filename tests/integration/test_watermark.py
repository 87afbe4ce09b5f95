"""A watermark in what the bundled model says, found by transformers' own detector."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from launcher.settings import BUNDLED_MODEL
from tests.integration.server import RunningServer, launched
from tests.model_server.sampling.detector import z_score

pytestmark = pytest.mark.slow

VOCAB_SIZE = json.loads((BUNDLED_MODEL / "config.json").read_text())["vocab_size"]
PROMPTS = (
    "Once upon a time, there was a little",
    "Tom had a red ball. One day",
    "The dog ran to the park and",
)
GAMMA, DELTA = 0.25, 3.0
# The detector's own.
THRESHOLD = 3.0


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with launched("--watermark-gamma", str(GAMMA), WATERMARK_DELTA=str(DELTA)) as running:
        yield running


def z_scores(server: RunningServer, **parameters: Any) -> list[float]:
    """Of the answer to each prompt; the prompt's own tokens are not marked, and left out."""
    asked = {"max_new_tokens": 150, "ignore_eos": True, "details": True, **parameters}
    scores = []
    with httpx.Client(base_url=server.url, timeout=60) as client:
        for prompt in PROMPTS:
            answer = client.post("/generate", json={"inputs": prompt, "parameters": asked})
            assert answer.status_code == 200, answer.text
            token_ids = [token["id"] for token in answer.json()["details"]["tokens"]]
            assert len(token_ids) == 150
            scores.append(z_score(VOCAB_SIZE, token_ids, GAMMA, DELTA))
    return scores


@pytest.mark.parametrize(
    "parameters",
    [
        pytest.param({}, id="greedy"),
        pytest.param({"do_sample": True, "seed": 5}, id="sampled"),
        pytest.param({"temperature": 0.8, "top_p": 0.95, "seed": 6}, id="nucleus"),
        pytest.param({"repetition_penalty": 1.2, "seed": 7, "top_k": 50}, id="penalised"),
    ],
)
def test_it_is_found_where_it_was_asked_for_and_nowhere_else(
    server: RunningServer, parameters: dict[str, Any]
) -> None:
    marked = z_scores(server, watermark=True, **parameters)
    unmarked = z_scores(server, watermark=False, **parameters)
    assert min(marked) > THRESHOLD + 2, (marked, unmarked)
    assert max(unmarked) < THRESHOLD, (marked, unmarked)
