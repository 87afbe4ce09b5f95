"""A model whose layers keep states, behind real HTTP: preempted, from kept states, and killed."""

import hashlib
import json
import os
import signal
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.byte_tokenizer import byte_ids, save_byte_tokenizer
from tests.integration.server import RunningServer, launched, metric
from tests.model_server.checkpoint import tiny_models

# By day states are held where sequences are stepped, and by both tiers in one process.
pytestmark = [pytest.mark.slow, pytest.mark.nightly]

_STORY = "Once there was a fox who lived near Eldhaven with a goat. "
# Three begin alike; all of them together are more than the pool holds.
_PROMPTS = (_STORY + "One day", _STORY + "It rained.", _STORY, "Q: 3+4?", "The weather was " * 3)
_NUM_NEW = 40
# Of 16 tokens each.
_NUM_BLOCKS = "16"

Answers = list[list[int]]


@pytest.fixture(scope="module", params=["qwen3_5", "nemotron_h"])
def name(request: pytest.FixtureRequest) -> str:
    """With a delta rule, or with a state space."""
    return str(request.param)


@pytest.fixture(scope="module")
def folder(name: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_byte_tokenizer(tiny_models.save(name, tmp_path_factory.mktemp(name)))


@pytest.fixture(scope="module")
def expected(name: str) -> Answers:
    """What the class itself answers to each prompt alone."""
    return [generated(name, prompt, _NUM_NEW) for prompt in _PROMPTS]


def generated(name: str, prompt: str, num_new: int) -> list[int]:
    token_ids = torch.tensor([byte_ids(prompt)])
    with torch.inference_mode():
        whole = tiny_models.build(name).generate(
            token_ids, do_sample=False, max_new_tokens=num_new, min_new_tokens=num_new
        )
    answer: list[int] = whole[0, token_ids.shape[1] :].tolist()
    return answer


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[RunningServer]:
    flags = ("--dtype", "float32", "--kv-blocks", _NUM_BLOCKS, "--max-restarts", "3")
    with launched(*flags, model=folder) as running:
        yield running


def answer(server: RunningServer, prompt: str, num_new: int = _NUM_NEW) -> list[int]:
    return [token["id"] for token in tokens_of(server, prompt, num_new)]


def tokens_of(server: RunningServer, prompt: str, num_new: int = _NUM_NEW) -> list[dict[str, Any]]:
    parameters = {"max_new_tokens": num_new, "ignore_eos": True, "details": True}
    body = {"inputs": prompt, "parameters": parameters, "add_special_tokens": False}
    said = server.http.post("/generate", json=body, timeout=60)
    assert said.status_code == 200, said.text
    tokens: list[dict[str, Any]] = said.json()["details"]["tokens"]
    return tokens


def asked(
    pool: ThreadPoolExecutor, server: RunningServer, prompts: Sequence[str] = _PROMPTS
) -> list[Future[list[int]]]:
    return [pool.submit(answer, server, prompt) for prompt in prompts]


def info(server: RunningServer) -> dict[str, Any]:
    info: dict[str, Any] = server.http.get("/info").json()
    return info


def require_equal_rounds(server: RunningServer, expected: Answers) -> None:
    """All at once, three times, in a pool for two of them."""
    before = metric(server, "tandem_preemptions_total")
    with ThreadPoolExecutor(len(_PROMPTS)) as pool:
        for _ in range(3):
            assert [each.result() for each in asked(pool, server)] == expected
    assert metric(server, "tandem_preemptions_total") > before
    assert metric(server, "tandem_states_capacity") == info(server)["num_states"] > 0
    assert metric(server, "tandem_states_used") == 0


def test_answers_are_those_of_the_class_preempted_or_from_kept_states(
    server: RunningServer, name: str, expected: Answers
) -> None:
    require_equal_rounds(server, expected)
    assert info(server)["prefix_caching"]
    assert metric(server, "tandem_states_kept") > 0
    # The next turn of a chat begins where the prompt of the last one ended.
    turn = _PROMPTS[0] + "x" * _NUM_NEW
    before = metric(server, "tandem_prefix_cache_hit_tokens_total")
    assert answer(server, turn, 5) == generated(name, turn, 5)
    hit = metric(server, "tandem_prefix_cache_hit_tokens_total") - before
    assert hit >= len(_STORY) // 16 * 16


def test_its_own_class_computes_every_prompt_whole(folder: Path, expected: Answers) -> None:
    flags = ("--dtype", "float32", "--kv-blocks", _NUM_BLOCKS, "--attention", "cpu")
    with launched(*flags, "--max-restarts", "1", model=folder) as server:
        require_equal_rounds(server, expected)
        with ThreadPoolExecutor(len(_PROMPTS)) as pool:
            answers = asked(pool, server)
            while not metric(server, "tandem_states_used"):
                time.sleep(0.005)
            os.kill(server.pid_of("model_server"), signal.SIGKILL)
            assert [each.result() for each in answers] == expected
        assert not info(server)["prefix_caching"]
        assert "prefix caching is off" in server.said
        assert metric(server, "tandem_states_kept") == 0
        assert metric(server, "tandem_prefix_cache_hit_tokens_total") == 0


def test_answers_are_the_same_when_the_shard_is_killed(
    server: RunningServer, expected: Answers
) -> None:
    with ThreadPoolExecutor(len(_PROMPTS)) as pool:
        for _ in range(3):
            answers = asked(pool, server)
            before = metric(server, "tandem_output_tokens_total")
            while metric(server, "tandem_output_tokens_total") == before:
                time.sleep(0.005)
            os.kill(server.pid_of("model_server"), signal.SIGKILL)
            assert [each.result() for each in answers] == expected
    assert metric(server, "tandem_shard_failures_total") == 3
    assert metric(server, "tandem_states_used") == 0


def test_bits_are_the_same_alone_together_from_kept_states_and_after_a_kill(folder: Path) -> None:
    """Of every token's log-probability."""

    def hash_of(answers: Iterable[list[dict[str, Any]]]) -> str:
        numbers = [[(token["id"], token["logprob"]) for token in answer] for answer in answers]
        return hashlib.sha256(json.dumps(numbers).encode()).hexdigest()

    flags = ("--dtype", "float32", "--kv-blocks", _NUM_BLOCKS, "--max-restarts", "2")
    with launched(*flags, model=folder) as server, ThreadPoolExecutor(len(_PROMPTS)) as pool:
        hashes = [hash_of(tokens_of(server, prompt) for prompt in _PROMPTS) for _ in range(2)]
        assert metric(server, "tandem_prefix_cache_hit_tokens_total") > 0
        hashes += [hash_of(pool.map(partial(tokens_of, server), _PROMPTS)) for _ in range(3)]
        assert metric(server, "tandem_preemptions_total") > 0
        answers = [pool.submit(tokens_of, server, prompt) for prompt in _PROMPTS]
        before = metric(server, "tandem_output_tokens_total")
        while metric(server, "tandem_output_tokens_total") == before:
            time.sleep(0.005)
        os.kill(server.pid_of("model_server"), signal.SIGKILL)
        hashes.append(hash_of(each.result() for each in answers))
        assert metric(server, "tandem_shard_failures_total") == 1
    assert len(set(hashes)) == 1
