"""Of a pattern that nothing matches, the smallest piece is told that keeps it from matching."""

import re
from itertools import product

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from constraints.where.unmatchable_parts import unmatchable_parts


@pytest.mark.parametrize(
    ("pattern", "pieces"),
    [
        ("foo$bar", ["$b"]),
        (r"[^\s\S]", [r"[^\s\S]"]),
        (r"ab[^\s\S]c", [r"[^\s\S]"]),
        ("(?=a)b", ["(?=a)b"]),
        (r"x(?!y)(?=y)z?", ["(?!y)(?=y)"]),
        (r"[a-z]{3,} ab\b\Bcd", [r"\b\B"]),
        ("(?:a|b)^c", ["(?:a|b)^"]),
        ("a{2}(?<!a)", ["a{2}(?<!a)"]),
        ("a(?=b)", ["(?=b)"]),
        ("x(y(?:z$q))", ["$q"]),
        ("a$b|c(?!)d", ["$b", "(?!)"]),
        ("(?i)A(?<=b)c", ["A(?<=b)"]),
        (r"[)\]|]$\)x", [r"$\)"]),
        (r"(?x) a $ b", [r"(?x) a $ b"]),
        ("(?!)", ["(?!)"]),
    ],
)
def test_the_smallest_piece_is_told(pattern: str, pieces: list[str]) -> None:
    parts = [pattern[start:end] for start, end in unmatchable_parts(pattern)]
    assert parts == pieces


ITEMS = st.sampled_from(
    ["a", "b", "[ab]", "^", "$", r"\b", r"\B", "(?=a)", "(?!b)", "(?<=a)", "(?<!b)", "a*", "b+"]
)


@given(st.lists(ITEMS, min_size=1, max_size=5))
def test_what_is_told_matches_nowhere(items: list[str]) -> None:
    pattern = "".join(items)
    texts = ["".join(letters) for length in range(6) for letters in product("ab", repeat=length)]
    assume(not any(re.fullmatch(pattern, text) for text in texts))
    ((start, end),) = unmatchable_parts(pattern)
    before, after = "[ab]*" if start else "", "[ab]*" if end < len(pattern) else ""
    tried = f"{before}(?:{pattern[start:end]}){after}"
    assert not any(re.fullmatch(tried, text) for text in texts)
