"""Patterns of numerals hold for exactly those whose value is so related to the bound."""

import re
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from client.query.conditions.decimals import among, related
from client.query.conditions.value_comparisons import RELATIONS

# Few digits, so that numerals and bounds are often equal or nearly so.
digits = st.text("0159", min_size=1, max_size=4)
numerals = st.builds(
    lambda sign, whole, fraction: sign + whole + (f".{fraction}" if fraction else ""),
    st.sampled_from(["", "-"]),
    digits,
    st.one_of(st.just(""), digits),
)
integers = st.builds(lambda sign, whole: sign + whole, st.sampled_from(["", "-"]), digits)


@given(numerals, numerals, st.sampled_from(sorted(RELATIONS)))
def test_decimals_are_compared_by_value(numeral: str, bound: str, relation: str) -> None:
    pattern = related(relation, Decimal(bound), decimals=True)

    is_matched = re.fullmatch(pattern, numeral) is not None
    assert is_matched == RELATIONS[relation](Decimal(numeral), Decimal(bound))


@given(numerals, numerals, st.sampled_from(sorted(RELATIONS)))
def test_of_integers_those_without_a_point(numeral: str, bound: str, relation: str) -> None:
    pattern = related(relation, Decimal(bound), decimals=False)

    is_matched = re.fullmatch(pattern, numeral) is not None
    holds = RELATIONS[relation](Decimal(numeral), Decimal(bound))
    assert is_matched == (holds and "." not in numeral)


@given(numerals, st.lists(numerals, max_size=3), st.booleans())
def test_one_of_some_numbers(numeral: str, bounds: list[str], decimals: bool) -> None:
    pattern = among(map(Decimal, bounds), decimals=decimals)

    is_one = Decimal(numeral) in map(Decimal, bounds)
    is_matched = re.fullmatch(pattern, numeral) is not None
    assert is_matched == (is_one and (decimals or "." not in numeral))


@pytest.mark.parametrize("text", ["", "-", ".5", "5.", "+1", " 1", "1 ", "1e3", "٣", "--1"])
@pytest.mark.parametrize("relation", ["<", "!=", ">="])
def test_other_texts_are_no_numerals(text: str, relation: str) -> None:
    for bound in ("-10", "0", "2.5"):
        assert not re.fullmatch(related(relation, Decimal(bound), decimals=True), text)


@pytest.mark.parametrize("relation", sorted(RELATIONS))
@pytest.mark.parametrize("unit", ["1", "0.05"])
def test_every_number_of_a_small_grid(relation: str, unit: str) -> None:
    grid = [number * Decimal(unit) for number in range(-121, 122)]
    for bound in grid:
        pattern = re.compile(related(relation, bound, decimals=True))
        found = [number for number in grid if pattern.fullmatch(str(number))]
        assert found == [number for number in grid if RELATIONS[relation](number, bound)], bound
