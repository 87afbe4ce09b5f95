"""Streams that are cancelled while they wait for their model, and what sockets keep of models."""

import asyncio
from pathlib import Path

import pytest

from fleet.model_entry import State
from fleet.model_table import RosterRules
from tests.fleet.house import House, fleet_house
from tests.fleet.lmtp_upstream import speak
from tests.fleet.test_sockets import Socket, socket


async def is_checked(house: House, name: str) -> None:
    """Until the model is being checked."""
    while name not in house.servers.checked:
        await asyncio.sleep(0.01)


async def passes_the_check(house: House, name: str) -> None:
    house.servers.may_check.set()
    while house.keeper.states().get(name) is State.CHECKING:
        await asyncio.sleep(0.01)


async def load(client: Socket, name: str) -> None:
    await client.say("MODEL_INFO", stream_id=99, model=name)
    await client.until("MSG")


@pytest.mark.parametrize("command", ["GENERATE", "BEAMS"])
async def test_who_cancels_all_that_waits_for_a_model_leaves_the_one_in_memory_there(
    tmp_path: Path, command: str
) -> None:
    async with fleet_house(tmp_path) as house, socket(house) as client:
        house.upstreams.talk = speak
        await client.greet()
        await load(client, "a")
        house.servers.may_check.clear()
        for stream_id in (2, 3):
            await client.say(command, stream_id=stream_id, model="b")
        await is_checked(house, "b")
        for stream_id in (2, 3):
            await client.say("CANCEL", stream_id=stream_id)
            _, told = await client.until("DONE")
            assert (told["stream_id"], told["finish_reason"]) == (stream_id, "cancelled")
        assert house.metrics.waiting.value() == 0
        await passes_the_check(house, "b")
        await load(client, "a")
        assert house.servers.started == ["a"]
        assert house.keeper.states() == {"a": State.READY}


async def test_what_is_asked_right_behind_the_last_cancel_is_served(tmp_path: Path) -> None:
    async with fleet_house(tmp_path) as house, socket(house) as client:
        house.upstreams.talk = speak
        await client.greet()
        await load(client, "a")
        house.servers.may_check.clear()
        await client.say("GENERATE", stream_id=2, model="b")
        await is_checked(house, "b")
        for stream_id in range(2, 9):
            await client.say("CANCEL", stream_id=stream_id)
            await client.say("GENERATE", stream_id=stream_id + 1, model="b", max_tokens=1)
        await passes_the_check(house, "b")
        ends = [(await client.until("DONE"))[1] for _ in range(8)]
    assert [told["stream_id"] for told in ends] == list(range(2, 10))
    assert [told["finish_reason"] for told in ends] == ["cancelled"] * 7 + ["length"]
    assert house.servers.checked == ["b"]


async def test_one_that_is_cancelled_leaves_the_wait_to_the_other(tmp_path: Path) -> None:
    async with fleet_house(tmp_path) as house, socket(house) as one, socket(house) as two:
        house.upstreams.talk = speak
        await load(two, "a")
        house.servers.may_check.clear()
        for client in (one, two):
            await client.greet()
            await client.say("GENERATE", stream_id=2, model="b", max_tokens=1)
            await client.say("GENERATE", stream_id=3, model="b", max_tokens=1)
        await is_checked(house, "b")
        for client, stream_id in ((one, 2), (one, 3), (two, 2)):
            await client.say("CANCEL", stream_id=stream_id)
            assert (await client.until("DONE"))[1]["finish_reason"] == "cancelled"
        await passes_the_check(house, "b")
        _, told = await two.until("DONE")
    assert (told["stream_id"], told["text"]) == (3, "b")
    assert house.servers.started == ["a", "b"]


async def test_names_that_no_model_has_take_nothing_from_those_that_are_used(
    tmp_path: Path,
) -> None:
    rules = RosterRules(max_loaded=2)
    async with fleet_house(tmp_path, rules=rules) as house, socket(house) as client:
        house.upstreams.talk = speak
        await load(client, "a")
        for number in range(40):
            await client.say("MODEL_INFO", stream_id=1, model=f"nope{number}")
            assert (await client.hear())[1]["error_type"] == "model_not_found"
        assert not house.upstreams.left.is_set()


async def test_of_many_models_the_one_that_was_used_longest_ago_is_let_go(tmp_path: Path) -> None:
    models = [f"m{number:02}" for number in range(17)]
    rules = RosterRules(max_loaded=17)
    async with fleet_house(tmp_path, models, rules=rules) as house, socket(house) as client:
        house.upstreams.talk = speak
        for name in [*models[:16], "m00", models[16]]:
            await load(client, name)
        await asyncio.wait_for(house.upstreams.left.wait(), 30)
        assert house.upstreams.gone == ["m01"]
