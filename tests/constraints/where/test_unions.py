"""Hundreds of texts, beginnings and endings, listed one by one."""

from itertools import product

import pytest
from hypothesis import given, settings

from constraints.errors import Contradiction
from constraints.where.compile import compile_where
from constraints.where.engine import WhereLanguage
from constraints.where.evaluate import holds
from constraints.where.parser import parse
from constraints.where.terms import Expression
from tests.constraints.where.expressions import END_ID
from tests.constraints.where.large import LARGE, LARGE_WALK
from tests.constraints.where.strategies import PHRASES, unions

TEXTS = ("", *map("".join, product(("", *PHRASES), PHRASES)))


def accepts(language: WhereLanguage, text: str) -> bool:
    tokens = (*text.encode(), END_ID)
    return language.matcher().num_legal(tokens) == len(tokens)


@settings(max_examples=40)
@given(unions)
def test_lists_mean_together_what_they_mean_one_by_one(expression: Expression) -> None:
    wanted = [text for text in TEXTS if holds(expression, text)]
    try:
        language = compile_where(expression, LARGE, LARGE_WALK)
    except Contradiction:
        assert not wanted
        return
    assert [text for text in TEXTS if accepts(language, text)] == wanted


@pytest.mark.parametrize(
    ("written", "joined_by"),
    [
        ('X == "w{}"', "or"),
        ('X in ["w{}", "v"]', "or"),
        ('starts_with(X, "w{}.")', "or"),
        ('ends_with(X, "w{}")', "or"),
        ('"w{}." in X', "or"),
        ('X != "w{}"', "and"),
        ('not starts_with(X, "w{}.")', "and"),
        ('not ends_with(X, "w{}")', "and"),
        ('not "w{}." in X', "and"),
    ],
)
@pytest.mark.parametrize("number", [33, 65, 400])
def test_as_many_as_can_be_written_are_followed_by_our_own_automata(
    written: str, joined_by: str, number: int
) -> None:
    each = [written.replace("{}", str(index)) for index in range(number)]
    expression = parse(f" {joined_by} ".join(each))
    language = compile_where(expression, LARGE, LARGE_WALK)
    for text in ("w7", "w7.", "v", "w7.w32", "x"):
        assert accepts(language, text) is holds(expression, text)
