"""What is not served is a 422 that names the field; what is malformed is told first, as a 400."""

from typing import Any

import pytest

from tests.fakes import FakeShard
from tests.router.http.harness import housing
from tests.router.http.openai.asking import CHAT, COMPLETIONS, HI, post, refuse, saying_after_hi

SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}}
FUNCTION = {"name": "look_up", "description": "", "parameters": SCHEMA}
TOOL = {"type": "function", "function": FUNCTION}
STRING = {"type": "string"}
NAMED = {"type": "function", "function": {"name": "look_up"}}


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_format": {"type": "structural_tag"}}, "response_format.type"),
        (
            {"structured_outputs": {"json": SCHEMA, "whitespace_pattern": "[a-z]"}},
            "structured_outputs.whitespace_pattern",
        ),
        (
            {"structured_outputs": {"json": SCHEMA, "disable_additional_properties": True}},
            "structured_outputs.disable_additional_properties",
        ),
        (
            {"structured_outputs": {"structural_tag": "{}"}},
            "structured_outputs.structural_tag",
        ),
        ({"guided_json": {}, "guided_whitespace_pattern": "x"}, "guided_whitespace_pattern"),
        ({"suffix": "!"}, "suffix"),
        ({"store": True}, "store"),
        ({"store": "yes"}, "store"),
        ({"functions": [FUNCTION]}, "functions"),
        ({"function_call": {"name": "look_up"}}, "function_call"),
        ({"audio": {"voice": "a", "format": "mp3"}}, "audio"),
        ({"modalities": ["text", "audio"]}, "modalities"),
        ({"modalities": "text"}, "modalities"),
        ({"moderation": {"model": "m"}}, "moderation"),
        ({"web_search_options": {}}, "web_search_options"),
        ({"allowed_token_ids": [5]}, "allowed_token_ids"),
        ({"use_beam_search": True}, "use_beam_search"),
        ({"length_penalty": 2.0}, "length_penalty"),
        ({"priority": 1}, "priority"),
        ({"include_reasoning": False}, "include_reasoning"),
    ],
)
async def test_what_is_not_served_is_a_422_that_names_the_field(
    path: str, fields: Any, param: str
) -> None:
    asked: dict[str, Any] = {"messages": HI} if path == CHAT else {"prompt": "ab"}
    async with housing(FakeShard()) as house:
        status, error = await refuse(house, path, {**asked, **fields})

    assert (status, error["type"], error["code"]) == (422, "invalid_request_error", "unserved")
    assert error["param"] == param
    assert f"`{param}`" in error["message"]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [{"type": "custom", "custom": {"name": "a"}}]}, "tools[0]"),
        ({"tools": [TOOL], "tool_choice": {"type": "custom", "custom": {}}}, "tool_choice"),
        ({"documents": [{"title": "a", "text": "b"}]}, "documents"),
    ],
)
async def test_what_a_chat_is_not_served_is_a_422_too(fields: Any, param: str) -> None:
    async with housing(FakeShard()) as house:
        status, error = await refuse(house, CHAT, {"messages": HI, **fields})

    assert (status, error["code"], error["param"]) == (422, "unserved", param)


@pytest.mark.parametrize(
    ("part", "kind"),
    [
        ({"type": "image_url", "image_url": {"url": "data:image/png;base64,"}}, "image_url"),
        ({"type": "input_audio", "input_audio": {"data": "", "format": "wav"}}, "input_audio"),
        ({"type": "file", "file": {"file_id": "1"}}, "file"),
    ],
)
async def test_a_part_that_is_no_text_is_refused_by_its_place(part: Any, kind: str) -> None:
    content = [{"type": "text", "text": "see"}, part]
    async with housing(FakeShard()) as house:
        body = {"messages": [*HI, {"role": "user", "content": content}]}
        status, error = await refuse(house, CHAT, body)

    assert (status, error["param"]) == (422, "messages[1].content[1]")
    assert f"`{kind}`" in error["message"]


@pytest.mark.parametrize(
    ("part", "given"),
    [
        (5, "5"),
        ({"type": "txt", "text": "a"}, 'the type "txt"'),
        ({"type": "text", "text": 5}, "the text 5"),
        ({"type": "text"}, "the text null"),
    ],
)
async def test_a_malformed_part_is_shown(part: Any, given: str) -> None:
    async with housing(FakeShard()) as house:
        body = {"messages": [{"role": "user", "content": [part]}]}
        _, error = await refuse(house, CHAT, body)

    assert error["message"].endswith(f"Given: {given}")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_format": "json"}, "response_format"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        ({"response_format": {"type": "where"}}, "response_format.value"),
        ({"response_format": {"type": "grammar"}}, "response_format.grammar"),
        (
            {"response_format": {"type": "json_object", "whitespace": "loose"}},
            "response_format.whitespace",
        ),
        (
            {"response_format": {"type": "json_object", "on_budget": "hope"}},
            "response_format.on_budget",
        ),
        (
            {"response_format": {"type": "regex", "value": "a", "lenient": True}},
            "response_format",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": 5}}},
            "response_format.json_schema.schema",
        ),
        ({"response_format": {"type": "json"}}, "response_format.value"),
        ({"response_format": {"type": "json", "value": 5}}, "response_format"),
        ({"response_format": {"type": "json_object", "value": "{"}}, "response_format"),
        ({"response_format": {"type": "regex", "value": ""}}, "response_format"),
        ({"structured_outputs": {"choice": []}}, "structured_outputs.choice"),
        ({"structured_outputs": {"regex": 5}}, "structured_outputs.regex"),
        ({"structured_outputs": {"json_object": False}}, "structured_outputs"),
        ({"structured_outputs": {"regex": "a", "choice": ["a"]}}, "structured_outputs.choice"),
        ({"guided_json": 5}, "guided_json"),
        ({"bad_words": ["a", ""]}, "bad_words"),
        ({"guided_json": {}, "bad_words": ["b"]}, "bad_words"),
        ({"bad_words": [f"b{number}" for number in range(501)]}, "bad_words"),
        ({"guided_grammar": "start: A", "bad_words": ["b"]}, "bad_words"),
        ({"guided_regex": "[a-z]+", "bad_words": ["b"]}, "bad_words"),
        ({"structured_outputs": {"where": "int(T)"}, "bad_words": ["b"]}, "bad_words"),
        ({"guided_choice": []}, "guided_choice"),
        ({"guided_regex": "a", "response_format": {"type": "json_object"}}, "guided_regex"),
        ({"tools": {}}, "tools"),
        ({"tools": [{"function": FUNCTION}]}, "tools[0].type"),
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"tools": [{"type": "magic"}]}, "tools[0].type"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name"),
        ({"tools": [{"type": "function", "function": {"name": ""}}]}, "tools[0].function.name"),
        (
            {"tools": [{"type": "function", "function": {"name": "a", "parameters": []}}]},
            "tools[0].function.parameters",
        ),
        ({"tools": [TOOL, TOOL]}, "tools"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": NAMED}, "tool_choice"),
        ({"tool_choice": 5}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "allowed_tools"}}, "tool_choice"),
        (
            {"tools": [{"type": "function", "function": {"name": "a", "parameters": STRING}}]},
            "tools[0].function.parameters.type",
        ),
        ({"metadata": {"a": 1}}, "metadata.a"),
        ({"user": 5}, "user"),
        ({"reasoning_effort": "a bit"}, "reasoning_effort"),
        ({"prompt_logprobs": -1}, "prompt_logprobs"),
        ({"prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
        ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
        ({"chat_template": "{{ messages }}"}, "chat_template"),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs"),
        (
            {"continue_final_message": True, "add_generation_prompt": True},
            "continue_final_message",
        ),
        ({"messages": [{"role": "user", "content": None}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": []}]}, "messages[0].content"),
        ({"messages": [{"role": "tool"}]}, "messages[0].content"),
        ({"messages": [*HI, {"role": "assistant"}]}, "messages[1].content"),
        ({"messages": [{"role": "user", "content": [5]}]}, "messages[0].content[0]"),
        (
            {"messages": [{"role": "user", "content": [{"type": "text"}]}]},
            "messages[0].content[0]",
        ),
        (
            {"messages": [{"role": "assistant", "tool_calls": [{"id": "1"}]}]},
            "messages[0].tool_calls[0].function",
        ),
    ],
)
async def test_what_is_malformed_is_told_first(fields: Any, param: str) -> None:
    async with housing(FakeShard()) as house:
        status, error = await refuse(house, CHAT, {"messages": HI, **fields})

    assert (status, error["param"]) == (400, param)
    assert f"`{param}`" in error["message"] or param == "chat_template_kwargs"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [TOOL], "response_format": {"type": "json_object"}}, "tools"),
        ({"tools": [TOOL], "tool_choice": "another"}, "tool_choice"),
    ],
)
async def test_tools_that_cannot_be_used_so_are_tgi_s_tool_error(fields: Any, param: str) -> None:
    async with housing(FakeShard()) as house:
        status, error = await refuse(house, CHAT, {"messages": HI, **fields})
        async with house.client as client:
            native = await client.post("/chat_tokenize", json={"messages": HI, **fields})

    assert (status, error["code"], error["param"]) == (422, "tool_error", param)
    assert error["message"].startswith("Tool error: ")
    assert native.status_code == 422
    assert native.json() == {"error": error["message"], "error_type": "tool_error"}


async def test_the_hub_s_error_of_two_forms_is_tgi_s_text() -> None:
    fields = {"tools": [TOOL], "response_format": {"type": "json_object", "value": SCHEMA}}
    async with housing(FakeShard()) as house:
        _, error = await refuse(house, CHAT, {"messages": HI, **fields})

    assert error["message"].startswith("Tool error: Grammar and tools are mutually exclusive")


async def test_no_answer_is_given_to_what_is_refused() -> None:
    async with housing(saying_after_hi("ok")) as house:
        await refuse(house, CHAT, {"messages": HI, "stream": True, "audio": {}})
        answer = await post(house, CHAT, {"messages": HI})

        prefills = [method for method, _ in house.shard.calls if method == "Prefill"]
        assert len(prefills) == 1
    assert answer["choices"][0]["message"]["content"] == "ok"
