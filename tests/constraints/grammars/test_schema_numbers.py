"""Numbers of schemas: their formats, their exponents, and where narrow ranges begin."""

from typing import Any

import pytest

from constraints.errors import Contradiction
from tests.constraints.grammars.rig import accepts, accepts_value, of_schema

SIZES = ("8", "16", "32", "64", "128", "")
INTEGERS = [f"{kind}{size}" for kind in ("int", "uint") for size in SIZES]


@pytest.mark.parametrize("name", INTEGERS)
def test_formats_of_integers_are_ranges(name: str) -> None:
    bits, is_signed = int(name.lstrip("uint") or 64), name.startswith("i")
    low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if is_signed else (0, 2**bits - 1)
    # Integers end where doubles are exact.
    low, high = max(low, -(2**53)), min(high, 2**53)
    for kind in ("integer", "number"):
        language = of_schema({"type": kind, "format": name})
        assert all(accepts_value(language, value) for value in (low, 0, 1, high))
        assert not any(accepts_value(language, value) for value in (low - 1, high + 1, 0.5))


def test_a_format_of_integers_contradicts_what_is_beyond_it() -> None:
    with pytest.raises(Contradiction) as contradiction:
        of_schema({"type": "integer", "format": "uint8", "minimum": 300})
    assert contradiction.value.parts == ('{"minimum": 300}', '{"format": "uint8"}')


EXPONENTS = ["1e-6", "1e-06", "1E+06", "1e0", "2.50e00"]


@pytest.mark.parametrize("schema", [{"type": "number"}, {}, {"type": "number", "format": "float"}])
def test_numbers_without_bounds_may_have_any_exponent(schema: Any) -> None:
    language = of_schema(schema)
    assert [text for text in EXPONENTS if not accepts(language, text)] == []


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "number", "minimum": -5},
        {"type": "number", "multipleOf": 0.5},
        {"type": "integer"},
        {"enum": [1e-6, 1e6, 1, 2.5]},
    ],
)
def test_other_numbers_have_no_exponent(schema: Any) -> None:
    language = of_schema(schema)
    assert accepts(language, "1")
    assert [text for text in EXPONENTS if accepts(language, text)] == []


def test_a_listed_number_stands_in_decimals() -> None:
    assert accepts(of_schema({"const": 1e-6}), "0.000001")
    assert accepts(of_schema({"const": 1e6}), "1000000")


@pytest.mark.parametrize(
    ("whole", "first", "before"),
    [
        (0, "0.00000000000001", "0.000000000000009"),
        (100, "100.000000000001", "100.0000000000009"),
    ],
)
def test_a_narrow_range_begins_15_digits_behind_the_number_it_leaves_out(
    whole: int, first: str, before: str
) -> None:
    above = {"type": "number", "exclusiveMinimum": whole, "maximum": whole + 0.5}
    below = {"type": "number", "exclusiveMaximum": -whole, "minimum": -whole - 0.5}
    for language, sign in ((of_schema(above), ""), (of_schema(below), "-")):
        assert accepts(language, f"{sign}{first}")
        assert not accepts(language, f"{sign}{before}")
