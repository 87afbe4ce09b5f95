"""/v1/chat/completions: OpenAI's shapes, whole and streamed."""

import json
from typing import Any
from unittest.mock import ANY

import pytest

from tests.fake_script import saying
from tests.fakes import FakeShard
from tests.router.http.harness import SEED, House, housing

PATH = "/v1/chat/completions"
HI = [{"role": "user", "content": "hi"}]
PROMPT = "user: hi\n"
ROLE = {"role": "assistant", "content": "", "refusal": None}


def saying_after_hi(text: str) -> FakeShard:
    return FakeShard(script=saying(text, len(PROMPT)))


def usage(num_prompt: int, num_completion: int, num_cached: int = 0) -> dict[str, Any]:
    return {
        "prompt_tokens": num_prompt,
        "completion_tokens": num_completion,
        "total_tokens": num_prompt + num_completion,
        "prompt_tokens_details": {"cached_tokens": num_cached, "audio_tokens": 0},
        "completion_tokens_details": {
            "reasoning_tokens": 0,
            "audio_tokens": 0,
            "accepted_prediction_tokens": 0,
            "rejected_prediction_tokens": 0,
        },
        "work_details": ANY,
    }


async def post(house: House, messages: Any = HI, **fields: Any) -> Any:
    async with house.client as client:
        answer = await client.post(PATH, json={"messages": messages, **fields})
    assert answer.status_code == 200, answer.text
    return answer.json()


async def stream(house: House, **fields: Any) -> list[Any]:
    """The chunks; the last one must be [DONE]."""
    async with house.client as client:
        answer = await client.post(PATH, json={"messages": HI, "stream": True, **fields})
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "text/event-stream"
    *chunks, done, rest = answer.text.split("\n\n")
    assert (done, rest) == ("data: [DONE]", "")
    return [json.loads(chunk.removeprefix("data: ")) for chunk in chunks]


def first_request(house: House) -> Any:
    return next(call for method, call in house.shard.calls if method == "Prefill").batch.requests[0]


async def test_an_answer_has_openai_s_shape() -> None:
    async with housing(saying_after_hi("hello")) as house:
        answer = await post(house)

    assert answer.pop("id").startswith("chatcmpl-")
    assert answer.pop("created") > 1_700_000_000
    assert answer == {
        "object": "chat.completion",
        "model": "fake/model",
        "system_fingerprint": "0.0.1",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "hello", "refusal": None},
                "logprobs": None,
                "finish_reason": "stop",
            }
        ],
        "usage": usage(9, 6),
    }


async def test_a_stream_is_the_role_deltas_of_text_and_an_empty_delta() -> None:
    async with housing(saying_after_hi("ok")) as house:
        chunks = await stream(house)

    assert len({chunk["id"] for chunk in chunks}) == 1
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert all("usage" not in chunk for chunk in chunks)
    assert [chunk["choices"] for chunk in chunks] == [
        [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}]
        for delta, reason in (
            (ROLE, None),
            ({"content": "o"}, None),
            ({"content": "k"}, None),
            ({}, "stop"),
        )
    ]


async def test_usage_ends_a_stream_when_asked_for() -> None:
    async with housing(saying_after_hi("ok")) as house:
        *chunks, last = await stream(house, stream_options={"include_usage": True}, max_tokens=1)

    assert all(chunk["usage"] is None for chunk in chunks)
    assert chunks[-1]["choices"][0]["finish_reason"] == "length"
    assert last["choices"] == []
    assert last["usage"] == usage(9, 1)


async def test_cached_tokens_are_told_of() -> None:
    async with housing(saying_after_hi("ok")) as house:
        await post(house)
        answer = await post(house)

    assert answer["usage"] == usage(9, 3, num_cached=8)


async def test_usage_says_what_the_samples_had_the_shards_do() -> None:
    async with housing(saying_after_hi("ok")) as house:
        house.shard.faults.delay_s = 0.01
        one = await post(house)
        four = await post(house, n=4)

    work = one["usage"]["work_details"]
    assert set(work) == {"forced_tokens", "wasted_tokens", "shard_seconds", "kv_block_seconds"}
    assert (work["forced_tokens"], work["wasted_tokens"]) == (0, 0)
    # Three steps of 10 ms: "o", "k" and the end, alone in its steps, in one block.
    assert 0.03 <= work["shard_seconds"] <= work["kv_block_seconds"]
    assert four["usage"]["work_details"]["kv_block_seconds"] > 3 * work["kv_block_seconds"]


@pytest.mark.parametrize("stop", ["llo", ["zzz", "llo"]])
async def test_a_stop_string_is_dropped_whole_and_streamed(stop: Any) -> None:
    async with housing(saying_after_hi("hello you")) as house:
        answer = await post(house, stop=stop)
        chunks = await stream(house, stop=stop)

    assert answer["choices"][0]["message"]["content"] == "he"
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert text_of(chunks) == "he"
    assert chunks[-1]["choices"][0] == {
        "index": 0,
        "delta": {},
        "logprobs": None,
        "finish_reason": "stop",
    }


async def test_text_that_was_held_back_for_a_stop_string_comes_at_the_end() -> None:
    async with housing(saying_after_hi("hell")) as house:
        chunks = await stream(house, stop="llo")

    assert text_of(chunks) == "hell"


async def test_a_character_of_several_tokens_is_never_split() -> None:
    async with housing(saying_after_hi("a🙂é")) as house:
        chunks = await stream(house)

    assert [text for text in texts_of(chunks) if text] == ["a", "🙂", "é"]


def texts_of(chunks: list[Any]) -> list[str]:
    return [chunk["choices"][0]["delta"].get("content", "") for chunk in chunks]


def text_of(chunks: list[Any]) -> str:
    return "".join(texts_of(chunks))


async def test_logprobs_have_tokens_bytes_and_alternatives() -> None:
    entry = {
        "token": "o",
        "logprob": -0.25,
        "bytes": [111],
        "top_logprobs": [
            {"token": "o", "logprob": -0.25, "bytes": [111]},
            {"token": "p", "logprob": -1.25, "bytes": [112]},
        ],
    }
    async with housing(saying_after_hi("ok")) as house:
        answer = await post(house, logprobs=True, top_logprobs=2, max_tokens=1)
        chunks = await stream(house, logprobs=True, top_logprobs=2, max_tokens=1)

        assert first_request(house).logprobs.raw

    told = {"content": [entry], "refusal": None}
    assert answer["choices"][0]["logprobs"] == told
    assert [chunk["choices"][0]["logprobs"] for chunk in chunks] == [None, told, None]


async def test_n_choices_are_drawn_with_seeds_of_their_own() -> None:
    async with housing(saying_after_hi("ok")) as house:
        answer = await post(house, n=3)
        seeds = {
            request.sampling.seed
            for method, call in house.shard.calls
            if method == "Prefill"
            for request in call.batch.requests
        }

    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2]
    assert answer["usage"]["prompt_tokens"] == 9
    assert answer["usage"]["completion_tokens"] == 9
    assert seeds == {SEED, SEED + 1, SEED + 2}


async def test_n_choices_are_streamed_with_their_indices() -> None:
    async with housing(saying_after_hi("ok")) as house:
        *chunks, last = await stream(house, n=2, stream_options={"include_usage": True})

    for index in (0, 1):
        own = [chunk for chunk in chunks if chunk["choices"][0]["index"] == index]
        assert own[0]["choices"][0]["delta"] == ROLE
        assert text_of(own) == "ok"
        assert own[-1]["choices"][0]["finish_reason"] == "stop"
    assert last["usage"]["completion_tokens"] == 6
    assert last["usage"]["prompt_tokens"] == 9


@pytest.mark.parametrize(
    ("fields", "samples", "temperature"),
    [
        ({}, True, 1.0),
        ({"temperature": None}, True, 1.0),
        ({"temperature": 0}, False, 1.0),
        ({"temperature": 0.0, "top_p": 0.5, "top_k": 3, "min_p": 0.1}, False, 1.0),
        ({"temperature": 0.5, "top_p": 1, "top_k": -1, "min_p": 0}, True, 0.5),
    ],
)
async def test_temperature_decides_between_sampling_and_greedy(
    fields: Any, samples: bool, temperature: float
) -> None:
    async with housing(saying_after_hi("ok")) as house:
        await post(house, **fields)
        sampling = first_request(house).sampling

    assert (sampling.do_sample, sampling.temperature) == (samples, temperature)


async def test_every_parameter_reaches_the_shard() -> None:
    async with housing(FakeShard()) as house:
        await post(
            house,
            temperature=0.5,
            top_p=0.75,
            top_k=9,
            min_p=0.125,
            repetition_penalty=1.5,
            presence_penalty=0.5,
            frequency_penalty=-0.5,
            logit_bias={"5": 2, "6": -1.5},
            seed=11,
            max_completion_tokens=4,
            max_tokens=100,
            min_tokens=2,
            stop_token_ids=[9],
            ignore_eos=True,
        )
        request = first_request(house)

    sampling = request.sampling
    stopping = request.stopping
    assert (sampling.temperature, sampling.top_p, sampling.top_k) == (0.5, 0.75, 9)
    assert (sampling.min_p, sampling.repetition_penalty, sampling.seed) == (0.125, 1.5, 11)
    assert (sampling.presence_penalty, sampling.frequency_penalty) == (0.5, -0.5)
    assert dict(sampling.logit_bias) == {5: 2.0, 6: -1.5}
    assert (stopping.max_new_tokens, stopping.min_new_tokens) == (4, 2)
    assert (list(stopping.stop_token_ids), stopping.ignore_eos) == ([9], True)


async def test_parts_of_a_message_are_joined() -> None:
    parts = [{"type": "text", "text": "h"}, {"type": "text", "text": "i"}]
    async with housing(saying_after_hi("ok")) as house:
        answer = await post(house, [{"role": "user", "content": parts, "name": None}])

    assert answer["choices"][0]["message"]["content"] == "ok"


async def test_an_assistant_s_last_message_is_continued() -> None:
    prompt = PROMPT + "assistant: well"
    messages = [*HI, {"role": "assistant", "content": "well"}]
    async with housing(FakeShard(script=saying(", yes", len(prompt)))) as house:
        answer = await post(house, messages)
        assert answer["choices"][0]["message"]["content"] == ", yes"
        assert answer["usage"]["prompt_tokens"] == len(prompt)

        answer = await post(house, messages, continue_final_message=False, max_tokens=1)
        assert answer["usage"]["prompt_tokens"] == len(prompt) + 1


@pytest.mark.parametrize(
    ("name", "echoed"),
    [
        (None, "fake/model"),
        ("", "fake/model"),
        ("tgi", "fake/model"),
        ("dummy", "fake/model"),
        ("fake/model", "fake/model"),
        ("model", "model"),
    ],
)
async def test_served_names_and_placeholders_mean_the_model(name: Any, echoed: str) -> None:
    async with housing(saying_after_hi("ok")) as house:
        assert (await post(house, model=name))["model"] == echoed


async def test_what_says_none_of_the_unsupported_is_fine() -> None:
    async with housing(saying_after_hi("ok")) as house:
        answer = await post(
            house, tools=[], tool_choice="auto", response_format={"type": "text"}, user="me"
        )
    assert answer["choices"][0]["message"]["content"] == "ok"


async def test_no_logprob_tells_of_a_stop_string() -> None:
    async with housing(saying_after_hi("hello")) as house:
        fields = {"stop": "llo", "logprobs": True, "top_logprobs": 1}
        answer = await post(house, **fields)
        chunks = await stream(house, **fields)

    told = answer["choices"][0]["logprobs"]["content"]
    assert [token["token"] for token in told] == ["h", "e", "", "", ""]
    assert [len(token["top_logprobs"]) for token in told] == [1, 1, 0, 0, 0]
    streamed = [
        token
        for chunk in chunks
        for choice in chunk["choices"]
        if choice["logprobs"]
        for token in choice["logprobs"]["content"]
    ]
    assert streamed == told
