"""Streams that are relayed: notices, versions, cancelling, servers that end."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from fleet.model_table import LoadingRules, ModelState
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
        assert fleet.manager.entry("a").num_users == 0


async def test_a_client_that_leaves_while_its_model_is_loaded_holds_no_place(
    tmp_path: Path,
) -> None:
    async with running_fleet(tmp_path, starts=False) as fleet:
        async with socket(fleet) as client:
            await client.say("GENERATE", stream_id=1, model="a")
            while fleet.manager.entry("a").state is not ModelState.LOADING:
                await asyncio.sleep(0.01)
        async with asyncio.timeout(30):
            while fleet.metrics.waiting.value():
                await asyncio.sleep(0.01)


async def test_a_hello_holds_for_the_streams_behind_it(fleet: RunningFleet) -> None:
    async with socket(fleet) as client:
        await client.say("GENERATE", stream_id=1, model="a", max_tokens=6, wait_behind=4)
        tokens = [(await client.hear())[1] for _ in range(5)]
        await client.greet()
        await client.say("GENERATE", stream_id=2, max_tokens=1)
        assert (await client.until("DONE"))[1]["stream_id"] == 2
        fleet.upstreams.go_on.set()
        tokens += [(await client.hear())[1] for _ in range(2)]
    assert [each["token"] for each in tokens] == [0, 1, 2, 3, 4, 5, 99]
    assert fleet.manager.entry("a").num_users == 0
    assert [command for _, command, _ in fleet.upstreams.heard] == ["GENERATE", "HELLO", "GENERATE"]


async def test_waiting_clients_are_notified_that_the_model_is_being_loaded(tmp_path: Path) -> None:
    async with running_fleet(tmp_path, starts=False) as fleet, socket(fleet) as client:
        fleet.upstreams.talk = speak
        await client.greet()
        await client.say("GENERATE", stream_id=5, model="a")
        command, fields = await client.hear()
        assert (command, fields["stream_id"], fields["state"]) == ("SYS", 5, "loading")
        assert "'a' is not loaded" in fields["message"]
        fleet.servers.may_start.set()
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


async def test_a_server_that_dies_closes_the_sockets_of_version_1(fleet: RunningFleet) -> None:
    async with socket(fleet) as client:
        await client.say("GENERATE", stream_id=1, model="a", max_tokens=6, wait_behind=5)
        for _ in range(6):
            await client.hear()
        await fleet.kill("a")
        _, fields = await client.hear()
        assert (fields["stream_id"], fields["error_type"]) == (1, "model_server_gone")
        await client.connection.wait_closed()
        assert client.connection.close_code == 1012
        assert "the model's server stopped" in str(client.connection.close_reason)


async def test_a_stream_that_waited_as_long_as_another_fails_with_it(tmp_path: Path) -> None:
    async with (
        running_fleet(tmp_path, load_timeout_s=1.0, starts=False) as fleet,
        socket(fleet) as client,
    ):
        for stream_id in range(3):
            await client.say("GENERATE", stream_id=stream_id, model="a")
        await client.say("CANCEL", stream_id=2)
        async with asyncio.timeout(1.9):
            errors = [(await client.hear())[1] for _ in range(3)]
    assert [each["stream_id"] for each in errors] == [0, 1, 2]
    assert {each["error_type"] for each in errors} == {"model_loading"}


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
        while fleet.manager.entry("a").num_users:
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
