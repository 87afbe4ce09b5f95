"""/v1/chat/completions and /v1/completions, whole and streamed; tools and templates."""

import gc
import json
from time import process_time
from typing import Any
from unittest.mock import ANY

import pytest

from constraints.spec import ConstraintSpec, Kind, StopRule, Whitespace
from router.http.tools import AllowedTool, AllowedTools, tool_grammar
from router.request.errors import ConstraintRefused
from router.request.request import Constraint
from router.text.answer_format import GENERIC_CALLS
from tests.byte_tokenizer import BOS_ID, byte_ids
from tests.checks import FakeChecks
from tests.fake_script import letters, saying
from tests.fakes import FakeShard
from tests.router.http.answering import SHORT_TEMPLATE
from tests.router.http.calls import HERMES, MISTRAL, Call, written
from tests.router.http.harness import SEED, House, housing
from tests.router.http.openai.asking import (
    CHAT,
    COMPLETIONS,
    HI,
    PROMPT,
    choices_of,
    first_request,
    post,
    refuse,
    saying_after_hi,
    stream,
    text_of,
)

ROLE = {"role": "assistant", "content": "", "refusal": None}


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


async def chat(house: House, messages: Any = HI, **fields: Any) -> Any:
    async with house.client as client:
        answer = await client.post(CHAT, json={"messages": messages, **fields})
    assert answer.status_code == 200, answer.text
    return answer.json()


async def stream_chat(house: House, **fields: Any) -> list[Any]:
    """The chunks; the last one must be [DONE]."""
    async with house.client as client:
        answer = await client.post(CHAT, json={"messages": HI, "stream": True, **fields})
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "text/event-stream"
    *chunks, done, rest = answer.text.split("\n\n")
    assert (done, rest) == ("data: [DONE]", "")
    return [json.loads(chunk.removeprefix("data: ")) for chunk in chunks]


async def test_an_answer_has_openai_s_shape() -> None:
    async with housing(saying_after_hi("hello")) as house:
        answer = await chat(house)

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
                "stop_reason": None,
            }
        ],
        "usage": usage(9, 6),
    }


async def test_a_stream_is_the_role_deltas_of_text_and_an_empty_delta() -> None:
    async with housing(saying_after_hi("ok")) as house:
        chunks = await stream_chat(house)

    assert len({chunk["id"] for chunk in chunks}) == 1
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert all("usage" not in chunk for chunk in chunks)
    assert [chunk["choices"] for chunk in chunks] == [
        [{"index": 0, "delta": delta, "logprobs": None, **ending}]
        for delta, ending in (
            (ROLE, {"finish_reason": None}),
            ({"content": "o"}, {"finish_reason": None}),
            ({"content": "k"}, {"finish_reason": None}),
            ({}, {"finish_reason": "stop", "stop_reason": None}),
        )
    ]


async def test_usage_ends_a_stream_when_asked_for() -> None:
    async with housing(saying_after_hi("ok")) as house:
        *chunks, last = await stream_chat(
            house, stream_options={"include_usage": True}, max_tokens=1
        )

    assert all(chunk["usage"] is None for chunk in chunks)
    assert chunks[-1]["choices"][0]["finish_reason"] == "length"
    assert last["choices"] == []
    assert last["usage"] == usage(9, 1)


async def test_cached_tokens_are_told_of() -> None:
    async with housing(saying_after_hi("ok")) as house:
        await chat(house)
        answer = await chat(house)

    assert answer["usage"] == usage(9, 3, num_cached=8)


async def test_usage_says_what_the_samples_had_the_shards_do() -> None:
    async with housing(saying_after_hi("ok")) as house:
        house.shard.faults.delay_s = 0.01
        one = await chat(house)
        four = await chat(house, n=4)

    work = one["usage"]["work_details"]
    assert set(work) == {"forced_tokens", "wasted_tokens", "shard_seconds", "kv_block_seconds"}
    assert (work["forced_tokens"], work["wasted_tokens"]) == (0, 0)
    # Three steps of 10 ms: "o", "k" and the end, alone in its steps, in one block.
    assert 0.03 <= work["shard_seconds"] <= work["kv_block_seconds"]
    # Each of the four has blocks of its own.
    assert four["usage"]["work_details"]["kv_block_seconds"] >= 4 * 0.03


@pytest.mark.parametrize("stop", ["llo", ["zzz", "llo"]])
async def test_a_stop_string_is_dropped_whole_and_streamed(stop: Any) -> None:
    async with housing(saying_after_hi("hello you")) as house:
        answer = await chat(house, stop=stop)
        chunks = await stream_chat(house, stop=stop)

    assert answer["choices"][0]["message"]["content"] == "he"
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert answer["choices"][0]["stop_reason"] == "llo"
    assert text_of(chunks) == "he"
    assert chunks[-1]["choices"][0] == {
        "index": 0,
        "delta": {},
        "logprobs": None,
        "finish_reason": "stop",
        "stop_reason": "llo",
    }


async def test_a_broken_character_before_a_shown_special_token_is_part_of_the_tokens() -> None:
    part_id = byte_ids("é")[0]
    ids = [*byte_ids("a"), part_id, BOS_ID, *byte_ids("b")]
    script = lambda token_ids: ids[min(len(token_ids) - 2, len(ids) - 1)]  # noqa: E731
    fields = {"skip_special_tokens": False, "logprobs": 0, "max_tokens": 4}
    async with housing(FakeShard(script=script)) as house:
        (choice,) = (await complete(house, "ab", **fields))["choices"]
        chunks = await stream_completion(house, "ab", **fields)

    assert choice["text"] == "a\ufffd<s>b"
    assert choice["logprobs"]["tokens"] == ["a", "", "\ufffd<s>", "b"]
    assert choice["logprobs"]["text_offset"] == [0, 1, 1, 5]
    streamed = [chunk["choices"][0]["logprobs"] for chunk in chunks]
    assert [token for each in streamed if each for token in each["tokens"]] == [
        "a",
        "",
        "\ufffd<s>",
        "b",
    ]


L_ID = byte_ids("l")[0]


@pytest.mark.parametrize(
    ("fields", "stop_reason"),
    [
        ({"stop": ["zz", "el"]}, "el"),
        ({"stop_token_ids": [L_ID]}, L_ID),
        ({"stop_token_ids": [L_ID], "stop": "he"}, "he"),
        ({"stop": "zz"}, None),
        ({"stop": "el", "max_tokens": 1}, None),
        ({"stop_token_ids": [byte_ids("h")[0]], "echo": True, "max_tokens": 0}, None),
    ],
)
async def test_what_ended_an_answer_is_named_as_vllm_names_it(
    fields: Any, stop_reason: str | int | None
) -> None:
    fields = {"max_tokens": 20, **fields}
    async with housing(FakeShard(script=saying("hello", 2))) as house:
        answer = await complete(house, "ab", **fields)
        *_, last = await stream_completion(house, "ab", **fields)

    for (choice,) in (answer["choices"], last["choices"]):
        assert choice["stop_reason"] == stop_reason


async def test_a_chat_names_what_ended_it_too() -> None:
    async with housing(saying_after_hi("hello")) as house:
        answer = await chat(house, stop_token_ids=[L_ID])
        *_, last = await stream_chat(house, stop_token_ids=[L_ID])

    for (choice,) in (answer["choices"], last["choices"]):
        assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", L_ID)


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
        answer = await chat(house, logprobs=True, top_logprobs=2, max_tokens=1)
        chunks = await stream_chat(house, logprobs=True, top_logprobs=2, max_tokens=1)

        assert first_request(house).logprobs.raw

    told = {"content": [entry], "refusal": None}
    assert answer["choices"][0]["logprobs"] == told
    assert [chunk["choices"][0]["logprobs"] for chunk in chunks] == [None, told, None]


async def test_n_choices_are_drawn_with_seeds_of_their_own() -> None:
    async with housing(saying_after_hi("ok")) as house:
        answer = await chat(house, n=3)
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


@pytest.mark.parametrize(
    ("fields", "samples", "temperature"),
    [
        ({}, True, 1.0),
        ({"temperature": 0.0, "top_p": 0.5, "top_k": 3, "min_p": 0.1}, False, 1.0),
        ({"temperature": 0.5, "top_p": 1, "top_k": -1, "min_p": 0}, True, 0.5),
    ],
)
async def test_temperature_decides_between_sampling_and_greedy(
    fields: Any, samples: bool, temperature: float
) -> None:
    async with housing(saying_after_hi("ok")) as house:
        await chat(house, **fields)
        sampling = first_request(house).sampling

    assert (sampling.do_sample, sampling.temperature) == (samples, temperature)


async def test_every_parameter_reaches_the_shard() -> None:
    async with housing(FakeShard()) as house:
        await chat(
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
        answer = await chat(house, [{"role": "user", "content": parts, "name": None}])

    assert answer["choices"][0]["message"]["content"] == "ok"


async def test_an_assistant_s_last_message_is_continued() -> None:
    prompt = PROMPT + "assistant: well"
    messages = [*HI, {"role": "assistant", "content": "well"}]
    async with housing(FakeShard(script=saying(", yes", len(prompt)))) as house:
        answer = await chat(house, messages)
        assert answer["choices"][0]["message"]["content"] == ", yes"
        assert answer["usage"]["prompt_tokens"] == len(prompt)

        answer = await chat(house, messages, continue_final_message=False, max_tokens=1)
        assert answer["usage"]["prompt_tokens"] == len(prompt) + 1


NAMES: list[tuple[Any, ...]] = [
    (None, "fake/model"),
    ("", "fake/model"),
    ("tgi", "fake/model"),
    ("dummy", "fake/model"),
    ("fake/model", "fake/model"),
    ("model", "model"),
]


async def test_served_names_and_placeholders_mean_the_model() -> None:
    async with housing(saying_after_hi("ok")) as house:
        for name, echoed in NAMES:
            assert (await chat(house, model=name))["model"] == echoed


async def test_no_logprob_tells_of_a_stop_string() -> None:
    async with housing(saying_after_hi("hello")) as house:
        fields = {"stop": "llo", "logprobs": True, "top_logprobs": 1}
        answer = await chat(house, **fields)
        chunks = await stream_chat(house, **fields)

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


async def complete(house: House, prompt: Any, **fields: Any) -> Any:
    async with house.client as client:
        answer = await client.post(COMPLETIONS, json={"prompt": prompt, **fields})
    assert answer.status_code == 200, answer.text
    return answer.json()


async def stream_completion(house: House, prompt: Any, **fields: Any) -> list[Any]:
    """The chunks; the last one must be [DONE]."""
    async with house.client as client:
        answer = await client.post(COMPLETIONS, json={"prompt": prompt, "stream": True, **fields})
    assert answer.status_code == 200, answer.text
    *chunks, done, rest = answer.text.split("\n\n")
    assert (done, rest) == ("data: [DONE]", "")
    return [json.loads(chunk.removeprefix("data: ")) for chunk in chunks]


async def test_a_completion_has_openai_s_shape() -> None:
    async with housing(FakeShard(script=saying("cd", 2))) as house:
        answer = await complete(house, "ab")

    assert answer.pop("id").startswith("cmpl-")
    assert answer.pop("created") > 1_700_000_000
    assert answer == {
        "object": "text_completion",
        "model": "fake/model",
        "system_fingerprint": "0.0.1",
        "choices": [
            {
                "index": 0,
                "text": "cd",
                "logprobs": None,
                "finish_reason": "stop",
                "stop_reason": None,
            }
        ],
        "usage": usage(2, 3),
    }


async def test_a_stream_is_texts_and_an_empty_text_with_the_reason() -> None:
    async with housing(FakeShard(script=saying("cd", 2))) as house:
        chunks = await stream_completion(house, "ab")

    assert {chunk["object"] for chunk in chunks} == {"text_completion"}
    assert [chunk["choices"] for chunk in chunks] == [
        [{"index": 0, "text": text, "logprobs": None, **ending}]
        for text, ending in (
            ("c", {"finish_reason": None}),
            ("d", {"finish_reason": None}),
            ("", {"finish_reason": "stop", "stop_reason": None}),
        )
    ]


@pytest.mark.parametrize(
    ("prompt", "num_choices"),
    [
        ("ab", 1),
        (["ab"], 1),
        (["ab", "xy"], 2),
        (byte_ids("ab"), 1),
        ([byte_ids("ab"), byte_ids("xy")], 2),
    ],
)
async def test_prompts_are_texts_or_token_ids_one_or_several(prompt: Any, num_choices: int) -> None:
    async with housing(FakeShard(script=saying("cd", 2))) as house:
        answer = await complete(house, prompt)
        chunks = await stream_completion(house, prompt)

    assert [choice["text"] for choice in answer["choices"]] == ["cd"] * num_choices
    assert answer["usage"]["prompt_tokens"] == 2 * num_choices
    for index in range(num_choices):
        own = [chunk["choices"][0] for chunk in chunks if chunk["choices"][0]["index"] == index]
        assert "".join(choice["text"] for choice in own) == "cd"


async def test_choices_are_numbered_prompt_by_prompt() -> None:
    async with housing(FakeShard(script=letters)) as house:
        answer = await complete(house, ["ab", "xy"], n=2, max_tokens=6, echo=True)

    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
    assert [choice["text"][:2] for choice in answer["choices"]] == ["ab", "ab", "xy", "xy"]
    assert answer["usage"]["prompt_tokens"] == 4
    assert answer["usage"]["completion_tokens"] == 24


async def test_logprobs_are_parallel_lists_with_offsets() -> None:
    async with housing(FakeShard(script=saying("cd", 2))) as house:
        answer = await complete(house, "ab", logprobs=2, max_tokens=2)

    assert answer["choices"][0]["logprobs"] == {
        "text_offset": [0, 1],
        "token_logprobs": [-0.75, -0.875],
        "tokens": ["c", "d"],
        "top_logprobs": [{"c": -0.75, "d": -1.75}, {"d": -0.875, "e": -1.875}],
    }


async def test_logprobs_zero_tells_of_the_tokens_alone() -> None:
    async with housing(FakeShard(script=saying("cd", 2))) as house:
        answer = await complete(house, "ab", logprobs=0, max_tokens=1)

    assert answer["choices"][0]["logprobs"] == {
        "text_offset": [0],
        "token_logprobs": [-0.75],
        "tokens": ["c"],
        "top_logprobs": None,
    }


async def test_echo_begins_with_the_prompt_and_its_logprobs() -> None:
    async with housing(FakeShard(script=saying("cd", 2))) as house:
        answer = await complete(house, "ab", echo=True, logprobs=1, max_tokens=1)
        chunks = await stream_completion(house, "ab", echo=True, logprobs=1, max_tokens=1)

    choice = answer["choices"][0]
    assert choice["text"] == "abc"
    assert choice["logprobs"] == {
        "text_offset": [0, 1, 2],
        "token_logprobs": [None, -0.625, -0.75],
        "tokens": ["a", "b", "c"],
        "top_logprobs": [None, {"b": -0.625}, {"c": -0.75}],
    }
    told = [chunk["choices"][0] for chunk in chunks]
    assert [piece["text"] for piece in told] == ["ab", "c", ""]
    for key, values in choice["logprobs"].items():
        pieces = [piece["logprobs"][key] for piece in told if piece["logprobs"]]
        assert [value for piece in pieces for value in piece] == values


async def test_echo_without_logprobs_is_text_alone() -> None:
    async with housing(FakeShard(script=saying("cd", 2))) as house:
        answer = await complete(house, byte_ids("ab"), echo=True)
        chunks = await stream_completion(house, "ab", echo=True)

    assert answer["choices"][0]["text"] == "abcd"
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == "abcd"


async def test_echo_of_no_tokens_scores_the_prompt_alone() -> None:
    async with housing(FakeShard(script=saying("cd", 2))) as house:
        answer = await complete(house, "ab", echo=True, logprobs=1, max_tokens=0)
        chunks = await stream_completion(house, "ab", echo=True, max_tokens=0)

    choice = answer["choices"][0]
    assert (choice["text"], choice["finish_reason"]) == ("ab", "length")
    assert choice["logprobs"]["tokens"] == ["a", "b"]
    assert answer["usage"]["completion_tokens"] == 0
    assert [chunk["choices"][0]["text"] for chunk in chunks] == ["ab", ""]


async def test_scoring_ends_by_its_length_whatever_the_model_would_say() -> None:
    async with housing(FakeShard(script=saying("", 2))) as house:
        answer = await complete(house, "ab", echo=True, max_tokens=0)
        chunks = await stream_completion(house, "ab", echo=True, max_tokens=0)

    assert answer["choices"][0]["finish_reason"] == "length"
    assert chunks[-1]["choices"][0]["finish_reason"] == "length"


async def test_the_header_counts_what_the_usage_counts() -> None:
    body = {"prompt": "ab", "echo": True, "n": 2}
    async with housing(FakeShard(script=saying("", 2))) as house, house.client as client:
        for num_tokens in (0, 1):
            answer = await client.post(COMPLETIONS, json={**body, "max_tokens": num_tokens})

            assert answer.json()["usage"]["completion_tokens"] == 2 * num_tokens
            assert answer.headers["x-generated-tokens"] == str(2 * num_tokens)


async def test_best_of_keeps_the_most_probable() -> None:
    async with housing(FakeShard(script=letters)) as house:
        answer = await complete(house, "ab", best_of=3, n=2, max_tokens=4)

    assert [choice["index"] for choice in answer["choices"]] == [0, 1]
    assert answer["usage"]["completion_tokens"] == 12


BROKEN: list[tuple[Any, ...]] = [
    ({"prompt": None}, "prompt"),
    ({"prompt": []}, "prompt"),
    ({"prompt": [[]]}, "prompt"),
    ({"prompt": [1, "a"]}, "prompt"),
    ({"prompt": [1.5]}, "prompt"),
    ({"prompt": [True]}, "prompt"),
    ({"prompt": {}}, "prompt"),
    ({"prompt": ""}, "prompt"),
    ({"prompt": ["a"] * 5}, "prompt"),
    ({"prompt": [999]}, "prompt"),
    ({"prompt": [-1]}, "prompt"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"logprobs": 21}, "logprobs"),
    ({"logprobs": True}, "logprobs"),
    ({"echo": 1}, "echo"),
    ({"best_of": 1, "n": 2}, "best_of"),
    ({"best_of": 2, "stream": True}, "best_of"),
    ({"n": 100}, "n"),
    ({"best_of": 100}, "best_of"),
]


async def test_a_broken_rule_is_a_400_that_names_the_field() -> None:
    async with housing(FakeShard()) as house, house.client as client:
        for fields, param in BROKEN:
            answer = await client.post(COMPLETIONS, json={"prompt": "ab", **fields})
            error = answer.json()["error"]
            assert (answer.status_code, error["type"]) == (400, "invalid_request_error")
            assert error["param"] == param
            assert f"`{param}`" in error["message"]


@pytest.mark.parametrize("prompt", [[[5]] * 500_000, ["a"] * 500_000, [5] * 499_999 + ["a"]])
async def test_half_a_million_prompts_are_refused_quickly(prompt: Any) -> None:
    async with housing(FakeShard(), max_body_len=10**7) as house, house.client as client:
        body = json.dumps({"prompt": prompt}).encode()
        # What the tests before have left in memory is not to be searched for garbage here.
        gc.collect()
        gc.freeze()
        begun_s = process_time()
        answer = await client.post(
            COMPLETIONS, content=body, headers={"content-type": "application/json"}
        )
        took_s = process_time() - begun_s
        gc.unfreeze()

    assert answer.status_code == 400
    assert took_s < 5.0  # 0.3 s on an idle core


async def test_more_prompts_than_the_server_takes_are_refused_by_their_number() -> None:
    async with housing(FakeShard(), max_concurrent_requests=2) as house, house.client as client:
        answer = await client.post(COMPLETIONS, json={"prompt": ["ab"] * 3, "max_tokens": 1})

    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "prompt"
    assert answer.json()["error"]["message"] == (
        "`prompt` must have at most 2 prompts (--max-concurrent-requests). Given: 3"
    )


TEMPLATE = SHORT_TEMPLATE
LISTING = (
    "{% if tools %}{% endif %}{% for m in messages %}{{ m.role }}: "
    "{% if m.tool_calls %}[TOOL_CALLS][{% for c in m.tool_calls %}"
    "{% if c.id | length != 9 %}{{ raise_exception('ids have nine characters') }}{% endif %}"
    "{{ c.function | tojson }}"
    "{{ ', ' if not loop.last else '' }}{% endfor %}]{% else %}{{ m.content }}{% endif %}{{ '\n' }}"
    "{% endfor %}"
)
CITY = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}
NOTHING = {"type": "object", "properties": {}, "additionalProperties": False}
LOOK = {"type": "function", "function": {"name": "look", "parameters": CITY, "strict": True}}
WAIT = {"type": "function", "function": {"name": "wait"}}
TOOLS = [LOOK, WAIT]
ALLOWED_LOOK = AllowedTool("look", CITY, "tools[0].function.parameters")
ALLOWED_WAIT = AllowedTool("wait", NOTHING, "tools[1].function.parameters")
ROME: Call = ("look", {"city": "Rome"})


def house_of(text: str, *, template: str = TEMPLATE, checks: FakeChecks | None = None) -> Any:
    shard = FakeShard(script=saying(text, len("user: hi\n")))
    return housing(shard, templates={"default": template}, checks=checks)


async def asked(fields: dict[str, Any], template: str = TEMPLATE) -> list[Any]:
    """What the check was asked about a chat that ends at once."""
    checks = FakeChecks()
    async with house_of("x", template=template, checks=checks) as house:
        await post(house, CHAT, {"messages": HI, "max_tokens": 9, **fields})
    return checks.asked


def lark(offer: AllowedTools) -> ConstraintSpec:
    return ConstraintSpec(Kind.LARK, tool_grammar(offer, HERMES), Whitespace.OPTIONAL)


NAMED = {"type": "function", "function": {"name": "wait"}}
ALLOWED = {
    "type": "allowed_tools",
    "allowed_tools": {
        "mode": "required",
        "tools": [{"type": "function", "function": {"name": "wait"}}],
    },
}


@pytest.mark.parametrize(
    ("fields", "offer"),
    [
        ({}, AllowedTools((ALLOWED_LOOK, ALLOWED_WAIT), True, True)),
        ({"tool_choice": "auto"}, AllowedTools((ALLOWED_LOOK, ALLOWED_WAIT), True, True)),
        ({"parallel_tool_calls": False}, AllowedTools((ALLOWED_LOOK, ALLOWED_WAIT), True, False)),
        ({"tool_choice": "required"}, AllowedTools((ALLOWED_LOOK, ALLOWED_WAIT), False, True)),
        (
            {"tool_choice": "required", "parallel_tool_calls": False},
            AllowedTools((ALLOWED_LOOK, ALLOWED_WAIT), False, False),
        ),
        ({"tool_choice": NAMED}, AllowedTools((ALLOWED_WAIT,), False, False)),
        ({"tool_choice": "wait"}, AllowedTools((ALLOWED_WAIT,), False, False)),
        ({"tool_choice": ALLOWED}, AllowedTools((ALLOWED_WAIT,), False, True)),
    ],
)
async def test_tools_and_their_choice_are_one_grammar(fields: Any, offer: AllowedTools) -> None:
    *parts, (whole, stops, max_len, cuts) = await asked({"tools": TOOLS, **fields})

    assert whole == Constraint(lark(offer))
    assert (stops, max_len, cuts) == (StopRule(kept=False), 9, False)
    assert [json.loads(part.spec.text) for part, *_ in parts] == [
        tool.parameters for tool in offer.tools
    ]
    assert all(cuts for *_, cuts in parts)


SAY = {"type": "object", "properties": {"say": {"type": "string"}}}
FORM = {"type": "json_schema", "json_schema": {"name": "say", "schema": SAY}}


async def test_openai_s_form_is_that_of_an_answer_that_does_not_call() -> None:
    *parts, (whole, *_) = await asked({"tools": TOOLS, "response_format": FORM})

    assert [json.loads(part.spec.text) for part, *_ in parts] == [CITY, NOTHING, SAY]
    offer = AllowedTools((ALLOWED_LOOK, ALLOWED_WAIT), True, True)
    text = parts[-1][0].spec.text
    assert whole.spec.text == tool_grammar(offer, HERMES, text)
    *_, (alone, *_) = await asked(
        {"tools": TOOLS, "response_format": FORM, "tool_choice": "required"}
    )
    assert alone == Constraint(lark(AllowedTools((ALLOWED_LOOK, ALLOWED_WAIT), False, True)))


@pytest.mark.parametrize(
    "more", [{"whitespace": "compact"}, {"lenient": True}, {"on_budget": "cut"}]
)
async def test_a_form_that_says_more_does_not_go_with_tools(more: Any) -> None:
    async with house_of("x") as house:
        body = {"messages": HI, "tools": TOOLS, "response_format": {**FORM, **more}}
        status, error = await refuse(house, CHAT, body)

    assert (status, error["code"], error["param"]) == (422, "tool_error", "response_format")


async def test_a_form_is_streamed_as_content_beside_tools() -> None:
    text = '{"say": "<tool_call>"}'
    async with house_of(text) as house:
        body = {"messages": HI, "tools": TOOLS, "response_format": FORM, "max_tokens": 60}
        chunks = await stream(house, CHAT, body)

    assert "".join(one["delta"].get("content") or "" for one in choices_of(chunks)) == text


@pytest.mark.parametrize("fields", [{"tools": []}, {"tools": TOOLS, "tool_choice": "none"}])
async def test_without_a_tool_to_call_answers_are_free(fields: Any) -> None:
    assert await asked(fields) == []


async def test_a_tool_that_cannot_be_kept_is_refused_by_its_place() -> None:
    reason = ConstraintRefused("`not` is not enforced", "not_enforced", {"pointer": "/not"})

    def refused(constraint: Constraint) -> ConstraintRefused | None:
        return reason if "Rome" in constraint.spec.text else None

    odd = {"name": "odd", "parameters": {"not": {"const": "Rome"}}}
    tools = [WAIT, {"type": "function", "function": odd}]
    async with house_of("x", checks=FakeChecks(refused)) as house, house.client as client:
        answer = await client.post(CHAT, json={"messages": HI, "tools": tools})

    assert answer.status_code == 422
    assert answer.json()["error"] == {
        "message": "`tools[1].function.parameters`: `not` is not enforced",
        "type": "invalid_request_error",
        "param": "tools[1].function.parameters",
        "code": "not_enforced",
        "constraint": {"reason": "not_enforced", "pointer": "/not"},
    }


async def test_calls_that_do_not_fit_are_refused_with_the_numbers() -> None:
    reason = ConstraintRefused("too short", "does_not_fit", {"needed_len": 12, "max_len": 3})

    def refused(constraint: Constraint) -> ConstraintRefused | None:
        return reason if constraint.spec.kind is Kind.LARK else None

    body = {"messages": HI, "tools": TOOLS, "tool_choice": "required", "max_tokens": 3}
    async with house_of("x", checks=FakeChecks(refused)) as house, house.client as client:
        error = (await client.post(CHAT, json=body)).json()["error"]

    assert (error["param"], error["code"]) == ("tools", "does_not_fit")
    assert error["constraint"] == {"reason": "does_not_fit", "needed_len": 12, "max_len": 3}


def calls_in(message: Any) -> list[Call]:
    return [
        (call["function"]["name"], json.loads(call["function"]["arguments"]))
        for call in message["tool_calls"]
    ]


async def answer_of(house: House, **fields: Any) -> Any:
    answer = await post(house, CHAT, {"messages": HI, "tools": TOOLS, **fields})
    return answer["choices"][0]


async def test_calls_are_the_message_and_the_reason() -> None:
    async with house_of(written(HERMES, [ROME, ("wait", {})])) as house:
        choice = await answer_of(house)

    message = choice["message"]
    assert message.keys() == {"role", "content", "refusal", "tool_calls"}
    assert (message["role"], message["content"]) == ("assistant", None)
    assert calls_in(message) == [ROME, ("wait", {})]
    ids = [call["id"] for call in message["tool_calls"]]
    assert len(set(ids)) == 2
    assert all(each.startswith("call_") for each in ids)
    assert choice["finish_reason"] == "tool_calls"


async def test_text_before_the_calls_is_content() -> None:
    async with house_of(written(HERMES, [ROME], said="I look.\n")) as house:
        choice = await answer_of(house)

    assert choice["message"]["content"] == "I look."
    assert calls_in(choice["message"]) == [ROME]


async def test_an_answer_that_calls_nothing_is_text() -> None:
    async with house_of("Hello.") as house:
        choice = await answer_of(house)

    assert choice["message"] == {"role": "assistant", "content": "Hello.", "refusal": None}
    assert choice["finish_reason"] == "stop"


async def test_the_ids_are_those_that_the_template_takes() -> None:
    async with house_of(written(MISTRAL, [ROME]), template=LISTING) as house:
        choice = await answer_of(house)

    (call,) = choice["message"]["tool_calls"]
    assert len(call["id"]) == 9
    assert call["id"].isalnum()


async def test_a_call_that_is_cut_says_so() -> None:
    async with house_of(written(HERMES, [ROME])) as house:
        choice = await answer_of(house, max_tokens=50)

    (call,) = choice["message"]["tool_calls"]
    assert '{"city": "Rome"}'.startswith(call["function"]["arguments"])
    assert choice["finish_reason"] == "length"


NULLABLE = {
    "$schema": "http://json-schema.org/draft-07/schema#",
    "$ref": "#/definitions/Q",
    "definitions": {"Q": {"type": ["object", "null"]}},
}


async def test_arguments_are_objects_whatever_a_reference_leads_to() -> None:
    null = {"type": "function", "function": {"name": "null", "parameters": NULLABLE}}
    (part, *_), _ = await asked({"tools": [null]})

    schema = json.loads(part.spec.text)
    both = {"type": "object", "allOf": [{"$ref": "#/definitions/Q"}]}
    assert schema == {**NULLABLE, "$ref": "#/arguments", "arguments": both}


TWO = [ROME, ("wait", {})]
# Behind how much of an answer its tokens are used up, and what its end is called.
ENDS = [
    (written(HERMES, TWO), "tool_calls"),
    (written(HERMES, TWO).removesuffix("</tool_call>"), "length"),
    ("So, I", "length"),
]


@pytest.mark.parametrize(("text", "reason"), ENDS)
async def test_an_answer_that_ends_behind_whole_calls_is_not_cut(text: str, reason: str) -> None:
    asked = {"messages": HI, "tools": TOOLS, "max_tokens": len(text)}
    async with house_of(text + " and more") as house:
        whole = await post(house, CHAT, asked)
        chunks = await stream(house, CHAT, asked)

    assert whole["choices"][0]["finish_reason"] == reason
    assert choices_of(chunks)[-1]["finish_reason"] == reason


async def test_whole_calls_that_are_not_all_that_was_asked_for_are_cut() -> None:
    text = written(HERMES, [ROME])
    shard = FakeShard(script=saying(text + " and more", len("user: hi\n")))
    shard.followed.satisfied = False
    async with housing(shard, templates={"default": TEMPLATE}) as house:
        choice = await answer_of(house, max_tokens=len(text))

    assert (choice["finish_reason"], choice["constraint_satisfied"]) == ("length", False)


async def test_calls_are_streamed_as_they_come() -> None:
    text = written(HERMES, [ROME, ("wait", {})], said="So.")
    async with house_of(text) as house:
        chunks = await stream(house, CHAT, {"messages": HI, "tools": TOOLS})

    first, *choices, last = choices_of(chunks)
    assert first["delta"] == {"role": "assistant", "content": None, "refusal": None}
    assert text_of(chunks[1:]) == "So."
    deltas = [c["delta"]["tool_calls"][0] for c in choices if "tool_calls" in c["delta"]]
    begun = [delta for delta in deltas if "id" in delta]
    assert [(each["index"], each["type"], each["function"]) for each in begun] == [
        (0, "function", {"name": "look", "arguments": ""}),
        (1, "function", {"name": "wait", "arguments": ""}),
    ]
    for index, arguments in ((0, '{"city": "Rome"}'), (1, "{}")):
        pieces = [d["function"]["arguments"] for d in deltas if d["index"] == index]
        assert "".join(pieces) == arguments
        assert len(pieces) > len(arguments)
    assert (last["delta"], last["finish_reason"]) == ({}, "tool_calls")


async def test_log_probabilities_come_once_for_each_token_of_a_call() -> None:
    text = written(HERMES, [ROME])
    async with house_of(text) as house:
        fields = {"messages": HI, "tools": TOOLS, "logprobs": True, "return_token_ids": True}
        chunks = await stream(house, CHAT, fields)
        whole = await post(house, CHAT, fields)

    choices = choices_of(chunks)
    entries = [e for c in choices if c["logprobs"] for e in c["logprobs"]["content"]]
    assert entries == whole["choices"][0]["logprobs"]["content"]
    ids = [token_id for c in choices for token_id in c.get("token_ids", [])]
    assert ids == whole["choices"][0]["token_ids"]


@pytest.mark.parametrize("prompt", [None, "Say it."])
async def test_a_template_without_tools_gets_them_behind_the_last_words(prompt: str | None) -> None:
    plain = "{% for m in messages %}{{ m.content }}{% endfor %}"
    wait = {"type": "function", "function": {"name": "w"}}
    body = {"messages": HI, "tools": [wait], "tool_prompt": prompt}
    async with house_of("x", template=plain) as house, house.client as client:
        answer = await client.post("/chat_tokenize", json=body)

    said = prompt or f"To call one of these functions, answer with {GENERIC_CALLS.example}"
    assert answer.json()["templated_text"] == (
        'hi\n---\n[{"type":"function","function":{"name":"w"}}]\n' + said
    )


async def test_a_loop_with_such_tools_goes_on_in_the_form_that_the_prompt_tells_of() -> None:
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    called = {"role": "assistant", "content": None, "tool_calls": [call]}
    result = {"role": "tool", "tool_call_id": "a", "content": "42"}
    prompts: list[str] = []
    async with housing(FakeShard(), templates={"default": SAID}) as house, house.client as client:
        for messages in (HI, [*HI, called, result]):
            body = {"messages": messages, "tools": [TOOL]}
            answer = await client.post("/chat_tokenize", json=body)
            prompts.append(answer.json()["templated_text"])

    first, second = prompts
    assert GENERIC_CALLS.example in first
    # What was said stays as it was: the prefix cache has it.
    assert second == first + (
        'assistant:<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>;tool:42;'
    )


async def test_a_server_that_takes_no_grammar_takes_no_tools_either() -> None:
    async with housing(FakeShard(), templates={"default": TEMPLATE}, takes_grammars=False) as house:
        status, error = await refuse(house, CHAT, {"messages": HI, "tools": TOOLS})

    assert (status, error["param"]) == (400, "tools")
    assert error["message"] == "grammar is not supported"


TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
SAID = "{% for m in messages %}{{ m.role }}:{{ m.content }};{% endfor %}"
ALL = (
    SAID + "{{ tools | tojson if tools }}{{ reasoning_effort }}{{ thinking }}"
    "{% for d in documents or [] %}[{{ d.text }}]{% endfor %}"
)


async def prompt_of(templates: dict[str, str], **fields: Any) -> str:
    """The prompt that the model reads."""
    async with housing(FakeShard(), templates=templates) as house:
        body = {"messages": HI, "max_tokens": 1, "return_token_ids": True, **fields}
        answer = await post(house, CHAT, body)
    return bytes(token_id - byte_ids("\0")[0] for token_id in answer["prompt_token_ids"]).decode()


async def test_tools_that_may_not_be_called_are_shown() -> None:
    prompt = await prompt_of({"default": ALL}, tools=[TOOL], tool_choice="none")

    assert prompt == (
        'user:hi;[{"type": "function", '
        '"function": {"name": "f", "parameters": {"type": "object"}}}]'
    )


async def test_arguments_are_shown_as_parameters() -> None:
    tool = {"type": "function", "function": {"name": "f", "arguments": {"type": "object"}}}
    prompt = await prompt_of({"default": ALL}, tools=[tool], tool_choice="none")

    assert '"function": {"parameters": {"type": "object"}, "name": "f"}' in prompt


async def test_the_template_for_tools_is_taken_when_there_are_some() -> None:
    templates = {"default": "plain", "tool_use": "{{ tools | length }} tools"}

    assert await prompt_of(templates, tools=[TOOL], tool_choice="none") == "1 tools"
    assert await prompt_of(templates, tools=[]) == "plain"


async def test_a_template_is_chosen_by_name() -> None:
    templates = {"default": "plain", "rag": "{% for d in documents %}{{ d.text }}{% endfor %}"}
    documents = [{"title": "a", "text": "first"}]

    assert await prompt_of(templates, chat_template="rag", documents=documents) == "first"
    async with housing(FakeShard(), templates=templates) as house:
        status, error = await refuse(house, CHAT, {"messages": HI, "chat_template": "no"})
    assert (status, error["param"]) == (400, "chat_template")
    assert "default, rag" in error["message"]


async def test_variables_reach_the_template() -> None:
    prompt = await prompt_of(
        {"default": ALL},
        chat_template_kwargs={"thinking": "T", "read_by_no_one": 1},
        reasoning_effort="low",
        documents=[{"text": "D"}],
    )

    assert prompt == "user:hi;lowT[D]"


async def test_a_developer_speaks_as_the_system() -> None:
    messages = [{"role": "developer", "content": "be brief"}, *HI]

    assert await prompt_of({"default": SAID}, messages=messages) == "system:be brief;user:hi;"


async def test_calls_and_their_results_are_shown() -> None:
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}
    messages = [
        *HI,
        {"role": "assistant", "content": None, "tool_calls": [call], "refusal": None},
        {"role": "tool", "tool_call_id": "a", "content": [{"type": "text", "text": "42"}]},
    ]
    source = (
        "{% for m in messages %}{{ m.role }}:"
        "{% if m.tool_calls %}{% for c in m.tool_calls %}{{ c.id }} {{ c.function.name }} "
        "{{ c.function.arguments | tojson }}{% endfor %}"
        "{% else %}{{ m.content }}{{ m.tool_call_id }}{% endif %};{% endfor %}"
    )

    assert await prompt_of({"default": source}, messages=messages) == (
        'user:hi;assistant:a f {"x": 1};tool:42a;'
    )


async def test_calls_at_the_end_are_not_continued() -> None:
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    messages = [*HI, {"role": "assistant", "content": "so", "tool_calls": [call]}]

    prompt = await prompt_of({"default": SAID}, messages=messages)
    assert prompt.startswith('user:hi;assistant:so\n<tool_call>\n{"name": "f"')
    assert prompt.endswith(";")


async def test_a_refusal_is_what_the_assistant_said() -> None:
    messages = [*HI, {"role": "assistant", "content": None, "refusal": "no"}, *HI]

    assert await prompt_of({"default": SAID}, messages=messages) == (
        "user:hi;assistant:no;user:hi;"
    )


@pytest.mark.parametrize(("adds", "before"), [(None, []), (False, []), (True, [])])
async def test_special_tokens_are_the_template_s_to_add(adds: Any, before: list[int]) -> None:
    """The byte tokenizer adds none of its own; the template's are read as such."""
    async with housing(FakeShard(), templates={"default": "{{ bos_token }}x"}) as house:
        body = {"messages": HI, "max_tokens": 1, "return_token_ids": True}
        answer = await post(house, CHAT, {**body, "add_special_tokens": adds})

    assert answer["prompt_token_ids"] == [*before, BOS_ID, *byte_ids("x")]
