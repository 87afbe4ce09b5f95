"""The main job, end to end: real processes, the bundled model, real HTTP."""

import contextlib
import json
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import httpx
import pytest
from tokenizers import Tokenizer

from launcher import BUNDLED_MODEL
from native.time_slice import slice_ns
from processes.addresses import free_port
from tests.asked_twice import Asked, streamed_text, whole_text
from tests.integration.server import RunningServer, launched, metric
from tests.native.kernel import needs_slices

pytestmark = pytest.mark.slow


def generate(server: RunningServer, inputs: str, **parameters: object) -> httpx.Response:
    body = {"inputs": inputs, "parameters": parameters}
    return server.http.post("/generate", json=body, timeout=60)


def test_the_log_of_a_start_tells_what_is_served_where_and_how(server: RunningServer) -> None:
    deadline_s = time.monotonic() + 30
    while "Tandem serves" not in server.said and time.monotonic() < deadline_s:
        time.sleep(0.05)
    expected = [
        f"launcher | TIME Tandem {version('tandem')} will serve {BUNDLED_MODEL}",
        "launcher | TIME loading it on 1 shard",
        "shard 0 | TIME INFO reading the weights on cpu",
        "shard 0 | TIME INFO proven: its logits are those of transformers (relative error ",
        "shard 0 | TIME INFO loaded in ",
        "router | TIME INFO demo on cpu: 4.07 M parameters in float32 by dense",
        "launcher | TIME ready after ",
        f"launcher | TIME Tandem serves at {server.url}",
    ]
    lines = re.sub(r"\| \d\d:\d\d:\d\d ", "| TIME ", server.said).splitlines()
    # Every line has a time, and none is a progress bar.
    assert all(" | TIME " in line for line in lines)
    assert "Loading weights" not in server.said
    starts = [next((each for each in expected if line.startswith(each)), None) for line in lines]
    assert [each for each in starts if each is not None] == expected
    assert any(line.endswith(f"INFO ready at {server.url}") for line in lines)


@pytest.mark.nightly
def test_a_server_is_ready_when_its_vocabulary_is_read_and_its_workers_are_there() -> None:
    with launched("--log-level", "debug") as server:
        assert server.pid_of("constraints.worker")
        before = server.said
        body = {"inputs": "Say", "parameters": {"grammar": {"type": "regex", "value": "a{3,5}b"}}}
        assert server.http.post("/generate", json=body, timeout=60).status_code == 200
    assert before.index("read a vocabulary") < before.index("is ready at")


def test_generate_answers_text(server: RunningServer) -> None:
    answer = generate(server, "Once there was", max_new_tokens=20, details=True)
    assert answer.status_code == 200
    assert answer.headers["x-request-id"]
    body = answer.json()
    assert body["details"]["generated_tokens"] == len(body["details"]["tokens"]) <= 20
    assert body["generated_text"] == "".join(
        token["text"] for token in body["details"]["tokens"] if not token["special"]
    )


def test_the_stream_joined_is_the_answer(server: RunningServer) -> None:
    whole = generate(server, "Once there was", max_new_tokens=30).json()["generated_text"]
    body = {"inputs": "Once there was", "parameters": {"max_new_tokens": 30}}
    events = []
    with server.http.stream("POST", "/generate_stream", json=body, timeout=60) as stream:
        for line in stream.iter_lines():
            if line.startswith("data:"):
                events.append(json.loads(line[5:]))
    assert events[-1]["generated_text"] == whole
    texts = [e["token"]["text"] for e in events if not e["token"]["special"]]
    assert "".join(texts) == whole


@needs_slices
def test_those_who_compute_steps_take_long_turns_and_who_answers_does_not(
    server: RunningServer,
) -> None:
    generate(server, "Once there was", max_new_tokens=2)
    shard = server.pid_of("model_server")
    slices = [slice_ns(int(task.name)) for task in Path(f"/proc/{shard}/task").iterdir()]
    assert slices.count(20_000_000) >= len(os.sched_getaffinity(0))
    assert (slice_ns(shard) or 0) < 20_000_000


def test_chat_answers_and_ends(server: RunningServer) -> None:
    body = {
        "model": "tgi",
        "messages": [{"role": "user", "content": "Hello!"}],
        "temperature": 0,
        "max_tokens": 60,
    }
    answer = server.http.post("/v1/chat/completions", json=body, timeout=60).json()
    choice = answer["choices"][0]
    assert choice["finish_reason"] == "stop"
    assert choice["message"]["content"].strip()
    assert answer["usage"]["completion_tokens"] < 60


def test_the_same_seed_means_the_same_text_whatever_the_load(server: RunningServer) -> None:
    parameters = {"max_new_tokens": 24, "do_sample": True, "temperature": 1.0, "seed": 42}
    alone = generate(server, "Once there was", **parameters).json()["generated_text"]
    answers: list[str] = []

    def ask(number: int) -> None:
        prompt = "Once there was" if number % 2 else f"Hello number {number}, what is"
        seed = 42 if number % 2 else number
        text = generate(server, prompt, **(parameters | {"seed": seed})).json()["generated_text"]
        if number % 2:
            answers.append(text)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(24)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == [alone] * 12


def test_all_blocks_come_back(server: RunningServer) -> None:
    for _ in range(5):
        generate(server, "Once there was", max_new_tokens=5)
    assert metric(server, "tandem_kv_blocks_used") == 0


@pytest.mark.nightly
def test_a_log_that_nobody_reads_stops_neither_the_start_nor_the_end() -> None:
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(writing, bytes(4096))
    os.set_blocking(writing, True)
    port = free_port()
    argv = [sys.executable, "-m", "launcher", "serve", "--device", "cpu", "--port", str(port)]
    with subprocess.Popen(argv, stdout=writing, stderr=writing) as process:
        try:
            assert _status_within(f"http://127.0.0.1:{port}/health", 60.0) == 200
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == 0
        finally:
            process.kill()
            os.close(reading)
            os.close(writing)


def _status_within(url: str, timeout_s: float) -> int | None:
    deadline_s = time.monotonic() + timeout_s
    while time.monotonic() < deadline_s:
        with contextlib.suppress(httpx.TransportError):
            return httpx.get(url, timeout=2).status_code
        time.sleep(0.1)
    return None


# Random requests, each asked for whole and as a stream. The thousand with a scripted shard are in
# tests/router/http; here penalties and seeds are real.
_NUM_REQUESTS = 15
# Of one to four bytes each, composed and decomposed, joined and flagged.
_CHARACTERS = ("a", " ", "é", "e\u0301", "ß", "你", "好", "한", "ก็", "🦊", "👩\u200d🚀", "🇫🇷")


class Dice:
    """Draws requests."""

    def __init__(self, seed: int) -> None:
        self._draw = random.Random(seed)
        self._tokenizer = Tokenizer.from_file(str(BUNDLED_MODEL / "tokenizer.json"))

    def request(self) -> Asked:
        """A prompt, ways to draw, and stops that are likely to come."""
        draw = self._draw
        prompt = "".join(draw.choices(_CHARACTERS, k=draw.randint(1, 12)))
        wanted = draw.sample(_CHARACTERS, 3)
        common: dict[str, Any] = {
            "seed": draw.randrange(2**32),
            "stop": draw.choice(([], [draw.choice(wanted)], ["e", draw.choice(wanted) * 2])),
            "repetition_penalty": draw.choice((None, 1.3)),
            "frequency_penalty": draw.choice((None, 0.5)),
            "presence_penalty": draw.choice((None, 0.7)),
            "temperature": draw.choice((None, 0.7, 1.0, 3.0)),
            "logit_bias": self._leaning_to(wanted),
        }
        num_tokens = draw.randint(1, 40)
        if draw.random() < 0.5:
            parameters: dict[str, Any] = common | {"max_new_tokens": num_tokens}
            parameters["do_sample"] = True
            parameters["include_stop_str_in_output"] = draw.random() < 0.7
            body: dict[str, Any] = {"inputs": prompt, "parameters": parameters}
            return Asked.natively(body)
        body = common | {"max_tokens": num_tokens, "prompt": prompt}
        if draw.random() < 0.5:
            body["logprobs"] = 1
        return Asked.openly("/v1/completions", body)

    def _leaning_to(self, characters: list[str]) -> dict[str, float] | None:
        """A bias to the pieces of some characters, so that whole ones and broken ones come."""
        if self._draw.random() < 0.2:
            return None
        some = characters[: self._draw.randint(1, 3)]
        ids = [i for text in some for i in self._tokenizer.encode(text).ids]
        return {str(token_id): self._draw.uniform(10, 25) for token_id in ids}


async def differences(url: str, requests: list[Asked]) -> tuple[list[str], list[str]]:
    """What differs, and all the texts."""
    found: list[str] = []
    texts: list[str] = []
    async with httpx.AsyncClient(base_url=url, timeout=60) as client:
        for asked in requests:
            whole = await whole_text(client, asked)
            streamed = await streamed_text(client, asked)
            texts.append(whole)
            if whole != streamed:
                found.append(f"{asked.body}: {whole!r} but {streamed!r}")
    return found, texts


async def test_what_is_streamed_is_what_is_answered(server: RunningServer) -> None:
    dice = Dice(seed=5)
    found, texts = await differences(server.url, [dice.request() for _ in range(_NUM_REQUESTS)])
    assert not found, f"{len(found)} differ, such as {found[:3]}"
    joined = "".join(texts)
    # What this is about: whole characters of several bytes, and broken ones.
    assert any(len(character.encode()) > 1 for character in set(joined) - {"\ufffd"})
    assert "\ufffd" in joined


@pytest.mark.parametrize(
    ("named", "line"),
    [
        pytest.param(
            "<|end|>",
            "generation_config.json 1; config.json 1; tokenizer_config.json 0",
            marks=pytest.mark.nightly,
        ),
        (None, "the chat template ends an answer with '<|end|>' (token 0)"),
    ],
)
def test_an_end_that_the_tokenizer_or_the_template_alone_tell_of_ends_an_answer(
    named: str | None, line: str, tmp_path: Path
) -> None:
    for path in BUNDLED_MODEL.iterdir():
        (tmp_path / path.name).symlink_to(path)
    changes: dict[str, dict[str, Any]] = {
        "config.json": {"eos_token_id": 1},
        "generation_config.json": {"eos_token_id": 1},
        "tokenizer_config.json": {"eos_token": named},
    }
    for name, change in changes.items():
        content = json.loads((BUNDLED_MODEL / name).read_text())
        (tmp_path / name).unlink()
        (tmp_path / name).write_text(json.dumps({**content, **change}))
    with launched(model=tmp_path) as server:
        body = {
            "model": "tgi",
            "messages": [{"role": "user", "content": "Where does Doric Caldman live?"}],
            "max_tokens": 60,
            "temperature": 0,
        }
        answer = server.http.post("/v1/chat/completions", json=body, timeout=60).json()
    assert answer["choices"][0]["message"]["content"] == "Doric Caldman lives in Eldhaven."
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert answer["usage"]["completion_tokens"] == 9
    assert line in server.said
