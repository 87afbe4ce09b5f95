"""Stop strings that leave a pattern nothing are told from those that leave it little."""

import re
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from constraints.grammars.stop_emptiness import is_empty_under_stops
from constraints.spec import ConstraintSpec, Kind, StopRule
from tests.constraints.walks import byte_vocabulary, language_of

TEXTS = ["".join(chars) for num in range(8) for chars in product("ab", repeat=num)]
PIECE = st.tuples(st.sampled_from(["a", "b", "[ab]", "(?:ab|b)"]), st.sampled_from(["", "*", "+"]))
STOPS = st.lists(st.sampled_from(["a", "b", "ab", "ba", "bb"]), min_size=1, max_size=2)


def is_emptied(kind: Kind, text: str, *strings: str, kept: bool = True) -> bool:
    language = language_of(ConstraintSpec(kind, text), byte_vocabulary())
    return is_empty_under_stops(language, StopRule(strings, kept))


def is_uncut(text: str, strings: list[str], *, kept: bool) -> bool:
    return not any(string in (text[:-1] if kept else text) for string in strings)


@given(st.lists(PIECE, min_size=1, max_size=4), STOPS, st.booleans())
def test_a_pattern_is_emptied_where_every_text_is_cut(
    pieces: list[tuple[str, str]], strings: list[str], kept: bool
) -> None:
    pattern = "".join(map("".join, pieces))
    without_stop_strings = [each for each in TEXTS if is_uncut(each, strings, kept=kept)]
    expected = not any(re.fullmatch(pattern, each) for each in without_stop_strings)
    assert is_emptied(Kind.REGEX, pattern, *strings, kept=kept) is expected


@pytest.mark.parametrize(
    ("pattern", "string"), [("(?s).*é.+", "é"), ("[ab]*/b+", "/"), (r"[^x]*x[a-z]{5,50}", "x")]
)
def test_strings_of_any_characters_are_taken_as_they_are(pattern: str, string: str) -> None:
    assert is_emptied(Kind.REGEX, pattern, string)


def test_nothing_is_said_of_other_languages_and_without_strings() -> None:
    assert not is_emptied(Kind.LARK, 'start: "ab" /b*/', "a")
    assert not is_emptied(Kind.WHERE, 'X in ["ab"]', "a")
    assert not is_emptied(Kind.REGEX, "ab")
