"""LMTP through the front: sockets whose frames name models."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import InvalidStatus

from fleet.model_entry import State
from fleet.model_table import RosterRules
from tests.fleet.house import House, fleet_house
from tests.fleet.lmtp_upstream import speak


class Socket:
    """A client's side."""

    def __init__(self, connection: ClientConnection) -> None:
        self.connection = connection

    async def say(self, command: str, **payload: object) -> None:
        await self.connection.send(f"{command} {json.dumps(payload)}")

    async def hear(self) -> tuple[str, dict[str, Any]]:
        text = await asyncio.wait_for(self.connection.recv(), 30)
        assert isinstance(text, str)
        command, _, rest = text.partition(" ")
        (told,) = json.loads(rest)
        return command, told

    async def until(self, *commands: str) -> tuple[str, dict[str, Any]]:
        while True:
            command, told = await self.hear()
            if command in commands:
                return command, told

    async def greet(self) -> dict[str, Any]:
        await self.say("HELLO", stream_id=1, version=2)
        _, told = await self.until("MSG")
        hello: dict[str, Any] = told["hello"]
        return hello


@asynccontextmanager
async def socket(house: House, path: str = "/lmtp", **headers: str) -> AsyncIterator[Socket]:
    url = house.url.replace("http", "ws") + path
    async with connect(url, additional_headers=headers, proxy=None) as connection:
        yield Socket(connection)


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[House]:
    async with fleet_house(tmp_path, rules=RosterRules(max_loaded=2)) as built:
        built.upstreams.talk = speak
        yield built


async def test_a_socket_of_version_1_gets_tokens_and_no_greeting(house: House) -> None:
    async with socket(house, "/") as client:
        await client.say("GENERATE", stream_id=1, model="b", prompt=[1], max_tokens=2)
        tokens = [await client.hear() for _ in range(3)]
    assert [told["token"] for _, told in tokens] == [0, 1, 99]
    assert [command for _, command, _ in house.upstreams.heard] == ["GENERATE"]


async def test_hello_is_answered_by_the_front_and_loads_nothing(house: House) -> None:
    async with socket(house) as client:
        hello = await client.greet()
    assert hello["version"] == 2
    assert hello["models"] == ["a", "b"]
    assert "models_on_demand" in hello["features"]
    assert house.servers.started == []


async def test_hello_that_names_a_model_is_answered_by_its_server(house: House) -> None:
    async with socket(house) as client:
        await client.say("HELLO", stream_id=7, version=2, model="b")
        command, told = await client.hear()
    assert (command, told) == ("MSG", {"stream_id": 7, "hello": {"version": 2, "from": "b"}})


async def test_any_number_is_a_streams_that_of_the_fronts_own_greeting_too(house: House) -> None:
    async with socket(house) as client:
        await client.greet()
        for _ in range(2):
            await client.say("HELLO", stream_id=-1, version=2, model="b")
            command, told = await client.hear()
            assert (command, told) == (
                "MSG",
                {"stream_id": -1, "hello": {"version": 2, "from": "b"}},
            )


async def test_one_socket_uses_two_models_at_a_time(house: House) -> None:
    async with socket(house) as client:
        await client.greet()
        await client.say("GENERATE", stream_id=1, model="a", wait_behind=0)
        await client.until("TOKEN")
        await client.say("GENERATE", stream_id=2, model="b")
        assert (await client.until("DONE"))[1]["text"] == "b"
        assert (house.keeper.num_users("a"), house.keeper.num_users("b")) == (1, 0)
        house.upstreams.go_on.set()
        assert (await client.until("DONE"))[1]["text"] == "a"
        assert house.keeper.num_users("a") == 0


async def test_what_names_no_model_goes_where_the_last_one_went(house: House) -> None:
    async with socket(house) as client:
        await client.say("MODEL_INFO", stream_id=1)
        assert (await client.hear())[1]["model_info"] == {"model": "a"}
        await client.say("MODEL_INFO", stream_id=2, model="b")
        assert (await client.hear())[1]["model_info"] == {"model": "b"}
        await client.say("MODEL_INFO", stream_id=3, model="tgi")
        assert (await client.hear())[1]["model_info"] == {"model": "b"}
        await client.say("DROP", stream_id=4, name="x")
        await client.hear()
    assert house.upstreams.heard[-1][:2] == ("b", "DROP")


async def test_waiting_clients_are_told_that_the_model_is_being_loaded(tmp_path: Path) -> None:
    async with fleet_house(tmp_path, starts=False) as house, socket(house) as client:
        house.upstreams.talk = speak
        await client.greet()
        await client.say("GENERATE", stream_id=5, model="a")
        command, told = await client.hear()
        assert (command, told["stream_id"], told["state"]) == ("SYS", 5, "loading")
        assert "a is being loaded" in told["message"]
        house.servers.may_start.set()
        assert (await client.hear())[1]["state"] == "running"
        await client.until("DONE")


async def test_a_stream_is_cancelled_at_its_own_server(house: House) -> None:
    async with socket(house) as client:
        await client.greet()
        await client.say("GENERATE", stream_id=2, model="b", wait_behind=0)
        await client.until("TOKEN")
        await client.say("CANCEL", stream_id=77)
        await client.say("CANCEL", stream_id=2)
        assert (await client.until("DONE"))[1]["finish_reason"] == "cancelled"
    assert [each[:2] for each in house.upstreams.heard] == [
        ("b", "HELLO"),
        ("b", "GENERATE"),
        ("b", "CANCEL"),
    ]


async def test_a_stream_that_is_cancelled_again_and_again_ends_once(house: House) -> None:
    async with socket(house) as client:
        await client.greet()
        for stream_id in range(1, 20):
            await client.say(
                "GENERATE", stream_id=stream_id, model="a", max_tokens=9, wait_behind=0
            )
            await client.until("TOKEN")
            for _ in range(3):
                await client.say("CANCEL", stream_id=stream_id)
            assert (await client.until("DONE"))[1]["stream_id"] == stream_id
        await client.say("MODEL_INFO", stream_id=99, model="a")
        # Nothing else was said meanwhile, and each was cancelled where it ran.
        assert (await client.hear())[0] == "MSG"
    cancelled = [
        told["stream_id"] for _, command, told in house.upstreams.heard if command == "CANCEL"
    ]
    assert cancelled == list(range(1, 20))


async def test_a_stream_is_cancelled_while_its_model_is_loaded(tmp_path: Path) -> None:
    async with fleet_house(tmp_path, starts=False) as house, socket(house) as client:
        await client.greet()
        await client.say("GENERATE", stream_id=2, model="a")
        while house.keeper.states().get("a") is not State.LOADING:
            await asyncio.sleep(0.01)
        await client.say("CANCEL", stream_id=2)
        assert (await client.until("DONE"))[1]["finish_reason"] == "cancelled"


async def test_frames_that_are_cancelled_while_they_wait_make_room_for_others(
    tmp_path: Path,
) -> None:
    building = fleet_house(tmp_path, starts=False, load_timeout_s=600)
    async with building as house, socket(house) as client:
        await client.greet()
        # More than a channel lets wait.
        for stream_id in (2, 3, 4):
            await client.say("GENERATE", stream_id=stream_id, model="a", prompt="x" * 6_000_000)
        for stream_id in (2, 3, 4):
            await client.say("CANCEL", stream_id=stream_id)
            assert (await client.until("DONE"))[1]["stream_id"] == stream_id
        await client.say("GENERATE", stream_id=5, model="a")
        await client.say("CANCEL", stream_id=5)
        assert (await client.until("DONE"))[1]["stream_id"] == 5


@pytest.mark.parametrize(
    ("command", "payload", "kind", "error_type", "field"),
    [
        pytest.param("GENERATE", {"model": "zzz"}, "TOKEN", "model_not_found", "model", id="name"),
        pytest.param("GENERATE", {"model": 7}, "TOKEN", "validation", "model", id="number"),
        pytest.param("MODEL_INFO", {"model": "zzz"}, "MSG", "model_not_found", "model", id="info"),
        pytest.param("FOO", {}, "MSG", "unknown_command", None, id="command"),
        pytest.param("HELLO", {"version": 0}, "MSG", "validation", "version", id="version"),
        pytest.param("HELLO", {"version": "2"}, "MSG", "validation", "version", id="version-text"),
    ],
)
async def test_what_cannot_be_served_is_an_error_that_the_client_sees(
    house: House,
    command: str,
    payload: dict[str, object],
    kind: str,
    error_type: str,
    field: str | None,
) -> None:
    async with socket(house) as client:
        await client.say(command, stream_id=3, **payload)
        said, told = await client.hear()
        assert (said, told["stream_id"], told["error_type"]) == (kind, 3, error_type)
        assert told.get("field") == field
        await client.say("MODEL_INFO", stream_id=4, model="a")
        assert (await client.hear())[1]["model_info"] == {"model": "a"}


async def test_numbers_of_more_than_64_bits_are_read_as_they_are_written(house: House) -> None:
    async with socket(house) as client:
        await client.say("HELLO", stream_id=1, version=10**30)
        assert (await client.hear())[1]["hello"]["version"] == 2
        await client.say("GENERATE", stream_id=10**30, model="a")
        _, told = await client.hear()
    assert told["error"].endswith("Given: 1" + "0" * 30)


async def test_ids_in_use_and_too_many_streams_are_refused(house: House) -> None:
    async with socket(house) as client:
        await client.greet()
        for number, model in enumerate("abab"):
            await client.say("GENERATE", stream_id=number, model=model, wait_behind=0)
        await client.say("GENERATE", stream_id=0, model="b")
        assert (await client.until("MSG"))[1]["error_type"] == "stream_in_use"
        await client.say("GENERATE", stream_id=9, model="b")
        while "error_type" not in (told := (await client.until("TOKEN"))[1]):
            pass
        assert (told["stream_id"], told["error_type"]) == (9, "overloaded")
        assert (told["retryable"], told["retry_after_s"]) == (True, 1.0)


async def test_a_server_that_dies_ends_its_streams_and_leaves_the_others(house: House) -> None:
    async with socket(house) as client:
        await client.greet()
        await client.say("GENERATE", stream_id=1, model="a", max_tokens=6, wait_behind=5)
        for _ in range(6):
            await client.until("TOKEN")
        await house.kill("a")
        _, told = await client.until("TOKEN")
        assert (told["stream_id"], told["error_type"]) == (1, "model_server_gone")
        assert told["retryable"] is True
        house.upstreams.dies.clear()
        await client.say("GENERATE", stream_id=2, model="a")
        assert (await client.until("DONE"))[1]["text"] == "a"
    assert house.servers.started == ["a", "a"]


@pytest.mark.parametrize("version", [1, 2])
async def test_a_server_that_ends_of_itself_is_told_as_gone_and_loaded_anew(
    house: House, version: int
) -> None:
    async with socket(house) as client:
        await client.say("HELLO", stream_id=0, version=version)
        await client.until("MSG")
        house.upstreams.is_leaving = "a"
        await client.say("GENERATE", stream_id=1, model="a")
        _, told = await client.until("TOKEN")
        assert (told["stream_id"], told["error_type"]) == (1, "model_server_gone")
        assert "takes nothing more" in told["error"]
        house.upstreams.is_leaving = None
        await client.say("GENERATE", stream_id=2, model="a", max_tokens=1)
        assert (await client.until("TOKEN"))[1]["token"] == 0
    assert house.servers.started == ["a", "a"]


async def test_a_server_that_dies_ends_a_stream_of_version_1_by_length(house: House) -> None:
    async with socket(house) as client:
        await client.say("GENERATE", stream_id=1, model="a", max_tokens=6, wait_behind=5)
        for _ in range(5):
            await client.hear()
        await house.kill("a")
        command, told = await client.hear()
    assert (command, told["token"], told["finish_reason"]) == ("TOKEN", 5, "length")


async def test_a_socket_without_streams_holds_no_model(tmp_path: Path) -> None:
    async with fleet_house(tmp_path) as house, socket(house) as one, socket(house) as two:
        house.upstreams.talk = speak
        for number in range(3):
            await one.say("MODEL_INFO", stream_id=number, model="a")
            assert (await one.hear())[1]["model_info"] == {"model": "a"}
            await two.say("MODEL_INFO", stream_id=number, model="b")
            assert (await two.hear())[1]["model_info"] == {"model": "b"}
        assert house.servers.started == ["a", "b"] * 3


async def test_a_client_that_leaves_ends_its_upstream_sockets(house: House) -> None:
    async with socket(house) as client:
        await client.greet()
        await client.say("GENERATE", stream_id=1, model="a", wait_behind=0)
        await client.until("TOKEN")
    await asyncio.wait_for(house.upstreams.left.wait(), 30)
    async with asyncio.timeout(30):
        while house.keeper.num_users("a"):
            await asyncio.sleep(0.01)


async def test_a_frame_that_is_none_closes_the_socket_with_a_reason(house: House) -> None:
    async with socket(house) as client:
        await client.connection.send("nonsense")
        await client.connection.wait_closed()
        assert client.connection.close_code == 1007
        assert "TYPE" in str(client.connection.close_reason)


async def test_a_socket_needs_a_key_where_there_are_keys(tmp_path: Path) -> None:
    async with fleet_house(tmp_path, keys=("secret",)) as house:
        house.upstreams.talk = speak
        with pytest.raises(InvalidStatus, match="401"):
            async with socket(house):
                pass
        async with socket(house, "/lmtp?key=secret") as client:
            await client.say("MODEL_INFO", stream_id=1, model="b")
            assert (await client.hear())[1]["model_info"] == {"model": "b"}


async def test_elsewhere_there_is_no_socket(house: House) -> None:
    with pytest.raises(InvalidStatus, match="404"):
        async with socket(house, "/elsewhere"):
            pass


async def test_sockets_are_told_of_the_drain(house: House) -> None:
    async with socket(house) as client:
        await client.greet()
        await house.sockets.tell_draining()
        assert (await client.hear())[1]["state"] == "draining"
        await house.keeper.drain()
        await client.say("GENERATE", stream_id=2, model="a")
        assert (await client.hear())[1]["error_type"] == "draining"
        await house.sockets.close()
        await client.connection.wait_closed()
        assert client.connection.close_code == 1001


async def test_a_failed_load_is_told_with_its_reason_and_when_to_try_again(house: House) -> None:
    house.servers.refusals["b"] = "has no weights"
    async with socket(house) as client:
        await client.greet()
        await client.say("GENERATE", stream_id=2, model="b")
        _, told = await client.until("TOKEN")
    assert (told["stream_id"], told["error_type"]) == (2, "model_load_failed")
    assert "has no weights" in told["error"]
    assert told["retryable"] is True
    assert 0 < told["retry_after_s"] <= 30
