"""Bursts, whole answers, best_of, readers that leave, and finished texts that are checked."""

import asyncio
import json
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path

import grpc
import pytest

from constraints.spec import ConstraintSpec, Kind, ThoughtRule
from proto.contract import LogprobParams, SamplingParams
from router.engine.batcher import BatcherLimits
from router.request.errors import FailedAlone, InvalidRequest, Overloaded, RowFailed
from router.request.request import Constraint, Event, Failed, Finished, TokenGenerated
from tests.byte_tokenizer import byte_ids
from tests.checks import FakeChecks
from tests.fake_script import Followed, saying
from tests.fakes import FakeShard
from tests.router.engine.test_constraints import checking
from tests.router.rig import PROMPT, asking, end_of, expected_text, routing, says, settled


async def test_bursts_end_with_the_one_end() -> None:
    async with routing(FakeShard()) as rig:
        bursts = [burst async for burst in rig.infer.submit([asking(max_new_tokens=5)])[0]]
        events = [event for burst in bursts for event in burst]
        assert [isinstance(event, TokenGenerated) for event in events] == [True] * 5 + [False]
        assert isinstance(bursts[-1][-1], Finished)
        assert isinstance(bursts[-1][-2], TokenGenerated)


async def test_closing_cancels() -> None:
    shard = FakeShard(num_blocks=256)
    async with routing(shard) as rig:
        (accepted,) = rig.infer.submit([asking(max_new_tokens=900)])
        async with aclosing(accepted):
            await anext(accepted)
        await settled(rig)
        assert shard.num_held == 0
        assert rig.scheduler.stats().num_blocks_used == 0


async def test_a_cancelled_reader_cancels() -> None:
    shard = FakeShard(num_blocks=256)
    async with routing(shard) as rig:
        reading = asyncio.ensure_future(rig.infer.complete_all([asking(max_new_tokens=900)]))
        while not shard.num_held:
            await asyncio.sleep(0.001)
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        await settled(rig)
        assert shard.num_held == 0


async def test_a_whole_answer_has_prompt_tokens_and_end() -> None:
    async with routing(FakeShard()) as rig:
        request = asking(logprobs=LogprobParams(prompt=True))
        (completion,) = await rig.infer.complete_all([request])
        assert completion.prompt is not None
        assert len(completion.prompt.tokens) == len(PROMPT)
        assert len(completion.tokens) == completion.finished.num_generated_tokens == 6
        text = "".join(event.text for event in completion.tokens)
        assert text + completion.finished.tail == completion.finished.text


async def test_a_whole_answer_raises_what_went_wrong() -> None:
    shard = FakeShard()
    async with routing(shard) as rig:
        shard.faults.fail_for_good("Prefill", grpc.StatusCode.INTERNAL, "device lost")
        with pytest.raises(FailedAlone, match="device lost"):
            await rig.infer.complete_all([asking()])


async def test_a_failure_is_the_last_event_of_a_stream() -> None:
    shard = FakeShard()
    async with routing(shard) as rig:
        shard.faults.fail_for_good("Decode", grpc.StatusCode.INTERNAL, "device lost")
        bursts = [burst async for burst in rig.infer.submit([asking()])[0]]
        assert isinstance(bursts[-1][-1], Failed)


async def test_the_best_of_several_draws_comes_first_and_each_has_its_seed() -> None:
    shard = FakeShard()
    async with routing(shard) as rig:
        request = asking(sampling=SamplingParams(do_sample=True, seed=2**64 - 1))
        (completions,) = await rig.infer.best_of_each([(request, 3)])
        assert {one.finished.seed for one in completions} == {2**64 - 1, 0, 1}
        means = [one.mean_logprob for one in completions]
        assert means == sorted(means, reverse=True)


async def test_the_mean_log_probability_decides() -> None:
    shard = FakeShard(script=saying("aAbB", len(PROMPT)))
    async with routing(shard) as rig:
        (completion,) = await rig.infer.complete_all([asking(max_new_tokens=4)])
        logprobs = [event.token.logprob or 0.0 for event in completion.tokens]
        assert completion.mean_logprob == pytest.approx(sum(logprobs) / 4)


async def test_when_one_draw_is_refused_the_others_are_cancelled() -> None:
    shard = FakeShard(num_blocks=256)
    limits = BatcherLimits(max_concurrent_requests=2)
    async with routing(shard, limits=limits) as rig:
        runs = rig.batcher.submit(asking(max_new_tokens=900))
        with pytest.raises(Overloaded, match="this one needs 2"):
            await rig.infer.best_of_each([(asking(max_new_tokens=900), 2)])
        rig.batcher.cancel(runs)
        await settled(rig)
        assert rig.batcher.num_streams == 0
        assert shard.num_held == 0


async def test_readiness_follows_shards_and_drain() -> None:
    async with routing(FakeShard()) as rig:
        assert rig.infer.is_ready
        await rig.batcher.drain(1.0)
        assert rig.infer.is_draining
        assert not rig.infer.is_ready


async def test_sequences_that_are_taken_together_each_have_their_events() -> None:
    async with routing(FakeShard()) as rig:
        requests = [asking("one", 4), asking("three", 8)]
        ends = []
        for accepted in rig.infer.submit(requests):
            events = [event async for burst in accepted for event in burst]
            ends.append(end_of(events).text)
        assert ends == [expected_text("one", 4), expected_text("three", 8)]


async def test_sequences_that_do_not_fit_together_are_refused_once_and_take_no_slot() -> None:
    limits = BatcherLimits(max_concurrent_requests=2)
    async with routing(FakeShard(num_blocks=256), limits=limits) as rig:
        runs = rig.batcher.submit(asking(max_new_tokens=900))
        with pytest.raises(Overloaded, match="this one needs 2"):
            rig.infer.submit([asking("a"), asking("b")])
        assert rig.batcher.num_streams == 1
        assert rig.metrics.rejected.value("overloaded") == 1
        rig.batcher.cancel(runs)


async def test_one_that_is_closed_before_it_is_read_is_cancelled() -> None:
    async with routing(FakeShard(num_blocks=256)) as rig:
        read, unread = rig.infer.submit([asking("a", 900), asking("b", 900)])
        await anext(read)
        await unread.aclose()
        assert rig.batcher.num_streams == 1
        await read.aclose()
        assert rig.batcher.num_streams == 0
        await settled(rig)


async def test_one_bad_request_keeps_those_beside_it_out() -> None:
    async with routing(FakeShard(num_blocks=4)) as rig:
        with pytest.raises(InvalidRequest, match="the pool has 4"):
            await rig.infer.complete_all([asking("a", 2), asking("b", 500)])
        assert rig.batcher.num_streams == 0
        await settled(rig)


async def test_the_first_failure_ends_the_others_at_once() -> None:
    shard = FakeShard(num_blocks=256)
    async with routing(shard) as rig:
        shard.faults.row_errors[2] = "NaN logits"
        with pytest.raises(RowFailed):
            await rig.infer.complete_all([asking("a", 900), asking("b", 900)])
        assert rig.batcher.num_streams == 0
        await settled(rig)


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


async def test_an_output_that_goes_on_is_checked_from_its_beginning() -> None:
    verifier = Verifier(None)
    async with routing(says(TEXT), checks=verifier) as rig:
        before = tuple(byte_ids(TEXT[:4]))
        request = replace(asking(max_new_tokens=20, constraint=LENIENT), output_ids=before)
        (completion,) = await rig.infer.complete_all([request])
    assert (completion.finished.text, verifier.texts) == (TEXT[4:], [TEXT])


async def test_of_an_output_with_a_thought_the_answer_is_checked() -> None:
    verifier = Verifier(None)
    thought = ThoughtRule("<t>", "</t>", is_begun=True)
    async with routing(says(f"hm</t>\n{TEXT}"), checks=verifier) as rig:
        request = replace(asking(max_new_tokens=20, constraint=LENIENT), thought=thought)
        await rig.infer.complete_all([request])
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
    # Each definition is judged twice for the one before it: 2^40 times in all.
    twice = {f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n - 1}"}] * 2} for n in range(1, 41)}
    definitions = {"d0": {"type": "string"}, **twice}
    schema = json.dumps({"$ref": "#/$defs/d40", "$defs": definitions})
    hostile = Constraint(ConstraintSpec(Kind.JSON_SCHEMA, schema, lenient=True))
    async with checking(tmp_path, cpu_s=0.3, wait_s=5.0) as (check, _):
        found = await check.violation(hostile, '"a"')
        assert found is not None
        assert found.startswith("the finished text could not be checked: ")
