"""The check over real workers: what it answers, refuses, remembers and counts."""

import asyncio
import gc
import json
import os
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from constraints.spec import ConstraintSpec, Kind, StopRule
from constraints.worker.pool import PoolRules, VocabularyFile
from router.engine.constraints import ConstraintCheck, ConstraintMemory
from router.request.errors import ConstraintRefused, Overloaded, RateLimited, Unsupported
from router.request.request import ApiKey, Constraint
from router.telemetry.metrics import Metrics
from tests.byte_tokenizer import byte_ids
from tests.constraints.worker.pools import MAX_LEN, costly, vocabulary_file

_NO_STOPS = StopRule()


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
    async with checking(tmp_path, wait_s=0.2) as (check, _):
        assert (await check.check(regex("[a-z]{3}"), _NO_STOPS, 5)).min_len == 3


async def test_a_key_has_so_much_time_for_constraints(tmp_path: Path) -> None:
    key = ApiKey("a", constraint_seconds_per_minute=1)
    async with checking(tmp_path) as (check, _):
        await check.check(regex("[ab]{3}"), _NO_STOPS, 3, key)
        check._keys.spend(key, check._clock(), constraint_s=1.0)
        with pytest.raises(RateLimited, match="had its 1 seconds of constraints per minute"):
            await check.check(regex("[ab]{4}"), _NO_STOPS, 4, key)
        # What is known costs nothing.
        known = await check.check(regex("[ab]{3}"), _NO_STOPS, 3, key)
        other = await check.check(regex("[ab]{4}"), _NO_STOPS, 4, ApiKey("b"))

    assert (known.min_len, other.min_len) == (3, 4)


async def test_a_constraint_that_fits_comes_back_with_the_length_of_a_text(tmp_path: Path) -> None:
    async with checking(tmp_path) as (check, _):
        constraint = regex("[ab]{3}")
        checked = await check.check(constraint, _NO_STOPS, 3)
    assert (checked.spec, checked.min_len, checked.dropped_phrases) == (constraint.spec, 3, ())


async def test_a_translation_is_sent_to_the_shard_once(tmp_path: Path) -> None:
    async with checking(tmp_path) as (check, _):
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


async def test_the_check_knows_whether_masks_may_lead_into_dead_ends(tmp_path: Path) -> None:
    where = Constraint(ConstraintSpec(Kind.WHERE, "len(X) > 3"))
    cases = {
        "where": (where, ()),
        "stops": (where, ("a",)),
        "regex": (regex("[ab]{3}"), ()),
        "cut": (replace(regex("[ab]{3}"), cuts=True), ()),
        "automaton": (regex("(?=.*a)b*a"), ()),
    }
    async with checking(tmp_path) as (check, _):
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


@pytest.mark.alone
async def test_a_constraint_that_takes_long_to_compile_is_not_called_quick(tmp_path: Path) -> None:
    many = json.dumps([f"{number} and more" for number in range(20_000)])
    async with checking(tmp_path) as (check, _):
        quick = await check.check(regex("[ab]{3}"), _NO_STOPS, 3)
        long = await check.check(Constraint(ConstraintSpec(Kind.CHOICE, many)), _NO_STOPS, 30)
    assert (quick.is_quick, long.is_quick) == (True, False)


async def test_each_refusal_has_its_reason_and_its_numbers(tmp_path: Path) -> None:
    async with checking(tmp_path) as (check, counted):
        reason, details, _ = await refusal(check, regex("a["))
        assert (reason, details) == ("malformed", {"position": 1})
        reason, details, _ = await refusal(check, schema('{"contains": {"const": 1}}'))
        assert (reason, details["pointer"]) == ("not_enforced", "/contains")
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


async def test_a_request_counts_as_one_check_however_often_a_worker_looks(tmp_path: Path) -> None:
    async with checking(tmp_path) as (check, counted):
        await refusal(check, regex("a{5}"), 4)
        sources = ("worker", "cache")
        assert [counted.constraint_checks.value(each) for each in sources] == [1, 0]
        await refusal(check, regex("a{5}"), 4)
        assert [counted.constraint_checks.value(each) for each in sources] == [1, 1]
        await refusal(check, regex("a{5}"), 3)
        assert [counted.constraint_checks.value(each) for each in sources] == [2, 1]


async def test_what_does_not_fit_may_be_cut_where_the_client_says_so(tmp_path: Path) -> None:
    async with checking(tmp_path) as (check, _):
        for longer in ("a{5}", f"a{{{2 * MAX_LEN}}}"):
            checked = await check.check(replace(regex(longer), cuts=True), _NO_STOPS, 4)
            assert checked.min_len == 0
            assert (await refusal(check, regex(longer), 4))[0] == "does_not_fit"


async def test_the_refusal_has_the_tokens_of_this_request(tmp_path: Path) -> None:
    async with checking(tmp_path) as (check, _):
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


async def test_a_longer_first_text_does_not_keep_a_shorter_one_from_being_found(
    tmp_path: Path,
) -> None:
    async with checking(tmp_path) as (check, _):
        constraint = regex("(x[0-9]{40}y)|zz")
        assert (await check.check(constraint, _NO_STOPS, 2)).min_len == 2


async def test_a_lenient_schema_lists_what_is_not_enforced(tmp_path: Path) -> None:
    async with checking(tmp_path) as (check, _):
        lenient = schema('{"type": "array", "contains": {"const": 1}}', lenient=True)
        assert (await check.judge(lenient.spec, [])).not_enforced == ("/contains",)


async def test_the_same_text_is_compiled_once_also_when_it_comes_at_the_same_time(
    tmp_path: Path,
) -> None:
    async with checking(tmp_path) as (check, counted):
        constraint = schema('{"type": "object"}')
        await asyncio.gather(*(check.check(constraint, _NO_STOPS, 50) for _ in range(10)))
        await check.check(constraint, _NO_STOPS, 50)
        assert counted.constraint_compile_duration.count("json_schema") == 1
        assert counted.constraint_checks.value("cache") == 1


async def test_other_stop_strings_are_another_question(tmp_path: Path) -> None:
    async with checking(tmp_path) as (check, _):
        constraint = regex("a{2}b")
        assert (await check.check(constraint, StopRule(("b",)), 50)).min_len == 3
        with pytest.raises(ConstraintRefused) as refused:
            await check.check(constraint, StopRule(("a",)), 50)
        assert refused.value.reason == "contradiction"


async def test_stop_tokens_are_no_text(tmp_path: Path) -> None:
    async with checking(tmp_path) as (check, _):
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
        constraint = Constraint(costly().spec)
        first = asyncio.create_task(check.check(constraint, _NO_STOPS, 50))
        second = asyncio.create_task(check.check(constraint, _NO_STOPS, 50))
        await asyncio.sleep(0.1)
        first.cancel()
        assert (await second) == constraint


async def test_a_tokenizer_without_bytes_is_a_clear_refusal(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text("{}")
    check = ConstraintCheck(VocabularyFile(path, 8, (0,), 9), PoolRules(), metrics())
    await check.start()
    try:
        with pytest.raises(Unsupported, match="cannot be constrained"):
            await check.check(regex("a"), _NO_STOPS, 5)
    finally:
        await check.close()


async def test_texts_are_judged(tmp_path: Path) -> None:
    async with checking(tmp_path) as (check, _):
        judged = await check.judge(regex("ab|cd").spec, ["ab", "ad"])
        assert [each.accepted for each in judged.judgements] == [True, False]
        assert judged.judgements[1].expected == ("'b'",)


async def test_memory_does_not_grow_with_the_number_of_texts(tmp_path: Path) -> None:
    async with checking(tmp_path) as (check, _):
        for number in range(50):
            await check.check(regex(f"a{{{number}}}"), _NO_STOPS, 50)
        before = _resident_bytes(os.getpid())
        for number in range(300):
            await check.check(regex(f"b{{1,{number + 1}}}"), _NO_STOPS, 50)
        assert _resident_bytes(os.getpid()) - before < 20_000_000


async def test_a_refusal_is_remembered_without_its_text(tmp_path: Path) -> None:
    async with checking(tmp_path) as (check, _):
        tracemalloc.start()
        try:
            for number in range(10):
                with pytest.raises(ConstraintRefused):
                    await check.check(regex(f"({number}" + "a" * 50_000), _NO_STOPS, 50)
            gc.collect()
            num_bytes, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        # A traceback holds the text of each.
        assert num_bytes < 5 * 50_000


def _resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def test_a_plain_schema_is_found_in_order_without_a_worker(tmp_path: Path) -> None:
    counted = metrics()
    rules = PoolRules(wait_s=30.0)
    check = ConstraintCheck(vocabulary_file(tmp_path), rules, counted, spells_ascii=True)
    await check.start()
    try:
        plain = schema('{"type": "array", "items": {"type": "null"}, "minItems": 2}')
        checked = await check.check(plain, _NO_STOPS, MAX_LEN)
        assert (checked.is_quick, checked.min_len) == (True, 2 + 2 * 7)
        assert counted.constraint_checks.value("look") == 1
        # Where the bound is not enough the worker looks closer.
        assert (await check.check(plain, _NO_STOPS, 11)).min_len <= 11
        assert counted.constraint_checks.value("worker") == 1
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
