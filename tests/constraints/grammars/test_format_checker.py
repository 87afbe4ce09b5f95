"""Formats in validation are those of masks."""

from typing import Any

import pytest

from constraints.grammars.exact_numbers import loads
from constraints.grammars.format_checker import MaskFormats


@pytest.mark.parametrize(
    ("name", "text", "conforms"),
    [
        ("date", '"2000-02-29"', True),
        ("date", '"1900-02-29"', False),
        ("date", '"2000-02-29 "', False),
        ("date", "7", True),
        ("int8", "-128", True),
        ("int8", "128", False),
        ("int8", "1e2", True),
        ("int8", "1.5", False),
        ("int8", "1e9999999", True),  # not written out
        ("int8", "null", True),
        ("int8", "true", True),
        ("hostname", r'"\ud800"', False),
        ("nobody's", '"x"', True),
        (["date"], '"x"', True),
    ],
)
def test_a_value_conforms_where_masks_write_it(name: Any, text: str, conforms: bool) -> None:
    assert MaskFormats().conforms(loads(text), name) is conforms
