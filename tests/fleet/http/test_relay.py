"""Streams that are relayed: notices, versions, cancelling, servers that end."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from fleet.http.relay import QueuedFrame, Relay
from fleet.model_entry import ModelState
from fleet.model_manager import Lease
from fleet.model_table import LoadingRules
from fleet.names import Model
from tests.fleet.harness import RunningFleet, running_fleet
from tests.fleet.http.lmtp import socket, speak


@pytest.fixture
async def fleet(tmp_path: Path) -> AsyncIterator[RunningFleet]:
    async with running_fleet(tmp_path, rules=LoadingRules(max_loaded=2)) as built:
        built.upstreams.talk = speak
        yield built


async def test_a_stream_is_cancelled_behind_the_load_of_its_model(tmp_path: Path) -> None:
    async with running_fleet(tmp_path, starts=False) as fleet, socket(fleet) as client:
        fleet.upstreams.talk = speak
        await client.greet()
        # Nothing is open, so nothing is loaded.
        await client.say("CANCEL", stream_id=2)
        await client.say("GENERATE", stream_id=2, model="a", wait_behind=0)
        await client.say("CANCEL", stream_id=2)
        fleet.servers.may_start.set()
        assert (await client.until("DONE"))[1]["finish_reason"] == "cancelled"
        assert fleet.manager.num_users("a") == 0


@pytest.mark.parametrize("version", [1, 2])
async def test_a_server_that_shuts_down_by_itself_is_replaced(
    fleet: RunningFleet, version: int
) -> None:
    async with socket(fleet) as client:
        await client.say("HELLO", stream_id=0, version=version)
        await client.until("MSG")
        fleet.upstreams.is_leaving = "a"
        await client.say("GENERATE", stream_id=1, model="a")
        _, error = await client.until("TOKEN")
        assert (error["stream_id"], error["error_type"]) == (1, "draining")
        fleet.upstreams.is_leaving = None
        await client.say("GENERATE", stream_id=2, model="a", max_tokens=1)
        assert (await client.until("TOKEN"))[1]["token"] == 0
    assert fleet.servers.started == ["a", "a"]


async def test_a_client_that_leaves_while_its_model_is_loaded_holds_no_place(
    tmp_path: Path,
) -> None:
    async with running_fleet(tmp_path, starts=False) as fleet:
        async with socket(fleet) as client:
            await client.say("GENERATE", stream_id=1, model="a")
            while fleet.manager.states().get("a") is not ModelState.LOADING:
                await asyncio.sleep(0.01)
        async with asyncio.timeout(30):
            while fleet.metrics.waiting.value():
                await asyncio.sleep(0.01)


async def test_a_hello_holds_for_the_streams_behind_it(fleet: RunningFleet) -> None:
    async with socket(fleet) as client:
        await client.say("GENERATE", stream_id=1, model="a", max_tokens=6, wait_behind=4)
        tokens = [(await client.hear())[1] for _ in range(4)]
        await client.greet()
        await client.say("GENERATE", stream_id=2, max_tokens=1)
        assert (await client.until("DONE"))[1]["stream_id"] == 2
        fleet.upstreams.go_on.set()
        # The last two come in one frame.
        text = await client.connection.recv()
        tokens.append(json.loads(str(text).partition(" ")[2])[0])
        text = await client.connection.recv()
        tokens += json.loads(str(text).partition(" ")[2])
    assert [each["token"] for each in tokens] == [0, 1, 2, 3, 4, 5, 99]
    assert [command for _, command, _ in fleet.upstreams.heard] == ["GENERATE", "HELLO", "GENERATE"]


async def test_streams_that_wait_for_a_model_keep_their_versions(tmp_path: Path) -> None:
    async with running_fleet(tmp_path, starts=False) as fleet, socket(fleet) as client:
        fleet.upstreams.talk = speak
        await client.say("GENERATE", stream_id=1, model="a", max_tokens=1)
        while fleet.manager.states().get("a") is not ModelState.LOADING:
            await asyncio.sleep(0.01)
        await client.greet()
        await client.say("GENERATE", stream_id=2, model="a", max_tokens=1)
        _, notice = await client.until("SYS")
        assert (notice["stream_id"], notice["state"]) == (2, "loading")
        fleet.servers.may_start.set()
        assert (await client.until("DONE"))[1]["stream_id"] == 2
    assert [command for _, command, _ in fleet.upstreams.heard] == ["GENERATE", "HELLO", "GENERATE"]


async def test_waiting_clients_are_notified_that_the_model_is_being_loaded(tmp_path: Path) -> None:
    async with running_fleet(tmp_path, starts=False) as fleet, socket(fleet) as client:
        fleet.upstreams.talk = speak
        await client.greet()
        await client.say("GENERATE", stream_id=5, model="a")
        command, fields = await client.hear()
        assert (command, fields["stream_id"], fields["state"]) == ("SYS", 5, "loading")
        assert "a is being loaded" in fields["message"]
        fleet.servers.may_start.set()
        assert (await client.hear())[1]["state"] == "running"
        await client.until("DONE")


async def test_a_stream_is_cancelled_at_its_own_server(fleet: RunningFleet) -> None:
    async with socket(fleet) as client:
        await client.greet()
        await client.say("GENERATE", stream_id=2, model="b", wait_behind=0)
        await client.until("TOKEN")
        await client.say("CANCEL", stream_id=2)
        assert (await client.until("DONE"))[1]["finish_reason"] == "cancelled"
    assert [each[:2] for each in fleet.upstreams.heard] == [
        ("b", "HELLO"),
        ("b", "GENERATE"),
        ("b", "CANCEL"),
    ]


async def test_a_server_that_dies_ends_its_streams_and_leaves_the_others(
    fleet: RunningFleet,
) -> None:
    async with socket(fleet) as client:
        await client.greet()
        await client.say("GENERATE", stream_id=1, model="a", max_tokens=6, wait_behind=5)
        for _ in range(6):
            await client.until("TOKEN")
        await fleet.kill("a")
        _, fields = await client.until("TOKEN")
        assert (fields["stream_id"], fields["error_type"]) == (1, "model_server_gone")
        assert fields["retryable"] is True
        fleet.upstreams.dies.clear()
        await client.say("GENERATE", stream_id=2, model="a")
        assert (await client.until("DONE"))[1]["text"] == "a"
    assert fleet.servers.started == ["a", "a"]


async def test_a_server_that_dies_ends_a_stream_of_version_1_by_length(fleet: RunningFleet) -> None:
    async with socket(fleet) as client:
        await client.say("GENERATE", stream_id=1, model="a", max_tokens=6, wait_behind=5)
        for _ in range(5):
            await client.hear()
        await fleet.kill("a")
        command, fields = await client.hear()
    assert (command, fields["token"], fields["finish_reason"]) == ("TOKEN", 5, "length")


async def test_a_socket_without_streams_holds_no_model(tmp_path: Path) -> None:
    async with running_fleet(tmp_path) as fleet, socket(fleet) as one, socket(fleet) as two:
        fleet.upstreams.talk = speak
        for number in range(3):
            await one.say("MODEL_INFO", stream_id=number, model="a")
            assert (await one.hear())[1]["model_info"] == {"model": "a"}
            await two.say("MODEL_INFO", stream_id=number, model="b")
            assert (await two.hear())[1]["model_info"] == {"model": "b"}
        assert fleet.servers.started == ["a", "b"] * 3


async def test_a_client_that_leaves_ends_its_upstream_sockets(fleet: RunningFleet) -> None:
    async with socket(fleet) as client:
        await client.greet()
        await client.say("GENERATE", stream_id=1, model="a", wait_behind=0)
        await client.until("TOKEN")
    await asyncio.wait_for(fleet.upstreams.left.wait(), 30)
    async with asyncio.timeout(30):
        while fleet.manager.num_users("a"):
            await asyncio.sleep(0.01)


async def test_a_failed_load_is_an_error_with_its_reason_and_a_time_to_retry(
    fleet: RunningFleet,
) -> None:
    fleet.servers.refusals["b"] = "has no weights"
    async with socket(fleet) as client:
        await client.greet()
        await client.say("GENERATE", stream_id=2, model="b")
        _, fields = await client.until("TOKEN")
    assert (fields["stream_id"], fields["error_type"]) == (2, "model_load_failed")
    assert "has no weights" in fields["error"]
    assert fields["retryable"] is True
    assert 0 < fields["retry_after_s"] <= 30


async def test_a_bug_ends_the_streams_that_it_meets(
    fleet: RunningFleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def acquire(model: Model) -> Lease:
        raise ValueError("a bug")

    with monkeypatch.context() as broken:
        broken.setattr(fleet.manager, "acquire", acquire)
        async with socket(fleet) as client:
            await client.say("GENERATE", stream_id=2, model="a")
            command, error = await client.hear()
            assert (command, error["stream_id"]) == ("TOKEN", 2)
            assert (error["error_type"], error["retryable"]) == ("internal_error", True)


async def test_a_client_that_left_does_not_wait_for_room_in_the_queue(tmp_path: Path) -> None:
    async def send(_: str) -> None:
        raise OSError("the client is gone")

    async with running_fleet(tmp_path, starts=False) as fleet:
        fleet.upstreams.talk = speak
        relay = Relay(Model("a", "/models/a"), fleet.manager, fleet.metrics, (), send)
        text = f'GENERATE {{"stream_id":1,"prompt":"{"x" * (1 << 24)}"}}'
        await relay.put(QueuedFrame("GENERATE", 1, text, 2))
        waiting = asyncio.create_task(relay.put(QueuedFrame("DROP", 2, 'DROP {"stream_id":2}', 2)))
        while fleet.manager.states().get("a") is not ModelState.LOADING:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.3)
        assert not waiting.done()
        fleet.servers.may_start.set()
        await asyncio.wait_for(waiting, 30)
        await relay.close()
