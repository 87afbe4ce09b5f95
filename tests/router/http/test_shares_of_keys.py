"""Keys over HTTP: their limits, and that one that fills the server leaves room for the others."""

import asyncio
from hashlib import sha256
from typing import Any

import httpx

from router.http.server.auth import KeyRing
from router.request.request import ApiKey
from tests.fakes import FakeShard
from tests.router.http.harness import House, housing
from tests.router.rig import settled

BODY = {"inputs": "hi", "parameters": {"max_new_tokens": 100}}


def slow_shard() -> FakeShard:
    shard = FakeShard()
    shard.faults.delay_s = 0.005
    return shard


def ring(**limits: Any) -> KeyRing:
    """The keys "hog" and "light", which are their names as well."""
    names = ("hog", "light")
    return KeyRing([ApiKey(name, sha256(name.encode()).digest(), **limits) for name in names])


async def ask(house: House, key: str, path: str = "/generate", body: Any = BODY) -> httpx.Response:
    async with house.client as client:
        return await client.post(path, json=body, headers={"authorization": f"Bearer {key}"})


async def test_a_key_has_so_many_requests_at_once() -> None:
    async with housing(slow_shard(), api_keys=ring(max_concurrent_requests=1)) as house:
        first = asyncio.ensure_future(ask(house, "hog"))
        await asyncio.sleep(0.05)
        second = await ask(house, "hog")
        other = await ask(house, "light")
        assert (await first).status_code == 200
        third = await ask(house, "hog")
        assert house.rig.metrics.rejected.value("rate_limited") == 1

    assert (second.status_code, other.status_code, third.status_code) == (429, 200, 200)
    assert second.json() == {
        "error": "1 requests of this key are waiting or running; at most 1 may",
        "error_type": "rate_limited",
    }
    assert second.headers["retry-after"] == "1"


async def test_openais_clients_read_of_their_limit() -> None:
    async with housing(FakeShard(), api_keys=ring(requests_per_minute=1)) as house:
        body = {"prompt": "hi", "max_tokens": 2}
        assert (await ask(house, "hog", "/v1/completions", body)).status_code == 200
        answer = await ask(house, "hog", "/v1/completions", body)

    error = answer.json()["error"]
    assert (answer.status_code, error["type"]) == (429, "rate_limit_error")
    assert error["code"] == "rate_limit_exceeded"
    assert 55 <= int(answer.headers["retry-after"]) <= 60


async def test_tokens_are_those_that_were_computed() -> None:
    async with housing(FakeShard(), api_keys=ring(tokens_per_minute=101)) as house:
        answers = [(await ask(house, "hog")).status_code for _ in range(3)]
        other = (await ask(house, "light")).status_code

    # 102 tokens of the first one are more than there are.
    assert (answers, other) == ([200, 429, 429], 200)


async def test_a_key_that_fills_the_server_leaves_room_for_the_others() -> None:
    shard = slow_shard()
    async with housing(shard, max_concurrent_requests=4, api_keys=ring()) as house:
        hogs = [asyncio.ensure_future(ask(house, "hog")) for _ in range(4)]
        await asyncio.sleep(0.05)
        refused = await ask(house, "hog")
        answer = await ask(house, "light", body={**BODY, "parameters": {"max_new_tokens": 2}})
        still_running = [hog for hog in hogs if not hog.done()]
        statuses = [(await hog).status_code for hog in hogs]
        await settled(house.rig)

    assert (refused.status_code, answer.status_code) == (429, 200)
    assert len(still_running) == 4
    assert statuses == [200] * 4
