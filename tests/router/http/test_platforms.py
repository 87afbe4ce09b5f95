"""/invocations and /vertex: the cloud's shapes around the routes that they belong to."""

import asyncio
import json
from typing import Any

import grpc
import pytest

from router.request.errors import ConstraintRefused
from tests.checks import FakeChecks
from tests.fake_script import letters, saying
from tests.fakes import FakeShard
from tests.router.http.harness import House, housing, listening, open_request
from tests.router.rig import an_hour_ahead, settled

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


async def predict(house: House, *instances: Any) -> Any:
    async with house.client as client:
        return await client.post("/vertex", json={"instances": instances})


def first_request(house: House) -> Any:
    calls = [call for method, call in house.shard.calls if method == "Prefill"]
    return calls[0].batch.requests[0]


async def test_predictions_are_in_the_order_of_the_instances() -> None:
    short = {"max_new_tokens": 1}
    long = {"max_new_tokens": 9}
    async with housing(FakeShard(script=letters)) as house:
        instances = [{"inputs": "a", "parameters": long}, {"inputs": "b", "parameters": short}]
        both = (await predict(house, *instances)).json()["predictions"]
        alone = [(await predict(house, one)).json()["predictions"][0] for one in instances]

    assert both == alone
    assert [len(text) for text in both] == [9, 1]


async def test_an_instance_may_be_a_chat() -> None:
    async with housing(FakeShard(script=saying("hi", len("user: hello\n")))) as house:
        answer = await predict(house, {**CHAT, "max_tokens": 9, "n": 1, "stream": False})

    assert answer.json() == {"predictions": ["hi"]}


async def test_a_chat_echoes_if_it_is_asked_to() -> None:
    turns = [*CHAT["messages"], {"role": "assistant", "content": "Oh"}]
    async with housing(FakeShard(script=saying("!", 0))) as house:
        answer = await predict(house, {"messages": turns, "echo": True, "max_tokens": 1})

    assert answer.json()["predictions"][0].startswith("Oh")


@pytest.mark.parametrize(
    ("parameters", "samples"),
    [(None, True), ({}, True), ({"do_sample": False}, False), ({"do_sample": True}, True)],
)
async def test_an_instance_is_sampled_unless_it_says_otherwise(
    parameters: Any, samples: bool
) -> None:
    async with housing(FakeShard(script=saying("w", 5))) as house:
        await predict(house, {"inputs": "hello", "parameters": parameters})

        assert first_request(house).sampling.do_sample is samples


async def test_every_parameter_counts() -> None:
    parameters = {"stop": ["or"], "top_k": 3, "return_full_text": True, "seed": 5}
    async with housing(FakeShard(script=saying("world", 5))) as house:
        answer = await predict(house, {"inputs": "hello", "parameters": parameters})

        assert answer.json() == {"predictions": ["hellowor"]}
        assert (first_request(house).sampling.top_k, first_request(house).sampling.seed) == (3, 5)


BROKEN: list[tuple[Any, ...]] = [
    ([], "`instances` must have at least 1 item"),
    ([3], "`instances[0]` must be an object"),
    ([{}], "`instances[0].inputs` is required"),
    ([{"inputs": "a", "parameters": {"top_p": "x"}}], "`instances[0].parameters.top_p`"),
    ([{"messages": 3}], "`instances[0].messages`"),
    ([{"inputs": "a"}, {"inputs": "a", "parameters": {"top_p": 2}}], "in `instances[1]`"),
    ([{**CHAT, "stream": True}], "`stream` means nothing here"),
    ([{**CHAT, "n": 2}], "`n` means nothing here"),
    ([{"inputs": "a"}] * 9, "`instances` must hold at most 8 prompts. Given: 9"),
]


async def test_what_breaks_a_rule_is_a_422_that_names_the_instance() -> None:
    async with housing(FakeShard()) as house:
        for instances, words in BROKEN:
            answer = await predict(house, *instances)

            assert answer.status_code == 422, answer.text
            assert answer.json()["error_type"] == "validation"
            assert words in answer.json()["error"]
            assert not any(method == "Prefill" for method, _ in house.shard.calls)


async def test_an_impossible_constraint_is_refused_with_its_reason_and_its_instance() -> None:
    checks = FakeChecks(lambda _: ConstraintRefused("too long", "does_not_fit", {"max_len": 3}))
    parameters = {"grammar": {"type": "regex", "value": "a"}}
    async with housing(FakeShard(), checks=checks) as house:
        answer = await predict(house, {"inputs": "a", "parameters": parameters})

        assert (answer.status_code, answer.json()) == (
            422,
            {
                "error": "Constraint error: `instances[0]`: `grammar`: too long",
                "error_type": "constraint_error",
                "constraint": {"reason": "does_not_fit", "max_len": 3},
            },
        )


async def test_a_failing_shard_is_an_error_of_generation() -> None:
    shard = FakeShard()
    shard.faults.fail_for_good("Prefill", grpc.StatusCode.INTERNAL, "no memory")
    async with housing(shard) as house:
        answer = await predict(house, {"inputs": "a"}, {"inputs": "b"})

    assert (answer.status_code, answer.json()["error_type"]) == (424, "generation")


async def test_a_deadline_holds_for_all_instances() -> None:
    shard = FakeShard(script=letters)
    shard.faults.delay_s = 0.02
    body = {"instances": [{"inputs": "a"}, {"inputs": "b"}]}
    async with housing(shard, clock=an_hour_ahead(shard)) as house, house.client as client:
        answer = await client.post("/vertex", json=body, headers={"x-request-timeout": "60"})

    assert answer.status_code == 200
    assert all(0 < len(text) < 100 for text in answer.json()["predictions"])


LONG = {"max_new_tokens": 100}


def num_steps(house: House) -> int:
    return sum(method in ("Prefill", "Decode") for method, _ in house.shard.calls)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/invocations", {"inputs": "hello", "parameters": LONG}),
        ("/invocations", {"inputs": "hello", "parameters": LONG, "stream": True}),
        ("/invocations", {"prompt": ["a", "b"], "max_tokens": 100}),
        ("/vertex", {"instances": [{"inputs": "a", "parameters": LONG}] * 2}),
    ],
)
async def test_a_client_that_leaves_ends_its_generation_within_a_step(
    path: str, body: dict[str, Any]
) -> None:
    shard = FakeShard(script=letters)
    shard.faults.delay_s = 0.02
    async with housing(shard) as house, listening(house.app) as port:
        _, writer = await open_request(port, "POST", path, json.dumps(body).encode())
        while num_steps(house) < 3:
            await asyncio.sleep(0.005)
        writer.close()
        await writer.wait_closed()
        num_before = num_steps(house)
        await settled(house.rig)

        # One step may be under way, one may be scheduled before the server hears of it.
        assert num_steps(house) <= num_before + 2
        assert shard.num_held == 0
        assert house.rig.metrics.request_failure.value("dropped") == 1
