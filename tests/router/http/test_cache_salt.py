"""Whose computed prefixes a request finds, by its `cached_tokens`."""

from typing import Any

import httpx
import pytest

from tests.fakes import FakeShard
from tests.router.http.harness import housing

PROMPT = "It was the best of times, it was"


async def num_cached(client: httpx.AsyncClient, key: str | None = None, **fields: Any) -> int:
    """Prompt tokens that were found in the cache."""
    headers = {} if key is None else {"authorization": f"Bearer {key}"}
    body = {"model": "fake/model", "prompt": PROMPT, "max_tokens": 2, **fields}
    answer = await client.post("/v1/completions", json=body, headers=headers)
    assert answer.status_code == 200, answer.text
    found: int = answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
    return found


async def test_one_key_learns_nothing_of_what_another_has_asked() -> None:
    async with housing(FakeShard(), api_keys=["one", "two"]) as house, house.client as client:
        assert await num_cached(client, "one") == 0
        assert await num_cached(client, "one") > 0
        assert await num_cached(client, "two") == 0
        assert await num_cached(client, "two") > 0


async def test_without_keys_all_share() -> None:
    async with housing(FakeShard()) as house, house.client as client:
        assert await num_cached(client) == 0
        assert await num_cached(client) > 0


async def test_keys_share_where_the_operator_says_so() -> None:
    async with (
        housing(FakeShard(), api_keys=["one", "two"], shares_prefixes=True) as house,
        house.client as client,
    ):
        assert await num_cached(client, "one") == 0
        assert await num_cached(client, "two") > 0


@pytest.mark.parametrize("keys", [(), ("one", "two")], ids=["no keys", "two keys"])
async def test_a_salt_divides_the_cache_further(keys: tuple[str, ...]) -> None:
    key, *others = keys or (None,)
    async with housing(FakeShard(), api_keys=keys) as house, house.client as client:
        assert await num_cached(client, key) == 0
        assert await num_cached(client, key, cache_salt="a") == 0
        assert await num_cached(client, key, cache_salt="a") > 0
        assert await num_cached(client, key, cache_salt="b") == 0
        for other in others:
            assert await num_cached(client, other, cache_salt="a") == 0


async def test_an_empty_salt_is_refused() -> None:
    async with housing(FakeShard()) as house, house.client as client:
        body = {"model": "fake/model", "prompt": PROMPT, "cache_salt": ""}
        answer = await client.post("/v1/completions", json=body)
    assert answer.status_code == 400
    assert "`cache_salt` must be a text that is not empty" in answer.text
