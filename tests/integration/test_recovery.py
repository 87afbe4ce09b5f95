"""What the death of a shard, a hang of it and the death of the router cost: a pause.

Some of what is asked for has a LoRA adapter: all in one batch, and on processes begun anew.
"""

import contextlib
import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.integration.dialogues import talking
from tests.integration.server import RunningServer, launched, metric, wait_until_gone
from tests.model_server import lora_folders

pytestmark = pytest.mark.slow

SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 60}, "age": {"type": "integer"}},
    "required": ["name", "age"],
}
LONG = {"max_new_tokens": 120, "ignore_eos": True}
# Of every kind that a shard keeps something for.
KINDS: dict[str, dict[str, Any]] = {
    "greedy": {**LONG},
    "drawn": {**LONG, "do_sample": True, "seed": 7, "temperature": 1.1, "top_p": 0.9},
    "penalised": {**LONG, "repetition_penalty": 1.3, "frequency_penalty": 0.4},
    "scored": {**LONG, "details": True, "top_n_tokens": 3},
    "pattern": {"max_new_tokens": 120, "grammar": {"type": "regex", "value": "([a-z]{1,9} ){25}"}},
    "schema": {"max_new_tokens": 120, "grammar": {"type": "json", "value": SCHEMA}},
    "watermarked": {**LONG, "watermark": True},
    "adapted": {**LONG, "adapter_id": "one"},
    "adapted otherwise": {**LONG, "adapter_id": "two"},
}
_ADMIN = "the-key-of-who-runs-this"
# The bundled model's: outputs and inputs of each layer's products.
_SHAPES = {
    "self_attn.q_proj": (256, 256),
    "self_attn.k_proj": (256, 256),
    "self_attn.v_proj": (256, 256),
    "self_attn.o_proj": (256, 256),
    "mlp.gate_proj": (640, 256),
    "mlp.up_proj": (640, 256),
    "mlp.down_proj": (256, 640),
}


def adapter(folder: Path, seed: int, rank: int) -> Path:
    """An adapter of random numbers for all layers of the bundled model."""
    shapes = {f"model.layers.{i}.{name}": each for i in range(4) for name, each in _SHAPES.items()}
    return lora_folders.save(folder, shapes, seed=seed, rank=rank)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder = tmp_path_factory.mktemp("adapters")
    adapters = f"one={adapter(folder / 'one', 1, 4)},two={adapter(folder / 'two', 2, 8)}"
    lora = ("--lora-adapters", adapters, "--lora-folders", str(folder))
    restarts = ("--max-restarts", "20", "--standby-shards")
    with launched(*lora, *restarts, ADMIN_API_KEY=_ADMIN) as running:
        yield running


def answer(server: RunningServer, kind: str, number: int, answers: dict[str, Any]) -> None:
    """A stream's tokens with their log-probabilities, and its end."""
    body = {"inputs": f"Once there were {number}", "parameters": KINDS[kind]}
    events = []
    with server.http.stream("POST", "/generate_stream", json=body, timeout=120) as stream:
        for line in stream.iter_lines():
            if line.startswith("data:"):
                events.append(json.loads(line.removeprefix("data:")))
                answers[f"{kind} {number}"] = events


def undisturbed(server: RunningServer, names: list[tuple[str, int]]) -> dict[str, Any]:
    answers: dict[str, Any] = {}
    for kind, number in names:
        answer(server, kind, number, answers)
    return answers


def together(
    server: RunningServer, names: list[tuple[str, int]], answers: dict[str, Any]
) -> list[threading.Thread]:
    threads = [
        threading.Thread(target=answer, args=(server, kind, number, answers))
        for kind, number in names
    ]
    for thread in threads:
        thread.start()
    return threads


def status(server: RunningServer, path: str) -> int:
    return server.http.get(path, timeout=10).status_code


def wait_until(what: str, server: RunningServer, path: str, expected: int) -> None:
    deadline_s = time.monotonic() + 60.0
    while time.monotonic() < deadline_s:
        with contextlib.suppress(httpx.TransportError):
            if status(server, path) == expected:
                return
        time.sleep(0.02)
    raise AssertionError(f"{what}: {path} is not {expected}; the server said:\n{server.said}")


def until_one_stands_by(server: RunningServer) -> None:
    deadline_s = time.monotonic() + 60.0
    while not any(is_standing_by(pid) for pid in server.descendants()):
        assert time.monotonic() < deadline_s, f"none stands by; the server said:\n{server.said}"
        time.sleep(0.05)


def is_standing_by(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text() == "tandem-standby\n"
    return False


def administer(server: RunningServer, route: str, **body: str) -> None:
    headers = {"authorization": f"Bearer {_ADMIN}"}
    said = server.http.post(f"/v1/{route}_lora_adapter", json=body, headers=headers)
    assert said.status_code == 200, said.text


def test_an_adapter_that_is_unloaded_while_it_answers_is_there_to_the_end(
    server: RunningServer,
) -> None:
    """The same weights by another name."""

    def written(name: str) -> str:
        body = {"inputs": "Once", "parameters": {**LONG, "adapter_id": name}}
        return str(server.http.post("/generate", json=body).json()["generated_text"])

    expected = written("one")
    administer(server, "load", lora_name="again", lora_path="one")
    with ThreadPoolExecutor(1) as pool:
        before = metric(server, "tandem_output_tokens_total")
        running = pool.submit(written, "again")
        while metric(server, "tandem_output_tokens_total") == before:
            time.sleep(0.002)
        administer(server, "unload", lora_name="again")
        assert running.result() == expected
    gone = server.http.post("/v1/completions", json={"model": "again", "prompt": "a"})
    assert gone.status_code == 404


def test_streams_of_every_kind_are_the_same_when_their_shard_is_killed(
    server: RunningServer,
) -> None:
    names = [(kind, 0) for kind in KINDS]
    expected = undisturbed(server, names)
    adapted = ("greedy", "adapted", "adapted otherwise")
    assert len({str(texts(expected[f"{kind} 0"])) for kind in adapted}) == 3
    assert all("token" in events[0] for events in expected.values()), "a kind is refused"
    until_one_stands_by(server)
    answers: dict[str, Any] = {}
    threads = together(server, names, answers)
    while len(answers) < len(names) // 2:
        time.sleep(0.01)
    os.kill(server.pid_of("model_server"), signal.SIGKILL)
    wait_until("after the kill", server, "/health/ready", 503)
    assert status(server, "/health/live") == 200
    late = server.http.post(
        "/generate",
        json={"inputs": "Once", "parameters": {"max_new_tokens": 3}},
        timeout=60,
    )
    assert late.status_code == 200
    for thread in threads:
        thread.join(60)
    assert {name: texts(events) for name, events in answers.items()} == {
        name: texts(events) for name, events in expected.items()
    }
    assert answers == expected
    assert metric(server, "tandem_shard_failures_total") == 1
    assert metric(server, "tandem_kv_blocks_used") == 0
    # What stood by took its place.
    shard = server.pid_of("model_server")
    assert Path(f"/proc/{shard}/comm").read_text() == "tandem-shard\n"


def texts(events: list[dict[str, Any]]) -> list[str]:
    return [event["token"]["text"] if "token" in event else str(event) for event in events]


@pytest.mark.nightly
def test_a_shard_that_hangs_is_replaced(server: RunningServer) -> None:
    expected = undisturbed(server, [("drawn", 5)])
    answers: dict[str, Any] = {}
    threads = together(server, [("drawn", 5)], answers)
    while not answers:
        time.sleep(0.01)
    hanging = server.pid_of("model_server")
    os.kill(hanging, signal.SIGSTOP)
    began_s = time.monotonic()
    wait_until("the hang", server, "/health/ready", 503)
    assert time.monotonic() - began_s < 10.0
    for thread in threads:
        thread.join(60)
    assert answers == expected
    assert server.pid_of("model_server") != hanging


async def test_a_router_that_is_killed_serves_again_and_the_weights_stay(
    server: RunningServer, tmp_path: Path
) -> None:
    """Meanwhile a client says so, and goes on with its answer."""
    kinds = [("penalised", 6), ("adapted", 6)]
    expected = undisturbed(server, kinds)
    shard, router = server.pid_of("model_server"), server.pid_of("router")
    async with talking(server, tmp_path) as terminal:
        terminal.type('Tell me a long story where="len(X) > 2000"\r')
        await terminal.read_until('2000"\r\n')
        # The first characters of the story.
        await terminal.read_until(" ")
        os.kill(router, signal.SIGKILL)
        before = await terminal.read_until("[reconnecting")
        assert "tokens in" not in before
        rest = await terminal.read_until("tokens in")
        assert "error:" not in rest
    assert wait_until_gone([router]) == []
    wait_until("the new router", server, "/health/ready", 200)
    assert undisturbed(server, kinds) == expected
    assert server.pid_of("model_server") == shard
    assert server.pid_of("router") != router


def test_a_death_in_the_drain_ends_the_streams_with_an_error(server: RunningServer) -> None:
    """The last test with this server: it is gone afterwards."""
    answers: dict[str, Any] = {}
    threads = together(server, [("greedy", 8)], answers)
    while not answers:
        time.sleep(0.01)
    server.signal(signal.SIGTERM)
    while "draining" not in server.said:
        time.sleep(0.01)
    os.kill(server.pid_of("model_server"), signal.SIGKILL)
    for thread in threads:
        thread.join(20)
    assert "error" in answers["greedy 8"][-1]
    server.wait()
    assert "was ended by SIGKILL; its last lines:" in server.said
