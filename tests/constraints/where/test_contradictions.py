"""Contradictions are found and never invented, and the parts that exclude each other are named."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from constraints.where.evaluate import holds, is_plainly_empty
from constraints.where.parser import parse
from constraints.where.terms import Expression, OneOf, text
from tests.constraints.where.expressions import conditions, texts

outputs = st.one_of(texts, st.integers(-20, 20).map(str))


@pytest.mark.parametrize(
    "written",
    [
        "len(X) < 3 and len(X) > 5",
        "len(X) < 0",
        "len(X) == 3 and len(X) != 3",
        "2 < len(X) < 5 and len(X) != 3 and len(X) != 4",
        "int(X) < 3 and int(X) > 3",
        "int(X) and not int(X)",
        "not (int(X) or not int(X) < 5) and int(X) > 3 and not int(X)",
        "len(words(X)) > 3 and len(X) < 6",
        "len(sentences(X)) > 3 and len(X) < 4",
        '"fox" in X and len(X) < 3',
        'starts_with(X, "fox", "quick") and len(X) < 3',
        'X in ["cat", "dog"] and len(X) > 3',
        'X in ["cat", "dog"] and X in ["cow"]',
        'X in ["aa", "bb"] and not X in ["aa"] and "a" in X',
        'X == "a" and "b" in X',
        "X in []",
        "ends_with(X, [])",
        "False",
        "(len(X) < 3 or int(X) < 2) and len(X) > 5 and int(X) > 7",
    ],
)
def test_plain_contradictions_are_seen(written: str) -> None:
    assert is_plainly_empty(parse(written))


@given(conditions, outputs, st.integers(0, 5))
def test_nothing_that_holds_is_a_contradiction(
    condition: Expression, output: str, num_tokens: int
) -> None:
    assert not (is_plainly_empty(condition) and holds(condition, output, num_tokens))


def test_a_list_is_not_judged_by_what_text_does_not_show() -> None:
    assert not is_plainly_empty(parse('X == "aaaa" and len(tokens(X)) == 4 and regex(X, "a*")'))


@pytest.mark.parametrize(
    ("others", "is_empty"),
    [
        # Many parts beside alternatives, long lists beside both: each would be tried with each.
        (" and ".join(f'"a{index}" in X' for index in range(480)), False),
        (text(OneOf(tuple(f"v{index}" for index in range(9_000)))), True),
    ],
)
def test_large_expressions_are_looked_through_quickly(others: str, is_empty: bool) -> None:
    alternatives = [f'("x{index}" in X or "y{index}" in X)' for index in range(6)]
    written = " and ".join([*alternatives, others])
    expression = parse(written)
    began = time.process_time()
    assert is_plainly_empty(expression) is is_empty
    assert time.process_time() - began < 3
