"""Who asked for events hears of it while a model loads; who did not waits for a status."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from fleet.http.proxy import CommentTimes
from tests.fleet.harness import RunningFleet, running_fleet

SOON = CommentTimes(first_s=0.05, next_s=0.05)
LOADING = ": loading\n\n"


@asynccontextmanager
async def loading_house(folder: Path, times: CommentTimes = SOON) -> AsyncIterator[RunningFleet]:
    async with running_fleet(folder, starts=False, comments=times) as fleet:
        yield fleet


async def heard(fleet: RunningFleet, path: str, body: dict[str, object]) -> str:
    """The whole text of a stream whose model loads as soon as a comment came."""
    async with (
        fleet.client as client,
        client.stream("POST", path, json=body) as stream,
    ):
        assert stream.status_code == 200
        assert stream.headers["content-type"] == "text/event-stream"
        pieces = stream.aiter_text()
        assert await anext(pieces) == LOADING
        fleet.servers.may_start.set()
        fleet.upstreams.go_on.set()
        rest = "".join([piece async for piece in pieces])
    return rest.replace(LOADING, "")


async def test_comments_come_while_the_model_loads_and_then_the_events(tmp_path: Path) -> None:
    async with loading_house(tmp_path) as fleet:
        events = await heard(fleet, "/generate_stream", {"inputs": "x", "model": "b"})
        assert fleet.manager.entry("b").num_users == 0

    assert events == "".join(f'data: {{"number":{number}}}\n\n' for number in range(3))


async def test_they_go_on_for_as_long_as_it_takes(tmp_path: Path) -> None:
    async with (
        loading_house(tmp_path) as fleet,
        fleet.client as client,
        client.stream("POST", "/generate_stream", json={"inputs": "x"}) as stream,
    ):
        text = ""
        async for piece in stream.aiter_text():
            text += piece
            if text.count(LOADING) == 3:
                fleet.servers.may_start.set()
                fleet.upstreams.go_on.set()

    assert text.startswith(3 * LOADING)
    assert text.count("data:") == 3


@pytest.mark.parametrize(
    ("path", "events"),
    [
        pytest.param("/generate_stream", "data: {}\n\n", id="tgi"),
        pytest.param("/", "data: {}\n\n", id="tgi-either"),
        pytest.param("/v1/chat/completions", "data: {}\n\ndata: [DONE]\n\n", id="openai"),
        pytest.param("/v1/responses", "event: error\ndata: {}\n\n", id="responses"),
        pytest.param("/v1/messages", "event: error\ndata: {}\n\n", id="anthropic"),
    ],
)
async def test_a_load_that_fails_then_is_an_event_in_the_dialect(
    tmp_path: Path, path: str, events: str
) -> None:
    async with loading_house(tmp_path) as fleet:
        fleet.servers.refusals["a"] = "has no weights"
        text = await heard(fleet, path, {"model": "a", "stream": True})

    before, after = events.split("{}")
    error = json.loads(text.removeprefix(before).removesuffix(after))
    assert "has no weights" in json.dumps(error["error"])
    assert 0 < error["retry_after"] <= 30


async def test_a_refusal_of_the_server_is_an_event_then(tmp_path: Path) -> None:
    async with loading_house(tmp_path) as fleet:
        text = await heard(fleet, "/generate_stream", {"model": "a", "refuse": 1})

    assert json.loads(text.removeprefix("data: ")) == {
        "error": "`x` is wrong",
        "error_type": "validation",
    }


async def test_a_server_that_dies_then_ends_the_stream_with_an_error(tmp_path: Path) -> None:
    async with (
        loading_house(tmp_path) as fleet,
        fleet.client as client,
        client.stream("POST", "/generate_stream", json={"inputs": "x", "model": "b"}) as stream,
    ):
        pieces = stream.aiter_text()
        await anext(pieces)
        fleet.servers.may_start.set()
        while "data:" not in await anext(pieces):
            pass
        await fleet.kill("b")
        rest = "".join([piece async for piece in pieces])

    assert json.loads(rest.removeprefix("data:"))["error_type"] == "model_server_gone"


@pytest.mark.parametrize(
    ("path", "body"),
    [
        pytest.param("/generate", {"inputs": "x", "stream": True}, id="never-events"),
        pytest.param("/v1/chat/completions", {"messages": []}, id="not-asked-for"),
        pytest.param("/v1/chat/completions", {"stream": False}, id="asked-for-none"),
    ],
)
async def test_who_asked_for_no_events_hears_nothing(
    tmp_path: Path, path: str, body: dict[str, object]
) -> None:
    async with loading_house(tmp_path) as fleet:
        fleet.servers.refusals["a"] = "has no weights"
        asking = asyncio.create_task(_post(fleet, path, body))
        await asyncio.sleep(0.2)
        fleet.servers.may_start.set()
        answer = await asking

    assert answer.status_code == 503
    assert "has no weights" in answer.text


async def test_what_fails_within_a_moment_has_its_status(tmp_path: Path) -> None:
    async with running_fleet(tmp_path) as fleet:
        fleet.servers.refusals["a"] = "has no weights"
        answer = await _post(fleet, "/generate_stream", {"inputs": "x"})

    assert answer.status_code == 503
    assert answer.json()["error_type"] == "model_load_failed"


async def test_a_client_that_leaves_meanwhile_holds_no_model(tmp_path: Path) -> None:
    async with loading_house(tmp_path) as fleet:
        async with (
            fleet.client as client,
            client.stream("POST", "/generate_stream", json={"inputs": "x"}) as stream,
        ):
            await anext(stream.aiter_text())
        async with asyncio.timeout(30):
            while fleet.metrics.waiting.value():
                await asyncio.sleep(0.01)
        fleet.servers.may_start.set()
        assert (await _post(fleet, "/generate", {"model": "b"})).json()["from"] == "b"


async def _post(fleet: RunningFleet, path: str, body: dict[str, object]) -> httpx.Response:
    async with fleet.client as client:
        return await client.post(path, json=body)
