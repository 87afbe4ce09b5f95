"""LoRA adapters behind real HTTP: in one batch, loaded at run time, and on processes begun anew."""

import os
import signal
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.integration.server import RunningServer, launched, metric, wait_until_gone
from tests.model_server import lora_folders

pytestmark = pytest.mark.slow

_ADMIN = "the-key-of-who-runs-this"
_PROMPT = "Once there was a fox who lived near Eldhaven."
_NUM_NEW = 24
# The bundled model's.
_HIDDEN = 256
_INNER = 640
_SHAPES = {
    "self_attn.q_proj": (_HIDDEN, _HIDDEN),
    "self_attn.k_proj": (_HIDDEN, _HIDDEN),
    "self_attn.v_proj": (_HIDDEN, _HIDDEN),
    "self_attn.o_proj": (_HIDDEN, _HIDDEN),
    "mlp.gate_proj": (_INNER, _HIDDEN),
    "mlp.up_proj": (_INNER, _HIDDEN),
    "mlp.down_proj": (_HIDDEN, _INNER),
}
# What a token is, to the bit.
Answer = list[tuple[int, float]]


def made(folder: Path, seed: int, rank: int) -> Path:
    """An adapter of random numbers for all layers of the bundled model."""
    shapes = {
        f"model.layers.{layer}.{name}": shape
        for layer in range(4)
        for name, shape in _SHAPES.items()
    }
    return lora_folders.save(folder, shapes, seed=seed, rank=rank)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder = tmp_path_factory.mktemp("adapters")
    adapters = ",".join(
        f"{name}={made(folder / name, seed, rank)}"
        for name, seed, rank in (("one", 1, 4), ("two", 2, 8))
    )
    flags = ("--lora-adapters", adapters, "--lora-folders", str(folder), "--max-restarts", "4")
    with launched(*flags, ADMIN_API_KEY=_ADMIN) as running:
        yield running


def answer(server: RunningServer, adapter: str | None) -> Answer:
    parameters: dict[str, Any] = {"max_new_tokens": _NUM_NEW, "details": True, "ignore_eos": True}
    if adapter is not None:
        parameters["adapter_id"] = adapter
    said = server.http.post("/generate", json={"inputs": _PROMPT, "parameters": parameters})
    assert said.status_code == 200, said.text
    return [(token["id"], token["logprob"]) for token in said.json()["details"]["tokens"]]


def administer(server: RunningServer, route: str, **body: str) -> str:
    headers = {"authorization": f"Bearer {_ADMIN}"}
    said = server.http.post(f"/v1/{route}_lora_adapter", json=body, headers=headers)
    assert said.status_code == 200, said.text
    return said.text


def all_at_once(server: RunningServer, adapters: Sequence[str | None]) -> list[Answer]:
    with ThreadPoolExecutor(len(adapters)) as pool:
        return list(pool.map(lambda name: answer(server, name), adapters))


def is_ready(server: RunningServer) -> bool:
    with suppress(httpx.TransportError):
        return server.http.get("/health/ready").status_code == 200
    return False


def test_adapters_answer_alike_alone_in_one_batch_and_on_a_new_shard(server: RunningServer) -> None:
    names = (None, "one", "two")
    alone = [answer(server, name) for name in names]
    assert len({tuple(each) for each in alone}) == 3
    assert all_at_once(server, names * 3) == alone * 3

    # The same weights by another name, which is unloaded while it answers.
    administer(server, "load", lora_name="again", lora_path="one")
    assert answer(server, "again") == alone[1]
    with ThreadPoolExecutor(1) as pool:
        before = metric(server, "tandem_output_tokens_total")
        running = pool.submit(answer, server, "again")
        while metric(server, "tandem_output_tokens_total") == before:
            time.sleep(0.002)
        administer(server, "unload", lora_name="again")
        assert running.result() == alone[1]
    gone = server.http.post("/v1/completions", json={"model": "again", "prompt": "a"})
    assert gone.status_code == 404

    with ThreadPoolExecutor(len(names)) as pool:
        before = metric(server, "tandem_output_tokens_total")
        answers = pool.map(lambda name: answer(server, name), names)
        while metric(server, "tandem_output_tokens_total") == before:
            time.sleep(0.002)
        os.kill(server.pid_of("model_server"), signal.SIGKILL)
        assert list(answers) == alone
    assert metric(server, "tandem_shard_failures_total") == 1


@pytest.mark.nightly
def test_a_router_begun_anew_has_its_adapters_on_the_shard_that_stayed(
    server: RunningServer,
) -> None:
    names = (None, "one", "two")
    before = [answer(server, name) for name in names]
    shard = server.pid_of("model_server")
    router = server.pid_of("router")
    os.kill(router, signal.SIGKILL)
    assert wait_until_gone([router]) == []
    deadline_s = time.monotonic() + 60.0
    while not is_ready(server):
        assert time.monotonic() < deadline_s, server.said
        time.sleep(0.05)
    assert [answer(server, name) for name in names] == before
    assert server.pid_of("model_server") == shard
