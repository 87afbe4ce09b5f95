"""/v1/messages: what is refused, what fails, and the counting of tokens."""

import json
from typing import Any

import grpc
import pytest

from tests.fakes import FakeShard
from tests.router.http.anthropic.asking import (
    HI,
    LOOK,
    PATH,
    post,
    refuse,
    saying_after_hi,
    stream,
)
from tests.router.http.harness import (
    housing,
    listening,
    open_request,
    record,
)
from tests.router.rig import asking, settled


@pytest.mark.parametrize(
    ("fields", "fault"),
    [
        ({"max_tokens": None}, "`max_tokens`"),
        ({"max_tokens": 0}, "`max_tokens`"),
        ({"temperature": 1.5}, "`temperature` must be between 0 and 1"),
        ({"top_p": 2}, "`top_p`"),
        ({"stop_sequences": ["a"] * 5}, "`stop_sequences`"),
        ({"messages": []}, "`messages`"),
        ({"messages": "hi"}, "`messages`"),
        ({"messages": ["hi"]}, "`messages[0]`"),
        ({"messages": [{"role": "tool", "content": "hi"}]}, "`messages[0].role`"),
        ({"messages": [{"role": "user"}]}, "`messages[0].content`"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]},
            "`messages[0].content[0]`",
        ),
        ({"system": [{"type": "text"}]}, "`system[0]`"),
        ({"tools": [{"name": "look", "type": "bash_20250124"}]}, "`tools[0].type`"),
        ({"tools": [{"name": "look"}]}, "`tools[0].input_schema`"),
        ({"tools": [{"name": "a b", "input_schema": {}}]}, "`tools[0].name`"),
        ({"tools": [LOOK, LOOK]}, "`tools`"),
        ({"tools": [LOOK], "tool_choice": {"type": "tool", "name": "b"}}, "`tool_choice.name`"),
        ({"tool_choice": {"type": "any"}}, "`tool_choice.type`"),
        (
            {"messages": [{"role": "user", "content": [{"type": "tool_result"}]}]},
            "`messages[0].content[0].tool_use_id`",
        ),
        (
            {"messages": [{"role": "assistant", "content": [{"type": "tool_use", "id": "a"}]}]},
            "`messages[0].content[0].name` must be a string. Given: null",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "tool_use", "id": "a"}]}]},
            "`messages[0].content[0]`",
        ),
        ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, "`thinking`"),
        ({"output_config": {"effort": "vast"}}, "`output_config.effort`"),
        ({"output_config": {"format": {"type": "json_schema"}}}, "`output_config.format.schema`"),
        ({"speed": "fast"}, "`speed`"),
        ({"container": "c"}, "`container`"),
        ({"inference_geo": "eu"}, "`inference_geo`"),
        ({"n": 2}, "`n` is not a parameter of this route"),
        ({"messages": [{"role": "user", "content": "a" * 121}]}, "`messages`"),
    ],
)
async def test_what_cannot_be_served_is_refused_by_name(fields: Any, fault: str) -> None:
    async with housing(FakeShard()) as house:
        status, kind, message = await refuse(house, {"max_tokens": 3, "messages": HI, **fields})

    assert (status, kind) == (400, "invalid_request_error")
    assert fault in message


@pytest.mark.parametrize("name", [None, "tgi", "model"])
async def test_served_names_and_placeholders_mean_the_model(name: str | None) -> None:
    async with housing(saying_after_hi("ok")) as house:
        answer = await post(house, model=name)

    assert answer["model"] == ("model" if name == "model" else "fake/model")


@pytest.mark.parametrize("path", [PATH, f"{PATH}/count_tokens"])
async def test_another_model_is_not_found(path: str) -> None:
    body = {"model": "claude-9", "messages": HI}
    async with housing(FakeShard()) as house:
        refused = await refuse(house, body | ({"max_tokens": 1} if path == PATH else {}), path)

    assert refused == (
        404,
        "not_found_error",
        "The model `claude-9` does not exist; served: `fake/model`, `model`",
    )


async def test_a_path_that_is_not_there_is_told_in_anthropic_s_words() -> None:
    async with housing(FakeShard()) as house:
        status, kind, _ = await refuse(house, {}, f"{PATH}/batches")

    assert (status, kind) == (404, "not_found_error")


async def test_a_body_that_is_too_large_has_a_type_of_its_own() -> None:
    async with housing(FakeShard(), max_body_len=100) as house:
        status, kind, _ = await refuse(house, {"messages": "a" * 200})

    assert (status, kind) == (413, "request_too_large")


@pytest.mark.parametrize("streams", [False, True])
async def test_a_full_queue_is_a_rate_limit(streams: bool) -> None:
    async with housing(FakeShard(), max_concurrent_requests=1) as house:
        house.shard.faults.delay_s = 0.05
        running = house.rig.infer.generate(asking(max_new_tokens=20))
        await anext(running)
        status, kind, _ = await refuse(house, {"max_tokens": 3, "messages": HI, "stream": streams})
        await running.aclose()

    assert (status, kind) == (429, "rate_limit_error")


async def test_a_generation_that_fails_is_an_api_error() -> None:
    shard = FakeShard()
    shard.faults.row_errors[None] = "its logits are NaN"
    async with housing(shard) as house:
        refused = await refuse(house, {"max_tokens": 3, "messages": HI})

    assert refused == (500, "api_error", "its logits are NaN")


async def test_a_stream_that_fails_ends_with_an_error_event() -> None:
    shard = saying_after_hi("ok")
    shard.faults.row_errors[None] = "its logits are NaN"
    async with housing(shard) as house:
        *_, last = await stream(house)

    assert last.pop("request_id")
    assert last == {
        "type": "error",
        "error": {"type": "api_error", "message": "its logits are NaN"},
    }


async def test_a_shard_that_is_gone_is_told_of() -> None:
    shard = FakeShard()
    shard.faults.fail_for_good("Prefill", grpc.StatusCode.UNAVAILABLE, "gone")
    async with housing(shard) as house:
        status, kind, _ = await refuse(house, {"max_tokens": 3, "messages": HI})

    assert (status, kind) == (500, "api_error")


async def test_a_stream_begins_before_its_first_token() -> None:
    shard = saying_after_hi("ok")
    body = json.dumps({"max_tokens": 3, "messages": HI, "stream": True}).encode()
    async with housing(shard) as house, listening(house.app) as port:
        answer = await record(port, "POST", PATH, body, anthropic_version="2023-06-01")

    assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
    # The beginning is a chunk of its own; it did not wait for the token behind it.
    beginning = answer.partition(b"\r\n\r\n")[2].split(b"\r\n")[1]
    assert beginning.startswith(b"event: message_start\n")
    assert beginning.endswith(b'event: ping\ndata: {"type":"ping"}\n\n')


async def test_tokens_are_counted_as_they_would_be_used() -> None:
    body = {"system": "be kind", "messages": HI, "model": "model", "thinking": None}
    async with housing(FakeShard()) as house, house.client as client:
        answer = await client.post(f"{PATH}/count_tokens", json=body)

    assert answer.json() == {"input_tokens": len("system: be kind\nuser: hi\n")}
    assert answer.headers["request-id"] == answer.headers["x-request-id"]


@pytest.mark.parametrize(
    ("fields", "fault"),
    [
        ({"tools": [{"name": "look"}]}, "`tools[0].input_schema`"),
        ({"stream": True}, "`stream` is not a parameter of this route"),
        ({"messages": None}, "`messages`"),
    ],
)
async def test_what_cannot_be_counted_is_refused_by_name(fields: Any, fault: str) -> None:
    async with housing(FakeShard()) as house:
        status, kind, message = await refuse(
            house, {"messages": HI, **fields}, f"{PATH}/count_tokens"
        )

    assert (status, kind) == (400, "invalid_request_error")
    assert fault in message


async def test_a_client_that_leaves_ends_its_answer() -> None:
    body = json.dumps({"max_tokens": 140, "messages": HI, "stream": True}).encode()
    async with housing(FakeShard()) as house, listening(house.app) as port:
        house.shard.faults.delay_s = 0.01
        reader, writer = await open_request(port, "POST", PATH, body)
        await reader.readuntil(b"event: content_block_delta\n")
        writer.close()
        await writer.wait_closed()
        await settled(house.rig)
        num_steps = sum(method in ("Prefill", "Decode") for method, _ in house.shard.calls)

    assert num_steps < 100
