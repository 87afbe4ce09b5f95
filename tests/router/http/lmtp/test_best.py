"""BEST over a router with a fake shard: what is asked, what is told, what is left behind.

The fake's alternatives of a token are the ids behind it, each less probable by 1 than the one
before. See also `tests/router/engine/beam_search/test_best_first.py`.
"""

import asyncio
from typing import Any

import grpc
import pytest

from router.request.errors import ConstraintRefused
from tests.byte_tokenizer import EOS_ID, byte_ids
from tests.checks import FakeChecks
from tests.fakes import FakeShard, saying
from tests.router.http.lmtp.talking import Talk, served, talking
from tests.router.rig import settled

PROMPT = "Once"
NEVER = 10**6


def slow() -> FakeShard:
    shard = FakeShard(num_blocks=512)
    shard.faults.delay_s = 0.01
    return shard


def hole(**more: Any) -> dict[str, Any]:
    return {"text": PROMPT, "max_tokens": 3, "is_last": True} | more


async def searched(talk: Talk, stream_id: int = 1, **fields: Any) -> dict[str, Any]:
    """The end of a search, whatever was reported before."""
    await talk.say("BEST", stream_id=stream_id, **fields)
    return await ended(talk)


async def ended(talk: Talk) -> dict[str, Any]:
    while (said := await talk.hear())[0] != "DONE":
        assert "error" not in said[1], said
    return said[1]


def going_on(told: dict[str, Any]) -> list[dict[str, Any]]:
    """What an answer left, as another request sends it."""
    return [beam for beam in told["beams"] if "is_ended" not in beam]


async def test_a_last_hole_is_searched_to_its_end_by_one_request() -> None:
    async with served(FakeShard()) as (house, port), talking(port) as talk:
        await talk.hello()
        done = await searched(talk, k=3, holes=[hole()])
        await settled(house.rig)
        num_requests = house.rig.metrics.request_count.value()

    logprobs = [each["logprob"] for each in done["ended"]]
    assert done["finish_reason"] == "complete"
    assert logprobs == sorted(logprobs, reverse=True)
    assert len(logprobs) == 3
    assert [len(each["output"]) for each in done["ended"]] == [3, 3, 3]
    assert [byte_ids(each["text"]) for each in done["ended"]] == [
        each["output"] for each in done["ended"]
    ]
    assert num_requests == 1


async def test_a_hole_with_others_behind_it_is_given_back_with_all_that_may_go_on() -> None:
    async with served(FakeShard()) as (house, port), talking(port) as talk:
        await talk.hello()
        whole = await searched(talk, k=3, holes=[hole()])
        first = await searched(talk, 2, k=3, holes=[hole(is_last=False)])
        # As if the program had ended behind those that have ended.
        filled = [beam["logprob"] for beam in first["beams"] if "is_ended" in beam]
        rest = await searched(talk, 3, k=3, holes=[hole()], beams=going_on(first), ended=filled)
        await settled(house.rig)

    assert first["finish_reason"] == "hole"
    assert (first["beams"][0]["is_ended"], first["ended"]) == (True, [])
    assert first["beams"][0]["output"] == whole["ended"][0]["output"]
    found = [*filled, *(each["logprob"] for each in rest["ended"])]
    # Many traces of the fake are equally probable.
    assert sorted(found, reverse=True)[:3] == [each["logprob"] for each in whole["ended"]]
    assert rest["finish_reason"] == "complete"


async def test_a_search_stops_where_what_its_client_kept_is_to_go_on() -> None:
    async with served(FakeShard()) as (_, port), talking(port) as talk:
        await talk.hello()
        whole = await searched(talk, k=1, holes=[hole()])
        done = await searched(talk, 2, k=1, holes=[hole()], bound=-1e-6)

    assert (whole["finish_reason"], done["finish_reason"]) == ("complete", "hole")
    assert done["ended"] == []
    assert done["usage"]["output_tokens"] == 1


async def test_a_budget_ends_a_search_with_what_is_best_of_the_rest() -> None:
    async with served(FakeShard()) as (house, port), talking(port) as talk:
        await talk.hello()
        done = await searched(talk, k=2, holes=[hole(max_tokens=50)], budget=20)
        await settled(house.rig)

    logprobs = [beam["logprob"] for beam in done["beams"]]
    assert (done["finish_reason"], done["ended"]) == ("budget", [])
    assert done["usage"]["output_tokens"] == 20
    assert logprobs == sorted(logprobs, reverse=True)
    assert len(logprobs) == 64


async def test_endings_are_judged_though_no_token_may_be_asked_for() -> None:
    whole = byte_ids("abc")
    nodes = [
        {"output": whole, "logprob": -1.0, "num_tokens": 3, "ended_by": "length"},
        {"output": whole[:2], "logprob": -2.0, "num_tokens": 3, "ended_by": "token"},
    ]
    async with served(FakeShard()) as (_, port), talking(port) as talk:
        await talk.hello()
        done = await searched(talk, k=2, budget=0, holes=[hole()], beams=nodes)

    assert [(each["text"], each["logprob"]) for each in done["ended"]] == [
        ("abc", -1.0),
        ("ab", -2.0),
    ]
    assert done["usage"]["output_tokens"] == 0


async def test_phrases_and_end_tokens_end_holes() -> None:
    stops = saying("up.x", len(PROMPT))
    async with served(FakeShard(script=stops)) as (_, port), talking(port) as talk:
        await talk.hello()
        cut = hole(stop=["."], include_stop=False, max_tokens=9)
        dropped = await searched(talk, k=1, holes=[cut])
    async with (
        served(FakeShard(script=saying("hi", len(PROMPT)))) as (_, port),
        talking(port) as talk,
    ):
        await talk.hello()
        by_token = await searched(talk, k=1, holes=[hole(max_tokens=9)])

    assert [(each["text"], each["num_tokens"]) for each in dropped["ended"]] == [("up", 3)]
    assert [(each["text"], each["num_tokens"]) for each in by_token["ended"]] == [("hi", 3)]
    assert EOS_ID not in by_token["ended"][0]["output"]


async def test_holes_that_nothing_can_fill_are_dropped_with_the_reason() -> None:
    def refuse(constraint: object) -> ConstraintRefused:
        return ConstraintRefused("no text is one", "does_not_fit")

    impossible = hole(constraint={"type": "choice", "value": ["abcdefgh"]})
    checks = FakeChecks(refuse=refuse)
    async with served(FakeShard(), checks=checks) as (_, port), talking(port) as talk:
        await talk.hello()
        beams = [{"hole": 0}, {"hole": 1}]
        done = await searched(talk, k=2, holes=[impossible, hole()], beams=beams)
        none = await searched(talk, 2, k=2, holes=[impossible])

    (dropped,) = done["dropped"]
    assert (dropped["hole"], dropped["details"]["reason"]) == (0, "does_not_fit")
    assert {each["hole"] for each in done["ended"]} == {1}
    assert (none["finish_reason"], none["ended"], len(none["dropped"])) == ("complete", [], 1)


@pytest.mark.parametrize(
    ("fields", "field", "sentence"),
    [
        ({"k": 0}, "k", "must be greater than or equal to 1"),
        ({"k": 4097}, "k", "must be less than or equal to 4096"),
        ({"width": 10**4}, "width", "(--max-beams). Given: 10000"),
        ({"budget": -1}, "budget", "must be greater than or equal to 0"),
        ({"num_alternatives": 257}, "num_alternatives", "must be less than or equal to 256"),
        ({"holes": []}, "holes", "must have at least 1 item"),
        ({"holes": [hole(), hole()]}, "holes", "at most as many as `beams`, which are 1"),
        ({"beams": [{}] * 4097}, "beams", "must be at most 4096. Given: 4097"),
        ({"beams": [{"hole": 1}]}, "beams[0].hole", "must be less than 1"),
        ({"beams": [{"output": [EOS_ID]}]}, "beams[0].output", "has not ended"),
        ({"beams": [{"output": [1, 2, 3]}]}, "beams[0].output", "must have fewer tokens"),
        ({"beams": [{"ended_by": "fate"}]}, "beams[0].ended_by", "'token' or 'length'"),
        ({"beams": [{"ended_by": "length"}]}, "beams[0].output", "the token that ended it"),
        ({"beams": [{"known": [1, "a"]}]}, "beams[0].known", "must be a list of token ids"),
        ({"beams": [{"known": [0] * 513}]}, "beams[0].known", "at most 512 token ids"),
        ({"holes": [hole(max_tokens=0)]}, "holes[0].max_tokens", "`holes[0]`: `max_tokens` must"),
        ({"model": "another"}, "model", "does not exist"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
async def test_what_is_wrong_with_a_group_is_said(
    fields: dict[str, Any], field: str, sentence: str
) -> None:
    async with served(FakeShard()) as (_, port), talking(port) as talk:
        await talk.hello()
        group: dict[str, Any] = {"k": 2, "holes": [hole()]} | fields
        told = await talk.error("BEST", **group)

    assert (told["field"], told["retryable"]) == (field, False)
    assert sentence in told["error"]


async def test_a_search_takes_its_slots_until_it_is_cancelled() -> None:
    async with (
        served(slow(), max_concurrent_requests=4) as (house, port),
        talking(port) as talk,
    ):
        await talk.hello()
        endless = {"k": 9, "budget": NEVER, "holes": [hole(max_tokens=60)]}
        await talk.say("BEST", stream_id=1, width=3, report_s=0, **endless)
        command, report = await talk.hear()
        other = {"k": 1, "width": 2, "holes": [hole()]}
        await talk.say("BEST", stream_id=2, **other)
        while (said := await talk.hear())[1]["stream_id"] != 2:
            pass
        await talk.say("CANCEL", stream_id=1)
        cancelled = await ended(talk)
        done = await searched(talk, 3, **other)
        # Without a width it takes what there is.
        alone = await searched(talk, 4, k=1, holes=[hole()])
        await settled(house.rig)
        assert house.rig.batcher.slots.num_taken == 0

    assert command == "BEAMS"
    assert byte_ids(report["beams"][0]["text"]) == report["beams"][0]["output"] != []
    assert (said[1]["error_type"], said[1]["retryable"]) == ("overloaded", True)
    assert (cancelled["stream_id"], cancelled["finish_reason"]) == (1, "cancelled")
    assert len(cancelled["beams"]) > 3
    assert done["ended"] == alone["ended"] != []


async def test_a_search_ends_with_its_socket() -> None:
    async with served(slow()) as (house, port):
        async with talking(port) as talk:
            await talk.hello()
            endless = {"k": 9, "budget": NEVER, "holes": [hole(max_tokens=100)]}
            await talk.say("BEST", stream_id=1, report_s=0, **endless)
            await talk.hear()
        await asyncio.sleep(0.1)
        await settled(house.rig)
        assert house.rig.batcher.slots.num_taken == 0


async def test_a_deadline_ends_a_search_where_it_stands() -> None:
    async with served(slow()) as (house, port), talking(port) as talk:
        await talk.hello()
        holes = [hole(max_tokens=100)]
        done = await searched(talk, k=2, budget=NEVER, holes=holes, timeout_s=0.2)
        await settled(house.rig)

    assert (done["finish_reason"], done["ended"]) == ("deadline", [])
    assert len(done["beams"]) > 8


async def test_a_step_that_the_shards_fail_is_made_again() -> None:
    shard = FakeShard()
    async with served(shard) as (house, port), talking(port) as talk:
        await talk.hello()
        whole = await searched(talk, k=2, holes=[hole()])
        shard.faults.fails.append(("Prefill", grpc.StatusCode.INTERNAL, "a cosmic ray"))
        again = await searched(talk, 2, k=2, holes=[hole()])
        await settled(house.rig)

    assert again["ended"] == whole["ended"]
    assert not shard.faults.fails


async def test_shards_that_keep_failing_fail_a_search_by_a_typed_error() -> None:
    shard = FakeShard()
    async with served(shard) as (house, port), talking(port) as talk:
        await talk.hello()
        for _ in range(9):
            shard.faults.fails.append(("Prefill", grpc.StatusCode.INTERNAL, "a broken wire"))
        told = await talk.error("BEST", k=2, holes=[hole()])
        shard.faults.fails.clear()
        await settled(house.rig)
        done = await searched(talk, 2, k=2, holes=[hole()])
        assert house.rig.batcher.slots.num_taken == 0

    assert (told["error_type"], told["retryable"]) == ("generation", True)
    assert len(done["ended"]) == 2
