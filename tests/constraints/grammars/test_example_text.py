"""Short texts that match a pattern."""

import re

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from constraints.grammars.example_text import MAX_LEN, example_text
from constraints.grammars.pattern_escapes import Dialect
from constraints.grammars.pattern_parser import parse

ATOMS = st.sampled_from(
    [
        *("a", "b", "0", " ", "-", ".", "é", r"\.", r"\d", r"\w", r"\s", r"\S", r"\W", r"\D"),
        *("[a-c]", "[^a-z]", r"[^\w\s]", r"[\d.]", "[α-ω]", "[^\x00-\x7f]", r"[^\W\d_]", "(?i:K)"),
    ]
)


def _grown(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    group = inner.map(lambda text: f"(?:{text})")
    repeated = st.tuples(group, st.sampled_from(["*", "+", "?", "{2}", "{1,3}", "{2,}"])).map(
        "".join
    )
    row = st.lists(st.one_of(group, repeated), min_size=1, max_size=4)
    return st.one_of(repeated, row.map("".join), row.map(lambda texts: f"(?:{'|'.join(texts)})"))


PATTERNS = st.recursive(ATOMS, _grown, max_leaves=8)


@given(PATTERNS, st.integers(0, 9))
def test_what_is_found_matches_and_is_long_enough(pattern: str, min_len: int) -> None:
    text = example_text(parse(pattern, Dialect.PYTHON), min_len)
    assume(text is not None)
    assert text is not None
    assert re.fullmatch(pattern, text), text
    assert len(text) >= min_len


@given(PATTERNS)
def test_a_pattern_of_common_characters_has_a_text(pattern: str) -> None:
    assert example_text(parse(pattern, Dialect.PYTHON)) is not None


@pytest.mark.parametrize(
    ("pattern", "min_len", "text"),
    [
        (".*[0-9]{3}.*", 0, "000"),
        (r"\S+@\S+\.\S+", 0, "a@a.a"),
        ("long|short|s", 0, "s"),
        ("[a-z]{2,4}x", 4, "aaax"),
        ("(?:ab)+", 5, "ababab"),
        ("[a-z]{2,4}x", 9, None),
        ("[^\\x00-\\uffff]", 0, "\U00010000"),
        (f"a{{{MAX_LEN + 1}}}", 0, None),
    ],
)
def test_the_text_is_short(pattern: str, min_len: int, text: str | None) -> None:
    assert example_text(parse(pattern, Dialect.PYTHON), min_len) == text


@pytest.mark.parametrize(
    ("pattern", "text"),
    [(r"[\p{Lu}]\P{L}", "A0"), (r"[^\p{L}]", "0"), (r"[\P{Ll}]", "0"), (r"\p{Script=Greek}", None)],
)
def test_categories_of_characters_are_known_and_scripts_are_not(
    pattern: str, text: str | None
) -> None:
    assert example_text(parse(pattern, Dialect.LARK)) == text
