"""BEAMS: a search over the wire, and the reading of its frame."""

import asyncio
import logging
from typing import Any

import grpc
import pytest

from constraints.spec import StopRule, ThoughtRule
from router.request.errors import ConstraintRefused
from router.request.request import NO_KEY, ApiKey, Constraint
from tests.byte_tokenizer import EOS_ID, byte_ids
from tests.checks import FakeChecks
from tests.fake_script import saying
from tests.fakes import FakeShard
from tests.router.http.lmtp.talking import Message, Talk, complaints, served, talking
from tests.router.rig import settled

PROMPT = "Once"


def slow() -> FakeShard:
    shard = FakeShard(num_blocks=512)
    shard.faults.delay_s = 0.01
    return shard


def hole(**more: Any) -> dict[str, Any]:
    return {"text": PROMPT, "max_tokens": 3, "is_last": True} | more


async def searched(talk: Talk, stream_id: int = 1, **fields: Any) -> dict[str, Any]:
    """The end of a search."""
    messages = await talk.ask("BEAMS", stream_id, **fields)
    command, fields = messages[-1]
    assert command == "DONE", fields
    return fields


async def test_a_last_hole_is_searched_to_its_end_by_one_request() -> None:
    async with served(FakeShard()) as (house, port), talking(port) as talk:
        await talk.hello()
        done = await searched(talk, width=2, holes=[hole()])
        await settled(house.rig)
        num_requests = house.rig.metrics.request_count.value()

    assert done["finish_reason"] == "complete"
    assert len(done["ended"]) == 2
    best, second = done["ended"]
    assert best["logprob"] > second["logprob"]
    assert [len(each["output"]) for each in done["ended"]] == [3, 3]
    assert [byte_ids(each["text"]) for each in done["ended"]] == [
        each["output"] for each in done["ended"]
    ]
    assert best["score"] == best["logprob"] == best["output_logprob"]
    assert done["usage"]["output_tokens"] == 1 + 2 + 2
    assert num_requests == 1


async def test_a_hole_with_others_behind_it_is_given_back_with_the_steps_candidates() -> None:
    first = hole(is_last=False, max_tokens=1)
    async with served(FakeShard()) as (house, port), talking(port) as talk:
        await talk.hello()
        done = await searched(talk, width=2, holes=[first])
        more = await searched(talk, width=2, holes=[first], num_candidates=6)
        await settled(house.rig)

    assert done["finish_reason"] == "hole"
    assert [beam["output"] for beam in done["beams"]] == [[]]
    # Each is a token that ends the hole: all of those that a step considers.
    assert done["num_considered"] == len(done["candidates"]) == 4
    assert all(each["is_ended"] and each["text"] for each in done["candidates"])
    assert done["has_more"] is True
    assert len(more["candidates"]) == 6
    assert more["candidates"][:4] == done["candidates"]


async def test_a_search_goes_on_from_beams_as_if_it_had_not_stopped() -> None:
    async with served(FakeShard()) as (house, port), talking(port) as talk:
        await talk.hello()
        whole = await searched(talk, width=2, holes=[hole()])
        await talk.send("BEAMS", stream_id=2, width=2, holes=[hole()], report_s=0)
        reports: list[dict[str, Any]] = []
        while (messages := await talk.hear())[0] != "DONE":
            if messages[0] == "BEAMS":
                reports.append(messages[1])
        beams = [{k: v for k, v in beam.items() if k != "text"} for beam in reports[0]["beams"]]
        resumed = await searched(talk, 3, width=2, holes=[hole()], beams=beams)
        await settled(house.rig)

    first = reports[0]["beams"][0]
    assert byte_ids(first["text"]) == first["output"] != []
    assert resumed["ended"] == whole["ended"] == messages[1]["ended"]


async def test_a_stop_string_ends_a_hole_at_its_phrase() -> None:
    script = saying("up.x", len(PROMPT))
    async with served(FakeShard(script=script)) as (_, port), talking(port) as talk:
        await talk.hello()
        kept = await searched(talk, width=1, holes=[hole(stop=["."], max_tokens=9)])
        cut = hole(stop=["."], include_stop=False, max_tokens=9)
        dropped = await searched(talk, width=1, holes=[cut])

    assert [each["text"] for each in kept["ended"]] == ["up."]
    assert [each["text"] for each in dropped["ended"]] == ["up"]
    assert kept["ended"][0]["num_tokens"] == dropped["ended"][0]["num_tokens"] == 3


async def test_an_end_token_ends_a_hole_and_counts() -> None:
    script = saying("hi", len(PROMPT))
    async with served(FakeShard(script=script)) as (_, port), talking(port) as talk:
        await talk.hello()
        done = await searched(talk, width=1, holes=[hole(max_tokens=9)])

    (ended,) = done["ended"]
    assert (ended["text"], ended["num_tokens"]) == ("hi", 3)
    assert EOS_ID not in ended["output"]


def refusing(reason: str) -> FakeChecks:
    return FakeChecks(refuse=lambda constraint: ConstraintRefused("no text is one", reason))


IMPOSSIBLE = hole(constraint={"type": "choice", "value": ["abcdefgh"]})


async def test_holes_that_nothing_can_fill_are_dropped_with_the_reason() -> None:
    checks = refusing("does_not_fit")
    async with served(FakeShard(), checks=checks) as (_, port), talking(port) as talk:
        await talk.hello()
        beams = [{"hole": 0}, {"hole": 1}]
        done = await searched(talk, width=2, holes=[IMPOSSIBLE, hole()], beams=beams)
        none = await searched(talk, 2, width=2, holes=[IMPOSSIBLE])

    (dropped,) = done["dropped"]
    assert (dropped["hole"], dropped["error_type"]) == (0, "constraint_error")
    assert dropped["details"]["reason"] == "does_not_fit"
    assert {each["hole"] for each in done["ended"]} == {1}
    assert (none["finish_reason"], none["ended"], len(none["dropped"])) == ("complete", [], 1)


async def test_a_constraint_that_means_nothing_fails_the_whole_group() -> None:
    checks = refusing("malformed")
    async with served(FakeShard(), checks=checks) as (_, port), talking(port) as talk:
        await talk.hello()
        fields = await talk.error("BEAMS", width=2, holes=[hole(), IMPOSSIBLE])

    assert (fields["error_type"], fields["field"]) == ("validation", "holes[1].constraint")


async def test_a_text_that_does_not_keep_its_constraint_is_dropped() -> None:
    shard = FakeShard()
    shard.followed.satisfied = False
    any_text = hole(constraint={"type": "regex", "value": ".*"})
    async with served(shard) as (_, port), talking(port) as talk:
        await talk.hello()
        done = await searched(talk, width=1, holes=[any_text])

    assert done["ended"] == []
    assert all(each["constraint_satisfied"] is False for each in done["dropped"])
    assert done["dropped"]


WRONG_GROUPS: list[tuple[Any, ...]] = [
    ({"width": 33}, "width", "must be at most 32 (--max-beams). Given: 33"),
    ({"width": 0}, "width", "must be greater than or equal to 1"),
    ({"holes": []}, "holes", "must have at least 1 item"),
    ({"beams": [{"hole": 1}]}, "beams[0].hole", "must be less than 1"),
    ({"beams": [{"output": [EOS_ID]}]}, "beams[0].output", "has not ended"),
    ({"beams": [{"output": [9999]}]}, "beams[0].output", "token ids between 0 and"),
    ({"beams": [{"output": [1, 2, 3]}]}, "beams[0].output", "must have fewer tokens"),
    ({"beams": [{}, {}, {}]}, "beams", "must be at most as many as `width`, which is 2"),
    ({"early_stopping": "soon"}, "early_stopping", 'must be true, false or "never"'),
    ({"length_penalty": 99.0}, "length_penalty", "must be less than or equal to 32"),
    (
        {"holes": [hole(constraint={"type": "json", "value": {}, "lenient": True})]},
        "holes[0].constraint",
        "must not be a lenient schema",
    ),
    ({"holes": [hole(max_tokens=0)]}, "holes[0].max_tokens", "`holes[0]`: `max_tokens` must"),
    ({"model": "another"}, "model", "does not exist"),
]


async def test_what_is_wrong_with_a_group_is_said() -> None:
    async with served(FakeShard()) as (_, port), talking(port) as talk:
        for fields, field, sentence in WRONG_GROUPS:
            await talk.hello()
            group: dict[str, Any] = {"width": 2, "holes": [hole()]} | fields
            fields = await talk.error("BEAMS", **group)
            assert (fields["field"], fields["retryable"]) == (field, False)
            assert sentence in fields["error"]


async def test_a_search_takes_as_many_slots_as_it_has_beams_until_it_ends() -> None:
    async with (
        served(slow(), max_concurrent_requests=4) as (house, port),
        talking(port) as talk,
    ):
        await talk.hello()
        await talk.send("BEAMS", stream_id=1, width=3, holes=[hole(max_tokens=60)], report_s=0)
        command, _ = await talk.hear()
        other = {"width": 2, "holes": [hole()]}
        await talk.send("BEAMS", stream_id=2, **other)
        while (messages := await talk.hear())[1]["stream_id"] != 2:
            pass
        await talk.send("CANCEL", stream_id=1)
        while (await talk.hear())[0] != "DONE":
            pass
        done = await searched(talk, 3, **other)
        await settled(house.rig)

    assert command == "BEAMS"
    assert (messages[1]["error_type"], messages[1]["retryable"]) == ("overloaded", True)
    assert len(done["ended"]) == 2


async def test_a_cancelled_search_says_where_it_stood_and_gives_its_blocks_back() -> None:
    async with served(slow()) as (house, port), talking(port) as talk:
        await talk.hello()
        await talk.send("BEAMS", stream_id=1, width=2, holes=[hole(max_tokens=100)], report_s=0)
        await talk.hear()
        await talk.send("CANCEL", stream_id=1)
        done = await ended(talk)
        await settled(house.rig)
        assert house.rig.batcher.admission.num_taken == 0

    assert done["finish_reason"] == "cancelled"
    assert 0 < len(done["beams"][0]["output"]) < 100


async def test_a_search_ends_with_its_socket() -> None:
    async with served(slow()) as (house, port):
        async with talking(port) as talk:
            await talk.hello()
            await talk.send("BEAMS", stream_id=1, width=2, holes=[hole(max_tokens=100)], report_s=0)
            await talk.hear()
        await settled(house.rig)
        assert house.rig.batcher.admission.num_taken == 0


async def test_a_deadline_ends_a_search_where_it_stands() -> None:
    async with served(slow()) as (house, port), talking(port) as talk:
        await talk.hello()
        done = await searched(talk, width=2, holes=[hole(max_tokens=150)], timeout_s=1.0)
        await settled(house.rig)

    assert done["finish_reason"] == "deadline"
    assert len(done["beams"]) == 2
    assert done["ended"] == []


async def test_shards_that_fail_a_step_fail_its_search_by_a_typed_error() -> None:
    shard = FakeShard()
    async with served(shard) as (house, port), talking(port) as talk:
        await talk.hello()
        shard.faults.fail_for_good("Prefill", grpc.StatusCode.INTERNAL, "a broken wire")
        fields = await talk.error("BEAMS", width=2, holes=[hole()])
        await settled(house.rig)
        done = await searched(talk, 2, width=2, holes=[hole()])

    assert (fields["error_type"], fields["retryable"]) == ("generation", False)
    assert len(done["ended"]) == 2


async def test_a_prompt_of_ids_and_one_of_turns_are_holes_like_any_other() -> None:
    turns = hole(messages=[{"role": "user", "content": "Hi"}], text=None)
    ids = hole(prompt=byte_ids(PROMPT), text=None)
    async with served(FakeShard()) as (_, port), talking(port) as talk:
        await talk.hello()
        by_ids = await searched(talk, width=2, holes=[ids])
        by_text = await searched(talk, 2, width=2, holes=[hole()])
        of_turns = await searched(talk, 3, width=2, holes=[turns])

    assert by_ids["ended"] == by_text["ended"]
    assert len(of_turns["ended"]) == 2


async def ended(talk: Talk) -> dict[str, Any]:
    messages: Message = await talk.hear()
    while messages[0] != "DONE":
        messages = await talk.hear()
    return messages[1]


class PartedChecks(FakeChecks):
    """Refuses one constraint as soon as the other is looked at, for which it takes for ever."""

    def __init__(self) -> None:
        super().__init__()
        self.has_begun = asyncio.Event()
        self.was_left = asyncio.Event()

    async def check(
        self,
        constraint: Constraint,
        stops: StopRule,
        max_new_tokens: int,
        key: ApiKey = NO_KEY,
        thought: ThoughtRule | None = None,
    ) -> Constraint:
        if constraint.spec.text == "refused":
            await self.has_begun.wait()
            raise ConstraintRefused("no regular expression", "malformed")
        self.has_begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.was_left.set()
        raise AssertionError("it takes for ever")


async def test_a_hole_that_is_refused_ends_the_checks_of_the_others() -> None:
    checks = PartedChecks()
    holes = [
        {"text": "Once", "max_tokens": 3, "constraint": {"type": "regex", "value": value}}
        for value in ("slow", "refused")
    ]
    async with served(FakeShard(), checks=checks) as (_, port), talking(port) as talk:
        await talk.hello()
        fields = await talk.error("BEAMS", width=2, holes=holes)
        async with asyncio.timeout(5.0):
            await checks.was_left.wait()

    assert (fields["error_type"], fields["field"]) == ("validation", "holes[1].constraint")


@pytest.mark.parametrize(("command", "fields"), [("BEAMS", {"width": 1})])
async def test_a_search_that_is_cancelled_while_its_holes_are_checked_is_done(
    command: str, fields: dict[str, int]
) -> None:
    checks = PartedChecks()
    slow = {"text": "Once", "max_tokens": 3, "constraint": {"type": "regex", "value": "slow"}}
    async with served(FakeShard(), checks=checks) as (_, port), talking(port) as talk:
        await talk.hello()
        await talk.send(command, stream_id=1, holes=[slow], **fields)
        async with asyncio.timeout(5.0):
            await checks.has_begun.wait()
            await talk.send("CANCEL", stream_id=1)
            end = await talk.hear()
            await checks.was_left.wait()

    usage = {"prompt_tokens": 0, "cached_tokens": 0, "output_tokens": 0}
    nothing = {"beams": [], "ended": [], "dropped": [], "usage": usage}
    assert end == ("DONE", {"stream_id": 1, "finish_reason": "cancelled"} | nothing)


HOLE = {"text": "Once", "max_tokens": 2, "is_last": True}


NO_SCORES: list[tuple[Any, ...]] = [
    ({"beams": [{"num_tokens": 2**63 - 1}]}, "beams[0].num_tokens"),
    ({"beams": [{"logprob": -1e300}]}, "beams[0].logprob"),
    ({"max_len": 2**63 - 1, "early_stopping": "never"}, "max_len"),
]


async def test_a_length_whose_score_is_no_number_is_refused_by_its_field() -> None:
    async with served(FakeShard()) as (_, port), talking(port) as talk:
        for fields, field in NO_SCORES:
            await talk.hello()
            error = await talk.error("BEAMS", width=1, holes=[HOLE], length_penalty=32, **fields)
            assert (error["error_type"], error["field"]) == ("validation", field)


@pytest.mark.parametrize("length_penalty", [32, -32])
async def test_the_longest_trace_is_scored(
    length_penalty: float, caplog: pytest.LogCaptureFixture
) -> None:
    async with served(FakeShard()) as (_, port), talking(port) as talk:
        await talk.hello()
        with caplog.at_level(logging.ERROR):
            messages = await talk.ask(
                "BEAMS",
                width=1,
                holes=[HOLE],
                beams=[{"num_tokens": 2**31, "logprob": -(2**31)}],
                length_penalty=length_penalty,
            )

    assert (messages[-1][0], messages[-1][1]["finish_reason"]) == ("DONE", "complete")
    assert [isinstance(each["score"], float) for each in messages[-1][1]["ended"]] == [True]
    assert complaints(caplog) == []
