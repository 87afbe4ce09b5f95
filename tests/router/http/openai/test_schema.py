"""OpenAI's bodies: what their fields mean, what is refused, what the document says of answers."""

from pathlib import Path
from typing import Any

import grpc
import pytest

from router.http.openai.reply import (
    ChatCompletion,
    ChatCompletionChunk,
    TextCompletion,
    TextCompletionChunk,
)
from router.http.openai.schema import ChatBody, CompletionBody, StreamOptions, normalize
from router.http.schema import Schema
from router.request.errors import InvalidRequest
from router.request.parameters import Limits, RawParams
from tests.byte_tokenizer import BOS_ID, byte_ids
from tests.fake_script import saying
from tests.fakes import FakeShard
from tests.router.http.harness import housing
from tests.router.http.openai.asking import (
    CHAT,
    COMPLETIONS,
    HI,
    PROMPT,
    choices_of,
    post,
    refuse,
    saying_after_hi,
    stream,
    text_of,
)
from tests.router.rig import PATIENT, settled

LIMITS = Limits(max_input_len=100, max_total_len=200, vocab_size=50)


def test_nothing_given_means_sampling() -> None:
    assert normalize(RawParams(), LIMITS) == RawParams(do_sample=True)


def test_neutral_values_mean_absence() -> None:
    assert normalize(RawParams(top_p=1.0, top_k=-1), LIMITS) == RawParams(do_sample=True)
    assert normalize(RawParams(top_k=0), LIMITS) == RawParams(do_sample=True)


def test_temperature_0_means_the_most_probable_token_whatever_else_is_said() -> None:
    given = RawParams(temperature=0.0, top_p=0.5, top_k=3, min_p=0.1)

    assert normalize(given, LIMITS) == RawParams(do_sample=False)


def test_what_means_nothing_must_be_in_order_all_the_same() -> None:
    with pytest.raises(InvalidRequest, match="`top_p`"):
        normalize(RawParams(temperature=0.0, top_p=5.0), LIMITS)


@pytest.mark.parametrize(
    ("given", "fault"),
    [
        (RawParams(temperature=-1.0), "`temperature` must be at least 0. Given: -1.0"),
        (RawParams(top_p=1.5), "`top_p` must be between 0 and 1. Given: 1.5"),
        (RawParams(top_k=-2), "`top_k` must be at least -1"),
    ],
)
def test_what_is_outside_is_refused_by_the_clients_rule(given: RawParams, fault: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        normalize(given, LIMITS)

    assert str(refused.value).startswith(fault)


def test_a_top_p_of_0_keeps_the_most_probable_token() -> None:
    top_p = normalize(RawParams(top_p=0.0), LIMITS).top_p

    assert top_p is not None
    assert 0 < top_p < 1e-5


@pytest.mark.parametrize(
    ("given", "meant"), [(None, None), (7, 7), (-1, 2**64 - 1), (-(2**63), 2**63)]
)
def test_negative_seeds_are_the_upper_half(given: int | None, meant: int | None) -> None:
    assert normalize(RawParams(seed=given), LIMITS).seed == meant


def test_a_seed_below_all_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="`seed`"):
        normalize(RawParams(seed=-(2**63) - 1), LIMITS)


HINTS = {
    "user": "me",
    "metadata": {"run": "1"},
    "parallel_tool_calls": False,
    "prediction": {"type": "content", "content": "ok"},
    "prompt_cache_key": "a",
    "prompt_cache_options": {"mode": "implicit"},
    "prompt_cache_retention": "24h",
    "safety_identifier": "x",
    "spaces_between_special_tokens": True,
    "store": False,
    "modalities": ["text"],
    "reasoning_effort": "none",
    "verbosity": "medium",
    "response_format": {"type": "text"},
    "tools": [],
    "tool_choice": "auto",
    "suffix": "",
    "use_beam_search": False,
    "length_penalty": 1.0,
    "bad_words": [],
    "priority": 0,
    "unknown_to_everyone": 1,
}


async def test_hints_and_what_is_so_anyway_are_taken() -> None:
    async with housing(saying_after_hi("ok")) as house:
        answer = await post(house, CHAT, {"messages": HI, **HINTS})
        plain = await post(house, CHAT, {"messages": HI})

    assert answer["choices"] == plain["choices"]
    assert "service_tier" not in answer


async def test_options_of_streams_need_a_stream() -> None:
    body = {"messages": HI, "stream_options": {"include_usage": True}}
    async with housing(FakeShard()) as house:
        for streams, given in (
            ({}, "null"),
            ({"stream": None}, "null"),
            ({"stream": False}, "false"),
        ):
            status, error = await refuse(house, CHAT, {**body, **streams})
            assert (status, error["param"]) == (400, "stream_options")
            assert error["message"] == f"`stream_options` needs `stream` to be true. Given: {given}"


async def test_nulls_say_nothing() -> None:
    async with housing(saying_after_hi("ok")) as house:
        answer = await post(house, CHAT, {"messages": HI, **dict.fromkeys(HINTS)})

    assert answer["choices"][0]["message"]["content"] == "ok"


async def test_who_chooses_a_service_tier_is_told_the_one_there_is() -> None:
    async with housing(saying_after_hi("ok")) as house:
        answer = await post(house, CHAT, {"messages": HI, "service_tier": "flex"})
        chunks = await stream(house, CHAT, {"messages": HI, "service_tier": "auto"})

    assert answer["service_tier"] == "default"
    assert {chunk["service_tier"] for chunk in chunks} == {"default"}


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
async def test_chunks_count_on_when_asked_to(path: str) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    body: Any = {"messages": HI} if path == CHAT else {"prompt": PROMPT}
    async with housing(saying_after_hi('o"usage":null}\n')) as house:
        *chunks, last = await stream(
            house, path, {**body, "max_tokens": 3, "stream_options": options}
        )

    counted = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert counted == sorted(counted)
    assert counted[-1] == 3
    assert {chunk["usage"]["prompt_tokens"] for chunk in chunks} == {9}
    assert last["choices"] == []
    assert last["usage"]["total_tokens"] == 12


async def test_text_that_looks_like_the_end_of_a_chunk_is_left_alone() -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    text = '"usage":null}\n\n'
    async with housing(saying_after_hi(text)) as house:
        chunks = await stream(house, CHAT, {"messages": HI, "stream_options": options})

    assert text_of(chunks) == text


async def test_a_chat_echoes_the_assistant_s_last_words() -> None:
    prompt = PROMPT + "assistant: well"
    messages = [*HI, {"role": "assistant", "content": "well"}]
    async with housing(FakeShard(script=saying(", yes", len(prompt)))) as house:
        answer = await post(house, CHAT, {"messages": messages, "echo": True})
        chunks = await stream(house, CHAT, {"messages": messages, "echo": True})

    assert answer["choices"][0]["message"]["content"] == "well, yes"
    assert text_of(chunks) == "well, yes"
    assert chunks[0]["choices"][0]["delta"]["role"] == "assistant"


async def test_a_chat_of_the_user_alone_echoes_nothing() -> None:
    async with housing(saying_after_hi("ok")) as house:
        answer = await post(house, CHAT, {"messages": HI, "echo": True})

    assert answer["choices"][0]["message"]["content"] == "ok"


async def test_a_chat_s_token_ids_are_told() -> None:
    body = {"messages": HI, "return_token_ids": True, "n": 2}
    async with housing(saying_after_hi("ok")) as house:
        answer = await post(house, CHAT, body)
        chunks = await stream(house, CHAT, body)

    ids = [*byte_ids("ok"), 0]
    assert answer["prompt_token_ids"] == byte_ids(PROMPT)
    assert [choice["token_ids"] for choice in answer["choices"]] == [ids, ids]
    for index in (0, 1):
        own = [chunk for chunk in chunks if chunk["choices"][0]["index"] == index]
        assert own[0]["prompt_token_ids"] == byte_ids(PROMPT)
        assert all("prompt_token_ids" not in chunk for chunk in own[1:])
        told = [token_id for choice in choices_of(own) for token_id in choice.get("token_ids", [])]
        assert told == ids
        assert text_of(own) == "ok"


async def test_a_completion_s_token_ids_are_told() -> None:
    body = {"prompt": ["ab", "xy"], "return_token_ids": True}
    async with housing(FakeShard(script=saying("cd", 2))) as house:
        answer = await post(house, COMPLETIONS, body)
        chunks = await stream(house, COMPLETIONS, {**body, "echo": True})

    ids = [*byte_ids("cd"), 0]
    for index, prompt in enumerate(("ab", "xy")):
        assert answer["choices"][index]["prompt_token_ids"] == byte_ids(prompt)
        assert answer["choices"][index]["token_ids"] == ids
        own = [choice for choice in choices_of(chunks) if choice["index"] == index]
        assert own[0]["prompt_token_ids"] == byte_ids(prompt)
        assert all("prompt_token_ids" not in choice for choice in own[1:])
        told = [token_id for choice in own for token_id in choice.get("token_ids", [])]
        assert told == ids
        assert "".join(choice["text"] for choice in own) == prompt + "cd"


@pytest.mark.parametrize(("asked", "prompt"), [(3, "hi\n"), (-1, PROMPT), (50, PROMPT)])
async def test_a_prompt_is_cut_at_its_beginning(asked: int, prompt: str) -> None:
    async with housing(FakeShard()) as house:
        body = {"messages": HI, "truncate_prompt_tokens": asked, "max_tokens": 1}
        answer = await post(house, CHAT, {**body, "return_token_ids": True})

    assert answer["prompt_token_ids"] == byte_ids(prompt)


async def test_what_was_read_of_a_cut_prompt_is_echoed() -> None:
    async with housing(FakeShard(script=saying("!", 3))) as house:
        body = {"prompt": "abcdef", "truncate_prompt_tokens": 3, "echo": True, "logprobs": 0}
        answer = await post(house, COMPLETIONS, body)

    assert answer["choices"][0]["text"] == "def!"
    assert answer["choices"][0]["logprobs"]["text_offset"] == [0, 1, 2, 3, 4]


async def test_special_tokens_are_shown_on_demand_but_not_the_one_that_ends() -> None:
    def script(token_ids: Any) -> int:
        return [*byte_ids("a"), BOS_ID, *byte_ids("b"), 0][len(token_ids) - len(PROMPT)]

    async with housing(FakeShard(script=script)) as house:
        hidden = await post(house, CHAT, {"messages": HI})
        shown = await post(house, CHAT, {"messages": HI, "skip_special_tokens": False})

    assert hidden["choices"][0]["message"]["content"] == "ab"
    assert shown["choices"][0]["message"]["content"] == "a<s>b"


SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}}
FUNCTION = {"name": "look_up", "description": "", "parameters": SCHEMA}
TOOL = {"type": "function", "function": FUNCTION}
STRING = {"type": "string"}
NAMED = {"type": "function", "function": {"name": "look_up"}}


NOT_SERVED: list[tuple[Any, ...]] = [
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
]


async def test_what_is_not_served_is_a_422_that_names_the_field() -> None:
    async with housing(FakeShard()) as house:
        for fields, param in NOT_SERVED:
            for path in (CHAT, COMPLETIONS):
                asked: dict[str, Any] = {"messages": HI} if path == CHAT else {"prompt": "ab"}
                status, error = await refuse(house, path, {**asked, **fields})
                assert (status, error["type"], error["code"]) == (
                    422,
                    "invalid_request_error",
                    "unserved",
                )
                assert error["param"] == param
                assert f"`{param}`" in error["message"]


NOT_SERVED_IN_CHATS: list[tuple[Any, ...]] = [
    ({"tools": [{"type": "custom", "custom": {"name": "a"}}]}, "tools[0]"),
    ({"tools": [TOOL], "tool_choice": {"type": "custom", "custom": {}}}, "tool_choice"),
    ({"documents": [{"title": "a", "text": "b"}]}, "documents"),
]


async def test_what_a_chat_is_not_served_is_a_422_too() -> None:
    async with housing(FakeShard()) as house:
        for fields, param in NOT_SERVED_IN_CHATS:
            status, error = await refuse(house, CHAT, {"messages": HI, **fields})
            assert (status, error["code"], error["param"]) == (422, "unserved", param)


NO_TEXT: list[tuple[Any, ...]] = [
    ({"type": "video_url", "video_url": {"url": "data:video/mp4;base64,"}}, "video_url"),
    ({"type": "input_audio", "input_audio": {"data": "", "format": "wav"}}, "input_audio"),
    ({"type": "file", "file": {"file_id": "1"}}, "file"),
]


async def test_a_part_that_is_no_text_and_no_image_is_refused_by_its_place() -> None:
    async with housing(FakeShard()) as house:
        for part, kind in NO_TEXT:
            content = [{"type": "text", "text": "see"}, part]
            body = {"messages": [*HI, {"role": "user", "content": content}]}
            status, error = await refuse(house, CHAT, body)
            assert (status, error["param"]) == (422, "messages[1].content[1]")
            assert f"`{kind}`" in error["message"]


MALFORMED_PARTS: list[tuple[Any, ...]] = [
    (5, "5"),
    ({"type": "txt", "text": "a"}, 'the type "txt"'),
    ({"type": "text", "text": 5}, "the text 5"),
    ({"type": "text"}, "the text null"),
]


async def test_a_malformed_part_is_shown() -> None:
    async with housing(FakeShard()) as house:
        for part, given in MALFORMED_PARTS:
            body = {"messages": [{"role": "user", "content": [part]}]}
            _, error = await refuse(house, CHAT, body)
            assert error["message"].endswith(f"Given: {given}")


MALFORMED: list[tuple[Any, ...]] = [
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
]


async def test_what_is_malformed_is_told_first() -> None:
    async with housing(FakeShard()) as house:
        for fields, param in MALFORMED:
            status, error = await refuse(house, CHAT, {"messages": HI, **fields})
            assert (status, error["param"]) == (400, param)
            assert f"`{param}`" in error["message"] or param == "chat_template_kwargs"


MISUSED_TOOLS: list[tuple[Any, ...]] = [
    ({"tools": [TOOL], "response_format": {"type": "json_object"}}, "tools"),
    ({"tools": [TOOL], "tool_choice": "another"}, "tool_choice"),
]


async def test_tools_that_cannot_be_used_so_are_tgi_s_tool_error() -> None:
    async with housing(FakeShard()) as house:
        for fields, param in MISUSED_TOOLS:
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


VALUES: list[Any] = [
    True, 0, -1, 10**40, 0.5, -1e300, "", "x", "\x00", "🙂" * 50, [], [0], [""],
    [None], [[]], [{}], {}, {"": None}, {"type": "x"}, {"type": None}, {"5": 1}, {"name": "x"},
    [{"type": "function", "function": {}}], [{"role": "user", "content": [{}]}],
    {"type": "json_schema", "json_schema": {}, "value": {}}, {"json": {}, "regex": "("},
]  # fmt: skip
HARMLESS = {"stream"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("path", "schema"), [(CHAT, ChatBody), (COMPLETIONS, CompletionBody)], ids=["chat", "text"]
)
async def test_no_value_of_a_field_is_a_fault_of_the_server(
    path: str, schema: type[Schema]
) -> None:
    asked: dict[str, Any] = {"messages": HI} if path == CHAT else {"prompt": "ab"}
    async with housing(FakeShard(), timeouts=PATIENT) as house, house.client as client:
        for place, field in enumerate(sorted({*schema.model_fields} - HARMLESS)):
            for index, value in enumerate(VALUES):
                streams = (place + index) % 2 == 0
                limits = {"max_tokens": 1, "stream": streams}
                answer = await client.post(path, json={**asked, **limits, field: value})

                told = f"{field}={value!r}: {answer.text[:300]}"
                assert answer.status_code in (200, 400, 404, 422), told
                if answer.status_code != 200:
                    error = answer.json()["error"]
                    assert error["message"], told
                    assert error["param"], told
                elif streams:
                    assert answer.text.endswith("data: [DONE]\n\n"), told
                    assert '"error"' not in answer.text, told


async def test_another_model_is_a_404() -> None:
    async with housing(FakeShard()) as house:
        status, error = await refuse(house, CHAT, {"messages": HI, "model": "gpt-9"})

    assert status == 404
    assert error == {
        "message": "The model `gpt-9` does not exist; served: `fake/model`",
        "type": "invalid_request_error",
        "param": "model",
        "code": "model_not_found",
    }


BROKEN: list[tuple[Any, ...]] = [
    ({"messages": None}, "messages"),
    ({"messages": []}, "messages"),
    ({"messages": "hi"}, "messages"),
    ({"messages": [{"content": "hi"}]}, "messages[0].role"),
    ({"messages": [{"role": "user", "content": 3}]}, "messages[0].content"),
    ({"temperature": 0, "top_p": 5}, "top_p"),
    ({"presence_penalty": 3}, "presence_penalty"),
    ({"max_completion_tokens": -1}, "max_completion_tokens"),
    ({"min_tokens": -1}, "min_tokens"),
    ({"n": 9}, "n"),
    ({"n": True}, "n"),
    ({"stop": 3}, "stop"),
    ({"logit_bias": {"5": "1"}}, "logit_bias"),
    ({"top_logprobs": 2}, "top_logprobs"),
    ({"top_logprobs": 21, "logprobs": True}, "top_logprobs"),
    ({"seed": -(2**63) - 1}, "seed"),
    ({"stream_options": []}, "stream_options"),
    ({"tool_choice": {"type": "function"}}, "tool_choice"),
    ({"guided_regex": ""}, "guided_regex"),
    ({"structured_outputs": {}}, "structured_outputs"),
]


async def test_a_broken_rule_is_a_400_that_names_the_field() -> None:
    async with housing(FakeShard()) as house:
        for fields, param in BROKEN:
            for streams in (False, True):
                status, error = await refuse(
                    house, CHAT, {"messages": HI, "stream": streams, **fields}
                )
                assert (status, error["type"]) == (400, "invalid_request_error")
                assert error["param"] == param
                assert f"`{error['param']}`" in error["message"]


async def test_a_model_without_a_template_says_so() -> None:
    async with housing(FakeShard(), with_template=False) as house:
        status, error = await refuse(house, CHAT, {"messages": HI})

    assert (status, error["type"]) == (400, "invalid_request_error")
    assert "chat template" in error["message"]


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


PAGE = Path(__file__).parents[4] / "docs" / "openai.md"


def test_every_field_is_documented() -> None:
    for name in sorted({*ChatBody.model_fields, *CompletionBody.model_fields}):
        assert f"`{name}`" in PAGE.read_text(encoding="utf-8")


def test_every_option_of_streams_is_documented() -> None:
    text = PAGE.read_text(encoding="utf-8")
    for name in StreamOptions.model_fields:
        assert f"`stream_options.{name}`" in text


OPTIONS = {"include_usage": True, "continuous_usage_stats": True}


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"n": 2, "return_token_ids": True, "service_tier": "auto"},
        {"logprobs": True, "top_logprobs": 2},
    ],
)
@pytest.mark.parametrize("options", [None, OPTIONS, {"include_usage": True}])
async def test_chats_answer_what_the_document_says(fields: Any, options: Any) -> None:
    async with housing(saying_after_hi("a🙂")) as house:
        answer = await post(house, CHAT, {"messages": HI, "prompt_logprobs": 1, **fields})
        chunks = await stream(house, CHAT, {"messages": HI, "stream_options": options, **fields})

    ChatCompletion.model_validate(answer, strict=True)
    assert chunks
    for chunk in chunks:
        ChatCompletionChunk.model_validate(chunk, strict=True)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"n": 2, "return_token_ids": True, "echo": True},
        {"logprobs": 2, "echo": True},
        {"logprobs": 0},
        {"echo": True, "max_tokens": 0, "logprobs": 1},
    ],
)
@pytest.mark.parametrize("options", [None, OPTIONS])
async def test_completions_answer_what_the_document_says(fields: Any, options: Any) -> None:
    streamed = {"prompt": PROMPT, "stream_options": options, **fields}
    async with housing(saying_after_hi("a🙂")) as house:
        answer = await post(house, COMPLETIONS, {"prompt": PROMPT, "prompt_logprobs": 1, **fields})
        chunks = await stream(house, COMPLETIONS, streamed)

    TextCompletion.model_validate(answer, strict=True)
    assert chunks
    for chunk in chunks:
        TextCompletionChunk.model_validate(chunk, strict=True)
