"""LMTP through the front: each socket is bound to one model."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from starlette.types import Message
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import InvalidStatus

from fleet.http.sockets import FEATURES, VERSION
from fleet.model_entry import ModelState
from fleet.model_manager import Lease
from fleet.model_table import LoadingRules
from fleet.names import ListedModels, Model
from router.http.lmtp import commands as lmtp
from tests.fleet.harness import RunningFleet, running_fleet
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
async def socket(fleet: RunningFleet, path: str = "/lmtp", **headers: str) -> AsyncIterator[Socket]:
    url = fleet.url.replace("http", "ws") + path
    async with connect(url, additional_headers=headers, proxy=None) as connection:
        yield Socket(connection)


@pytest.fixture
async def fleet(tmp_path: Path) -> AsyncIterator[RunningFleet]:
    async with running_fleet(tmp_path, rules=LoadingRules(max_loaded=2)) as built:
        built.upstreams.talk = speak
        yield built


async def test_a_socket_of_version_1_gets_tokens_and_no_greeting(fleet: RunningFleet) -> None:
    async with socket(fleet, "/") as client:
        await client.say("GENERATE", stream_id=1, model="b", prompt=[1], max_tokens=2)
        tokens = [await client.hear() for _ in range(3)]
    assert [told["token"] for _, told in tokens] == [0, 1, 99]
    assert [command for _, command, _ in fleet.upstreams.heard] == ["GENERATE"]


async def test_hello_is_answered_by_the_front_and_loads_nothing(fleet: RunningFleet) -> None:
    async with socket(fleet) as client:
        hello = await client.greet()
    assert hello["version"] == 2
    assert hello["models"] == ["a", "b"]
    assert "models_on_demand" in hello["features"]
    assert fleet.servers.started == []


async def test_hello_that_names_a_model_is_answered_by_its_server(fleet: RunningFleet) -> None:
    async with socket(fleet) as client:
        await client.say("HELLO", stream_id=7, version=2, model="b")
        command, told = await client.hear()
    assert (command, told) == ("MSG", {"stream_id": 7, "hello": {"version": 2, "from": "b"}})


async def test_a_socket_is_bound_to_the_model_of_its_first_frame(fleet: RunningFleet) -> None:
    async with socket(fleet) as client:
        await client.say("MODEL_INFO", stream_id=1, model="b")
        assert (await client.hear())[1]["model_info"] == {"model": "b"}
        # A frame without a name, or with a placeholder, goes to the same model.
        for stream_id, names in enumerate(({}, {"model": "tgi"}, {"model": "b"}), start=2):
            await client.say("MODEL_INFO", stream_id=stream_id, **names)
            assert (await client.hear())[1]["model_info"] == {"model": "b"}
        await client.say("DROP", stream_id=9, name="x")
        await client.hear()
    assert fleet.upstreams.heard[-1][:2] == ("b", "DROP")
    assert fleet.servers.started == ["b"]


async def test_a_frame_that_names_another_model_is_refused_and_the_socket_goes_on(
    fleet: RunningFleet,
) -> None:
    async with socket(fleet) as client:
        await client.greet()
        await client.say("GENERATE", stream_id=2, model="a", wait_behind=0)
        await client.until("TOKEN")
        await client.say("GENERATE", stream_id=3, model="b")
        command, error = await client.hear()
        assert (command, error["stream_id"], error["error_type"]) == ("TOKEN", 3, "validation")
        assert "bound to the model 'a'; open another one for 'b'" in error["error"]
        assert (error["field"], error["retryable"]) == ("model", False)
        fleet.upstreams.go_on.set()
        assert (await client.until("DONE"))[1]["text"] == "a"
    assert fleet.servers.started == ["a"]


async def test_the_address_of_a_socket_may_name_its_model(fleet: RunningFleet) -> None:
    async with socket(fleet, "/lmtp?model=b") as client:
        await client.say("MODEL_INFO", stream_id=1)
        assert (await client.hear())[1]["model_info"] == {"model": "b"}
        await client.say("MODEL_INFO", stream_id=2, model="a")
        assert (await client.hear())[1]["field"] == "model"


async def test_a_socket_without_a_name_is_bound_to_the_default(fleet: RunningFleet) -> None:
    async with socket(fleet) as client:
        for stream_id, names in enumerate(({}, {"model": "a"}), start=1):
            await client.say("MODEL_INFO", stream_id=stream_id, **names)
            assert (await client.hear())[1]["model_info"] == {"model": "a"}


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


def test_hello_has_the_features_of_every_models_server() -> None:
    assert FEATURES == lmtp.FEATURES
    assert VERSION == lmtp.VERSION


async def test_waiting_clients_are_told_that_the_model_is_being_loaded(tmp_path: Path) -> None:
    async with running_fleet(tmp_path, starts=False) as fleet, socket(fleet) as client:
        fleet.upstreams.talk = speak
        await client.greet()
        await client.say("GENERATE", stream_id=5, model="a")
        command, told = await client.hear()
        assert (command, told["stream_id"], told["state"]) == ("SYS", 5, "loading")
        assert "a is being loaded" in told["message"]
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
    fleet: RunningFleet,
    command: str,
    payload: dict[str, object],
    kind: str,
    error_type: str,
    field: str | None,
) -> None:
    async with socket(fleet) as client:
        await client.say(command, stream_id=3, **payload)
        said, told = await client.hear()
        assert (said, told["stream_id"], told["error_type"]) == (kind, 3, error_type)
        assert told.get("field") == field
        await client.say("MODEL_INFO", stream_id=4, model="a")
        assert (await client.hear())[1]["model_info"] == {"model": "a"}


async def test_a_server_that_dies_ends_its_streams_and_leaves_the_others(
    fleet: RunningFleet,
) -> None:
    async with socket(fleet) as client:
        await client.greet()
        await client.say("GENERATE", stream_id=1, model="a", max_tokens=6, wait_behind=5)
        for _ in range(6):
            await client.until("TOKEN")
        await fleet.kill("a")
        _, told = await client.until("TOKEN")
        assert (told["stream_id"], told["error_type"]) == (1, "model_server_gone")
        assert told["retryable"] is True
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
        command, told = await client.hear()
    assert (command, told["token"], told["finish_reason"]) == ("TOKEN", 5, "length")


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


async def test_a_frame_that_is_none_closes_the_socket_with_a_reason(fleet: RunningFleet) -> None:
    async with socket(fleet) as client:
        await client.connection.send("nonsense")
        await client.connection.wait_closed()
        assert client.connection.close_code == 1007
        assert "TYPE" in str(client.connection.close_reason)


async def test_a_socket_needs_a_key_where_there_are_keys(tmp_path: Path) -> None:
    async with running_fleet(tmp_path, keys=("secret",)) as fleet:
        fleet.upstreams.talk = speak
        with pytest.raises(InvalidStatus, match="401"):
            async with socket(fleet):
                pass
        async with socket(fleet, "/lmtp?key=secret") as client:
            await client.say("MODEL_INFO", stream_id=1, model="b")
            assert (await client.hear())[1]["model_info"] == {"model": "b"}


async def test_elsewhere_there_is_no_socket(fleet: RunningFleet) -> None:
    with pytest.raises(InvalidStatus, match="404"):
        async with socket(fleet, "/elsewhere"):
            pass


async def test_sockets_are_told_of_the_drain(fleet: RunningFleet) -> None:
    async with socket(fleet) as client:
        await client.greet()
        await fleet.sockets.send_draining()
        assert (await client.hear())[1]["state"] == "draining"
        await fleet.manager.drain()
        await client.say("GENERATE", stream_id=2, model="a")
        assert (await client.hear())[1]["error_type"] == "draining"
        await fleet.sockets.close()
        await client.connection.wait_closed()
        assert client.connection.close_code == 1001


async def test_a_failed_load_is_told_with_its_reason_and_when_to_try_again(
    fleet: RunningFleet,
) -> None:
    fleet.servers.refusals["b"] = "has no weights"
    async with socket(fleet) as client:
        await client.greet()
        await client.say("GENERATE", stream_id=2, model="b")
        _, told = await client.until("TOKEN")
    assert (told["stream_id"], told["error_type"]) == (2, "model_load_failed")
    assert "has no weights" in told["error"]
    assert told["retryable"] is True
    assert 0 < told["retry_after_s"] <= 30


class BrokenNames(ListedModels):
    """Names with a bug."""

    def listed(self) -> list[str]:
        raise ValueError("a bug")


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


async def test_a_bug_of_the_socket_itself_closes_it_with_a_reason(tmp_path: Path) -> None:
    async with running_fleet(tmp_path, names=BrokenNames(["a"])) as fleet, socket(fleet) as client:
        await client.say("HELLO", stream_id=1, version=2)
        await client.connection.wait_closed()
        assert client.connection.close_code == 1011
        assert client.connection.close_reason == "a bug; the server's log has more"


async def test_a_client_that_is_gone_keeps_the_drain_from_nobody(tmp_path: Path) -> None:
    said: list[Message] = []
    frames = [
        {"type": "websocket.connect"},
        {"type": "websocket.receive", "text": 'HELLO {"stream_id": 1, "version": 2}'},
    ]

    async def receive() -> Message:
        return frames.pop(0) if frames else await asyncio.Future()

    async def send(message: Message) -> None:
        said.append(message)
        if len(said) > 2:
            raise OSError("the client is gone")

    scope: dict[str, Any] = {"type": "websocket", "path": "/lmtp", "headers": []}
    scope |= {"query_string": b"", "state": {}}
    async with running_fleet(tmp_path) as fleet, socket(fleet) as client:
        gone = asyncio.create_task(fleet.sockets(scope, receive, send))
        await client.greet()
        while len(said) < 2:
            await asyncio.sleep(0.01)
        await fleet.sockets.send_draining()
        assert (await client.hear())[1]["state"] == "draining"
        gone.cancel()
        await asyncio.gather(gone, return_exceptions=True)

    assert len(said) == 3
