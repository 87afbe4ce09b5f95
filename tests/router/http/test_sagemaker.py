"""/invocations: SageMaker's one route answers as the route that its body belongs to."""

import json
from typing import Any

import pytest

from tests.fake_script import saying
from tests.fakes import FakeShard
from tests.router.http.harness import House, housing

CHAT = {"messages": [{"role": "user", "content": "hello"}]}
SHOWN = len("user: hello\n")


async def invoke(house: House, **body: Any) -> Any:
    async with house.client as client:
        return await client.post("/invocations", json=body)


async def test_inputs_are_answered_as_the_root_does() -> None:
    async with housing(FakeShard(script=saying("ld", 5))) as house:
        answer = await invoke(house, inputs="wor-w", parameters={}, messages=None)

    assert answer.json() == [{"generated_text": "wor-wld"}]
    assert int(answer.headers["x-total-time"]) >= 0


async def test_inputs_with_stream_are_answered_with_tgi_s_events() -> None:
    async with housing(FakeShard(script=saying("w", 5))) as house:
        answer = await invoke(
            house, inputs="hello", stream=True, parameters={"return_full_text": False}
        )

    frames = [json.loads(line[6:]) for line in answer.text.splitlines() if line]
    assert answer.headers["content-type"] == "text/event-stream"
    assert [frame["generated_text"] for frame in frames] == [None, "w"]


async def test_messages_are_a_chat() -> None:
    async with housing(FakeShard(script=saying("hi", SHOWN))) as house:
        answer = (await invoke(house, **CHAT)).json()

    assert answer["object"] == "chat.completion"
    assert answer["choices"][0]["message"]["content"] == "hi"


async def test_a_prompt_is_a_completion_and_its_stream_ends_with_done() -> None:
    async with housing(FakeShard(script=saying("w", 5))) as house:
        answer = await invoke(house, prompt="hello", stream=True)

    assert '"object":"text_completion"' in answer.text
    assert answer.text.endswith("data: [DONE]\n\n")


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ({}, "none of them"),
        ({"inputs": None}, "none of them"),
        ({"input": "a"}, "none of them"),
        ({"inputs": "a", **CHAT}, "`inputs` and `messages`"),
        ({"inputs": "a", "prompt": "a", **CHAT}, "`inputs` and `messages` and `prompt`"),
    ],
)
async def test_a_body_must_belong_to_one_route(body: Any, found: str) -> None:
    async with housing(FakeShard()) as house:
        answer = await invoke(house, **body)

        assert answer.status_code == 422
        assert answer.json()["error_type"] == "validation"
        assert answer.json()["error"].endswith(f"only one of them. Given: {found}")
        assert house.rig.metrics.request_count.value() == 1


async def test_errors_are_of_tgi_s_shape_whatever_was_meant() -> None:
    bodies: list[dict[str, Any]] = [{"inputs": ""}, {"prompt": ""}, {"messages": []}]
    async with housing(FakeShard()) as house, house.client as client:
        for body in bodies:
            answer = await client.post("/invocations", json=body)
            assert answer.json().keys() == {"error", "error_type"}


async def test_an_invocation_counts_once() -> None:
    async with housing(FakeShard(script=saying("w", 5))) as house:
        await invoke(house, inputs="hello")

        assert house.rig.metrics.request_count.value() == 1
        assert house.rig.metrics.request_success.value() == 1
