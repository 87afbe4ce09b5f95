"""Slots, parts of keys, refusals with their Retry-After, and a rush of clients that obey it."""

import asyncio
import heapq
import random
from collections import Counter
from dataclasses import dataclass, replace
from itertools import count
from math import ceil, isclose
from time import monotonic

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proto.contract import FinishReason
from router.engine.admission import MEMORY_S, Admission, DrainRate, KeyLimits
from router.engine.batcher import BatcherLimits
from router.request.errors import Draining, InvalidRequest, Overloaded, RateLimited, Unhealthy
from router.request.request import NO_KEY, ApiKey
from tests.fakes import FakeShard
from tests.router.rig import PATIENT, Rig, asking, routing, settled


def test_as_many_enter_as_there_are_slots() -> None:
    admission = Admission(2, restart_s=1.0)
    admission.take(1, 0.0)
    admission.take(1, 0.0)
    with pytest.raises(Overloaded, match="2 requests are waiting or running; at most 2 may") as no:
        admission.take(1, 0.0)
    assert 1.0 <= no.value.retry_after_s <= 60.0


def test_several_sequences_enter_together_or_not_at_all() -> None:
    admission = Admission(4, restart_s=1.0)
    admission.take(2, 0.0)
    with pytest.raises(Overloaded, match="this one needs 3"):
        admission.take(3, 0.0)
    admission.free(1, 0.0)
    admission.take(3, 0.0)


def test_more_sequences_than_slots_can_never_enter() -> None:
    with pytest.raises(InvalidRequest, match="5 sequences at once; this server has 4"):
        Admission(4, restart_s=1.0).take(5, 0.0)


def test_a_closed_door_says_so() -> None:
    admission = Admission(4, restart_s=1.0)
    admission.close()
    with pytest.raises(Draining):
        admission.take(1, 0.0)


def test_broken_shards_refuse_once_they_had_their_time_to_begin_anew() -> None:
    admission = Admission(4, restart_s=3.0)
    admission.take(1, 0.0, broken_s=3.0)
    with pytest.raises(Unhealthy, match=r"have not answered for 3\.1 s") as no:
        admission.take(1, 0.0, broken_s=3.1)
    assert no.value.retry_after_s == 1.0


def test_sequences_that_fail_at_once_are_no_sign_of_a_fast_server() -> None:
    fast = Admission(8, restart_s=1.0)
    broken = Admission(8, restart_s=1.0)
    for admission, is_good in ((fast, True), (broken, False)):
        admission.take(8, 0.0)
        for _ in range(4):
            admission.free(1, 0.1, is_good=is_good)
    assert fast.drain_rate(0.1) > 6
    assert broken.drain_rate(0.1) < 4


def test_a_refused_client_is_asked_to_return_when_those_before_it_will_have_ended() -> None:
    admission = Admission(4, restart_s=1.0)
    admission.take(4, 0.0)
    for end_s in range(5, 300, 5):
        admission.free(1, float(end_s), is_good=True)
        admission.take(1, float(end_s))
    with pytest.raises(Overloaded) as no:
        admission.take(1, 300.0)
    # One ends every 5 s, and four are there.
    assert no.value.retry_after_s == pytest.approx(20.0, rel=0.2)
    assert no.value.retry_after_s == pytest.approx(4 / admission.drain_rate(300.0))


@pytest.mark.parametrize(("end_s", "retry_s"), [(0.001, 1.0), (1000.0, 60.0)])
def test_the_time_to_return_is_one_that_clients_accept(end_s: float, retry_s: float) -> None:
    admission = Admission(4, restart_s=1.0)
    admission.take(4, 0.0)
    for index in range(1, 100):
        admission.free(1, index * end_s, is_good=True)
        admission.take(1, index * end_s)
    with pytest.raises(Overloaded) as no:
        admission.take(1, 100 * end_s)
    assert no.value.retry_after_s == retry_s


def full(num_slots: int) -> Admission:
    admission = Admission(num_slots, restart_s=1.0)
    admission.take(num_slots, 0.0)
    return admission


def refused_at(admission: Admission, now_s: float) -> float:
    """The time to return of a request that finds no slot."""
    with pytest.raises(Overloaded) as no:
        admission.take(1, now_s)
    return no.value.retry_after_s


def test_who_was_refused_before_returns_before() -> None:
    admission = full(4)
    waits_s = [refused_at(admission, 0.0) for _ in range(100)]
    # A slot is guessed to be free every half second.
    assert waits_s[:4] == [2.0, 2.5, 3.0, 3.5]
    # Perhaps not all come back.
    assert waits_s[12:] == [8.0] * 88


def test_those_who_should_have_come_back_by_now_are_no_longer_before_anybody() -> None:
    admission = full(4)
    for _ in range(1000):
        refused_at(admission, 0.0)
    wait_s = refused_at(admission, 8.0)
    assert wait_s == pytest.approx(4 / admission.drain_rate(8.0))


@dataclass
class Rush:
    """A closed loop: clients that ask again as soon as they are answered, on simulated time.

    `obey_share` of the refusals are obeyed, in whole seconds or exactly; after the others
    a client gives its request up and asks something else a second later.
    """

    num_slots: int = 128
    num_clients: int = 384
    duration_s: float = 2.5
    spread: float = 0.5
    obey_share: float = 1.0
    in_whole_seconds: bool = False
    end_s: float = 120.0
    num_answered: int = 0
    num_refused: int = 0

    def run(self) -> "Rush":
        chance = random.Random(5)
        admission = Admission(self.num_slots, restart_s=1.0)
        order = count()
        prompts = count()
        todo: list[tuple[float, int, int, int]] = []

        def later(at_s: float, prompt: int, tries: int) -> None:
            heapq.heappush(todo, (at_s, next(order), prompt, tries))

        for _ in range(self.num_clients):
            later(0.1 * chance.random(), next(prompts), 1)
        while todo and todo[0][0] < self.end_s:
            now_s, _, prompt, tries = heapq.heappop(todo)
            if tries == 0:
                admission.free(1, now_s, is_good=True)
                self.num_answered += 1
                later(now_s + 0.002, next(prompts), 1)
                continue
            try:
                admission.take(1, now_s)
            except Overloaded as error:
                wait_s = error.retry_after_s
                self.num_refused += 1
                if chance.random() >= self.obey_share:
                    later(now_s + 1.0, next(prompts), 1)
                else:
                    wait_s = float(ceil(wait_s)) if self.in_whole_seconds else wait_s
                    later(now_s + wait_s + 0.005, prompt, tries + 1)
                continue
            duration_s = self.duration_s * chance.uniform(1 - self.spread, 1 + self.spread)
            later(now_s + duration_s, prompt, 0)
        return self

    @property
    def goodput(self) -> float:
        """Of what the slots could do, from the beginning to the end."""
        could = self.num_slots * (self.end_s - self.duration_s) / self.duration_s
        return self.num_answered / could


@pytest.mark.parametrize(
    "rush",
    [
        Rush(),
        Rush(in_whole_seconds=True),
        Rush(obey_share=0.0),
        Rush(obey_share=0.5),
        Rush(num_slots=32, num_clients=96, duration_s=1.6, spread=0.0),
        Rush(num_slots=16, num_clients=48, duration_s=10.0, end_s=600.0),
    ],
    ids=["obeyed", "whole seconds", "never obeyed", "half obey", "equal lengths", "few slots"],
)
def test_three_times_the_capacity_leaves_no_slot_empty(rush: Rush) -> None:
    assert rush.run().goodput > 0.98


@pytest.mark.parametrize(("num_clients", "num_refusals"), [(384, 0.8), (1280, 2.5)])
def test_a_crowd_that_obeys_is_refused_a_few_times_for_each_answer(
    num_clients: int, num_refusals: float
) -> None:
    rush = Rush(num_clients=num_clients).run()
    assert rush.num_refused < num_refusals * rush.num_answered


gaps = st.floats(0.001, 5.0)
ends = st.integers(0, 4)
histories = st.lists(st.tuples(gaps, ends, st.integers(0, 8)), max_size=30)


def watched(num_slots: int, history: list[tuple[float, int, int]], start_s: float) -> DrainRate:
    """A rate that has seen (seconds, ends, slots taken) one after the other, busy at first."""
    rate = DrainRate(num_slots)
    now_s = start_s
    rate.observe(now_s, num_slots)
    for gap_s, num_ended, num_taken in history:
        now_s += gap_s
        rate.observe(now_s, num_taken, num_ended)
    return rate


def test_before_anything_is_known_each_slot_is_thought_free_once_in_two_seconds() -> None:
    assert DrainRate(128).per_second(0.0) == 64.0


@pytest.mark.parametrize("per_s", [0.2, 3.0, 400.0])
def test_a_busy_server_s_rate_is_found_within_a_few_memories(per_s: float) -> None:
    rate = DrainRate(128)
    now_s = 0.0
    rate.observe(now_s, 128)
    while now_s < 8 * MEMORY_S:
        now_s += 1 / per_s
        rate.observe(now_s, 127, num_ended=1)
        rate.observe(now_s, 128)
    assert isclose(rate.per_second(now_s), per_s, rel_tol=0.15)


def test_a_server_with_little_to_do_teaches_nothing() -> None:
    rate = DrainRate(8)
    rate.observe(0.0, 3)
    rate.observe(1000.0, 2, num_ended=1)
    assert rate.per_second(2000.0) == DrainRate(8).per_second(0.0)


def test_what_a_rush_has_taught_outlives_the_quiet_after_it() -> None:
    rate = watched(8, [(0.5, 1, 8)] * 200, 0.0)
    learnt = rate.per_second(100.0)
    rate.observe(100.0, 0)
    assert rate.per_second(100_000.0) == learnt


def test_when_nothing_ends_any_more_the_rate_falls_and_stays_above_zero() -> None:
    rate = watched(8, [(0.5, 1, 8)] * 100, 0.0)
    rates = [rate.per_second(50.0 + waited_s) for waited_s in (0.0, 10.0, 60.0, 1e6)]
    assert rates == sorted(rates, reverse=True)
    assert rates[-1] > 0


@given(histories, st.floats(0.0, 1e6))
def test_only_differences_of_times_matter(
    history: list[tuple[float, int, int]], start_s: float
) -> None:
    end_s = sum(gap_s for gap_s, _, _ in history) + 1.0
    here = watched(8, history, 0.0).per_second(end_s)
    there = watched(8, history, start_s).per_second(start_s + end_s)
    assert isclose(here, there, rel_tol=1e-6)


@given(histories, gaps, gaps)
def test_looking_twice_is_looking_once(
    history: list[tuple[float, int, int]], first_s: float, second_s: float
) -> None:
    end_s = sum(gap_s for gap_s, _, _ in history)
    once = watched(8, history, 0.0)
    twice = watched(8, history, 0.0)
    num_taken = history[-1][2] if history else 8
    twice.observe(end_s + first_s, num_taken)
    later_s = end_s + first_s + second_s
    assert isclose(once.per_second(later_s), twice.per_second(later_s), rel_tol=1e-9)


@given(histories)
def test_the_rate_lies_between_what_was_seen_and_the_guess(
    history: list[tuple[float, int, int]],
) -> None:
    rate = watched(8, history, 0.0)
    end_s = sum(gap_s for gap_s, _, _ in history)
    fastest = max((num / gap_s for gap_s, num, _ in history), default=0.0)
    # Within a gap the ends come at its last moment, when those of before have faded a little.
    assert 0 < rate.per_second(end_s) <= 1.3 * max(fastest, 4.0)


def test_a_clock_that_stands_or_steps_back_breaks_nothing() -> None:
    rate = DrainRate(4)
    rate.observe(10.0, 4)
    rate.observe(9.0, 3, num_ended=1)
    rate.observe(9.0, 4)
    assert rate.per_second(9.0) > 0


HOG = ApiKey("hog")
LIGHT = ApiKey("light")
HEAVY = ApiKey("heavy", weight=3.0)


def admits(limits: KeyLimits, key: ApiKey, num_wanted: int = 1) -> bool:
    try:
        limits.check(key, 0, num_wanted, 0.0)
    except RateLimited:
        return False
    return True


def test_a_key_without_limits_is_admitted() -> None:
    assert admits(KeyLimits(), NO_KEY, 1000)


def test_so_many_requests_at_once_and_no_more() -> None:
    key = ApiKey("a", max_concurrent_requests=2)
    limits = KeyLimits()
    limits.check(key, 1, 1, 0.0)

    with pytest.raises(RateLimited, match="2 requests of this key are waiting or running"):
        limits.check(key, 2, 1, 0.0)
    with pytest.raises(InvalidRequest, match="needs 3 sequences at once; its key may have 2"):
        limits.check(key, 0, 3, 0.0)


def test_requests_of_a_minute_come_back_with_time() -> None:
    key = ApiKey("a", requests_per_minute=6)
    limits = KeyLimits()
    for _ in range(6):
        limits.check(key, 0, 1, 0.0)
        limits.spend(key, 0.0, requests=1)

    with pytest.raises(RateLimited) as refused:
        limits.check(key, 0, 1, 0.0)
    assert refused.value.retry_after_s == pytest.approx(10.0)
    limits.check(key, 0, 1, 10.0)


def test_tokens_are_overdrawn_and_paid_back() -> None:
    key = ApiKey("a", tokens_per_minute=60)
    limits = KeyLimits()
    limits.check(key, 0, 1, 0.0)
    limits.spend(key, 0.0, tokens=90)

    with pytest.raises(RateLimited, match="has had its 60 tokens per minute") as refused:
        limits.check(key, 0, 1, 0.0)
    assert refused.value.retry_after_s == pytest.approx(31.0)
    limits.check(key, 0, 1, 31.0)


def test_nothing_is_saved_up_beyond_a_minute() -> None:
    key = ApiKey("a", tokens_per_minute=60)
    limits = KeyLimits()
    limits.check(key, 0, 1, 0.0)
    limits.spend(key, 1000.0, tokens=60)

    with pytest.raises(RateLimited):
        limits.check(key, 0, 1, 1000.0)


def test_a_limit_that_was_changed_begins_anew() -> None:
    limits = KeyLimits()
    old = ApiKey("a", tokens_per_minute=60)
    new = ApiKey("a", tokens_per_minute=61)
    limits.spend(old, 0.0, tokens=600)

    assert not admits(limits, old)
    assert admits(limits, new)


@pytest.mark.parametrize(
    ("key", "taken", "num_taken", "num_fair"),
    [
        (HOG, [], 0, 8),
        (HOG, [HOG] * 8, 8, 8),
        (LIGHT, [HOG] * 8, 0, 4),
        (HOG, [HOG] * 8 + [LIGHT], 8, 4),
        (HEAVY, [HOG] * 8, 0, 6),
        (LIGHT, [ApiKey(str(number)) for number in range(8)], 0, 1),
        (replace(HOG, weight=0.5), [HOG] * 8 + [LIGHT], 8, 2),
    ],
)
def test_slots_are_parted_by_weight(
    key: ApiKey, taken: list[ApiKey], num_taken: int, num_fair: int
) -> None:
    admission = Admission(8, restart_s=1.0)
    for each in taken:
        admission.take(1, 0.0, each)
    assert (admission.num_taken_by(key), admission.fair_share(key)) == (num_taken, num_fair)


def test_a_key_that_fills_the_server_does_not_keep_the_others_out() -> None:
    admission = Admission(8, restart_s=1.0)
    admission.take(8, 0.0, HOG)
    admission.take(4, 0.0, LIGHT)
    for key in (LIGHT, HOG):
        with pytest.raises(Overloaded):
            admission.take(1, 0.0, key)
    admission.free(8, 0.0, HOG)
    assert admission.fair_share(LIGHT) == 8


def test_a_refused_request_takes_no_slot_and_nothing_of_the_key_s_allowance() -> None:
    key = ApiKey("a", requests_per_minute=1)
    admission = full(4)
    for _ in range(2):
        with pytest.raises(Overloaded):
            admission.take(4, 0.0, key)
    assert (admission.num_taken, admission.num_taken_by(key)) == (4, 0)
    admission.take(1, 0.0, key)
    with pytest.raises(RateLimited):
        admission.take(1, 0.0, key)


def rate_behind(widths: list[int], *, is_good: bool) -> float:
    """Slots that come free per second, as reckoned when groups so wide end after a second."""
    admission = Admission(8, restart_s=1.0)
    for width in widths:
        admission.take(width, 0.0)
    for width in widths:
        admission.free(width, 1.0, is_good=is_good)
    assert admission.num_taken == 0
    return admission.drain_rate(1.0)


@pytest.mark.parametrize("widths", [[8], [4, 4], [7, 1]])
def test_a_wide_groups_end_counts_for_each_of_its_slots(widths: list[int]) -> None:
    # The last of many ends leave a server that has little to do, and say nothing of it.
    one_by_one = rate_behind([1] * 8, is_good=True)
    assert rate_behind(widths, is_good=True) >= one_by_one > 4


def test_a_group_that_fails_says_nothing_of_how_fast_slots_come_free() -> None:
    assert rate_behind([8], is_good=False) < 4


NUM_SLOTS = 32
# A step takes some 15 ms, so that a sequence takes about 1.5 s and a slot comes free each 50 ms.
NUM_TOKENS = (45, 135)
STEP_S = 0.01


async def ask(rig: Rig, prompt: str, num_tokens: int) -> int:
    """One request, sent again when the server asks for it; how often it was sent."""
    for num_tries in range(1, 100):
        try:
            (completion,) = await rig.infer.complete_all([asking(prompt, num_tokens)])
        except Overloaded as error:
            await asyncio.sleep(error.retry_after_s)
            continue
        assert completion.finished.reason is FinishReason.LENGTH
        return num_tries
    raise AssertionError("99 times refused")


async def goodput(rig: Rig, num_clients: int, duration_s: float) -> tuple[float, Counter[int]]:
    """Answers per second of clients that ask again and again, and the tries that they took."""
    num_tries: Counter[int] = Counter()
    chance = random.Random(3)
    began_s = monotonic()

    async def client(index: int) -> None:
        turn = 0
        while monotonic() - began_s < duration_s:
            num_tries[await ask(rig, f"{index} {turn}", chance.randint(*NUM_TOKENS))] += 1
            turn += 1

    clients = [asyncio.create_task(client(index)) for index in range(num_clients)]
    await asyncio.sleep(duration_s)
    num_answered = sum(num_tries.values())
    await asyncio.gather(*clients)
    return num_answered / duration_s, num_tries


@pytest.mark.alone
@pytest.mark.slow
@pytest.mark.nightly
async def test_at_three_times_the_capacity_goodput_stays_and_all_get_in_at_last() -> None:
    shard = FakeShard(num_blocks=4096, block_size=16, checks_blocks=False)
    shard.faults.delay_s = STEP_S
    limits = BatcherLimits(max_concurrent_requests=NUM_SLOTS)
    async with routing(
        shard,
        max_step_tokens=1024,
        max_batch_size=NUM_SLOTS,
        limits=limits,
        timeouts=PATIENT,
    ) as rig:
        alone, _ = await goodput(rig, NUM_SLOTS, 3.0)
        rushed, num_tries = await goodput(rig, 3 * NUM_SLOTS, 6.0)
        await settled(rig)
        num_refused = rig.metrics.rejected.value("overloaded")
    assert num_refused > 0
    assert rushed > 0.85 * alone, (alone, rushed, num_tries)
