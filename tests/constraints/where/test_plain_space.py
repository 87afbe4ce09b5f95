"""White space that no one asked for: masks against the oracle, and the texts that come of them."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from constraints.errors import Contradiction
from constraints.matcher import Matcher
from constraints.output_constraint import OutputConstraintState
from constraints.spec import Budget, ConstraintSpec, Kind
from constraints.where.engine import CONTROL_SPACE, SPACE, compile_where
from constraints.where.parser import parse
from constraints.where.terms import Expression
from tests.constraints.cases import demo_vocabulary, drawn, language_of, text_of, vocabulary_of
from tests.constraints.where.expressions import (
    END_ID,
    EXPRESSIONS,
    LARGE,
    TOKENS,
    expressions,
    follow,
    legal,
)
from tests.constraints.where.oracle import PlainOracle
from tests.hypothesis_profiles import fewer_examples

WORDS = [each for each in EXPRESSIONS if "words" in each]
SMALL_TOKENS = (b"a", b"b", b" ", b" a", b".", b"\n", b"\x1c", b"\xc2", b"\x85", b"\xa0", b"1", b"")
SMALL = vocabulary_of(SMALL_TOKENS, (11,))


@pytest.mark.parametrize(
    "written",
    [
        pytest.param(each, marks=pytest.mark.nightly) if index % 8 else each
        for index, each in enumerate((*WORDS, *(each for each in EXPRESSIONS if each not in WORDS)))
    ],
)
def test_plain_masks_are_those_of_the_oracle(written: str) -> None:
    language = compile_where(parse(written), LARGE, is_plain=True)
    oracle = PlainOracle(parse(written), TOKENS, (END_ID,))
    draw = random.Random(written)
    for max_len in (None, 5):
        follow(language.matcher(), oracle, LARGE, draw, 6, max_len)


@pytest.mark.slow
@fewer_examples(10)
@given(expressions, st.randoms(use_true_random=False))
def test_plain_masks_of_random_expressions_are_those_of_the_oracle(
    expression: Expression, draw: random.Random
) -> None:
    oracle = PlainOracle(expression, SMALL_TOKENS, (11,))
    try:
        language = compile_where(expression, SMALL, is_plain=True)
    except Contradiction:
        return
    if oracle.legal([]):  # else no plain text satisfies it
        follow(language.matcher(), oracle, SMALL, draw, 5)


def stood(written: str, text: str) -> Matcher:
    vocabulary = demo_vocabulary()
    matcher = language_of(ConstraintSpec(Kind.WHERE, written), vocabulary).matcher()
    for token_id in vocabulary.spell(text.encode()):
        matcher.advance(token_id)
    return matcher


@pytest.mark.parametrize(
    ("written", "text", "spaces"),
    [
        ("len(words(X)) == 4", " A fox lives in", {" ", "\n", "\t", "\r"}),
        ("len(words(X)) == 4", " A fox lives in\n", set()),
        ("len(words(X)) <= 4", " A fox lives in ", set()),
        ("len(words(X)) <= 4", " A fox lives", {" ", "\n", "\t", "\r"}),
        ('len(words(X)) <= 4 and stops_at(X, "\\n")', " A fox lives in ", set()),
        ('len(words(X)) == 4 and ends_with(X, " ")', " A fox lives in", {" ", "\n", "\t", "\r"}),
        (r'len(words(X)) == 4 and regex(X, r"[\w\s]+")', "a b c d", {" ", "\n", "\t", "\r"}),
        ("len(X) < 20", "a b", {" ", "\n", "\t", "\r"}),
        ('"\\x0b" not in X', "a", {" ", "\n", "\t", "\r", *"\x0c\x1c\x1d\x1e\x1f"}),
        (r'regex(X, r"[\x00-\xff]*")', "a", {" ", "\n", "\t", "\r", *"\x0b\x0c\x1c\x1d\x1e\x1f"}),
    ],
)
def test_the_space_that_may_follow_is_that_of_a_writer(
    written: str, text: str, spaces: set[str]
) -> None:
    vocabulary = demo_vocabulary()
    allowed = legal(stood(written, text), vocabulary)
    singles = {vocabulary.tokens[each] for each in allowed if len(vocabulary.tokens[each]) == 1}
    assert {each.decode() for each in singles if each < b"\x80"} & SPACE == spaces


@pytest.mark.parametrize("written", ["len(words(X)) == 4", "len(words(X)) < 3 or int(X)"])
def test_no_output_ends_in_space_that_was_steered_to(written: str) -> None:
    vocabulary = demo_vocabulary()
    language = language_of(ConstraintSpec(Kind.WHERE, written), vocabulary)
    for seed in range(20):
        state = OutputConstraintState(language, vocabulary, Budget(40))
        text = text_of(drawn(state, vocabulary, 40, random.Random(seed), 0.0), vocabulary)
        assert not set(CONTROL_SPACE) & set(text)


def test_what_only_control_space_satisfies_may_be_written() -> None:
    matcher = stood(r'regex(X, r"[^\S \t\n\r\xa0\u1680-\uffff]")', "")
    assert legal(matcher, demo_vocabulary())
