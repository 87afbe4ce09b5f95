"""The fields of BEAMS: holes are checked at the same time, numbers are bounded."""

import asyncio
import logging
from typing import Any

import pytest

from constraints.spec import StopRule
from router.request.errors import ConstraintRefused
from router.request.request import NO_KEY, ApiKey, Constraint
from tests.checks import FakeChecks
from tests.fakes import FakeShard
from tests.router.http.lmtp.talking import served, talking


class PartedChecks(FakeChecks):
    """Refuses one constraint as soon as the other is looked at, for which it takes for ever."""

    def __init__(self) -> None:
        super().__init__()
        self.has_begun = asyncio.Event()
        self.was_left = asyncio.Event()

    async def check(
        self, constraint: Constraint, stops: StopRule, max_new_tokens: int, key: ApiKey = NO_KEY
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


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"beams": [{"num_tokens": 2**63 - 1}]}, "beams[0].num_tokens"),
        ({"beams": [{"logprob": -1e300}]}, "beams[0].logprob"),
        ({"max_len": 2**63 - 1, "early_stopping": "never"}, "max_len"),
    ],
)
async def test_a_length_whose_score_is_no_number_is_refused_by_its_field(
    fields: dict[str, Any], field: str
) -> None:
    async with served(FakeShard()) as (_, port), talking(port) as talk:
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
    assert caplog.records == []
