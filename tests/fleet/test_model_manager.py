"""The model manager: one load for many requests, room, dead servers, drain."""

import asyncio

import pytest

from fleet.errors import LoadFailed, NoRoom, ShuttingDown, StillLoading
from fleet.model_table import LoadingRules, ModelState
from fleet.names import Model
from tests.fleet.harness import FakeServer, FakeServers, manager_over, model, states


async def settled() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_many_who_want_one_model_share_its_load() -> None:
    servers = FakeServers()
    manager = manager_over(servers)
    asking = [asyncio.create_task(manager.acquire(model("a"))) for _ in range(5)]
    await settled()
    assert states(manager) == {"a": ModelState.LOADING}
    servers.may_start.set()
    leases = await asyncio.gather(*asking)
    assert servers.started == ["a"]
    assert manager.entry("a").num_users == 5
    for lease in leases:
        lease.close()
        lease.close()
    assert manager.entry("a").num_users == 0


async def test_a_model_with_users_keeps_its_room() -> None:
    servers = FakeServers()
    servers.may_start.set()
    manager = manager_over(servers)
    first = await manager.acquire(model("a"))
    second = asyncio.create_task(manager.acquire(model("b")))
    await settled()
    assert states(manager) == {"a": ModelState.READY, "b": ModelState.ABSENT}
    first.close()
    (await second).close()
    assert servers.by_name["a"].is_stopped
    assert states(manager) == {"b": ModelState.READY}


async def test_a_request_that_waits_too_long_for_room_fails_with_the_reason() -> None:
    servers = FakeServers()
    servers.may_start.set()
    manager = manager_over(servers, load_timeout_s=0.05)
    first = await manager.acquire(model("a"))
    with pytest.raises(NoRoom, match="'b'"):
        await manager.acquire(model("b"))
    first.close()
    await settled()
    assert servers.started == ["a"]


async def test_a_request_that_waits_too_long_for_a_load_fails_and_the_load_goes_on() -> None:
    servers = FakeServers()
    manager = manager_over(servers, load_timeout_s=0.05)
    with pytest.raises(StillLoading, match="'a' is still being loaded"):
        await manager.acquire(model("a"))
    servers.may_start.set()
    await settled()
    (await manager.acquire(model("a"))).close()
    assert servers.started == ["a"]


async def test_who_leaves_while_waiting_holds_nothing() -> None:
    servers = FakeServers()
    manager = manager_over(servers)
    asking = asyncio.create_task(manager.acquire(model("a")))
    await settled()
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    servers.may_start.set()
    await settled()
    assert manager.entry("a").num_users == 0
    (await manager.acquire(model("b"))).close()


async def test_who_leaves_as_the_model_is_granted_gives_it_back() -> None:
    servers = FakeServers()
    manager = manager_over(servers)
    asking = asyncio.create_task(manager.acquire(model("a")))
    await settled()
    servers.may_start.set()
    while manager.entry("a").num_users == 0:
        await asyncio.sleep(0)
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    if not asking.cancelled():
        asking.result().close()
    assert manager.entry("a").num_users == 0


async def test_a_failed_load_fails_all_who_wait_and_is_remembered() -> None:
    servers = FakeServers(refusals={"a": "no weights"})
    manager = manager_over(servers)
    asking = [asyncio.create_task(manager.acquire(model("a"))) for _ in range(3)]
    await settled()
    servers.may_start.set()
    answers = await asyncio.gather(*asking, return_exceptions=True)
    assert all(isinstance(each, LoadFailed) and "no weights" in str(each) for each in answers)
    with pytest.raises(LoadFailed, match="no weights") as caught:
        await manager.acquire(model("a"))
    assert 29 < caught.value.retry_after_s <= 30
    assert servers.started == ["a"]
    assert manager.entry("a").failure == "no weights"


async def test_a_model_whose_server_died_is_loaded_anew() -> None:
    servers = FakeServers()
    servers.may_start.set()
    manager = manager_over(servers)
    lease = await manager.acquire(model("a"))
    servers.by_name["a"].die("it was ended by SIGKILL")
    await settled()
    assert states(manager) == {}
    again = await manager.acquire(model("a"))
    assert servers.started == ["a", "a"]
    lease.close()
    assert manager.entry("a").num_users == 1
    again.close()


async def test_a_model_whose_server_cannot_be_stopped_is_gone_and_can_be_loaded_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    servers = FakeServers()
    servers.may_start.set()
    manager = manager_over(servers)
    (await manager.acquire(model("a"))).close()
    servers.by_name["a"].stop_fault = OSError("no such process group")
    (await manager.acquire(model("b"))).close()
    assert states(manager) == {"b": ModelState.READY}
    (await manager.acquire(model("a"))).close()
    assert servers.started == ["a", "b", "a"]
    assert "the server of a could not be stopped" in caplog.text
    assert "no such process group" in caplog.text


async def test_two_models_stay_where_there_is_room_for_two() -> None:
    servers = FakeServers()
    servers.may_start.set()
    manager = manager_over(servers, rules=LoadingRules(max_loaded=2))
    for name in "abab":
        (await manager.acquire(model(name))).close()
    assert servers.started == ["a", "b"]
    assert servers.others == [0, 1]
    last = manager.last_used()
    assert last is not None
    assert last.name == "b"


async def test_a_busy_model_is_closed_after_its_turn_so_that_others_are_served() -> None:
    servers = FakeServers()
    servers.may_start.set()
    manager = manager_over(servers, rules=LoadingRules(turn_s=0.05))
    first = await manager.acquire(model("a"))
    second = asyncio.create_task(manager.acquire(model("b")))
    await asyncio.sleep(0.1)
    third = asyncio.create_task(manager.acquire(model("a")))
    await settled()
    assert not third.done()
    first.close()
    (await second).close()
    (await third).close()
    assert servers.started == ["a", "b", "a"]


async def test_an_idle_model_leaves_when_its_time_is_over() -> None:
    servers = FakeServers()
    servers.may_start.set()
    manager = manager_over(servers, rules=LoadingRules(idle_timeout_s=0.05))
    (await manager.acquire(model("a"))).close()
    async with asyncio.timeout(30):
        while states(manager):
            await asyncio.sleep(0.01)
    assert servers.by_name["a"].is_stopped


async def test_a_drain_refuses_who_waits_and_ends_every_server() -> None:
    servers = FakeServers()
    servers.may_start.set()
    manager = manager_over(servers)
    lease = await manager.acquire(model("a"))
    waiting = asyncio.create_task(manager.acquire(model("b")))
    await settled()
    servers.by_name["a"].may_stop.clear()
    draining = asyncio.create_task(manager.drain())
    with pytest.raises(ShuttingDown):
        await waiting
    with pytest.raises(ShuttingDown):
        await manager.acquire(model("a"))
    assert not draining.done()
    manager.stop_now()
    await draining
    lease.close()
    assert servers.by_name["a"].is_stopped_now


async def test_a_drain_gives_up_what_is_being_loaded() -> None:
    servers = FakeServers()
    manager = manager_over(servers)
    waiting = asyncio.create_task(manager.acquire(model("a")))
    await settled()
    await manager.drain()
    with pytest.raises(ShuttingDown):
        await waiting


async def test_a_load_that_fails_by_a_bug_is_a_failed_load() -> None:
    class Broken(FakeServers):
        async def start(self, model: Model, num_others: int) -> FakeServer:
            raise ZeroDivisionError

    manager = manager_over(Broken())
    with pytest.raises(LoadFailed, match="a bug"):
        await manager.acquire(model("a"))
    assert states(manager) == {"a": ModelState.FAILED}


async def test_a_model_that_cannot_be_downloaded_takes_nobodys_place() -> None:
    servers = FakeServers(faults={"b": "no weights"}, far={"b"})
    servers.may_start.set()
    manager = manager_over(servers)
    (await manager.acquire(model("a"))).close()
    with pytest.raises(
        LoadFailed, match=r"^the model 'b' could not be loaded: no weights$"
    ) as refused:
        await manager.acquire(model("b"))
    assert 29 < refused.value.retry_after_s <= 30
    assert (servers.downloaded, servers.started) == (["b"], ["a"])
    assert states(manager) == {"a": ModelState.READY, "b": ModelState.FAILED}
    assert not servers.by_name["a"].is_stopped


async def test_a_model_that_left_for_one_that_failed_comes_back() -> None:
    servers = FakeServers(refusals={"b": "out of luck"})
    servers.may_start.set()
    manager = manager_over(servers)
    (await manager.acquire(model("a"))).close()
    with pytest.raises(LoadFailed, match="out of luck"):
        await manager.acquire(model("b"))
    assert manager.entry("b").failure == "out of luck"
    (await manager.acquire(model("a"))).close()
    assert servers.started == ["a", "b", "a"]


async def test_a_request_that_waits_for_the_downloads_of_others_fails_with_the_reason() -> None:
    class Slow(FakeServers):
        async def download(self, model: Model) -> None:
            await asyncio.sleep(60)

    servers = Slow(far={f"far-{number}" for number in range(5)})
    servers.may_start.set()
    manager = manager_over(servers, load_timeout_s=1.0)
    asking = [asyncio.create_task(manager.acquire(model(f"far-{number}"))) for number in range(5)]
    await settled()
    found = [manager.entry(name).state for name in ("far-3", "far-4")]
    assert found == [ModelState.DOWNLOADING, ModelState.ABSENT]
    # The one place is free meanwhile.
    (await manager.acquire(model("near"))).close()
    refused = await asyncio.gather(*asking, return_exceptions=True)
    assert [type(each) for each in refused] == [StillLoading] * 4 + [NoRoom]
    assert "no room for the model 'far-4' within 1 s" in str(refused[4])
    await manager.drain()


async def test_a_request_that_waits_for_too_long_a_download_fails_with_the_reason() -> None:
    class Slow(FakeServers):
        async def download(self, model: Model) -> None:
            await asyncio.sleep(60)

    servers = Slow(far={"b"})
    servers.may_start.set()
    manager = manager_over(servers, load_timeout_s=0.05)
    (await manager.acquire(model("a"))).close()
    with pytest.raises(StillLoading, match="'b' is still being downloaded"):
        await manager.acquire(model("b"))
    (await manager.acquire(model("a"))).close()
    await manager.drain()
    assert manager.entry("b").failure == "the server is shutting down"
