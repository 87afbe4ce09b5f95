"""Paths that a platform chooses: they are served as the routes that they stand for."""

import logging

import pytest

from tests.fakes import FakeShard, saying
from tests.router.http.harness import housing

CHOSEN = "/v1/endpoints/7/deployedModels/8"
PATHS = {CHOSEN: "/health", CHOSEN + ":predict": "/vertex"}


async def test_a_chosen_path_is_served_in_the_dialect_of_the_route(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, logger="router.http.server.access")
    shard = FakeShard(script=saying("w", 5))
    async with housing(shard, aliases=PATHS) as house, house.client as client:
        health = await client.get(CHOSEN)
        good = await client.post(CHOSEN + ":predict", json={"instances": [{"inputs": "hello"}]})
        bad = await client.post(CHOSEN + ":predict", json={"instances": []})

    assert (health.status_code, health.content) == (200, b"")
    assert good.json() == {"predictions": ["w"]}
    assert (bad.status_code, bad.json()["error_type"]) == (422, "validation")
    assert caplog.records[0].getMessage().startswith(f"POST {CHOSEN}:predict ")


async def test_the_route_s_own_rules_hold_for_a_chosen_path() -> None:
    guarded = housing(FakeShard(), aliases=PATHS, api_keys=["secret"])
    async with guarded as house, house.client as client:
        assert (await client.get(CHOSEN)).status_code == 200
        answer = await client.post(CHOSEN + ":predict", json={"instances": []})

    assert answer.status_code == 401
    assert answer.json().keys() == {"error", "error_type"}
