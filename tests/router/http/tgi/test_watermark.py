"""`parameters.watermark` on its way to the shard."""

from typing import Any

import pytest

from tests.fakes import FakeShard
from tests.router.http.harness import housing


async def sampling_told(path: str, body: dict[str, Any]) -> Any:
    """The sampling parameters that the shard got."""
    async with housing(FakeShard()) as house, house.client as client:
        answer = await client.post(path, json=body)
        assert answer.status_code == 200, answer.text
        (call,) = (call for method, call in house.shard.calls if method == "Prefill")
        return call.batch.requests[0].sampling


@pytest.mark.parametrize("path", ["/generate", "/generate_stream", "/"])
@pytest.mark.parametrize("asked", [True, False, None])
async def test_who_asks_gets_it_on_every_route_of_tgi(path: str, asked: bool | None) -> None:
    parameters = {"watermark": asked, "max_new_tokens": 2}
    sampling = await sampling_told(path, {"inputs": "hello", "parameters": parameters})
    assert sampling.watermark is bool(asked)


async def test_asking_for_it_does_not_turn_sampling_on() -> None:
    parameters = {"watermark": True, "max_new_tokens": 2}
    sampling = await sampling_told("/generate", {"inputs": "hello", "parameters": parameters})
    assert not sampling.do_sample


async def test_openai_has_no_word_for_it() -> None:
    body = {"prompt": "hello", "model": "model", "max_tokens": 2}
    assert not (await sampling_told("/v1/completions", body)).watermark
