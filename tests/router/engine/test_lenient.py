"""Schemas that masks enforce in part: finished texts are checked before their end is published."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from constraints.spec import ConstraintSpec, Kind
from router.request.request import Constraint, Event, Finished
from tests.checks import FakeChecks
from tests.fake_script import Followed
from tests.fakes import FakeShard
from tests.router.engine.test_constraints import checking
from tests.router.rig import asking, routing, says

TEXT = '{"a":[1,1]}'
SCHEMA = '{"properties":{"a":{"uniqueItems":true}}}'
LENIENT = Constraint(ConstraintSpec(Kind.JSON_SCHEMA, SCHEMA, lenient=True))
STRICT = Constraint(ConstraintSpec(Kind.JSON_SCHEMA, SCHEMA))


class Verifier(FakeChecks):
    """Finds always the same, and remembers what it was asked."""

    def __init__(self, found: str | None) -> None:
        super().__init__()
        self.found = found
        self.texts: list[str] = []

    async def violation(self, constraint: Constraint, text: str) -> str | None:
        self.texts.append(text)
        await asyncio.sleep(0)
        return self.found


async def end_after(
    shard: FakeShard, verifier: Verifier, constraint: Constraint, *, whole: bool
) -> Finished:
    """The end, of an answer that comes as a whole or in bursts."""
    async with routing(shard, checks=verifier) as rig:
        request = asking(max_new_tokens=20, constraint=constraint)
        if whole:
            return (await rig.infer.complete_all([request]))[0].finished
        events: Sequence[Event] = [
            event async for burst in rig.infer.submit([request])[0] for event in burst
        ]
        end = events[-1]
        assert isinstance(end, Finished)
        assert sum(isinstance(event, Finished) for event in events) == 1
        return end


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("violation", [None, "at /a: it has equal items"])
async def test_the_end_says_what_the_check_found(violation: str | None, whole: bool) -> None:
    verifier = Verifier(violation)
    end = await end_after(says(TEXT), verifier, LENIENT, whole=whole)
    assert (end.constraint_satisfied, end.violation) == (violation is None, violation)
    assert verifier.texts == [TEXT]


async def test_what_masks_enforce_whole_is_not_checked_again() -> None:
    verifier = Verifier("nonsense")
    end = await end_after(says(TEXT), verifier, STRICT, whole=True)
    assert (end.constraint_satisfied, end.violation, verifier.texts) == (True, None, [])


async def test_a_text_that_was_cut_is_not_checked() -> None:
    verifier = Verifier(None)
    shard = says(TEXT)
    shard.followed = Followed(satisfied=False)
    end = await end_after(shard, verifier, LENIENT, whole=True)
    assert (end.constraint_satisfied, verifier.texts) == (False, [])


async def test_workers_check_finished_texts(tmp_path: Path) -> None:
    async with checking(tmp_path) as (check, _):
        assert await check.violation(LENIENT, '{"a":[1,2]}') is None
        found = await check.violation(LENIENT, TEXT)
        assert found is not None
        assert found.startswith("at /a: ")


async def test_a_text_that_takes_too_long_to_check_is_not_vouched_for(tmp_path: Path) -> None:
    # A reference back is beyond the masks' engine, and Python's takes 2^40 steps.
    schema = r'{"type":"string","pattern":"^(a+)+\\1$"}'
    hostile = Constraint(ConstraintSpec(Kind.JSON_SCHEMA, schema, lenient=True))
    async with checking(tmp_path, cpu_s=0.3, wait_s=5.0) as (check, _):
        found = await check.violation(hostile, '"' + "a" * 40 + '!"')
        assert found is not None
        assert found.startswith("the finished text could not be checked: ")
