"""/v1/responses: OpenAI's newest shapes, whole."""

from typing import Any
from unittest.mock import ANY

import pytest

from tests.checks import FakeChecks
from tests.fakes import FakeShard
from tests.router.http.harness import SEED, housing
from tests.router.http.responses.asking_responses import (
    first_request,
    post,
    prompt_of,
    saying_after_hi,
    text_of,
)


async def test_an_answer_is_a_whole_response() -> None:
    async with housing(saying_after_hi("hello")) as house:
        answer = await post(house)

    assert answer.pop("id").startswith("resp_")
    assert answer["output"][0].pop("id").startswith("msg_")
    created_s = answer.pop("created_at")
    completed_s = answer.pop("completed_at")
    assert 1_700_000_000 < created_s <= completed_s
    part = {"type": "output_text", "text": "hello", "annotations": [], "logprobs": []}
    assert answer == {
        "object": "response",
        "status": "completed",
        "background": False,
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "max_output_tokens": None,
        "max_tool_calls": None,
        "model": "fake/model",
        "output": [
            {"type": "message", "status": "completed", "role": "assistant", "content": [part]}
        ],
        "parallel_tool_calls": True,
        "previous_response_id": None,
        "prompt_cache_key": None,
        "prompt_cache_retention": None,
        "reasoning": {"effort": None, "summary": None},
        "safety_identifier": None,
        "service_tier": "default",
        "store": True,
        "temperature": 1.0,
        "text": {"format": {"type": "text"}, "verbosity": "medium"},
        "tool_choice": "auto",
        "tools": [],
        "top_logprobs": 0,
        "top_p": 1.0,
        "truncation": "disabled",
        "usage": {
            "input_tokens": 9,
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens": 6,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": 15,
            "work_details": ANY,
        },
        "user": None,
        "metadata": {},
    }


async def test_what_was_asked_for_is_told_back() -> None:
    asked = {
        "instructions": "be kind",
        "max_output_tokens": 7,
        "max_tool_calls": 3,
        "metadata": {"purpose": "none"},
        "model": "model",
        "parallel_tool_calls": False,
        "prompt_cache_key": "key",
        "safety_identifier": "somebody",
        "store": False,
        "temperature": 0.5,
        "tool_choice": "none",
        "top_logprobs": 2,
        "top_p": 0.25,
        "truncation": "auto",
        "user": "you",
    }
    async with housing(FakeShard()) as house:
        answer = await post(house, **asked)

    assert {field: answer[field] for field in asked} == asked


async def test_an_answer_that_is_cut_is_incomplete() -> None:
    async with housing(saying_after_hi("hello")) as house:
        answer = await post(house, max_output_tokens=3)

    assert (answer["status"], answer["completed_at"]) == ("incomplete", None)
    assert answer["incomplete_details"] == {"reason": "max_output_tokens"}
    assert answer["output"][0]["status"] == "incomplete"
    assert text_of(answer) == "hel"


@pytest.mark.parametrize(("of_the_server_s", "of_the_request_s"), [(1.5, None), (None, 1.5)])
async def test_a_deadline_leaves_a_response_incomplete(
    of_the_server_s: float | None, of_the_request_s: float | None
) -> None:
    shard = saying_after_hi("a" * 60)
    shard.faults.delay_s = 0.05
    async with housing(shard, max_duration_s=of_the_server_s) as house:
        answer = await post(house, max_time=of_the_request_s)

    assert answer["status"] == "incomplete"
    assert answer["incomplete_details"] == {"reason": "deadline"}
    assert 0 < len(text_of(answer)) < 60


async def test_cached_tokens_are_told_of() -> None:
    async with housing(saying_after_hi("ok")) as house:
        await post(house)
        answer = await post(house)

    assert answer["usage"]["input_tokens_details"]["cached_tokens"] == 8


PARTS = [{"type": "input_text", "text": "h"}, {"type": "input_text", "text": "i"}]


@pytest.mark.parametrize(
    ("given", "prompt"),
    [
        ("hi", "user: hi\n"),
        ([{"role": "user", "content": "hi"}], "user: hi\n"),
        ([{"type": None, "id": None, "role": "user", "content": "hi"}], "user: hi\n"),
        ([{"type": "message", "role": "user", "content": PARTS}], "user: hi\n"),
        (
            [{"role": "developer", "content": "be kind"}, {"role": "user", "content": "hi"}],
            "system: be kind\nuser: hi\n",
        ),
        (
            [
                {"role": "user", "content": "hi"},
                {
                    "id": "msg_1",
                    "type": "message",
                    "role": "assistant",
                    "status": "completed",
                    "content": [{"type": "output_text", "text": "ho", "annotations": []}],
                },
                {"role": "user", "content": "so?"},
            ],
            "user: hi\nassistant: ho\nuser: so?\n",
        ),
    ],
)
async def test_input_is_a_text_or_a_list_of_messages(given: Any, prompt: str) -> None:
    async with housing(FakeShard()) as house:
        await post(house, given, max_output_tokens=1)

        assert prompt_of(house) == prompt


async def test_instructions_come_first() -> None:
    async with housing(FakeShard()) as house:
        await post(house, instructions="be kind", max_output_tokens=1)

        assert prompt_of(house) == "system: be kind\nuser: hi\n"


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
            logit_bias={"5": 2},
            seed=11,
            max_output_tokens=4,
            ignore_eos=True,
        )
        request = first_request(house)

    sampling = request.sampling
    stopping = request.stopping
    assert (sampling.temperature, sampling.top_p, sampling.top_k) == (0.5, 0.75, 9)
    assert (sampling.min_p, sampling.repetition_penalty, sampling.seed) == (0.125, 1.5, 11)
    assert (sampling.presence_penalty, sampling.frequency_penalty) == (0.5, -0.5)
    assert dict(sampling.logit_bias) == {5: 2.0}
    assert (stopping.max_new_tokens, stopping.ignore_eos) == (4, True)


@pytest.mark.parametrize(
    ("fields", "samples"), [({}, True), ({"temperature": 0, "top_k": 5, "top_p": 0.5}, False)]
)
async def test_sampling_is_the_default_and_temperature_0_is_greedy(
    fields: Any, samples: bool
) -> None:
    async with housing(FakeShard()) as house:
        await post(house, max_output_tokens=1, **fields)
        sampling = first_request(house).sampling

    assert sampling.do_sample is samples
    assert sampling.seed == (SEED if samples else 0)


async def test_a_stop_string_is_dropped() -> None:
    async with housing(saying_after_hi("hello you")) as house:
        answer = await post(house, stop="llo")

    assert (text_of(answer), answer["status"]) == ("he", "completed")


async def test_logprobs_are_told_when_they_are_included() -> None:
    entry = {
        "token": "o",
        "logprob": -0.25,
        "bytes": [111],
        "top_logprobs": [
            {"token": "o", "logprob": -0.25, "bytes": [111]},
            {"token": "p", "logprob": -1.25, "bytes": [112]},
        ],
    }
    include = ["message.output_text.logprobs"]
    async with housing(saying_after_hi("ok")) as house:
        answer = await post(house, include=include, top_logprobs=2, max_output_tokens=1)
        bare = await post(house, include=include, max_output_tokens=1)

        assert first_request(house).logprobs.raw

    assert answer["output"][0]["content"][0]["logprobs"] == [entry]
    assert bare["output"][0]["content"][0]["logprobs"] == [{**entry, "top_logprobs": []}]


async def test_settings_that_the_template_reads_are_obeyed() -> None:
    template = "{{ messages[0].content }} {{ reasoning_effort }} {{ verbosity }}"
    async with housing(FakeShard(), templates={"default": template}) as house:
        answer = await post(house, reasoning={"effort": "high"}, text={"verbosity": "low"})

        assert prompt_of(house) == "hi high low"

    assert answer["reasoning"] == {"effort": "high", "summary": None}
    assert answer["text"] == {"format": {"type": "text"}, "verbosity": "low"}


@pytest.mark.parametrize(
    "fields",
    [
        {"background": False, "context_management": [], "tools": []},
        {"include": ["reasoning.encrypted_content"]},
        {"prompt_cache_options": {"mode": "implicit", "ttl": "30m"}},
        {"prompt_cache_retention": "24h", "service_tier": "flex"},
        {"reasoning": {"effort": "none", "summary": None}},
        {"stream_options": {"include_obfuscation": False}},
        {"text": {"format": {"type": "text"}, "verbosity": "medium"}},
        {"conversation": None, "text": None, "reasoning": None, "prompt": None},
    ],
)
async def test_hints_and_nulls_change_nothing(fields: Any) -> None:
    async with housing(saying_after_hi("ok")) as house:
        assert text_of(await post(house, **fields)) == "ok"


JSON_OF_A = {"type": "json_schema", "name": "a", "schema": {"type": "object"}, "strict": True}


@pytest.mark.parametrize(
    ("form", "schema"),
    [
        ({"type": "json_object"}, '{"type":"object"}'),
        (JSON_OF_A, '{"type":"object"}'),
    ],
)
async def test_a_format_is_a_constraint_and_told_back(form: Any, schema: str) -> None:
    checks = FakeChecks()
    async with housing(saying_after_hi("{}"), checks=checks) as house:
        answer = await post(house, text={"format": form})

    assert [constraint.spec.text for constraint, *_ in checks.asked] == [schema]
    assert answer["text"]["format"] == form
