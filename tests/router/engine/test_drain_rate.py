"""How fast slots come free, from what was seen while the server was busy."""

from math import isclose

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.engine.drain_rate import MEMORY_S, DrainRate

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
    once, twice = watched(8, history, 0.0), watched(8, history, 0.0)
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
