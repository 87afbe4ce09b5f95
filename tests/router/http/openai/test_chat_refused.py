"""/v1/chat/completions: what breaks a rule, does not fit or fails, in OpenAI's words."""

from typing import Any

import grpc
import pytest

from tests.fakes import FakeShard
from tests.router.http.harness import housing
from tests.router.http.openai.asking import CHAT, HI, refuse, saying_after_hi, stream, text_of
from tests.router.rig import asking, settled


async def test_another_model_is_a_404() -> None:
    async with housing(FakeShard()) as house:
        status, error = await refuse(house, CHAT, {"messages": HI, "model": "gpt-9"})

    assert status == 404
    assert error == {
        "message": "The model `gpt-9` does not exist; served: `fake/model`, `model`",
        "type": "invalid_request_error",
        "param": "model",
        "code": "model_not_found",
    }


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": None}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": [{"content": "hi"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": 3}]}, "messages[0].content"),
        ({"temperature": -1}, "temperature"),
        ({"temperature": 0, "top_p": 5}, "top_p"),
        ({"top_p": -0.1}, "top_p"),
        ({"presence_penalty": 3}, "presence_penalty"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_completion_tokens": -1}, "max_completion_tokens"),
        ({"max_tokens": 10**9}, "max_tokens"),
        ({"min_tokens": -1}, "min_tokens"),
        ({"n": 0}, "n"),
        ({"n": 9}, "n"),
        ({"n": True}, "n"),
        ({"stop": 3}, "stop"),
        ({"stop": ["a"] * 5}, "stop"),
        ({"logit_bias": [1.0]}, "logit_bias"),
        ({"logit_bias": {"a": 1}}, "logit_bias"),
        ({"logit_bias": {"5": "1"}}, "logit_bias"),
        ({"logit_bias": {"5": 101}}, "logit_bias"),
        ({"logit_bias": {"99999": 1}}, "logit_bias"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"top_logprobs": 21, "logprobs": True}, "top_logprobs"),
        ({"seed": -(2**63) - 1}, "seed"),
        ({"stream_options": []}, "stream_options"),
        ({"stop_token_ids": [999]}, "stop_token_ids"),
        ({"response_format": {}}, "response_format.type"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": {"type": "function"}}, "tool_choice"),
        ({"guided_regex": ""}, "guided_regex"),
        ({"structured_outputs": {}}, "structured_outputs"),
    ],
)
async def test_a_broken_rule_is_a_400_that_names_the_field(
    fields: Any, param: str, streams: bool
) -> None:
    async with housing(FakeShard()) as house:
        status, error = await refuse(house, CHAT, {"messages": HI, "stream": streams, **fields})

    assert (status, error["type"]) == (400, "invalid_request_error")
    assert error["param"] == param
    assert f"`{error['param']}`" in error["message"]


async def test_a_model_without_a_template_says_so() -> None:
    async with housing(FakeShard(), with_template=False) as house:
        status, error = await refuse(house, CHAT, {"messages": HI})

    assert (status, error["type"]) == (400, "invalid_request_error")
    assert "chat template" in error["message"]


@pytest.mark.parametrize("streams", [False, True])
async def test_a_full_house_is_a_429_before_anything_is_streamed(streams: bool) -> None:
    async with housing(FakeShard(), max_concurrent_requests=2) as house, house.client as client:
        holding = house.rig.infer.generate(asking(max_new_tokens=100))
        await anext(holding)
        answer = await client.post(CHAT, json={"messages": HI, "n": 2, "stream": streams})
        await holding.aclose()

    assert answer.status_code == 429
    assert answer.json()["error"]["type"] == "rate_limit_error"
    assert int(answer.headers["retry-after"]) >= 1


async def test_a_failing_shard_is_a_500_or_an_event_then_the_end() -> None:
    shard = saying_after_hi("hello")
    async with housing(shard) as house:
        shard.faults.row_errors[None] = "logits are NaN"
        status, error = await refuse(house, CHAT, {"messages": HI})
        assert (status, error["type"]) == (500, "server_error")
        assert "logits are NaN" in error["message"]

        await settled(house.rig)
        shard.faults.fail_for_good("Decode", grpc.StatusCode.INTERNAL, "no memory")
        *chunks, failure = await stream(house, CHAT, {"messages": HI})
        assert text_of(chunks) == "h"
        assert failure["error"]["type"] == "server_error"
        assert "no memory" in failure["error"]["message"]
