"""The shortest numbers within bounds."""

from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from constraints.grammars.example_number import (
    exactly,
    example_number,
    is_in_bounds,
    written_number,
)

BOUNDS = st.sampled_from([-20, -3, -1.5, -1, -0.25, 0, 0.05, 0.1, 0.5, 1, 2.25, 7, 1000])
STEPS = st.sampled_from([0.01, 0.25, 0.3, 1, 1.5, 4, 6])
SCHEMAS = st.fixed_dictionaries(
    {},
    optional={
        **dict.fromkeys(("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum"), BOUNDS),
        "multipleOf": st.lists(STEPS, min_size=1, max_size=2),
    },
)


@given(SCHEMAS, st.booleans())
def test_what_is_found_is_in_the_bounds_and_a_whole_number_if_there_is_one(
    schema: Any, is_whole: bool
) -> None:
    text = example_number(schema, is_whole=is_whole)
    near = [Fraction(each, 100) for each in range(-310, 311)]
    fitting = [each for each in near if is_in_bounds(float(each), schema)]
    whole = [each for each in fitting if each.denominator == 1]
    if text is None:
        assert (whole if is_whole else fitting) == []
        return
    assert is_in_bounds(float(text), schema)
    assert not is_whole or "." not in text
    assert all(abs(each) >= abs(Fraction(text)) for each in whole)
    assert "." not in text or whole == []


@given(BOUNDS, BOUNDS)
def test_without_a_step_no_number_has_fewer_digits(low: float, high: float) -> None:
    schema = {"exclusiveMinimum": low, "exclusiveMaximum": high}
    text = example_number(schema, is_whole=False)
    if low >= high:
        assert text is None
        return
    assert text is not None
    places = len(text.partition(".")[2])
    near = [Fraction(each, 10 ** max(places - 1, 0)) for each in range(-3000, 3000)]
    assert not places or not any(is_in_bounds(float(each), schema) for each in near)


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ({}, "0"),
        ({"exclusiveMinimum": 0, "exclusiveMaximum": 1}, "0.1"),
        ({"exclusiveMinimum": -1, "exclusiveMaximum": 0}, "-0.1"),
        ({"minimum": 1e-7, "maximum": 3e-7}, "0.0000001"),
        ({"minimum": -12.5, "maximum": -12.25}, "-12.3"),
        ({"minimum": 10**30}, "1" + "0" * 30),
        ({"minimum": 1, "maximum": 0}, None),
        ({"multipleOf": 7, "exclusiveMinimum": 7, "exclusiveMaximum": 14}, None),
    ],
    ids=str,
)
def test_the_number_is_short(schema: Any, text: str | None) -> None:
    assert example_number(schema, is_whole=False) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1.0, "1"),
        (1e5, "100000"),
        (1e-7, "0.0000001"),
        (-0.0, "-0"),
        (-2.5, "-2.5"),
        (1e22, "1" + "0" * 22),
    ],
)
def test_a_number_is_written_without_an_exponent(value: float, text: str) -> None:
    assert written_number(value) == text


def test_a_number_is_what_is_written_and_not_its_double() -> None:
    assert exactly(0.1) == Fraction(1, 10)
    assert is_in_bounds(19.99, {"multipleOf": 0.01})
