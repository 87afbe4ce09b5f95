"""Whether stop strings leave an expression any text is decided, not searched for."""

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from constraints.errors import Contradiction
from constraints.output_constraint import OutputConstraintState
from constraints.spec import Budget, ConstraintSpec, Kind, StopRule
from constraints.where.compile import compile_where
from constraints.where.evaluate import holds
from constraints.where.parser import parse
from constraints.where.terms import (
    And,
    Compare,
    Contains,
    EndsWith,
    Expression,
    Matches,
    Measure,
    Not,
    OneOf,
    Relation,
    StartsWith,
)
from constraints.where.writing import text
from constraints.without_stop_strings import without_stop_strings
from tests.constraints.walks import byte_vocabulary, language_of

BYTES = byte_vocabulary()
TEXTS = ["".join(chars) for num in range(7) for chars in product("abc", repeat=num)]

phrases = st.sampled_from(["a", "b", "ab", "ba", "bb", "aba"])
conditions: st.SearchStrategy[Expression] = st.one_of(
    st.builds(Contains, phrases),
    st.builds(StartsWith, phrases.map(lambda phrase: (phrase,))),
    st.builds(EndsWith, phrases.map(lambda phrase: (phrase,))),
    st.builds(OneOf, phrases.map(lambda phrase: (phrase, phrase + "a"))),
    st.builds(Compare, st.just(Measure.CHARS), st.sampled_from(Relation), st.integers(0, 3)),
    st.just(Matches("[ab]*b[ab]+")),
)
literals = st.one_of(conditions, st.builds(Not, conditions))


def refusal(written: str, *strings: str, kept: bool) -> Contradiction:
    language = language_of(ConstraintSpec(Kind.WHERE, written), BYTES)
    with pytest.raises(Contradiction) as refused:
        OutputConstraintState(language, BYTES, Budget(30), StopRule(strings, kept))
    return refused.value


@pytest.mark.parametrize(
    ("written", "string", "kept"),
    [
        ('ends_with(X, "sS")', "s", True),
        ('ends_with(X, "sS")', "s", False),
        ('"." in X and not ends_with(X, ".")', ".", True),
        ('"." in X and not ends_with(X, ".")', ".", False),
        ('ends_with(X, "a.") and len(X) <= 9', ".", False),
        ('"a" in X and len(X) > 3 and not ends_with(X, "a")', "a", True),
        ('"a" in X and len(tokens(X)) < 5 and not ends_with(X, "a")', "a", True),
        ('stops_before(X, "c") and "ab" in X', "a", False),
    ],
)
def test_an_expression_whose_every_text_is_cut_is_a_contradiction(
    written: str, string: str, kept: bool
) -> None:
    refused = refusal(written, string, "zz", kept=kept)
    assert refused.parts == (string, "zz")
    assert f'one of the stop strings "{string}", "zz" before its end' in str(refused)


def test_a_text_that_ends_with_a_string_that_is_kept_is_found_at_once() -> None:
    language = language_of(ConstraintSpec(Kind.WHERE, 'ends_with(X, "a.") and len(X) > 8'), BYTES)
    output_state = OutputConstraintState(language, BYTES, Budget(9), StopRule((".",)))
    assert output_state.needed_len <= 9


@given(
    st.lists(literals, min_size=2, max_size=3).map(tuple),
    st.lists(phrases, min_size=1, max_size=2, unique=True).map(tuple),
    st.booleans(),
)
def test_it_is_certain_where_no_text_is_left(
    parts: tuple[Expression, ...], strings: tuple[str, ...], kept: bool
) -> None:
    expression = And(parts)
    left = [
        each
        for each in TEXTS
        if holds(expression, each)
        and not any(string in (each[:-1] if kept else each) for string in strings)
    ]
    try:
        language = compile_where(parse(text(expression)), BYTES)
    except Contradiction:
        assert not left
        return
    try:
        found = without_stop_strings(language, StopRule(strings, kept))
    except Contradiction:
        assert not left
        return
    assert found is not None
    assert left
    shortest = found.matcher().shortest(30)
    assert shortest is not None
    written = b"".join(BYTES.tokens[token_id] for token_id in shortest).decode()
    assert holds(expression, written)
    assert not any(string in (written[:-1] if kept else written) for string in strings)
