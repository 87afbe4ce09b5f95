"""Schemas: every keyword by right and wrong instances.

Whatever masks let through is an instance, and contradictions have none.
"""

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from constraints.errors import Contradiction, Malformed
from constraints.regex.syntax import between
from constraints.schema.reading import read
from tests.constraints.grammars.rig import accepts_value, of_schema


def test_of_a_thousand_parts_the_first_are_told() -> None:
    bounds = [{"minimum": number} for number in range(1000)]
    with pytest.raises(Contradiction, match="and 982 others"):
        of_schema({"type": "number", "allOf": [*bounds, {"maximum": 17}]})


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("{", "not JSON"),
        ('{"a": NaN}', "NaN"),
        ('{"a": 1, "a": 2}', "twice"),
        ('"\\ud800"', "half"),
    ],
)
def test_a_text_that_is_no_schema_is_malformed(text: str, what: str) -> None:
    with pytest.raises(Malformed, match=what):
        read(text)


SIZES = ("8", "16", "32", "64", "128", "")
INTEGERS = [f"{kind}{size}" for kind in ("int", "uint") for size in SIZES]


@pytest.mark.parametrize("name", INTEGERS)
def test_formats_of_integers_are_ranges_also_of_digits_in_a_string(name: str) -> None:
    bits, is_signed = int(name.lstrip("uint") or 64), name.startswith("i")
    low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if is_signed else (0, 2**bits - 1)
    # Integers end where doubles are exact.
    least, most = max(low, -(2**53)), min(high, 2**53)
    numbers: list[Any] = [least, 0, 1, most]
    digits: list[Any] = [str(low), "0", "1", str(high), *(["-1"] if is_signed else [])]
    wrong: list[Any] = [least - 1, most + 1, 0.5]
    wrong += [str(low - 1), str(high + 1), "", "01", "-0", "+1", "1.0", "1e1", "a", " 1"]
    for schema, right in (
        ({"type": "integer"}, numbers),
        ({"type": "number"}, numbers),
        ({"type": "string"}, digits),
        ({"type": ["integer", "string"]}, [*numbers, *digits]),
        ({}, [*numbers, *digits, None, True, [], {}]),
    ):
        language = of_schema({**schema, "format": name})
        values = [*numbers, *digits, *wrong, None, True, [], {}]
        assert [each for each in values if accepts_value(language, each)] == right


sizes = st.one_of(st.integers(0, 1200), st.integers(0, 10**18))


@given(sizes, sizes, sizes)
def test_a_range_has_its_numbers(one: int, other: int, number: int) -> None:
    low, high = min(one, other), max(one, other)
    pattern = re.compile(between(low, high))
    for each in (number, max(low - 1, 0), low, high, high + 1):
        assert (pattern.fullmatch(str(each)) is not None) is (low <= each <= high)
