"""/v1/messages: Anthropic's shapes, whole and streamed."""

from typing import Any

import pytest

from tests.fake_script import saying
from tests.fakes import FakeShard
from tests.router.http.anthropic.asking import (
    HI,
    PATH,
    PROMPT,
    first_request,
    post,
    prompt_of,
    saying_after_hi,
    stream,
    text_of,
)
from tests.router.http.harness import (
    SEED,
    housing,
)


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
