"""/v1/messages: Anthropic's shapes, whole and streamed."""

import json
from typing import Any

import grpc
import pytest

from tests.byte_tokenizer import NUM_SPECIAL
from tests.fakes import FakeShard, saying
from tests.router.http.harness import (
    SEED,
    House,
    exchange,
    housing,
    listening,
    open_request,
)
from tests.router.rig import asking, settled

PATH = "/v1/messages"
HI = [{"role": "user", "content": "hi"}]
PROMPT = "user: hi\n"
LOOK = {"name": "look", "input_schema": {"type": "object", "properties": {}}}


def saying_after_hi(text: str) -> FakeShard:
    return FakeShard(script=saying(text, len(PROMPT)))


async def post(house: House, messages: Any = HI, **fields: Any) -> Any:
    async with house.client as client:
        answer = await client.post(PATH, json={"max_tokens": 30, "messages": messages, **fields})
    assert answer.status_code == 200, answer.text
    return answer.json()


async def refuse(house: House, body: Any, path: str = PATH) -> tuple[int, str, str]:
    """Status, type and message of the error, whose shape must be Anthropic's."""
    async with house.client as client:
        answer = await client.post(path, json=body)
    told = answer.json()
    assert told.keys() == {"type", "error", "request_id"}
    assert told["error"].keys() == {"type", "message"}
    assert told["type"] == "error"
    assert told["request_id"] == answer.headers["request-id"] == answer.headers["x-request-id"]
    return answer.status_code, told["error"]["type"], told["error"]["message"]


async def stream(house: House, messages: Any = HI, **fields: Any) -> list[Any]:
    """The events; each must have its type's name on a line of its own."""
    body = {"max_tokens": 30, "messages": messages, "stream": True, **fields}
    async with house.client as client:
        answer = await client.post(PATH, json=body)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "text/event-stream"
    return events_of(answer.text)


def events_of(text: str) -> list[Any]:
    *frames, rest = text.split("\n\n")
    assert rest == ""
    events = []
    for frame in frames:
        name, data = frame.split("\n")
        events.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {events[-1]['type']}"
    return events


def text_of(events: list[Any]) -> str:
    return "".join(
        event["delta"]["text"] for event in events if event["type"] == "content_block_delta"
    )


def prompt_of(house: House) -> str:
    """What the shard was asked to go on from."""
    request = first_request(house)
    return bytes(token_id - NUM_SPECIAL for token_id in request.token_ids).decode()


def first_request(house: House) -> Any:
    return next(call for method, call in house.shard.calls if method == "Prefill").batch.requests[0]


async def test_an_answer_has_anthropic_s_shape() -> None:
    async with housing(saying_after_hi("hello")) as house, house.client as client:
        answer = await client.post(PATH, json={"max_tokens": 30, "messages": HI})

    assert answer.headers["request-id"] == answer.headers["x-request-id"]
    told = answer.json()
    assert told.pop("id").startswith("msg_")
    assert told == {
        "type": "message",
        "role": "assistant",
        "model": "fake/model",
        "content": [{"type": "text", "text": "hello"}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {
            "input_tokens": 9,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 0,
            "output_tokens": 6,
        },
    }


async def test_a_stream_is_anthropic_s_sequence_of_events() -> None:
    async with housing(saying_after_hi("ok")) as house:
        start, *events = await stream(house)

    assert start["message"].pop("id").startswith("msg_")
    assert start == {
        "type": "message_start",
        "message": {
            "type": "message",
            "role": "assistant",
            "model": "fake/model",
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": {
                "input_tokens": 9,
                "cache_creation_input_tokens": 0,
                "cache_read_input_tokens": 0,
                "output_tokens": 0,
            },
        },
    }
    assert events == [
        {
            "type": "content_block_start",
            "index": 0,
            "content_block": {"type": "text", "text": ""},
        },
        {"type": "ping"},
        *(
            {
                "type": "content_block_delta",
                "index": 0,
                "delta": {"type": "text_delta", "text": letter},
            }
            for letter in "ok"
        ),
        {"type": "content_block_stop", "index": 0},
        {
            "type": "message_delta",
            "delta": {"stop_reason": "end_turn", "stop_sequence": None},
            "usage": {
                "input_tokens": 9,
                "cache_creation_input_tokens": 0,
                "cache_read_input_tokens": 0,
                "output_tokens": 3,
            },
        },
        {"type": "message_stop"},
    ]


async def test_cached_tokens_are_counted_beside_the_others() -> None:
    async with housing(saying_after_hi("ok")) as house:
        await post(house)
        usage = (await post(house))["usage"]
        end = (await stream(house))[-2]["usage"]

    assert (usage["input_tokens"], usage["cache_read_input_tokens"]) == (1, 8)
    assert end == usage


@pytest.mark.parametrize(
    ("fields", "text", "reason", "found"),
    [
        ({"max_tokens": 3}, "hel", "max_tokens", None),
        ({"stop_sequences": ["zz", "llo"]}, "he", "stop_sequence", "llo"),
        ({"stop_sequences": ["hellos"]}, "hello you", "end_turn", None),
    ],
)
async def test_the_reason_to_stop_is_told(
    fields: Any, text: str, reason: str, found: str | None
) -> None:
    async with housing(saying_after_hi("hello you")) as house:
        answer = await post(house, **fields)
        events = await stream(house, **fields)

    assert answer["content"][0]["text"] == text_of(events) == text
    assert (answer["stop_reason"], answer["stop_sequence"]) == (reason, found)
    assert events[-2]["delta"] == {"stop_reason": reason, "stop_sequence": found}


async def test_a_deadline_pauses_the_turn() -> None:
    shard = saying_after_hi("a" * 60)
    shard.faults.delay_s = 0.05
    async with housing(shard, max_duration_s=0.3) as house:
        answer = await post(house, max_tokens=60)

    assert answer["stop_reason"] == "pause_turn"
    assert 0 < len(answer["content"][0]["text"]) < 60


async def test_a_paused_turn_goes_on_when_it_is_sent_back() -> None:
    prompt = PROMPT + "assistant: well"
    async with housing(FakeShard(script=saying(", yes", len(prompt)))) as house:
        answer = await post(
            house, [*HI, {"role": "assistant", "content": [{"type": "text", "text": "well"}]}]
        )
        assert prompt_of(house) == prompt

    assert answer["content"] == [{"type": "text", "text": ", yes"}]


TWO_BLOCKS = [{"type": "text", "text": "be "}, {"type": "text", "text": "kind"}]


@pytest.mark.parametrize("system", ["be kind", TWO_BLOCKS])
async def test_the_system_prompt_comes_first(system: Any) -> None:
    async with housing(FakeShard()) as house:
        await post(house, system=system, max_tokens=1)

        assert prompt_of(house) == "system: be kind\nuser: hi\n"


async def test_turns_of_one_side_are_told_as_one() -> None:
    async with housing(FakeShard()) as house:
        await post(house, [*HI, {"role": "user", "content": "there"}], max_tokens=1)

        assert prompt_of(house) == "user: hi\n\nthere\n"


async def test_blocks_with_hints_are_read_as_text() -> None:
    hinted = {"type": "text", "text": "hi", "cache_control": {"type": "ephemeral"}}
    async with housing(FakeShard()) as house:
        await post(house, [{"role": "user", "content": [hinted]}], max_tokens=1)

        assert prompt_of(house) == PROMPT


async def test_parameters_reach_the_shard() -> None:
    async with housing(FakeShard()) as house:
        await post(house, temperature=0.5, top_p=0.75, top_k=9, max_tokens=4)
        request = first_request(house)

    sampling = request.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k) == (0.5, 0.75, 9)
    assert sampling.seed == SEED
    assert request.stopping.max_new_tokens == 4


@pytest.mark.parametrize(
    ("fields", "samples"), [({}, True), ({"temperature": 0, "top_k": 5, "top_p": 0.5}, False)]
)
async def test_sampling_is_the_default_and_temperature_0_is_greedy(
    fields: Any, samples: bool
) -> None:
    async with housing(FakeShard()) as house:
        await post(house, max_tokens=1, **fields)

        assert first_request(house).sampling.do_sample is samples


async def test_the_effort_is_told_to_a_template_that_reads_it() -> None:
    template = "{{ messages[0].content }} {{ reasoning_effort }}"
    async with housing(FakeShard(), templates={"default": template}) as house:
        await post(house, output_config={"effort": "high"})

        assert prompt_of(house) == "hi high"


@pytest.mark.parametrize(
    "fields",
    [
        {"metadata": {"user_id": "somebody"}},
        {"service_tier": "auto"},
        {"cache_control": {"type": "ephemeral", "ttl": "1h"}},
        {"thinking": {"type": "disabled"}},
        {"thinking": {"type": "adaptive"}},
        {"tools": [], "tool_choice": {"type": "auto"}},
        {"output_config": {"effort": None}},
        {"stop_sequences": None, "system": None, "top_k": None},
    ],
)
async def test_hints_and_nulls_change_nothing(fields: Any) -> None:
    async with housing(saying_after_hi("ok")) as house:
        assert (await post(house, **fields))["content"] == [{"type": "text", "text": "ok"}]


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
        ({"tools": [{"name": "look", "type": "bash_20250124"}]}, "`tools[0]`"),
        ({"tools": [{"name": "look"}]}, "`tools[0].input_schema`"),
        ({"tools": [{"name": "a b", "input_schema": {}}]}, "`tools[0].name`"),
        ({"tools": [LOOK, LOOK]}, "`tools`"),
        ({"tools": [LOOK], "tool_choice": {"type": "tool", "name": "b"}}, "`tool_choice.name`"),
        ({"tool_choice": {"type": "any"}}, "`tool_choice`"),
        (
            {
                "tools": [LOOK],
                "output_config": {"format": {"type": "json_schema", "schema": {"type": "object"}}},
            },
            "`output_config.format`",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "tool_result"}]}]},
            "`messages[0].content[0].tool_use_id`",
        ),
        (
            {"messages": [{"role": "assistant", "content": [{"type": "tool_use", "id": "a"}]}]},
            "`messages[0].content[0]`",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "tool_use", "id": "a"}]}]},
            "`messages[0].content[0]`",
        ),
        ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, "`thinking`"),
        ({"output_config": {"effort": "high"}}, "`output_config.effort`"),
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

    assert refused == (404, "not_found_error", "The model `claude-9` does not exist")


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
    shard.faults.fails.append(("Prefill", grpc.StatusCode.UNAVAILABLE, "gone"))
    async with housing(shard) as house:
        status, kind, _ = await refuse(house, {"max_tokens": 3, "messages": HI})

    assert (status, kind) == (500, "api_error")


async def test_a_stream_begins_before_its_first_token() -> None:
    shard = saying_after_hi("ok")
    body = json.dumps({"max_tokens": 3, "messages": HI, "stream": True}).encode()
    async with housing(shard) as house, listening(house.app) as port:
        answer = await exchange(port, "POST", PATH, body, anthropic_version="2023-06-01")

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
