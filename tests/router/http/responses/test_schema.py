"""The bodies of Responses: what is refused, by field and rule."""

from typing import Any

from tests.fakes import FakeShard
from tests.router.http.harness import housing
from tests.router.http.responses.asking import PATH, post, prompt_of, refuse

FILE = {"type": "input_file", "file_id": "x"}
LOOK = {"type": "function", "name": "look"}
SEARCH = {"type": "web_search", "external_web_access": False}
CALL = {"type": "function_call", "call_id": "c", "name": "look", "arguments": "{}"}
OUTPUT = {"type": "function_call_output", "call_id": "c", "output": ""}


NOT_SERVED: list[tuple[Any, ...]] = [
    ({"conversation": "conv_1"}, "conversation"),
    ({"moderation": {"model": "m"}}, "moderation"),
    ({"prompt": {"id": "pmpt_1"}}, "prompt"),
    ({"tool_choice": {"type": "custom", "name": "look"}}, "tool_choice"),
    ({"input": [{"type": "web_search_call", "id": "ws_1"}]}, "input[0]"),
]


async def test_what_is_not_served_is_refused_by_name() -> None:
    async with housing(FakeShard()) as house:
        for fields, field in NOT_SERVED:
            status, error = await refuse(house, {"input": "hi", **fields})
            assert (status, error["param"], error["code"]) == (422, field, "unserved")
            assert f"`{field}`" in error["message"]


BROKEN: list[tuple[Any, ...]] = [
    ({"background": True, "store": False}, "background"),
    ({"include": ["everything"]}, "include[0]"),
    ({"input": None}, "input"),
    ({"input": []}, "input"),
    ({"input": [7]}, "input[0]"),
    ({"input": [{"role": "tool", "content": "hi"}]}, "input[0].role"),
    ({"input": [{"role": "user"}]}, "input[0].content"),
    ({"input": [{"role": "user", "content": [FILE]}]}, "input[0].content[0]"),
    ({"input": [{"role": "user", "content": "hi", "id": 7}]}, "input[0].id"),
    ({"input": [{"role": "user", "content": "hi", "status": "odd"}]}, "input[0].status"),
    ({"input": "a" * 121}, "input"),
    ({"input": [{}]}, "input[0].role"),
    ({"input": [{"type": "item_reference"}]}, "input[0].id"),
    ({"input": [{**CALL, "call_id": None}]}, "input[0].call_id"),
    ({"input": [{**CALL, "name": 7}]}, "input[0].name"),
    ({"input": [{**CALL, "arguments": {}}]}, "input[0].arguments"),
    ({"input": [CALL, {**OUTPUT, "output": None}]}, "input[1].output"),
    ({"input": [CALL, {**OUTPUT, "output": [FILE]}]}, "input[1].output[0]"),
    ({"input": [OUTPUT]}, "input[0].call_id"),
    ({"input": [OUTPUT, CALL]}, "input[0].call_id"),
    ({"input": [{**CALL, "id": "fc_1"}, {**OUTPUT, "call_id": "fc_1"}]}, "input[1].call_id"),
    ({"max_output_tokens": 0}, "max_output_tokens"),
    ({"metadata": {"a": 1}}, "metadata.a"),
    ({"metadata": {"a": "b" * 513}}, "metadata"),
    ({"metadata": {"a" * 65: "b"}}, "metadata"),
    ({"metadata": {str(key): "b" for key in range(17)}}, "metadata"),
    ({"n": 2}, "n"),
    ({"reasoning": "much"}, "reasoning"),
    ({"reasoning": {"effort": "vast"}}, "reasoning.effort"),
    ({"reasoning": {"depth": 3}}, "reasoning.depth"),
    ({"client_metadata": "me"}, "client_metadata"),
    ({"client_data": {}}, "client_data"),
    ({"text": "plain"}, "text"),
    ({"text": {"format": {"type": "xml"}}}, "text.format.type"),
    ({"text": {"format": {"type": "json_schema", "name": "a"}}}, "text.format.schema"),
    ({"text": {"verbosity": "loud"}}, "text.verbosity"),
    ({"text": {"stop": "a"}}, "text.stop"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"tool_choice": {"type": "web_search"}, "tools": [LOOK, SEARCH]}, "tool_choice"),
    ({"tool_choice": "required", "tools": [SEARCH]}, "tool_choice"),
    ({"tools": [SEARCH, {"type": "function"}]}, "tools[1].name"),
    ({"tools": [{"type": "function"}]}, "tools[0].name"),
    ({"tools": [{"type": "function", "name": "look up"}]}, "tools[0].name"),
    ({"tools": [LOOK, LOOK]}, "tools"),
    ({"tools": [SEARCH, {**LOOK, "parameters": {"type": "array"}}]}, "tools[1].parameters.type"),
    ({"top_logprobs": 21}, "top_logprobs"),
    ({"truncation": "never"}, "truncation"),
]


async def test_what_breaks_a_rule_is_refused_by_name() -> None:
    async with housing(FakeShard()) as house:
        for fields, field in BROKEN:
            status, error = await refuse(house, {"input": "hi", **fields})
            assert (status, error["type"], error["param"]) == (400, "invalid_request_error", field)
            assert f"`{field}`" in error["message"]


async def test_another_model_is_a_404() -> None:
    async with housing(FakeShard()) as house:
        status, error = await refuse(house, {"input": "hi", "model": "gpt-9"})

    assert (status, error["code"], error["param"]) == (404, "model_not_found", "model")


async def test_tokens_are_counted_as_they_would_be_used() -> None:
    body = {"input": "hi", "instructions": "be kind", "model": "model"}
    async with housing(FakeShard()) as house, house.client as client:
        answer = await client.post(f"{PATH}/input_tokens", json=body)

    num_tokens = len("system: be kind\nuser: hi\n")
    assert answer.json() == {"object": "response.input_tokens", "input_tokens": num_tokens}


async def test_what_cannot_be_counted_is_refused_by_name() -> None:
    async with housing(FakeShard()) as house:
        body = {"input": "hi", "conversation": "conv_1"}
        status, error = await refuse(house, body, f"{PATH}/input_tokens")

    assert (status, error["param"]) == (422, "conversation")


FREE = {"type": "custom", "name": "apply_patch", "format": {"type": "grammar", "syntax": "lark"}}
THOUGHT = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "abc"}
# What no model of this server's can follow, and the places that the answer names.
OFFERS: list[tuple[Any, ...]] = [
    ({"tools": [SEARCH]}, "tools[0]"),
    (
        {"tools": [FREE, LOOK, {"type": "mcp", "server_label": "a b"}], "tool_choice": "none"},
        "tools[0],tools[2]",
    ),
    ({"reasoning": {"summary": "auto", "mode": "pro"}}, "reasoning.mode,reasoning.summary"),
    ({"client_metadata": {"session": "1"}}, "client_metadata"),
    ({"context_management": [{"type": "compaction"}]}, "context_management"),
    ({"include": ["reasoning.encrypted_content", "file_search_call.results"]}, "include[1]"),
    ({"input": [THOUGHT, {"role": "user", "content": "hi"}, THOUGHT]}, "input[0],input[2]"),
]
# What changes nothing that an answer shows, here as at OpenAI's.
HINTS: list[Any] = [
    {"client_metadata": {}, "context_management": [], "include": [], "reasoning": {}},
    {"prompt_cache_key": "a", "prompt_cache_options": {"prewarm": True}, "service_tier": "flex"},
    {"stream_options": {"include_obfuscation": True}, "safety_identifier": "me", "store": False},
]


async def test_offers_that_cannot_be_taken_are_left_out_and_named() -> None:
    async with housing(FakeShard()) as house, house.client as client:
        for fields, named in OFFERS:
            answer = await client.post(PATH, json={"input": "hi", **fields})
            assert (answer.status_code, answer.headers["x-ignored-fields"]) == (200, named)
            assert prompt_of(house) == "user: hi\n"
        counted = await client.post(f"{PATH}/input_tokens", json={"input": "hi", "tools": [SEARCH]})

    assert (counted.status_code, counted.headers["x-ignored-fields"]) == (200, "tools[0]")


async def test_of_hints_without_a_visible_effect_nothing_is_said() -> None:
    async with housing(FakeShard()) as house, house.client as client:
        for fields in HINTS:
            answer = await client.post(PATH, json={"input": "hi", **fields})
            assert answer.status_code == 200
            assert "x-ignored-fields" not in answer.headers


async def test_a_response_echoes_the_tools_that_it_had() -> None:
    async with housing(FakeShard()) as house:
        answer = await post(house, tools=[SEARCH, LOOK], tool_choice="none")

    assert [tool["name"] for tool in answer["tools"]] == ["look"]


async def test_a_tool_that_is_not_there_cannot_be_chosen() -> None:
    async with housing(FakeShard()) as house:
        body = {"input": "hi", "tools": [LOOK], "tool_choice": {"type": "function", "name": "go"}}
        status, error = await refuse(house, body)

    assert (status, error["param"], error["code"]) == (422, "tool_choice", "tool_error")
