"""Constraints over real workers: what is answered, refused, remembered and counted.

And over a fake shard: they are compiled there before their requests enter a step.
"""

import asyncio
import gc
import json
import os
import re
import tracemalloc
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path
from time import monotonic
from typing import Any

import grpc
import pytest
import pytest_asyncio
from prometheus_client import CollectorRegistry

from constraints.spec import ConstraintSpec, Kind, StopRule, ThoughtRule
from constraints.worker.pool import PoolRules, VocabularyFile, WorkerPool
from proto.contract import FinishReason
from router.engine.constraints import ConstraintCheck, ConstraintMemory
from router.request.errors import (
    ConstraintRefused,
    GenerationFailed,
    Overloaded,
    RateLimited,
    Unsupported,
)
from router.request.request import ApiKey, Constraint, JudgedPart
from router.telemetry.metrics import Metrics
from tests.byte_tokenizer import byte_ids
from tests.constraints.worker.pools import MAX_LEN, costly, vocabulary_file
from tests.fakes import FakeShard
from tests.router.rig import (
    ANY_TEXT,
    PATIENT,
    QUICK,
    Rig,
    asking,
    end_of,
    error_of,
    events_of,
    expected_text,
    methods,
    routing,
    settled,
    until,
)

_NO_STOPS = StopRule()
PATIENT_RULES = PoolRules(wait_s=30.0)
shares_workers = pytest.mark.asyncio(loop_scope="module")


def metrics() -> Metrics:
    return Metrics(CollectorRegistry(), max_input_len=10, max_total_len=20)


@asynccontextmanager
async def checking(folder: Path, **rules: Any) -> AsyncIterator[tuple[ConstraintCheck, Metrics]]:
    """A check that has started, and its metrics; by itself it waits longer than any job takes."""
    counted = metrics()
    patient = PoolRules(**{"wait_s": 30.0, **rules})
    check = ConstraintCheck(vocabulary_file(folder), patient, counted)
    await check.start()
    try:
        yield check, counted
    finally:
        await check.close()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def workers(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[WorkerPool]:
    """Started once for all tests that need no rules of their own."""
    pool = WorkerPool(vocabulary_file(tmp_path_factory.mktemp("vocabulary")), PATIENT_RULES)
    await pool.wait_ready()
    yield pool
    await pool.close()


@contextmanager
def asking_workers(workers: WorkerPool) -> Iterator[tuple[ConstraintCheck, Metrics]]:
    """A check that knows nothing yet, over workers that have started, and its metrics."""
    counted = metrics()
    vocabulary = VocabularyFile(Path(), 0, (), MAX_LEN)
    check = ConstraintCheck(vocabulary, PATIENT_RULES, counted)
    check._pool = workers
    yield check, counted


def regex(pattern: str) -> Constraint:
    return Constraint(ConstraintSpec(Kind.REGEX, pattern))


def schema(text: str, *, lenient: bool = False) -> Constraint:
    return Constraint(ConstraintSpec(Kind.JSON_SCHEMA, text, lenient=lenient))


async def refusal(check: ConstraintCheck, constraint: Constraint, max_len: int = MAX_LEN) -> Any:
    """(reason, details, message) of what is refused."""
    with pytest.raises(ConstraintRefused) as refused:
        await check.check(constraint, _NO_STOPS, max_len)
    return refused.value.reason, refused.value.details, str(refused.value)


async def test_the_first_check_waits_for_the_start_of_the_workers(tmp_path: Path) -> None:
    # They take longer to start than that.
    async with checking(tmp_path, wait_s=0.5) as (check, _):
        assert (await check.check(regex("[a-z]{3}"), _NO_STOPS, 5)).min_len == 3


@shares_workers
async def test_a_thought_needs_its_closer_whatever_its_budget(workers: WorkerPool) -> None:
    with asking_workers(workers) as (check, _):
        for budget in (None, 0, 5):
            thought = ThoughtRule("<t>", "</t>", is_begun=True, max_len=budget)
            found = await check.check(regex("[ab]{3}"), _NO_STOPS, 7, thought=thought)
            assert found.min_len == 7
        with pytest.raises(ConstraintRefused, match="has 7 tokens, and at most 6"):
            await check.check(regex("[ab]{3}"), _NO_STOPS, 6, thought=thought)
        assert (await check.check(regex("[ab]{3}"), _NO_STOPS, 6)).min_len == 3


@shares_workers
async def test_a_key_has_so_much_time_for_constraints(workers: WorkerPool) -> None:
    key = ApiKey("a", constraint_seconds_per_minute=1)
    with asking_workers(workers) as (check, _):
        await check.check(regex("[ab]{3}"), _NO_STOPS, 3, key)
        check._keys.spend(key, check._clock(), constraint_s=1.0)
        with pytest.raises(RateLimited, match="had its 1 seconds of constraints per minute"):
            await check.check(regex("[ab]{4}"), _NO_STOPS, 4, key)
        # What is known costs nothing.
        known = await check.check(regex("[ab]{3}"), _NO_STOPS, 3, key)
        other = await check.check(regex("[ab]{4}"), _NO_STOPS, 4, ApiKey("b"))

    assert (known.min_len, other.min_len) == (3, 4)


@shares_workers
async def test_a_constraint_that_fits_comes_back_with_the_length_of_a_text(
    workers: WorkerPool,
) -> None:
    with asking_workers(workers) as (check, _):
        constraint = regex("[ab]{3}")
        checked = await check.check(constraint, _NO_STOPS, 3)
    assert (checked.spec, checked.min_len, checked.dropped_phrases) == (constraint.spec, 3, ())


@shares_workers
async def test_a_translation_is_sent_to_the_shard_once(workers: WorkerPool) -> None:
    with asking_workers(workers) as (check, _):
        first, meanwhile = await asyncio.gather(
            *(check.check(regex("[ab]{3}"), _NO_STOPS, 3) for _ in range(2))
        )
        later = await check.check(regex("[ab]{3}"), _NO_STOPS, 3)
    translation = first.translation
    assert translation is not None
    assert "{3}" in translation.grammar
    assert len(translation.completion or ()) == 3
    assert meanwhile.translation == translation
    assert later.translation is None


@shares_workers
async def test_the_check_knows_whether_masks_may_lead_into_dead_ends(workers: WorkerPool) -> None:
    where = Constraint(ConstraintSpec(Kind.WHERE, "len(X) > 3"))
    cases = {
        "where": (where, ()),
        "stops": (where, ("a",)),
        "regex": (regex("[ab]{3}"), ()),
        "cut": (replace(regex("[ab]{3}"), cuts=True), ()),
        "automaton": (regex("(?=.*a)b*a"), ()),
    }
    with asking_workers(workers) as (check, _):
        found = {
            name: (await check.check(constraint, StopRule(strings), 9)).has_dead_ends
            for name, (constraint, strings) in cases.items()
        }
    assert found == {
        "where": False,
        "stops": True,
        "regex": True,
        "cut": False,
        "automaton": False,
    }


@shares_workers
async def test_a_constraint_that_takes_long_to_compile_is_not_called_quick(
    workers: WorkerPool,
) -> None:
    many = json.dumps([f"{number} and more" for number in range(20_000)])
    with asking_workers(workers) as (check, _):
        long = await check.check(Constraint(ConstraintSpec(Kind.CHOICE, many)), _NO_STOPS, 30)
        # One of several: a machine that is busy may be slow for a moment.
        short = [await check.check(regex(f"[ab]{{{num}}}"), _NO_STOPS, 30) for num in range(1, 20)]
    assert not long.is_quick
    assert any(each.is_quick for each in short)


@shares_workers
async def test_each_refusal_has_its_reason_and_its_numbers(workers: WorkerPool) -> None:
    with asking_workers(workers) as (check, counted):
        reason, details, _ = await refusal(check, regex("a["))
        assert (reason, details) == ("malformed", {"position": 1})
        reason, details, _ = await refusal(check, schema('{"$dynamicRef": "#a"}'))
        assert (reason, details["pointer"]) == ("not_enforced", "/$dynamicRef")
        reason, details, _ = await refusal(check, schema('{"items": {"type": "text"}}'))
        assert (reason, details) == ("malformed", {"pointer": "/items/type"})
        reason, details, _ = await refusal(check, regex(r"(a)b\1"))
        assert (reason, details) == ("not_enforced", {"position": 4})
        reason, _, _ = await refusal(
            check, schema('{"type": "integer", "minimum": 2, "maximum": 1}')
        )
        assert reason == "contradiction"
        reason, details, message = await refusal(check, regex("a{5}"), 4)
        assert (reason, details) == ("does_not_fit", {"needed_len": 5, "max_len": 4})
        assert "5 tokens" in message
        assert counted.constraint_refusals.value("does_not_fit") == 1


@shares_workers
async def test_a_request_counts_as_one_check_however_often_a_worker_looks(
    workers: WorkerPool,
) -> None:
    with asking_workers(workers) as (check, counted):
        await refusal(check, regex("a{5}"), 4)
        sources = ("worker", "cache")
        assert [counted.constraint_checks.value(each) for each in sources] == [1, 0]
        await refusal(check, regex("a{5}"), 4)
        assert [counted.constraint_checks.value(each) for each in sources] == [1, 1]
        await refusal(check, regex("a{5}"), 3)
        assert [counted.constraint_checks.value(each) for each in sources] == [2, 1]


@shares_workers
async def test_what_does_not_fit_may_be_cut_where_the_client_says_so(workers: WorkerPool) -> None:
    with asking_workers(workers) as (check, _):
        for longer in ("a{5}", f"a{{{2 * MAX_LEN}}}"):
            checked = await check.check(replace(regex(longer), cuts=True), _NO_STOPS, 4)
            assert checked.min_len == 0
            assert (await refusal(check, regex(longer), 4))[0] == "does_not_fit"


@shares_workers
async def test_the_refusal_has_the_tokens_of_this_request(workers: WorkerPool) -> None:
    with asking_workers(workers) as (check, _):
        longer = 2 * MAX_LEN
        _, details, _ = await refusal(check, regex(f"a{{{longer}}}"), 4)
        assert details == {"needed_len": longer, "max_len": 4}


async def test_texts_that_take_too_long_do_not_cost_others_their_constraint(
    tmp_path: Path,
) -> None:
    async with checking(tmp_path, cpu_s=0.5) as (check, counted):
        constraint = regex("a+b?")
        for _ in range(2):
            with pytest.raises(ConstraintRefused):
                await check.judge(constraint.spec, ["a" * 2_000_000])
        assert counted.constraint_workers_ended.value() == 1
        assert (await check.check(constraint, _NO_STOPS, 5)).min_len == 1
        assert (await check.judge(constraint.spec, ["ab"])).judgements[0].accepted


@shares_workers
async def test_a_longer_first_text_does_not_keep_a_shorter_one_from_being_found(
    workers: WorkerPool,
) -> None:
    with asking_workers(workers) as (check, _):
        constraint = regex("(x[0-9]{40}y)|zz")
        assert (await check.check(constraint, _NO_STOPS, 2)).min_len == 2


@shares_workers
async def test_a_lenient_schema_lists_what_is_not_enforced(workers: WorkerPool) -> None:
    with asking_workers(workers) as (check, _):
        lenient = schema('{"type": "array", "$dynamicRef": "#a"}', lenient=True)
        assert (await check.judge(lenient.spec, [])).not_enforced == ("/$dynamicRef",)
        known = replace(lenient, not_enforced=("/oneOf", "/$dynamicRef"))
        found = await check.check(known, StopRule(), 50)
        assert found.not_enforced == ("/oneOf", "/$dynamicRef")


# Which nobody can follow, so that no judge of values keeps it either.
UNKNOWN = '{"type": "array", "items": {"$ref": "#/nowhere"}}'
UNIQUE = '{"items": {"type": "integer"}, "anyOf": [{"uniqueItems": true}, {"maxItems": 0}]}'


@shares_workers
async def test_what_may_relax_leaves_to_the_end_what_masks_cannot_keep(workers: WorkerPool) -> None:
    with asking_workers(workers) as (check, counted):
        found = await check.check(replace(schema(UNKNOWN), may_relax=True), _NO_STOPS, 50)
        assert (found.spec, found.not_enforced) == (
            ConstraintSpec(Kind.JSON_SCHEMA, UNKNOWN, lenient=True),
            ("/items/$ref",),
        )
        assert found.is_judged_at_end
        assert counted.constraint_refusals.value("not_enforced") == 0

        whole = await check.check(replace(schema('{"const": [2]}'), may_relax=True), _NO_STOPS, 50)
        assert (whole.not_enforced, whole.is_judged_at_end) == ((), False)


@shares_workers
async def test_a_refusal_says_how_the_rest_could_be_had_where_it_could(workers: WorkerPool) -> None:
    with asking_workers(workers) as (check, _):
        advised = await refusal(check, replace(schema(UNKNOWN), remedy="write anyOf"))
        assert advised[2].endswith("; write anyOf")
        assert "; " not in (await refusal(check, schema(UNKNOWN)))[2]
        wrong = await refusal(check, replace(schema('{"type": 1}'), remedy="write anyOf"))
        assert "write anyOf" not in wrong[2]


@shares_workers
async def test_the_parts_of_an_answer_are_judged_each_by_its_schema(workers: WorkerPool) -> None:
    class Lines:
        def of(self, text: str) -> list[JudgedPart]:
            spec = ConstraintSpec(Kind.JSON_SCHEMA, UNIQUE)
            return [JudgedPart(spec, line, f"line {at}") for at, line in enumerate(text.split())]

    constraint = replace(schema("{}", lenient=True), parts=Lines())
    with asking_workers(workers) as (check, _):
        assert await check.violation(constraint, "[1] [1,2]") is None
        found = await check.violation(constraint, "[1] [1,1]")
        assert found is not None
        assert found.startswith("line 1: ")


@shares_workers
async def test_the_same_text_is_compiled_once_also_when_it_comes_at_the_same_time(
    workers: WorkerPool,
) -> None:
    with asking_workers(workers) as (check, counted):
        constraint = schema('{"type": "object"}')
        await asyncio.gather(*(check.check(constraint, _NO_STOPS, 50) for _ in range(10)))
        await check.check(constraint, _NO_STOPS, 50)
        assert counted.constraint_compile_duration.count("json_schema") == 1
        assert counted.constraint_checks.value("cache") == 1


@shares_workers
async def test_other_stop_strings_are_another_question(workers: WorkerPool) -> None:
    with asking_workers(workers) as (check, _):
        constraint = regex("a{2}b")
        assert (await check.check(constraint, StopRule(("b",)), 50)).min_len == 3
        with pytest.raises(ConstraintRefused) as refused:
            await check.check(constraint, StopRule(("a",)), 50)
        assert refused.value.reason == "too_complex"


@shares_workers
async def test_stop_tokens_are_no_text(workers: WorkerPool) -> None:
    with asking_workers(workers) as (check, _):
        short = Constraint(ConstraintSpec(Kind.CHOICE, '["yes", "maybe"]'))
        stops = StopRule(token_ids=tuple(byte_ids("s")))
        assert (await check.check(short, stops, MAX_LEN)).min_len == 5
        with pytest.raises(ConstraintRefused, match="at most 4"):
            await check.check(short, stops, 4)
        with pytest.raises(ConstraintRefused, match="stop tokens"):
            await check.check(regex("a*s"), stops, MAX_LEN)


async def test_a_text_that_took_too_long_costs_nothing_the_second_time(tmp_path: Path) -> None:
    async with checking(tmp_path, cpu_s=0.1) as (check, counted):
        constraint = Constraint(costly().spec)
        assert (await refusal(check, constraint))[0] == "too_complex"
        assert (await refusal(check, constraint))[0] == "too_complex"
        with pytest.raises(ConstraintRefused):
            await check.judge(constraint.spec, ["{}"])
        assert counted.constraint_workers_ended.value() == 1


async def test_a_text_for_which_there_is_never_time_is_let_be_for_a_while(tmp_path: Path) -> None:
    async with checking(tmp_path, cpu_s=20.0, wait_s=0.1, tried_s=0.001) as (check, _):
        constraint = Constraint(costly().spec)
        with pytest.raises(Overloaded):
            await check.check(constraint, _NO_STOPS, 50)
        reason, _, message = await refusal(check, constraint)
        assert (reason, message) == (
            "too_complex",
            "compiling the constraint takes more time than there is",
        )


async def test_a_text_for_which_the_machine_had_no_time_is_overload_however_often(
    tmp_path: Path,
) -> None:
    async with checking(tmp_path, cpu_s=20.0, wait_s=0.1, tried_s=10.0) as (check, _):
        for _ in range(3):
            with pytest.raises(Overloaded):
                await check.check(Constraint(costly().spec), _NO_STOPS, 50)


async def test_a_cancelled_check_leaves_equal_ones_running(
    tmp_path: Path,
) -> None:
    async with checking(tmp_path, cpu_s=60.0, wait_s=60.0) as (check, _):
        constraint = Constraint(costly(num_choices=10_000).spec)
        first = asyncio.create_task(check.check(constraint, _NO_STOPS, 50))
        second = asyncio.create_task(check.check(constraint, _NO_STOPS, 50))
        await asyncio.sleep(0.1)
        first.cancel()
        assert (await second) == constraint


async def test_a_tokenizer_without_bytes_is_a_clear_refusal(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text("{}")
    vocabulary = VocabularyFile(path, 8, (0,), 9)
    check = ConstraintCheck(vocabulary, PoolRules(), metrics(), spells_ascii=True)
    await check.start()
    try:
        # The second is one that is otherwise taken without asking.
        for constraint in (regex("a"), schema('{"type": "object"}')):
            with pytest.raises(Unsupported, match="cannot be constrained"):
                await check.check(constraint, _NO_STOPS, 5)
    finally:
        await check.close()


@shares_workers
async def test_texts_are_judged(workers: WorkerPool) -> None:
    with asking_workers(workers) as (check, _):
        judged = await check.judge(regex("ab|cd").spec, ["ab", "ad"])
        assert [each.accepted for each in judged.judgements] == [True, False]
        assert judged.judgements[1].expected == ("'b'",)


@shares_workers
async def test_memory_does_not_grow_with_the_number_of_texts(workers: WorkerPool) -> None:
    with asking_workers(workers) as (check, _):
        for number in range(20):
            await check.check(regex(f"a{{{number}}}"), _NO_STOPS, 50)
        before = _resident_bytes(os.getpid())
        for number in range(100):
            await check.check(regex(f"b{{1,{number + 1}}}"), _NO_STOPS, 50)
        assert _resident_bytes(os.getpid()) - before < 10_000_000


@shares_workers
async def test_a_refusal_is_remembered_without_its_text(workers: WorkerPool) -> None:
    text_len = 5_000
    with asking_workers(workers) as (check, _):
        tracemalloc.start()
        try:
            for number in range(8):
                with pytest.raises(ConstraintRefused):
                    await check.check(regex(f"({number}" + "a" * text_len), _NO_STOPS, 50)
            gc.collect()
            num_bytes, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        # A traceback holds the text of each.
        assert num_bytes < 4 * text_len


def _resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def test_an_answer_without_a_rule_needs_no_worker(tmp_path: Path) -> None:
    counted = metrics()
    rules = PoolRules(wait_s=30.0)
    check = ConstraintCheck(vocabulary_file(tmp_path), rules, counted, spells_ascii=True)
    await check.start()
    try:
        thought = ThoughtRule("<t>", "</t>", is_begun=True)
        budget_alone = Constraint(ConstraintSpec(Kind.TEXT, ""))
        stops = StopRule(("a",), token_ids=(5,))
        assert (await check.check(budget_alone, stops, 4, thought=thought)).min_len == 4
        assert counted.constraint_checks.value("look") == 1
    finally:
        await check.close()


def test_the_least_recently_used_finding_is_forgotten_first() -> None:
    memory: ConstraintMemory[str] = ConstraintMemory(2)
    memory.keep("a", "first")
    memory.keep("b", "second")
    memory.find("a", 0.0)
    memory.keep("c", "third")
    assert [memory.find(key, 0.0) for key in "abc"] == ["first", None, "third"]
    assert len(memory) == 2


def test_a_finding_with_a_time_is_forgotten_then() -> None:
    memory: ConstraintMemory[str] = ConstraintMemory(2)
    memory.keep("a", "first", until_s=10.0)
    assert memory.find("a", 9.9) == "first"
    assert memory.find("a", 10.0) is None
    assert len(memory) == 0


def test_a_later_finding_takes_the_place_of_an_earlier_one() -> None:
    memory: ConstraintMemory[str] = ConstraintMemory(2)
    memory.keep("a", "first", until_s=10.0)
    memory.keep("a", "second")
    assert memory.find("a", 11.0) == "second"


OTHER = Constraint(ConstraintSpec(Kind.CHOICE, '["a"]'))


async def test_a_constraint_is_compiled_before_its_first_step() -> None:
    shard = FakeShard()
    async with routing(shard) as rig:
        await events_of(rig.batcher.submit(asking(constraint=ANY_TEXT)))
        called = methods(shard)
        assert called.index("PrepareConstraint") < called.index("Prefill")
        assert called.count("PrepareConstraint") == 1


async def test_nothing_is_prepared_without_a_constraint() -> None:
    shard = FakeShard()
    async with routing(shard) as rig:
        await events_of(rig.batcher.submit(asking()))
        assert "PrepareConstraint" not in methods(shard)


async def test_what_compiles_in_no_time_is_left_to_the_first_step() -> None:
    shard = FakeShard()
    async with routing(shard) as rig:
        quick = replace(ANY_TEXT, is_quick=True)
        end_of(await events_of(rig.batcher.submit(asking(constraint=quick))))
        assert "PrepareConstraint" not in methods(shard)


async def test_equal_constraints_are_prepared_together_and_others_beside_them() -> None:
    shard = FakeShard()
    async with routing(shard) as rig:
        streams = rig.batcher.submit_all(
            [asking(constraint=each) for each in (ANY_TEXT, OTHER, ANY_TEXT)]
        )
        for stream in streams:
            end_of(await events_of(stream))
        assert sorted(shard.prepared) == sorted({ANY_TEXT.spec.text, OTHER.spec.text})


async def test_what_the_shard_has_is_not_asked_for_again_until_it_begins_anew() -> None:
    shard = FakeShard()
    async with routing(shard) as rig:
        for _ in range(3):
            end_of(await events_of(rig.batcher.submit(asking(constraint=ANY_TEXT))))
        assert len(shard.prepared) == 1
        shard.faults.fails.append(("Prefill", grpc.StatusCode.INTERNAL, "device lost"))
        await events_of(rig.batcher.submit(asking(constraint=ANY_TEXT)))
        await works_again(rig)
        assert len(shard.prepared) == 2


async def test_only_the_last_few_are_known_and_none_that_is_long() -> None:
    shard = FakeShard()

    async def ask(text: str) -> None:
        constraint = Constraint(ConstraintSpec(Kind.REGEX, text))
        end_of(await events_of(rig.batcher.submit(asking("a", 1, constraint=constraint))))

    async with routing(shard) as rig:
        for text in (
            "first",
            "long" * 20_000,
            "long" * 20_000,
            *map(str, range(64)),
            "63",
            "first",
        ):
            await ask(text)
        assert [shard.prepared.count(text) for text in ("first", "long" * 20_000, "63")] == [
            2,
            2,
            1,
        ]


async def test_others_go_on_while_one_waits_for_its_constraint() -> None:
    shard = FakeShard()
    shard.faults.hangs.add("PrepareConstraint")
    async with routing(shard) as rig:
        waiting = rig.batcher.submit(asking(constraint=ANY_TEXT))
        assert end_of(await events_of(rig.batcher.submit(asking()))).text == expected_text(
            "Once upon", 6
        )
        assert waiting.end is None
        assert rig.scheduler.stats().num_waiting == 1
        rig.batcher.cancel(waiting)


async def test_a_client_that_leaves_while_its_constraint_is_prepared_leaves_nothing() -> None:
    shard = FakeShard()
    shard.faults.hangs.add("PrepareConstraint")
    async with routing(shard) as rig:
        stream = rig.batcher.submit(asking(constraint=ANY_TEXT))
        await until_called(shard, "PrepareConstraint")
        rig.batcher.cancel(stream)
        await settled(rig)
        await until(lambda: not is_compiling())
        shard.faults.hangs.clear()
        # The next one with the same constraint is asked for anew.
        await events_of(rig.batcher.submit(asking(constraint=ANY_TEXT)))
        assert methods(shard).count("PrepareConstraint") == 2
        assert methods(shard).count("Prefill") == 1


async def test_one_that_stays_has_its_constraint_when_another_leaves() -> None:
    shard = FakeShard()
    async with routing(shard) as rig:
        left, stays = rig.batcher.submit_all([asking(constraint=ANY_TEXT) for _ in range(2)])
        rig.batcher.cancel(left)
        assert end_of(await events_of(stays)).num_generated_tokens == 6
        assert methods(shard).count("PrepareConstraint") == 1


async def test_what_the_shard_cannot_compile_is_refused_and_nothing_runs() -> None:
    shard = FakeShard()
    shard.faults.refused_constraints[ANY_TEXT.spec.text] = "it is too large"
    async with routing(shard) as rig:
        error = error_of(await events_of(rig.batcher.submit(asking(constraint=ANY_TEXT))))
        assert isinstance(error, ConstraintRefused)
        assert (str(error), error.reason) == ("it is too large", "too_complex")
        assert rig.metrics.constraint_refusals.value("too_complex") == 1
        assert "Prefill" not in methods(shard)
        await settled(rig)


async def test_a_compilation_without_end_fails_its_request_alone() -> None:
    shard = FakeShard()
    shard.faults.hangs.add("PrepareConstraint")
    async with routing(shard, timeouts=replace(QUICK, prepare_s=0.1)) as rig:
        other = rig.batcher.submit(asking())
        error = error_of(await events_of(rig.batcher.submit(asking(constraint=ANY_TEXT))))
        assert type(error) is GenerationFailed
        assert "did not compile the constraint within 0.1 s" in str(error)
        end_of(await events_of(other))


async def test_a_request_that_may_wait_no_longer_is_asked_to_retry() -> None:
    shard = FakeShard()
    shard.faults.hangs.add("PrepareConstraint")
    async with routing(shard) as rig:
        hurried = replace(ANY_TEXT, prepare_by_s=monotonic() + 0.15)
        error = error_of(await events_of(rig.batcher.submit(asking(constraint=hurried))))
        assert type(error) is Overloaded
        assert re.search(r"did not compile the constraint within \d", str(error))
        await settled(rig)


async def test_where_the_shard_fails_otherwise_the_first_step_compiles() -> None:
    shard = FakeShard()
    shard.faults.fails.append(("PrepareConstraint", grpc.StatusCode.UNAVAILABLE, "restarting"))
    async with routing(shard) as rig:
        end = end_of(await events_of(rig.batcher.submit(asking(constraint=ANY_TEXT))))
        assert end.num_generated_tokens == 6


async def test_a_deadline_passes_while_a_constraint_is_prepared() -> None:
    shard = FakeShard()
    shard.faults.hangs.add("PrepareConstraint")
    async with routing(shard) as rig:
        now_s = asyncio.get_running_loop().time()
        request = asking(constraint=ANY_TEXT, deadline_s=now_s + 0.1)
        end = end_of(await events_of(rig.batcher.submit(request)))
        assert (end.reason, end.constraint_satisfied) == (FinishReason.DEADLINE, False)
        await settled(rig)


async def test_a_drain_waits_for_requests_that_wait_for_a_constraint() -> None:
    shard = FakeShard()
    async with routing(shard) as rig:
        stream = rig.batcher.submit(asking(constraint=ANY_TEXT))
        await rig.batcher.drain(30.0)
        assert end_of(await events_of(stream)).num_generated_tokens == 6


@pytest.mark.parametrize("is_broken", [True, False])
async def test_a_step_that_breaks_meanwhile_changes_nothing_for_waiting_requests(
    is_broken: bool,
) -> None:
    shard = FakeShard()
    shard.faults.hangs.add("PrepareConstraint")
    timeouts = replace(PATIENT, prepare_s=0.5)
    async with routing(shard, timeouts=timeouts) as rig:
        stream = rig.batcher.submit(asking(constraint=ANY_TEXT))
        if is_broken:
            shard.faults.fails.append(("Prefill", grpc.StatusCode.INTERNAL, "broke"))
            await events_of(rig.batcher.submit(asking()))
        assert "within 0.5 s" in str(error_of(await events_of(stream)))
        shard.faults.hangs.clear()
        await works_again(rig)


async def works_again(rig: Rig) -> None:
    while not rig.batcher.is_alive:
        await asyncio.sleep(0.01)
    end_of(await events_of(rig.batcher.submit(asking(constraint=ANY_TEXT))))


def is_compiling() -> bool:
    coroutines = [task.get_coro() for task in asyncio.all_tasks()]
    return any(getattr(each, "__qualname__", "") == "Preparing._compile" for each in coroutines)


async def until_called(shard: FakeShard, method: str) -> None:
    while method not in methods(shard):
        await asyncio.sleep(0.002)
