"""LMTP through the front: each socket is bound to one model."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from websockets.exceptions import InvalidStatus

from fleet.http.sockets import FEATURES, VERSION
from fleet.model_table import LoadingRules
from fleet.names import ListedModels
from router.http.lmtp import session as lmtp
from tests.fleet.harness import RunningFleet, running_fleet
from tests.fleet.http.lmtp import socket, speak


@pytest.fixture
async def fleet(tmp_path: Path) -> AsyncIterator[RunningFleet]:
    async with running_fleet(tmp_path, rules=LoadingRules(max_loaded=2)) as built:
        built.upstreams.talk = speak
        yield built


async def test_a_socket_of_version_1_gets_tokens_and_no_greeting(fleet: RunningFleet) -> None:
    async with socket(fleet, "/") as client:
        await client.say("GENERATE", stream_id=1, model="b", prompt=[1], max_tokens=2)
        tokens = [await client.hear() for _ in range(3)]
    assert [fields["token"] for _, fields in tokens] == [0, 1, 99]
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
        assert (await client.hear())[1]["state"] == "loading"
        command, fields = await client.hear()
    assert (command, fields) == ("MSG", {"stream_id": 7, "hello": {"version": 2, "from": "b"}})


async def test_a_socket_is_bound_to_the_model_of_its_first_frame(fleet: RunningFleet) -> None:
    async with socket(fleet) as client:
        await client.say("MODEL_INFO", stream_id=1, model="b")
        assert (await client.hear())[1]["model_info"] == {"model": "b"}
        # A frame without a name, or with a placeholder, goes to the same model.
        for stream_id, names in enumerate(({}, {"model": "tgi"}, {"model": "b"}), start=2):
            await client.say("MODEL_INFO", stream_id=stream_id, **names)
            assert (await client.hear())[1]["model_info"] == {"model": "b"}
    assert fleet.upstreams.heard[-1][:2] == ("b", "MODEL_INFO")
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


def test_hello_has_the_features_of_every_models_server() -> None:
    assert FEATURES == lmtp.FEATURES
    assert VERSION == lmtp.VERSION


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
        said, fields = await client.hear()
        assert (said, fields["stream_id"], fields["error_type"]) == (kind, 3, error_type)
        assert fields.get("field") == field
        await client.say("MODEL_INFO", stream_id=4, model="a")
        assert (await client.hear())[1]["model_info"] == {"model": "a"}


async def test_a_frame_with_nan_is_an_error_of_its_own_stream(fleet: RunningFleet) -> None:
    async with socket(fleet) as client:
        await client.connection.send('GENERATE {"stream_id": 3, "model": "a", "top_p": NaN}')
        said, fields = await client.hear()
        assert (said, fields["stream_id"], fields["error_type"]) == ("TOKEN", 3, "validation")
        await client.say("MODEL_INFO", stream_id=4, model="a")
        assert (await client.hear())[1]["model_info"] == {"model": "a"}


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


async def test_a_drain_refuses_streams_and_closes_sockets(fleet: RunningFleet) -> None:
    async with socket(fleet) as client:
        await client.greet()
        await fleet.manager.drain()
        await client.say("GENERATE", stream_id=2, model="a")
        assert (await client.hear())[1]["error_type"] == "draining"
        await fleet.sockets.close()
        await client.connection.wait_closed()
        assert client.connection.close_code == 1001


class BrokenNames(ListedModels):
    """Names with a bug."""

    def listed(self) -> list[str]:
        raise ValueError("a bug")


async def test_a_bug_of_the_socket_itself_closes_it_with_a_reason(tmp_path: Path) -> None:
    async with running_fleet(tmp_path, names=BrokenNames(["a"])) as fleet, socket(fleet) as client:
        await client.say("HELLO", stream_id=1, version=2)
        await client.connection.wait_closed()
        assert client.connection.close_code == 1011
        assert client.connection.close_reason == "a bug; the server's log has more"
