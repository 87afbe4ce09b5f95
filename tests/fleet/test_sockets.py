"""LMTP through the front: the choice of a model, its load, and messages both ways until the end."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from websockets.exceptions import InvalidStatus

from fleet.model_table import ModelState
from fleet.names import ListedModels
from fleet.sockets import FEATURES, VERSION
from router.http.lmtp import session as lmtp
from tests.fleet.harness import Listeners, RunningFleet, listening, running_fleet, socket

# All tests share a loop, and the listeners in it.
pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def listeners(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Listeners]:
    async with listening(tmp_path_factory.mktemp("sockets")) as built:
        yield built


@pytest_asyncio.fixture(loop_scope="module")
async def fleet(listeners: Listeners) -> AsyncIterator[RunningFleet]:
    async with running_fleet(listeners, max_loaded=2) as built:
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


async def test_the_features_and_version_of_hello_are_those_of_every_models_server() -> None:
    assert FEATURES == lmtp.FEATURES
    assert VERSION == lmtp.VERSION


async def test_hello_that_names_a_model_is_answered_by_its_server(fleet: RunningFleet) -> None:
    async with socket(fleet) as client:
        await client.say("HELLO", stream_id=7, version=2, model="b")
        assert (await client.hear())[1]["state"] == "loading"
        command, fields = await client.hear()
    assert (command, fields) == ("MSG", {"stream_id": 7, "hello": {"version": 2, "from": "b"}})


async def test_the_first_frame_that_needs_a_model_chooses_that_of_the_socket(
    fleet: RunningFleet,
) -> None:
    async with socket(fleet) as client:
        await client.say("MODEL_INFO", stream_id=1, model="b")
        assert (await client.hear())[1]["model_info"] == {"model": "b"}
        # What the others say is for the server, which refuses another name as its own socket does.
        for stream_id, names in enumerate(({}, {"model": "tgi"}, {"model": "a"}), start=2):
            await client.say("MODEL_INFO", stream_id=stream_id, **names)
            assert (await client.hear())[1]["model_info"] == {"model": "b"}
    assert fleet.upstreams.heard[-1] == ("b", "MODEL_INFO", {"stream_id": 4, "model": "a"})
    assert fleet.servers.started == ["b"]
    assert fleet.metrics.requests.value("b") == 4


async def test_the_name_in_the_address_goes_before_those_in_frames(fleet: RunningFleet) -> None:
    async with socket(fleet, "/lmtp?model=b") as client:
        await client.say("MODEL_INFO", stream_id=1, model="a")
        assert (await client.hear())[1]["model_info"] == {"model": "b"}


async def test_a_socket_without_a_name_is_of_the_default(fleet: RunningFleet) -> None:
    async with socket(fleet) as client:
        await client.say("MODEL_INFO", stream_id=1)
        assert (await client.hear())[1]["model_info"] == {"model": "a"}


@pytest.mark.parametrize(
    ("command", "payload", "kind", "error_type", "field"),
    [
        pytest.param("GENERATE", {"model": "zzz"}, "TOKEN", "model_not_found", "model", id="name"),
        pytest.param("GENERATE", {"model": 7}, "TOKEN", "validation", "model", id="number"),
        pytest.param("MODEL_INFO", {"model": "zzz"}, "MSG", "model_not_found", "model", id="info"),
        pytest.param("FOO", {}, "MSG", "unknown_command", None, id="command"),
        pytest.param("HELLO", {"version": 0}, "MSG", "validation", "version", id="version"),
        pytest.param("HELLO", {"version": "2"}, "MSG", "validation", "version", id="version-text"),
        # Python's json writes it as NaN.
        pytest.param("GENERATE", {"top_p": float("nan")}, "TOKEN", "validation", None, id="nan"),
    ],
)
async def test_what_cannot_be_served_is_an_error_and_the_next_frame_may_choose(
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
    assert fleet.servers.started == ["a"]


@pytest.mark.parametrize(
    ("message", "code", "reason"),
    [("nonsense", 1007, "TYPE"), ('GENERATE {"x', 1007, "JSON"), (b"GENERATE {}", 1003, "text")],
)
async def test_a_message_that_is_no_frame_closes_the_socket_with_a_reason(
    fleet: RunningFleet, message: str | bytes, code: int, reason: str
) -> None:
    async with socket(fleet) as client:
        await client.connection.send(message)
        assert await client.closed() == code
        assert reason in str(client.connection.close_reason)
    assert fleet.servers.started == []


async def test_a_socket_needs_a_key_where_there_are_keys_and_so_does_the_server(
    listeners: Listeners,
) -> None:
    async with running_fleet(listeners, keys=("secret",)) as fleet:
        with pytest.raises(InvalidStatus, match="401"):
            async with socket(fleet):
                pass
        async with socket(fleet, "/lmtp?key=secret") as client:
            await client.say("MODEL_INFO", stream_id=1, model="b")
            assert (await client.hear())[1]["model_info"] == {"model": "b"}
    (seen,) = fleet.upstreams.seen
    assert seen.header("authorization") == ["Bearer secret"]


async def test_elsewhere_there_is_no_socket(fleet: RunningFleet) -> None:
    with pytest.raises(InvalidStatus, match="404"):
        async with socket(fleet, "/elsewhere"):
            pass


async def test_who_waits_is_told_and_may_cancel_behind_the_load(listeners: Listeners) -> None:
    async with running_fleet(listeners, starts=False) as fleet, socket(fleet) as client:
        await client.greet()
        # Nothing is open, so nothing is loaded.
        await client.say("CANCEL", stream_id=5)
        await client.say("GENERATE", stream_id=5, model="a", wait_behind=0)
        command, fields = await client.hear()
        assert (command, fields["stream_id"], fields["state"]) == ("SYS", 5, "loading")
        assert "'a' is not loaded" in fields["message"]
        await client.say("CANCEL", stream_id=5)
        fleet.servers.may_start.set()
        assert (await client.until("DONE"))[1]["finish_reason"] == "cancelled"


async def test_a_client_that_leaves_while_its_model_is_loaded_holds_no_place(
    listeners: Listeners,
) -> None:
    async with running_fleet(listeners, starts=False) as fleet:
        async with socket(fleet) as client:
            await client.say("GENERATE", stream_id=1, model="a")
            while fleet.manager.entry("a").state is not ModelState.LOADING:
                await asyncio.sleep(0.001)
        async with asyncio.timeout(30):
            while fleet.metrics.waiting.value():
                await asyncio.sleep(0.001)


async def test_a_stream_that_waited_as_long_as_another_fails_with_it(listeners: Listeners) -> None:
    async with (
        running_fleet(listeners, load_timeout_s=0.5, starts=False) as fleet,
        socket(fleet) as client,
    ):
        for stream_id in range(3):
            await client.say("GENERATE", stream_id=stream_id, model="a")
        await client.say("CANCEL", stream_id=2)
        errors = [(await client.hear())[1] for _ in range(3)]
        # Those behind the first waited for nothing more.
        assert fleet.metrics.wait_duration.count() == 1
    assert [each["stream_id"] for each in errors] == [0, 1, 2]
    assert {each["error_type"] for each in errors} == {"model_loading"}


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


async def test_a_server_that_is_not_reached_is_an_error_and_the_socket_goes_on(
    fleet: RunningFleet, tmp_path: Path
) -> None:
    socket_of_b = fleet.servers.sockets["b"]
    fleet.servers.sockets["b"] = tmp_path / "nobody"
    async with socket(fleet) as client:
        await client.say("MODEL_INFO", stream_id=1, model="b")
        _, fields = await client.hear()
        assert (fields["error_type"], fields["retryable"]) == ("model_server_gone", True)
        fleet.servers.sockets["b"] = socket_of_b
        await client.say("MODEL_INFO", stream_id=2, model="b")
        assert (await client.hear())[1]["model_info"] == {"model": "b"}
    assert fleet.metrics.unloads.value("died") == 1


async def test_a_socket_holds_its_model_until_it_is_closed(listeners: Listeners) -> None:
    async with running_fleet(listeners, load_timeout_s=1.5) as fleet:
        async with socket(fleet) as one:
            await one.say("MODEL_INFO", stream_id=1, model="a")
            await one.hear()
            assert fleet.manager.entry("a").num_users == 1
            async with socket(fleet) as two:
                await two.say("GENERATE", stream_id=1, model="b")
                _, fields = await two.hear()
            assert fields["error_type"] == "overloaded"
            assert "others are in use" in fields["error"]
        async with socket(fleet) as two:
            await two.say("MODEL_INFO", stream_id=2, model="b")
            assert (await two.hear())[1]["model_info"] == {"model": "b"}
    assert fleet.servers.started == ["a", "b"]


async def test_a_hello_behind_the_choice_is_the_servers_and_holds_for_later_streams(
    fleet: RunningFleet,
) -> None:
    async with socket(fleet) as client:
        await client.say("GENERATE", stream_id=1, model="a", max_tokens=6, wait_behind=4)
        tokens = [(await client.hear())[1] for _ in range(5)]
        assert (await client.greet())["from"] == "a"
        await client.say("GENERATE", stream_id=2, max_tokens=1)
        assert (await client.until("DONE"))[1]["stream_id"] == 2
        fleet.upstreams.go_on.set()
        tokens += [(await client.hear())[1] for _ in range(2)]
    assert [each["token"] for each in tokens] == [0, 1, 2, 3, 4, 5, 99]


async def test_the_server_learns_the_version_that_the_front_agreed_on(fleet: RunningFleet) -> None:
    async with socket(fleet) as client:
        await client.greet()
        await client.say("GENERATE", stream_id=2, model="b", wait_behind=0)
        await client.until("TOKEN")
        await client.say("CANCEL", stream_id=2)
        assert (await client.until("DONE"))[1]["finish_reason"] == "cancelled"
    heard = [each[:2] for each in fleet.upstreams.heard]
    assert heard == [("b", "HELLO"), ("b", "GENERATE"), ("b", "CANCEL")]


async def test_a_client_that_leaves_ends_the_servers_socket_and_the_use_of_the_model(
    fleet: RunningFleet,
) -> None:
    async with socket(fleet) as client:
        await client.greet()
        await client.say("GENERATE", stream_id=1, model="a", wait_behind=0)
        await client.until("TOKEN")
    await asyncio.wait_for(fleet.upstreams.left.wait(), 30)
    await fleet.until_unused("a")


async def test_a_server_that_dies_closes_its_sockets_and_the_next_one_loads_it_anew(
    fleet: RunningFleet,
) -> None:
    async with socket(fleet) as client:
        await client.say("GENERATE", stream_id=1, model="a", max_tokens=6, wait_behind=5)
        for _ in range(6):
            await client.hear()
        await fleet.kill("a")
        assert await client.closed() == 1012
        assert "the model's server stopped" in str(client.connection.close_reason)
    assert fleet.metrics.rejected.value("model_server_gone") == 1
    async with socket(fleet) as client:
        await client.say("MODEL_INFO", stream_id=2, model="a")
        assert (await client.hear())[1]["model_info"] == {"model": "a"}
    assert fleet.servers.started == ["a", "a"]


async def test_the_close_of_a_server_passes_to_the_client(fleet: RunningFleet) -> None:
    async with socket(fleet) as client:
        await client.say("MODEL_INFO", stream_id=1, model="a")
        await client.hear()
        await client.say("CLOSE", stream_id=2, code=1007)
        assert await client.closed() == 1007
        assert client.connection.close_reason == "as asked"
    await fleet.until_unused("a")
    assert fleet.servers.started == ["a"]


async def test_a_drain_refuses_streams_and_closes_sockets(fleet: RunningFleet) -> None:
    async with socket(fleet) as idle, socket(fleet) as used:
        await idle.greet()
        await used.say("MODEL_INFO", stream_id=1, model="a")
        await used.hear()
        await fleet.manager.drain()
        await idle.say("GENERATE", stream_id=2, model="a")
        assert (await idle.hear())[1]["error_type"] == "draining"
        fleet.listeners.cut("a")
        assert await used.closed() == 1001
        await fleet.sockets.close()
        assert await idle.closed() == 1001


class BrokenNames(ListedModels):
    """Names with a bug."""

    def listed(self) -> list[str]:
        raise ValueError("a bug")


async def test_a_bug_of_the_socket_itself_closes_it_with_a_reason(listeners: Listeners) -> None:
    async with running_fleet(listeners, names=BrokenNames(["a"])) as fleet, socket(fleet) as client:
        await client.say("HELLO", stream_id=1, version=2)
        assert await client.closed() == 1011
        assert client.connection.close_reason == "a bug; the server's log has more"
