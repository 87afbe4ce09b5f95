"""What a client gave, as errors show it."""

from typing import Any

import pytest

from router.request.errors import cut, quoted, wrong


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "null"),
        (True, "true"),
        (5, "5"),
        (2**64, "18446744073709551616"),
        (0.5, "0.5"),
        ("a\n", r'"a\n"'),
        ("", '""'),
        ({"a": 1}, "an object"),
        ([1, 2], "a list of 2"),
        ("x" * 61, '"' + "x" * 59 + "..."),
        (10**99, "1" + "0" * 59 + "..."),
    ],
)
def test_a_value_is_shown_in_a_line(value: Any, shown: str) -> None:
    assert quoted(value) == shown


def test_a_text_as_long_as_a_line_may_be_is_whole() -> None:
    assert cut("x" * 60) == "x" * 60


def test_an_error_names_field_rule_and_value() -> None:
    error = wrong("top_p", "must be a number", "a lot")

    assert error.field == "top_p"
    assert str(error) == '`top_p` must be a number. Given: "a lot"'
