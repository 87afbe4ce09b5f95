"""A choice is one of its strings, to the letter."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from constraints.errors import Contradiction, Malformed, TooComplex
from constraints.spec import Kind
from tests.constraints.grammars.rig import accepts, compiled, legal

WORDS = st.text(st.sampled_from('ab"\\/\n|é😀\x00&~()[]'), max_size=4)


@given(st.lists(WORDS, min_size=1, max_size=6), st.lists(WORDS, max_size=6))
def test_the_strings_are_accepted_and_no_others(choices: list[str], others: list[str]) -> None:
    language = compiled(Kind.CHOICE, json.dumps(choices))
    assert all(accepts(language, choice) for choice in choices)
    assert not any(accepts(language, other) for other in others if other not in choices)


def test_a_choice_may_go_on_as_another_one() -> None:
    matcher = compiled(Kind.CHOICE, '["ab", "abc"]').matcher()
    for token in b"ab":
        matcher.advance(token)
    assert matcher.is_complete
    assert not matcher.is_over
    assert legal(matcher) == [ord("c"), 256]


def test_the_empty_string_is_over_at_once() -> None:
    matcher = compiled(Kind.CHOICE, '[""]').matcher()
    assert matcher.is_complete
    assert matcher.is_over
    assert legal(matcher) == [256]


def test_fifty_thousand_strings_are_a_choice() -> None:
    choices = [f"choice {number} of many" for number in range(50_000)]
    language = compiled(Kind.CHOICE, json.dumps(choices))
    assert accepts(language, "choice 49999 of many")
    assert not accepts(language, "choice 50000 of many")


@pytest.mark.parametrize("text", ["", "{}", '"a"', "[1]", '["a", null]', "[", "[" * 100_000])
def test_what_is_no_list_of_strings_is_malformed(text: str) -> None:
    with pytest.raises(Malformed, match="list of strings"):
        compiled(Kind.CHOICE, text)


def test_half_of_a_surrogate_pair_is_no_character() -> None:
    with pytest.raises(Malformed, match="surrogate"):
        compiled(Kind.CHOICE, '["\\ud800"]')


def test_a_choice_of_nothing_is_a_contradiction() -> None:
    with pytest.raises(Contradiction):
        compiled(Kind.CHOICE, "[]")


def test_a_string_that_no_answer_can_hold_is_refused_before_it_is_compiled() -> None:
    with pytest.raises(TooComplex, match="choice 1 has 1000000 bytes, and at most 50000 are"):
        compiled(Kind.CHOICE, json.dumps(["a", "é" * 500_000]))
