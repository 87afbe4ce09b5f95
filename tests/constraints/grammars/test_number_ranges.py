"""Patterns of numerals against the numbers."""

import re

from hypothesis import given
from hypothesis import strategies as st

from constraints.grammars.number_ranges import at_least, between

sizes = st.one_of(st.integers(0, 1200), st.integers(0, 10**18))


@given(sizes, sizes, sizes)
def test_a_range_has_its_numbers(one: int, other: int, number: int) -> None:
    low, high = min(one, other), max(one, other)
    assert (re.fullmatch(between(low, high), str(number)) is not None) is (low <= number <= high)
    assert (re.fullmatch(at_least(low), str(number)) is not None) is (low <= number)


@given(st.integers(0, 300), st.integers(0, 300))
def test_around_its_bounds_nothing_is_missed(one: int, other: int) -> None:
    low, high = min(one, other), max(one, other)
    pattern = re.compile(between(low, high))
    found = [number for number in range(1100) if pattern.fullmatch(str(number))]
    assert found == list(range(low, high + 1))
