"""BEAMS with numbers at the edge of what a search can reckon with."""

import logging
from typing import Any

import pytest

from tests.fakes import FakeShard
from tests.router.http.lmtp.talking import served, talking

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
