"""SCORE: one continuation token by token, or many in one message."""

from typing import Any

import pytest

from tests.byte_tokenizer import BOS_ID, byte_ids
from tests.fakes import FakeShard
from tests.router.http.lmtp.talking import served, talking


def logprobs(token_ids: list[int]) -> list[float]:
    """What a FakeShard says of prompt tokens."""
    return [-(1 + token_id % 8) / 8 for token_id in token_ids]


async def test_one_continuation_is_answered_token_by_token() -> None:
    async with served(FakeShard()) as (_, port), talking(port, "/") as talk:
        messages = await talk.ask(
            "SCORE", 3, model="model", prompt=byte_ids("Once"), scored=byte_ids("abc")
        )

    assert [command for command, _ in messages] == ["TOKEN"] * 3
    assert [fields["token"] for _, fields in messages] == byte_ids("abc")
    assert [fields["logprob"] for _, fields in messages] == logprobs(byte_ids("abc"))
    assert [fields["finish_reason"] for _, fields in messages] == [None, None, "stop"]
    assert all("top_logprobs" not in fields for _, fields in messages)


async def test_of_the_first_token_of_all_nothing_is_known() -> None:
    async with served(FakeShard()) as (_, port), talking(port, "/") as talk:
        messages = await talk.ask("SCORE", prompt=[], scored=byte_ids("ab"))

    assert [fields["logprob"] for _, fields in messages] == [0.0, *logprobs(byte_ids("b"))]


@pytest.mark.parametrize("values", [["abc", "d", " ef"], [byte_ids("abc"), byte_ids("d")]])
async def test_many_continuations_come_in_one_message(values: list[Any]) -> None:
    async with served(FakeShard()) as (_, port), talking(port) as talk:
        await talk.hello()
        messages = await talk.ask("SCORE", text="Once", scored=values)

    ids = [byte_ids(value) if isinstance(value, str) else value for value in values]
    assert messages[0][0] == "SCORES"
    assert messages[0][1]["scores"] == [
        {"tokens": each, "logprobs": logprobs(each)} for each in ids
    ]
    assert messages[0][1]["usage"] == {
        "prompt_tokens": sum(4 + len(each) for each in ids),
        "cached_tokens": messages[0][1]["usage"]["cached_tokens"],
        "output_tokens": 0,
    }


async def test_more_continuations_than_the_server_takes_at_once_come_in_their_order() -> None:
    values = [chr(97 + index % 26) * (1 + index % 3) for index in range(100)]
    shard = FakeShard(num_blocks=512)
    async with served(shard, max_concurrent_requests=32) as (_, port), talking(port) as talk:
        await talk.hello()
        messages = await talk.ask("SCORE", text="Once upon a time", scored=values)

    assert [each["tokens"] for each in messages[0][1]["scores"]] == [
        byte_ids(each) for each in values
    ]


async def test_a_long_prompt_is_computed_once() -> None:
    shard = FakeShard(num_blocks=256)
    async with served(shard, max_concurrent_requests=32) as (_, port), talking(port) as talk:
        await talk.hello()
        messages = await talk.ask("SCORE", text="x" * 100, scored=["a", "b", "c", "d"])

    usage = messages[0][1]["usage"]
    assert usage["prompt_tokens"] - usage["cached_tokens"] <= 101 + 3 * (1 + shard.block_size)


async def test_an_empty_text_is_scored_behind_the_beginning() -> None:
    shard = FakeShard()
    async with served(shard) as (_, port), talking(port) as talk:
        await talk.hello()
        messages = await talk.ask("SCORE", text="", scored=["ab"])

    prefill = next(call for method, call in shard.calls if method == "Prefill")
    assert list(prefill.batch.requests[0].token_ids) == [BOS_ID, *byte_ids("ab")]
    assert messages[0][1]["scores"][0]["logprobs"] == logprobs(byte_ids("ab"))


WRONG: list[tuple[Any, ...]] = [
    ({"scored": []}, "scored", "empty"),
    ({"scored": [[]]}, "scored", "empty"),
    ({"scored": [""]}, "scored", "empty"),
    ({"scored": ["a", [3]]}, "scored", "must be a list"),
    ({"scored": "abc"}, "scored", "must be a list"),
    ({"scored": [1.5]}, "scored", "must be a list"),
    ({"scored": [[True]]}, "scored", "must be a list"),
    ({}, "scored", "required"),
    ({"scored": [258]}, "scored", "between 0 and 257"),
    ({"scored": [3] * 120}, "scored", "at most 120"),
    ({"scored": [3] * 160}, "scored", "at most 120"),
    ({"scored": [258]}, "scored", "Given: 258"),
    ({"prompt": [2**64 - 1], "scored": [5]}, "prompt", "Given: 18446744073709551615"),
    ({"prompt": [7, -1], "scored": [999]}, "prompt", "between 0 and 257. Given: -1"),
    ({"prompt": [7] * 161, "scored": [5]}, "prompt", "at most 160 tokens. Given: 161"),
    ({"scored": ["a"], "prompt": None}, "prompt", "required"),
    ({"scored": ["a"], "model": "another"}, "model", "does not exist"),
    ({"scored": ["a"] * 4097}, "scored", "at most 4096"),
]


async def test_a_wrong_request_is_refused_by_its_field() -> None:
    async with served(FakeShard()) as (_, port), talking(port, "/") as talk:
        for fields, field, words in WRONG:
            error = await talk.error("SCORE", **{"prompt": byte_ids("Once"), **fields})
            assert error["field"] == field
            assert words in error["error"]


async def test_a_time_that_is_over_ends_a_score_by_an_error_of_its_own() -> None:
    shard = FakeShard()
    shard.faults.delay_s = 0.5
    async with served(shard, max_duration_s=0.2) as (_, port), talking(port) as talk:
        await talk.hello()
        error = await talk.error("SCORE", text="Once", scored=["a", "b"])

    assert (error["error_type"], error["retryable"]) == ("deadline", True)
    assert "before all values were scored" in error["error"]


async def test_a_server_of_few_slots_scores_more_values_than_it_has() -> None:
    async with served(FakeShard(), max_concurrent_requests=4) as (_, port), talking(port) as talk:
        await talk.hello()
        messages = await talk.ask("SCORE", text="Once", scored=list("abcdef"))

    assert [each["tokens"] for each in messages[0][1]["scores"]] == [byte_ids(c) for c in "abcdef"]
