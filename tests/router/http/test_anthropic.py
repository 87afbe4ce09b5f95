"""/v1/messages: Anthropic's shapes, whole and streamed; turns, tools, and what is refused."""

import json
from typing import Any

import pytest

from constraints.spec import ConstraintSpec, Kind, Whitespace
from proto.contract import FinishReason
from router.http.answers import Answer
from router.http.answers import Call as ReadCall
from router.http.anthropic import content_of
from router.http.tools import AllowedTool, AllowedTools, tool_grammar
from router.request.errors import ConstraintRefused
from router.request.request import Constraint, Finished
from tests.byte_tokenizer import NUM_SPECIAL
from tests.checks import FakeChecks
from tests.fake_script import saying
from tests.fakes import FakeShard
from tests.router.http.answering import SHORT_TEMPLATE
from tests.router.http.calls import HERMES, Call, written
from tests.router.http.harness import SEED, House, housing, listening, open_request, record
from tests.router.rig import asking, settled

PATH = "/v1/messages"
HI = [{"role": "user", "content": "hi"}]
PROMPT = "user: hi\n"
LOOK = {"name": "look", "input_schema": {"type": "object", "properties": {}}}
SEARCH = {"type": "web_search_20250305", "name": "web_search", "max_uses": 5}


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


HINTS: list[Any] = [
    {"metadata": {"user_id": "somebody"}},
    {"service_tier": "auto"},
    {"cache_control": {"type": "ephemeral", "ttl": "1h"}},
    {"thinking": {"type": "disabled"}},
    {"thinking": {"type": "adaptive"}},
    {"tools": [], "tool_choice": {"type": "auto"}},
    {"output_config": {"effort": None}},
    {"stop_sequences": None, "system": None, "top_k": None},
]


async def test_hints_and_nulls_change_nothing() -> None:
    async with housing(saying_after_hi("ok")) as house:
        for fields in HINTS:
            assert (await post(house, **fields))["content"] == [{"type": "text", "text": "ok"}]


# What no model of this server's can follow, and the places that the answer names.
OFFERS: list[tuple[Any, ...]] = [
    ({"tools": [SEARCH]}, "tools[0]"),
    ({"tools": [{"type": "mcp_toolset", "mcp_server_name": "a b"}]}, "tools[0]"),
    ({"tools": [LOOK, SEARCH], "tool_choice": {"type": "none"}}, "tools[1]"),
    ({"thinking": {"type": "enabled"}}, "thinking"),
    ({"context_management": {"edits": []}}, "context_management"),
    ({"output_config": {"task_budget": {"type": "tokens"}}}, "output_config.task_budget"),
    ({"mcp_servers": [{"type": "url", "url": "u", "name": "n"}]}, "mcp_servers"),
    ({"speed": "fast"}, "speed"),
]


async def test_offers_that_cannot_be_taken_are_left_out_and_named() -> None:
    async with housing(FakeShard()) as house, house.client as client:
        for fields, named in OFFERS:
            for path in (PATH, f"{PATH}/count_tokens"):
                body = {"max_tokens": 3, "messages": HI, **fields}
                if path != PATH:
                    del body["max_tokens"]
                answer = await client.post(f"{path}?beta=true", json=body)
                assert (answer.status_code, answer.headers["x-ignored-fields"]) == (200, named)


async def test_thoughts_of_earlier_turns_are_left_out_and_named() -> None:
    thoughts = [
        {"type": "thinking", "thinking": "hm", "signature": "abc"},
        {"type": "redacted_thinking", "data": "abc"},
    ]
    said = {"type": "text", "text": "ha", "cache_control": {"type": "ephemeral"}}
    messages = [*HI, {"role": "assistant", "content": [*thoughts, said]}, *HI]
    async with housing(FakeShard()) as house, house.client as client:
        answer = await client.post(PATH, json={"max_tokens": 3, "messages": messages})

        assert answer.status_code == 200
        assert prompt_of(house) == "user: hi\nassistant: ha\nuser: hi\n"
    named = answer.headers["x-ignored-fields"]
    assert named == "messages[1].content[1],messages[1].content[0]"


NOT_SERVED: list[tuple[Any, ...]] = [
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
        {"messages": [{"role": "user", "content": [{"type": "document", "source": {}}]}]},
        "`messages[0].content[0]`",
    ),
    ({"system": [{"type": "text"}]}, "`system[0]`"),
    ({"tools": [SEARCH, {"input_schema": {}}]}, "`tools[1].name`"),
    ({"tools": [SEARCH], "tool_choice": {"type": "any"}}, "`tool_choice.type`"),
    (
        {"tools": [SEARCH, LOOK], "tool_choice": {"type": "tool", "name": "web_search"}},
        "`tool_choice.name`",
    ),
    (
        {"messages": [{"role": "user", "content": [{"type": "thinking", "thinking": "hm"}]}]},
        "`messages[0].content[0]`",
    ),
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
    ({"thinking": {"type": "deep"}}, "`thinking.type`"),
    (
        {"max_tokens": 3, "thinking": {"type": "enabled", "budget_tokens": 1024}},
        "`thinking.budget_tokens` must be less than `max_tokens`, which is 3",
    ),
    (
        {"thinking": {"type": "enabled", "budget_tokens": 200}},
        "`thinking.budget_tokens` must be at least 1024",
    ),
    ({"context_management": "keep"}, "`context_management`"),
    ({"output_config": {"effort": "vast"}}, "`output_config.effort`"),
    ({"output_config": {"format": {"type": "json_schema"}}}, "`output_config.format.schema`"),
    ({"speed": "slow"}, "`speed`"),
    ({"container": "c"}, "`container`"),
    ({"inference_geo": "eu"}, "`inference_geo`"),
    ({"n": 2}, "`n` is not a parameter of this route"),
    (
        {"messages": [{"role": "user", "content": "a" * 121}]},
        "prompt is too long: 128 tokens > 120",
    ),
]


async def test_what_cannot_be_served_is_refused_by_name() -> None:
    async with housing(FakeShard()) as house:
        for fields, fault in NOT_SERVED:
            status, kind, message = await refuse(house, {"max_tokens": 3, "messages": HI, **fields})
            assert (status, kind) == (400, "invalid_request_error")
            assert fault in message


async def test_served_names_and_placeholders_mean_the_model() -> None:
    async with housing(saying_after_hi("ok")) as house:
        for name in (None, "tgi", "model"):
            answer = await post(house, model=name)
            assert answer["model"] == ("model" if name == "model" else "fake/model")


async def test_another_model_is_not_found() -> None:
    async with housing(FakeShard()) as house:
        for path in (PATH, f"{PATH}/count_tokens"):
            body = {"model": "claude-9", "messages": HI}
            refused = await refuse(house, body | ({"max_tokens": 1} if path == PATH else {}), path)
            assert refused == (
                404,
                "not_found_error",
                "The model `claude-9` does not exist; served: `fake/model`",
            )


async def test_a_path_that_is_not_there_is_told_in_anthropic_s_words() -> None:
    async with housing(FakeShard()) as house:
        status, kind, _ = await refuse(house, {}, f"{PATH}/batches")

    assert (status, kind) == (404, "not_found_error")


async def test_a_body_that_is_too_large_has_a_type_of_its_own() -> None:
    async with housing(FakeShard(), max_body_len=100) as house:
        status, kind, _ = await refuse(house, {"messages": "a" * 200})

    assert (status, kind) == (413, "request_too_large")


async def test_a_full_queue_is_a_rate_limit() -> None:
    async with housing(FakeShard(), max_concurrent_requests=1) as house:
        house.shard.faults.delay_s = 0.05
        (running,) = house.rig.infer.submit([asking(max_new_tokens=20)])
        await anext(running)
        status, kind, _ = await refuse(house, {"max_tokens": 3, "messages": HI})
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


NOT_COUNTED: list[tuple[Any, ...]] = [
    ({"tools": [{"name": "look"}]}, "`tools[0].input_schema`"),
    ({"stream": True}, "`stream` is not a parameter of this route"),
    ({"messages": None}, "`messages`"),
]


async def test_what_cannot_be_counted_is_refused_by_name() -> None:
    async with housing(FakeShard()) as house:
        for fields, fault in NOT_COUNTED:
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


TEMPLATE = SHORT_TEMPLATE
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
LOOK_TOOL = {"name": "look", "description": "see", "input_schema": CITY}
WAIT = {"name": "wait", "input_schema": {"type": "object"}}
ALLOWED_LOOK = AllowedTool("look", CITY, "tools[0].input_schema")
ALLOWED_WAIT = AllowedTool("wait", {"type": "object"}, "tools[1].input_schema")
ROME: Call = ("look", {"city": "Rome"})


def house_of(text: str, checks: FakeChecks | None = None) -> Any:
    shard = FakeShard(script=saying(text, len(PROMPT)))
    return housing(shard, templates={"default": TEMPLATE}, checks=checks)


@pytest.mark.parametrize(
    ("choice", "offer"),
    [
        (None, AllowedTools((ALLOWED_LOOK, ALLOWED_WAIT), True, True)),
        ({"type": "auto"}, AllowedTools((ALLOWED_LOOK, ALLOWED_WAIT), True, True)),
        (
            {"type": "auto", "disable_parallel_tool_use": True},
            AllowedTools((ALLOWED_LOOK, ALLOWED_WAIT), True, False),
        ),
        ({"type": "any"}, AllowedTools((ALLOWED_LOOK, ALLOWED_WAIT), False, True)),
        ({"type": "tool", "name": "wait"}, AllowedTools((ALLOWED_WAIT,), False, False)),
    ],
)
async def test_tools_and_their_choice_are_one_grammar(choice: Any, offer: AllowedTools) -> None:
    checks = FakeChecks()
    async with house_of("x", checks) as house:
        await post(house, tools=[LOOK_TOOL, WAIT], tool_choice=choice)

    *parts, (whole, *_) = checks.asked
    spec = ConstraintSpec(Kind.LARK, tool_grammar(offer, HERMES), Whitespace.OPTIONAL)
    assert whole == Constraint(spec)
    assert [json.loads(part.spec.text) for part, *_ in parts] == [
        tool.parameters for tool in offer.tools
    ]


async def test_tools_that_are_not_to_be_called_leave_answers_free() -> None:
    checks = FakeChecks()
    async with house_of("ok", checks) as house:
        answer = await post(house, tools=[LOOK_TOOL], tool_choice={"type": "none"})

    assert checks.asked == []
    assert answer["content"] == [{"type": "text", "text": "ok"}]


async def test_tools_are_told_to_a_model_whose_template_shows_none_if_they_may_be_called() -> None:
    async with housing(FakeShard()) as house, house.client as client:
        lens = []
        for choice in ({"type": "auto"}, {"type": "none"}):
            body = {"messages": HI, "tools": [LOOK_TOOL], "tool_choice": choice}
            answer = await client.post(f"{PATH}/count_tokens", json=body)
            lens.append(answer.json()["input_tokens"])

    told = [{"type": "function", "function": {"name": "look", "description": "see"}}]
    assert lens[0] > len(PROMPT) + len(json.dumps(told))
    assert lens[1] == len(PROMPT)


async def test_a_tool_that_cannot_be_kept_is_refused_by_its_place() -> None:
    reason = ConstraintRefused("`not` is not enforced", "not_enforced", {"pointer": "/not"})
    async with house_of("x", FakeChecks(lambda _: reason)) as house:
        body = {"max_tokens": 9, "messages": HI, "tools": [LOOK_TOOL]}
        status, kind, message = await refuse(house, body)

    assert (status, kind) == (400, "invalid_request_error")
    assert message == "`tools[0].input_schema`: `not` is not enforced"


async def test_calls_are_blocks_behind_the_text() -> None:
    async with house_of(written(HERMES, [ROME, ("wait", {})], said="So.")) as house:
        answer = await post(house, tools=[LOOK_TOOL, WAIT], max_tokens=140)

    said, first, second = answer["content"]
    assert said == {"type": "text", "text": "So."}
    assert (first["type"], first["name"], first["input"]) == ("tool_use", "look", {"city": "Rome"})
    assert (second["name"], second["input"]) == ("wait", {})
    assert first["id"].startswith("toolu_")
    assert first["id"] != second["id"]
    assert (answer["stop_reason"], answer["constraint_satisfied"]) == ("tool_use", True)


async def test_a_call_that_is_cut_is_no_block() -> None:
    async with house_of(written(HERMES, [ROME])) as house:
        answer = await post(house, tools=[LOOK_TOOL], max_tokens=50)

    assert answer["content"] == [{"type": "text", "text": ""}]
    assert answer["stop_reason"] == "max_tokens"


@pytest.mark.parametrize(
    ("text", "kind"), [('{"say": "<tool_call>"}', "text"), (written(HERMES, [ROME]), "tool_use")]
)
async def test_an_answer_that_does_not_call_may_have_a_form(text: str, kind: str) -> None:
    checks = FakeChecks()
    schema = {"type": "object", "properties": {"say": {"type": "string"}}}
    form = {"format": {"type": "json_schema", "schema": schema}}
    async with house_of(text, checks) as house:
        answer = await post(house, tools=[LOOK_TOOL], output_config=form, max_tokens=100)

    assert [block["type"] for block in answer["content"]] == [kind]
    assert kind == "tool_use" or answer["content"][0]["text"] == text
    *parts, (whole, *_) = checks.asked
    assert [json.loads(part.spec.text) for part, *_ in parts] == [CITY, schema]
    offer = AllowedTools((ALLOWED_LOOK,), True, True)
    assert whole.spec.text == tool_grammar(offer, HERMES, parts[-1][0].spec.text)


BOTH = written(HERMES, [ROME, ("wait", {})])


@pytest.mark.parametrize(
    ("text", "reason"), [(BOTH, "tool_use"), (BOTH.partition("wait")[0], "max_tokens")]
)
async def test_an_answer_that_ends_behind_whole_calls_is_not_cut(text: str, reason: str) -> None:
    async with house_of(text + " and more") as house:
        asked = {"tools": [LOOK_TOOL, WAIT], "max_tokens": len(text)}
        answer = await post(house, **asked)
        events = await stream(house, **asked)

    assert answer["stop_reason"] == reason
    assert events[-2]["delta"]["stop_reason"] == reason


async def test_calls_are_streamed_as_they_come() -> None:
    async with house_of(written(HERMES, [ROME], said="So.")) as house:
        events = await stream(house, tools=[LOOK_TOOL, WAIT], max_tokens=100)

    kinds = [event["type"] for event in events]
    assert kinds[:2] == ["message_start", "ping"]
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    starts = [event for event in events if event["type"] == "content_block_start"]
    assert [(event["index"], event["content_block"]["type"]) for event in starts] == [
        (0, "text"),
        (1, "tool_use"),
    ]
    block = starts[1]["content_block"]
    assert (block["name"], block["input"]) == ("look", {})
    deltas = [event["delta"] for event in events if event["type"] == "content_block_delta"]
    assert "".join(delta.get("text", "") for delta in deltas) == "So."
    pieces = [delta["partial_json"] for delta in deltas if "partial_json" in delta]
    assert "".join(pieces) == '{"city": "Rome"}'
    assert len(pieces) > 10
    stops = [event["index"] for event in events if event["type"] == "content_block_stop"]
    assert stops == [0, 1]
    assert events[-2]["delta"]["stop_reason"] == "tool_use"


async def test_an_answer_without_anything_has_an_empty_text() -> None:
    async with house_of("") as house:
        events = await stream(house, tools=[LOOK_TOOL])

    assert [event["type"] for event in events] == [
        "message_start",
        "ping",
        "content_block_start",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]


async def test_calls_and_results_of_before_reach_the_template() -> None:
    messages = [
        {"role": "user", "content": "hi"},
        {
            "role": "assistant",
            "content": [
                {"type": "tool_use", "id": "t1", "name": "look", "input": {"city": "Rome"}}
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "t1", "content": "sunny"},
                {"type": "text", "text": "so?"},
            ],
        },
    ]
    async with house_of("x") as house, house.client as client:
        answer = await client.post(
            f"{PATH}/count_tokens", json={"messages": messages, "tools": [LOOK_TOOL]}
        )
        prompt = (
            'user: hi\nassistant: <tool_call>\n{"name": "look", "arguments": {"city": "Rome"}}'
            "\n</tool_call>\n"
            "tool: sunny\nuser: so?\n"
        )

    assert answer.json() == {"input_tokens": len(prompt)}


def test_a_call_whose_number_no_float_is_is_left_out() -> None:
    end = Finished(FinishReason.EOS, "", "", 1, 0, 1, None)
    answer = Answer((ReadCall("toolu_1", "look", '{"far": 1e999}'),), end)
    assert content_of(answer) == [{"type": "text", "text": ""}]
