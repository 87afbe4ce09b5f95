"""Fields beyond the plain ones: each changes what its name says, or is taken as a hint."""

from typing import Any

import pytest

from tests.byte_tokenizer import BOS_ID, byte_ids
from tests.fake_script import saying
from tests.fakes import FakeShard
from tests.router.http.harness import SEED, housing
from tests.router.http.openai.asking import (
    CHAT,
    COMPLETIONS,
    HI,
    PROMPT,
    choices_of,
    first_request,
    post,
    saying_after_hi,
    stream,
    text_of,
)

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
    "include_reasoning": True,
    "unknown_to_everyone": 1,
}


async def test_hints_and_what_is_so_anyway_are_taken() -> None:
    async with housing(saying_after_hi("ok")) as house:
        answer = await post(house, CHAT, {"messages": HI, **HINTS})
        plain = await post(house, CHAT, {"messages": HI})

    assert answer["choices"] == plain["choices"]
    assert "service_tier" not in answer


@pytest.mark.parametrize(
    ("path", "asked"), [(CHAT, {"messages": HI}), (COMPLETIONS, {"prompt": "a"})]
)
@pytest.mark.parametrize("streams", [{}, {"stream": None}, {"stream": False}])
async def test_options_of_streams_need_a_stream(path: str, asked: Any, streams: Any) -> None:
    body = {**asked, "stream_options": {"include_usage": True}, **streams}
    async with housing(FakeShard()) as house:
        answer = await house.client.post(path, json=body)

    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["param"] == "stream_options"
    given = "false" if streams.get("stream") is False else "null"
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


@pytest.mark.parametrize(("seed", "drawn_with"), [(-1, 2**64 - 1), (-(2**63), 2**63), (5, 5)])
async def test_a_seed_may_be_negative(seed: int, drawn_with: int) -> None:
    async with housing(saying_after_hi("ok")) as house:
        await post(house, CHAT, {"messages": HI, "seed": seed})

        assert first_request(house).sampling.seed == drawn_with


async def test_top_p_zero_keeps_the_most_probable_alone() -> None:
    async with housing(saying_after_hi("ok")) as house:
        await post(house, CHAT, {"messages": HI, "top_p": 0})

        assert 0 < first_request(house).sampling.top_p <= 1e-6


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


async def test_seeds_of_n_draws_follow_each_other() -> None:
    async with housing(saying_after_hi("ok")) as house:
        await post(house, CHAT, {"messages": HI, "n": 2})
        seeds = {
            request.sampling.seed
            for method, call in house.shard.calls
            if method == "Prefill"
            for request in call.batch.requests
        }

    assert seeds == {SEED, SEED + 1}
