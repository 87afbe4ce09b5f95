"""Normal forms mean the same; contradictions are found and never invented."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from constraints.where.evaluate import holds
from constraints.where.normal_form import (
    conflicting,
    contradiction,
    is_plainly_empty,
    to_nnf,
)
from constraints.where.parser import parse
from constraints.where.terms import (
    And,
    Compare,
    Constant,
    Expression,
    Not,
    OneOf,
    Or,
    text,
)
from tests.constraints.where.expressions import any_conditions, any_expressions, texts

counts = st.integers(0, 5)
integer_texts = st.integers(-20, 20).map(str)
outputs = st.one_of(texts, integer_texts)


@given(any_expressions, outputs, counts)
def test_the_normal_form_means_the_same(
    expression: Expression, output: str, num_tokens: int
) -> None:
    wanted = holds(expression, output, num_tokens)
    assert holds(to_nnf(expression), output, num_tokens) is wanted


@given(any_expressions)
def test_in_the_normal_form_not_stands_before_atoms(expression: Expression) -> None:
    normal = to_nnf(expression)
    assert is_normal(normal) or isinstance(normal, Constant)
    assert to_nnf(normal) == normal


def is_normal(expression: Expression) -> bool:
    match expression:
        case And(parts) | Or(parts):
            same = type(expression)
            return all(is_normal(part) and not isinstance(part, same) for part in parts)
        case Not(part):
            return not isinstance(part, And | Or | Not | Compare | Constant)
        case Constant():
            return False
    return True


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


@given(any_conditions, outputs, counts)
def test_nothing_that_holds_is_a_contradiction(
    condition: Expression, output: str, num_tokens: int
) -> None:
    assert not (is_plainly_empty(condition) and holds(condition, output, num_tokens))


def test_a_list_is_not_judged_by_what_text_does_not_show() -> None:
    assert not is_plainly_empty(parse('X == "aaaa" and len(tokens(X)) == 4 and regex(X, "a*")'))


def test_the_parts_that_exclude_each_other_are_told() -> None:
    expression = parse('"a" in X and 5 < len(X) < 20 and stops_at(X, ".") and len(X) < 3')
    parts = conflicting(expression, is_plainly_empty)
    assert [text(part) for part in parts] == ["len(X) > 5", "len(X) < 3"]
    error = contradiction(expression, is_plainly_empty)
    assert error.parts == ("len(X) > 5", "len(X) < 3")
    assert str(error) == "nothing satisfies both `len(X) > 5` and `len(X) < 3`"


def test_parts_that_another_engine_finds_are_told_too() -> None:
    def is_empty(expression: Expression) -> bool:
        return {'"ab" in X', '"b" not in X'} <= set(text(expression).split(" and "))

    expression = parse('len(X) > 2 and "ab" in X and "b" not in X and "c" in X')
    assert contradiction(expression, is_empty).parts == ('"ab" in X', '"b" not in X')


def test_one_part_can_be_impossible_alone() -> None:
    error = contradiction(parse('"a" in X and (len(X) < 0 or X in [])'), is_plainly_empty)
    assert error.parts == ("len(X) < 0 or X in []",)
    assert str(error) == "nothing satisfies `len(X) < 0 or X in []`"


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
