"""The automaton of stop strings, and a vocabulary's tokens under it."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from constraints.guiding.stop_table import StopTable, automaton_of
from tests.constraints.walks import byte_vocabulary

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
