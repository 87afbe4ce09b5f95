"""A watermark in what the bundled model says, found by transformers' own detector."""

import json
from concurrent.futures import ThreadPoolExecutor
from statistics import mean
from typing import Any

import pytest

from launcher import BUNDLED_MODEL
from tests.integration.server import RunningServer
from tests.model_server.sampling.cases import z_score

pytestmark = pytest.mark.slow

VOCAB_SIZE = json.loads((BUNDLED_MODEL / "config.json").read_text())["vocab_size"]
PROMPTS = (
    "Once upon a time, there was a little",
    "Tom had a red ball. One day",
    "The dog ran to the park and",
)
# As the fixture `server` has them. Strong, for the bundled model is sure of most of what it says,
# and a sure token stays what it is.
GAMMA, DELTA = 0.25, 6.0
NUM_TOKENS = 150
# The detector thinks a text marked from 3 on.
CERTAIN, CHANCE = 6.0, 4.0


def z_scores(server: RunningServer, **parameters: Any) -> list[float]:
    """Of the answer to each prompt, asked at once; the prompts' own tokens are left out."""
    asked = {"max_new_tokens": NUM_TOKENS, "ignore_eos": True, "details": True, **parameters}

    def z_score_after(prompt: str) -> float:
        answer = server.http.post(
            "/generate", json={"inputs": prompt, "parameters": asked}, timeout=120
        )
        assert answer.status_code == 200, answer.text
        token_ids = [token["id"] for token in answer.json()["details"]["tokens"]]
        assert len(token_ids) == NUM_TOKENS
        return z_score(VOCAB_SIZE, token_ids, GAMMA, DELTA)

    with ThreadPoolExecutor(len(PROMPTS)) as clients:
        return list(clients.map(z_score_after, PROMPTS))


@pytest.mark.parametrize(
    "parameters",
    [
        pytest.param({"temperature": 1.5}, id="warm"),
        pytest.param({"temperature": 2.0, "top_p": 0.95}, id="nucleus"),
        pytest.param({"temperature": 1.5, "top_k": 50, "repetition_penalty": 1.2}, id="penalised"),
    ],
)
def test_it_is_found_where_it_was_asked_for_and_nowhere_else(
    server: RunningServer, parameters: dict[str, Any]
) -> None:
    marked = z_scores(server, watermark=True, seed=8, **parameters)
    unmarked = z_scores(server, watermark=False, seed=8, **parameters)
    assert max(unmarked) < CHANCE < min(marked), (unmarked, marked)
    assert mean(marked) > CERTAIN, marked
