"""Models on demand, end to end: real processes, tiny models, HTTP and LMTP."""

import asyncio
import json
import os
import shutil
import signal
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.asyncio.client import ClientConnection, connect

from launcher import BUNDLED_MODEL
from tests.integration.server import (
    RunningServer,
    launched,
    wait_until_gone,
)

pytestmark = pytest.mark.slow
FLAGS = ("--no-hub-models", "--kv-blocks", "100")
KEY = "secret"
# A server without keys ignores them.
HEADERS = {"authorization": f"Bearer {KEY}"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three folders, of which two are models."""
    root = tmp_path_factory.mktemp("models")
    for name in ("one", "two"):
        shutil.copytree(BUNDLED_MODEL, root / name)
    (root / "broken").mkdir()
    (root / "broken" / "config.json").write_text("{}")
    return root


@pytest.fixture(scope="module")
def single(folder: Path) -> Iterator[RunningServer]:
    """A server that has room for one model."""
    with launched("--models-folder", str(folder), *FLAGS, model="auto") as server:
        yield server


@pytest.fixture(scope="module")
def double(folder: Path) -> Iterator[RunningServer]:
    """A server of two listed models, with room for both, and with a key."""
    ids = (str(folder / "one"), str(folder / "two"))
    flags = ("--max-loaded-models", "2", *FLAGS)
    with launched(ids[1], *flags, model=ids[0], API_KEY=KEY) as server:
        yield server


def generate(server: RunningServer, **body: Any) -> httpx.Response:
    body = {"inputs": "Once there was", "parameters": {"max_new_tokens": 5}, **body}
    return httpx.post(f"{server.url}/generate", json=body, headers=HEADERS, timeout=120)


def states(server: RunningServer) -> dict[str, str]:
    cards = httpx.get(f"{server.url}/v1/models", headers=HEADERS, timeout=10).json()["data"]
    return {card["id"]: card["state"] for card in cards}


def stream_lines(server: RunningServer, model: str, num_tokens: int, lines: list[str]) -> None:
    parameters = {"max_new_tokens": num_tokens, "ignore_eos": True}
    body = {"inputs": "Once", "model": model, "parameters": parameters}
    url = f"{server.url}/generate_stream"
    with httpx.stream("POST", url, json=body, headers=HEADERS, timeout=120) as stream:
        lines += (line for line in stream.iter_lines() if line.startswith("data:"))


def test_nothing_is_loaded_until_a_request_names_it(single: RunningServer) -> None:
    assert states(single) == {"broken": "absent", "one": "absent", "two": "absent"}
    refused = generate(single)
    assert refused.status_code == 400
    assert "`model` is required" in refused.json()["error"]


def test_alternating_requests_take_turns_in_the_one_place(single: RunningServer) -> None:
    texts = {name: generate(single, model=name).json() for name in ("one", "two")}
    assert texts["one"] == texts["two"]
    chat = {"model": "two", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 5}
    answer = httpx.post(f"{single.url}/v1/chat/completions", json=chat, timeout=120)
    assert answer.json()["model"] == "two"
    document = httpx.get(f"{single.url}/api-doc/openapi.json", timeout=60).json()
    assert "/generate" in document["paths"]
    assert states(single) == {"broken": "absent", "one": "absent", "two": "ready"}


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        pytest.param("none", "has no such folder", id="unknown"),
        pytest.param("../models", "begins with a dot", id="traversal"),
        pytest.param("/etc", "nothing is served", id="absolute"),
    ],
)
def test_a_name_that_cannot_be_loaded_says_why(
    single: RunningServer, name: str, reason: str
) -> None:
    answers = [generate(single, model=name) for _ in range(2)]
    assert [each.status_code for each in answers] == [404, 404]
    assert all(reason in each.json()["error"] for each in answers)


def test_a_model_that_left_for_one_that_is_broken_is_loaded_again(
    single: RunningServer, folder: Path
) -> None:
    cut = folder / "cut"
    shutil.copytree(BUNDLED_MODEL, cut)
    (cut / "model.safetensors").write_bytes(b"cut")
    assert generate(single, model="two").status_code == 200
    answers = [generate(single, model="cut") for _ in range(2)]
    assert [each.status_code for each in answers] == [503, 503]
    assert all("is no whole safetensors file" in each.json()["error"] for each in answers)
    assert single.said.count("loading cut") <= 1
    loaded = states(single)
    assert (loaded["two"], loaded["cut"]) == ("absent", "failed")
    assert generate(single, model="two").status_code == 200
    shutil.rmtree(cut)


@asynccontextmanager
async def lmtp(server: RunningServer) -> AsyncIterator[ClientConnection]:
    """A socket that speaks version 2."""
    url = server.url.replace("http", "ws") + "/lmtp"
    async with connect(url, additional_headers=HEADERS, proxy=None, max_size=None) as socket:
        await socket.send('HELLO {"stream_id": 1, "version": 2}')
        await asyncio.wait_for(socket.recv(), 120)
        yield socket


async def generate_text(
    socket: ClientConnection, stream_id: int, model: str
) -> tuple[str, list[str]]:
    """The text of a stream, and the states of which it was notified."""
    request = {"stream_id": stream_id, "model": model, "text": "Once", "max_tokens": 8}
    await socket.send(f"GENERATE {json.dumps(request)}")
    states, command, objects = [], "", []
    while command != "DONE":
        text = await asyncio.wait_for(socket.recv(), 120)
        command, _, body = str(text).partition(" ")
        objects = json.loads(body)
        states += [each["state"] for each in objects if "state" in each]
    return objects[0]["text"], states


def test_an_lmtp_socket_outlives_the_model_that_it_is_bound_to(single: RunningServer) -> None:
    async def ask() -> list[tuple[str, list[str]]]:
        async with lmtp(single) as one, lmtp(single) as two:
            return [
                await generate_text(one, 2, "one"),
                await generate_text(two, 2, "two"),
                await generate_text(one, 3, "one"),
            ]

    (first, _), (second, states), (third, _) = asyncio.run(ask())
    assert first == second == third
    assert states[0] == "loading"


def test_the_keys_of_a_server_are_those_of_its_front(double: RunningServer, folder: Path) -> None:
    name = str(folder / "one")
    body = {"inputs": "x", "model": name, "parameters": {"max_new_tokens": 2}}
    assert httpx.post(f"{double.url}/generate", json=body, timeout=120).status_code == 401
    answer = httpx.post(f"{double.url}/generate", json=body, headers=HEADERS, timeout=120)
    assert answer.status_code == 200
    page = httpx.get(f"{double.url}/metrics", timeout=10).text
    assert f'tgi_request_count_total{{model="{name}"}} ' in page


def test_two_models_answer_at_a_time(double: RunningServer, folder: Path) -> None:
    lines: dict[str, list[str]] = {"one": [], "two": []}
    threads = [
        threading.Thread(target=stream_lines, args=(double, str(folder / name), 40, received))
        for name, received in lines.items()
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [len(received) for received in lines.values()] == [40, 40]
    last = {
        name: json.loads(received[-1].removeprefix("data:")) for name, received in lines.items()
    }
    assert last["one"]["generated_text"] == last["two"]["generated_text"]
    assert set(states(double).values()) == {"ready"}


def test_two_lmtp_sockets_ask_both(double: RunningServer, folder: Path) -> None:
    async def ask() -> list[tuple[str, list[str]]]:
        async with lmtp(double) as one, lmtp(double) as two:
            asking = (
                generate_text(socket, 2, str(folder / name))
                for socket, name in ((one, "one"), (two, "two"))
            )
            return await asyncio.gather(*asking)

    (first, _), (second, _) = asyncio.run(ask())
    assert first == second
    assert first


def test_a_stream_outlives_the_shard_of_its_model(double: RunningServer, folder: Path) -> None:
    name = str(folder / "two")
    assert generate(double, model=name).status_code == 200
    lines: list[str] = []
    reading = threading.Thread(target=stream_lines, args=(double, name, 900, lines))
    reading.start()
    time.sleep(1)
    os.kill(shard_of(double, name), signal.SIGKILL)
    reading.join(60)
    assert len(lines) == 900
    assert json.loads(lines[-1].removeprefix("data:"))["generated_text"]
    assert generate(double, model=name).status_code == 200


def shard_of(server: RunningServer, model: str) -> int:
    for pid in server.descendants():
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        if b"model_server" in words and model.encode() in words:
            return pid
    raise AssertionError(f"no shard holds {model}")


def test_a_drain_ends_streams_well_and_leaves_nothing_behind(single: RunningServer) -> None:
    """The last use of this server."""
    assert generate(single, model="one").status_code == 200
    pids = single.descendants()
    lines: list[str] = []
    reading = threading.Thread(target=stream_lines, args=(single, "one", 300, lines))
    reading.start()
    time.sleep(0.5)
    single.signal(signal.SIGTERM)
    reading.join(60)
    assert single.wait() == 0
    assert json.loads(lines[-1].removeprefix("data:"))["generated_text"] is not None
    assert wait_until_gone(pids) == []


def test_a_front_that_is_killed_leaves_no_process(double: RunningServer, folder: Path) -> None:
    """The last use of this server."""
    assert generate(double, model=str(folder / "one")).status_code == 200
    pids = double.descendants()
    assert len(pids) >= 3
    double.process.kill()
    assert wait_until_gone(pids, 20) == []
