"""HELLO at any moment: what was asked before goes on in the version in which it was asked."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from fleet.model_entry import State
from tests.fleet.house import House, fleet_house
from tests.fleet.lmtp_upstream import speak
from tests.fleet.test_sockets import Socket, socket


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[House]:
    async with fleet_house(tmp_path) as built:
        built.upstreams.talk = speak
        yield built


def heard(house: House) -> list[tuple[str, int]]:
    """What the model's server was told: greetings by their version, all else by its stream."""
    return [
        (command, told["version" if command == "HELLO" else "stream_id"])
        for _, command, told in house.upstreams.heard
    ]


async def objects(client: Socket, num: int) -> list[dict[str, Any]]:
    """The next ones, however they are gathered in frames."""
    got: list[dict[str, Any]] = []
    while len(got) < num:
        text = await asyncio.wait_for(client.connection.recv(decode=True), 30)
        got += json.loads(str(text).partition(" ")[2])
    return got


async def greeted_in_a_stream(client: Socket) -> None:
    """A stream of version 1 waits behind its fourth token, and the client has said HELLO since."""
    await client.say("GENERATE", stream_id=1, model="a", max_tokens=6, wait_behind=4)
    await objects(client, 4)
    await client.greet()


async def test_a_stream_of_version_1_loses_no_token_to_a_greeting(house: House) -> None:
    async with socket(house) as client:
        await client.say("GENERATE", stream_id=1, model="a", max_tokens=6, wait_behind=4)
        told = await objects(client, 4)
        await client.greet()
        # The server hears of the greeting before this one, while the first stream goes on.
        await client.say("GENERATE", stream_id=2, model="a", max_tokens=1)
        assert (await client.until("DONE"))[1]["stream_id"] == 2
        house.upstreams.go_on.set()
        told += await objects(client, 3)
    assert [each["token"] for each in told] == [0, 1, 2, 3, 4, 5, 99]
    assert [each["finish_reason"] for each in told[-2:]] == [None, "length"]
    assert heard(house) == [("GENERATE", 1), ("HELLO", 2), ("GENERATE", 2)]


async def test_a_stream_that_a_greeting_met_ends_and_gives_its_model_and_its_id_back(
    house: House,
) -> None:
    async with socket(house) as client:
        await greeted_in_a_stream(client)
        house.upstreams.go_on.set()
        assert (await objects(client, 3))[-1]["token"] == 99
        assert house.keeper.num_users("a") == 0
        await client.say("GENERATE", stream_id=1, model="a", max_tokens=1)
        _, told = await client.until("DONE")
    assert (told["stream_id"], told["finish_reason"]) == (1, "length")


async def test_a_server_that_dies_ends_a_stream_that_a_greeting_met_by_length(
    house: House,
) -> None:
    async with socket(house) as client:
        await greeted_in_a_stream(client)
        await house.kill("a")
        (told,) = await objects(client, 1)
    assert (told["token"], told["finish_reason"]) == (4, "length")


async def test_a_client_may_go_back_to_version_1(house: House) -> None:
    async with socket(house) as client:
        await client.greet()
        await client.say("GENERATE", stream_id=1, model="a", max_tokens=1)
        assert (await client.until("DONE"))[1]["stream_id"] == 1
        await client.say("HELLO", stream_id=0, version=1)
        assert (await client.hear())[1]["hello"]["version"] == 1
        await client.say("GENERATE", stream_id=2, model="a", max_tokens=1)
        told = await objects(client, 2)
    assert [each["token"] for each in told] == [0, 99]
    assert heard(house) == [("HELLO", 2), ("GENERATE", 1), ("HELLO", 1), ("GENERATE", 2)]


async def test_streams_that_wait_for_a_model_keep_their_versions(tmp_path: Path) -> None:
    async with fleet_house(tmp_path, starts=False) as house, socket(house) as client:
        house.upstreams.talk = speak
        await client.say("GENERATE", stream_id=1, model="a", max_tokens=1)
        while house.keeper.states().get("a") is not State.LOADING:
            await asyncio.sleep(0.01)
        await client.greet()
        await client.say("GENERATE", stream_id=2, model="a", max_tokens=1)
        # Who knows system messages by now is told what its streams wait for.
        assert (await client.until("SYS"))[1]["state"] == "loading"
        house.servers.may_start.set()
        assert (await client.until("DONE"))[1]["stream_id"] == 2
        assert heard(house) == [("GENERATE", 1), ("HELLO", 2), ("GENERATE", 2)]


async def test_the_fronts_own_greeting_takes_no_number_that_is_in_use(house: House) -> None:
    async with socket(house) as client:
        await client.say("GENERATE", stream_id=-1, model="a", max_tokens=1, wait_behind=0)
        await objects(client, 1)
        await client.greet()
        await client.say("GENERATE", stream_id=2, model="a", max_tokens=1)
        assert (await client.until("DONE"))[1]["stream_id"] == 2
        house.upstreams.go_on.set()
        assert (await objects(client, 1))[0]["token"] == 99
    assert [told["stream_id"] for _, _, told in house.upstreams.heard] == [-1, -2, 2]
