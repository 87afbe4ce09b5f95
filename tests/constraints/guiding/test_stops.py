"""Stop strings: their automaton, tokens under it, and whether they leave a constraint any text."""

from collections.abc import Sequence
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from constraints.errors import Contradiction, TooComplex
from constraints.guiding.stops import StopTable, automaton_of
from constraints.output_constraint import OutputConstraintState
from constraints.spec import Budget, ConstraintSpec, Kind, StopRule
from constraints.where.evaluate import holds
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
    text,
)
from tests.constraints.cases import byte_vocabulary, demo_vocabulary, language_of

BYTES = byte_vocabulary()
WORDS = st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=4, unique=True)


def first_stop(text: str, strings: list[str]) -> tuple[int, int] | None:
    """Where the first stop string ends, and how long the longest is that ends there."""
    for end in range(1, len(text) + 1):
        ending = [len(each) for each in strings if text[:end].endswith(each)]
        if ending:
            return end, max(ending)
    return None


@given(strings=WORDS, text=st.text("ab", max_size=12), cut=st.integers(0, 12))
def test_the_automaton_stops_where_a_plain_search_does(
    strings: list[str], text: str, cut: int
) -> None:
    automaton = automaton_of([each.encode() for each in strings])
    state, length = automaton.run(0, text[:cut].encode())
    if not automaton.matched[state]:
        state, more = automaton.run(state, text[cut:].encode())
        length += more
    matched = automaton.matched[state]
    assert first_stop(text, strings) == ((length, matched) if matched else None)


@given(strings=WORDS, text=st.text("ab", max_size=8))
def test_depth_is_the_longest_beginning_of_a_string_that_the_text_ends_with(
    strings: list[str], text: str
) -> None:
    automaton = automaton_of([each.encode() for each in strings])
    state, length = automaton.run(0, text.encode())
    read = text[:length]
    ends = [
        n for n in range(len(read) + 1) if any(s.startswith(read[len(read) - n :]) for s in strings)
    ]
    assert automaton.depths[state] == max(ends)


@given(
    strings=st.lists(
        st.sampled_from(["a", "b", "ab", "bc", "the", "\n", "é"]), min_size=1, max_size=3
    )
)
def test_a_view_tells_tokens_that_are_clear_and_tokens_that_end(strings: list[str]) -> None:
    table = StopTable(BYTES, tuple(strings))
    for state in range(len(table.automaton.delta)):
        if table.automaton.matched[state]:
            continue
        view = table.transitions(state)
        bits = np.unpackbits(view.clear.view(np.uint8), bitorder="little")
        for token_id, token in enumerate(BYTES.tokens):
            after, length = table.automaton.run(state, token)
            is_match = bool(table.automaton.matched[after])
            assert bits[token_id] == (not is_match or length == len(token))
            assert (token_id in view.ending) == (is_match and length == len(token))
            assert view.returns[token_id] == (token != b"" and after == 0)


def is_uncut(text: str, strings: Sequence[str]) -> bool:
    """A text may end with a string, whether it is kept or dropped."""
    return not any(string in text[:-1] for string in strings)


SHORT_TEXTS = ["".join(chars) for num in range(7) for chars in product("abc", repeat=num)]

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


@pytest.mark.parametrize("kept", [True, False])
@pytest.mark.parametrize(
    ("condition", "stop"),
    [('ends_with(X, "a.") and len(X) > 8', "."), ('"a" in X and "b" in X', "a")],
)
def test_a_text_that_ends_with_a_string_is_found_at_once(
    condition: str, stop: str, kept: bool
) -> None:
    language = language_of(ConstraintSpec(Kind.WHERE, condition), BYTES)
    output_state = OutputConstraintState(language, BYTES, Budget(9), StopRule((stop,), kept))
    assert output_state.needed_len <= 9


def test_a_text_without_the_strings_is_found_near_the_shortest() -> None:
    spec = ConstraintSpec(
        Kind.WHERE, 'not stops_at(X, "a.", "aab", "ä") and stops_before(X, "aab", "1", " a")'
    )
    vocabulary = demo_vocabulary()
    output_state = OutputConstraintState(
        language_of(spec, vocabulary), vocabulary, Budget(30), StopRule(("b", "."))
    )
    assert output_state.needed_len <= 10


@given(
    st.lists(literals, min_size=2, max_size=3).map(tuple),
    st.lists(phrases, min_size=1, max_size=2, unique=True).map(tuple),
    st.booleans(),
)
def test_a_text_is_found_where_one_is_left(
    parts: tuple[Expression, ...], strings: tuple[str, ...], kept: bool
) -> None:
    expression = And(parts)
    left = [each for each in SHORT_TEXTS if holds(expression, each) and is_uncut(each, strings)]
    spec = ConstraintSpec(Kind.WHERE, text(expression))
    try:
        output_state = OutputConstraintState(
            language_of(spec, BYTES), BYTES, Budget(30), StopRule(strings, kept)
        )
    except (Contradiction, TooComplex):
        assert not left
        return
    written = ""
    while (token_id := output_state.completion_token()) is not None:
        output_state.advance(token_id)
        written += BYTES.tokens[token_id].decode()
    assert left
    assert is_uncut(written, strings)
    assert output_state.is_satisfied
