"""Short texts that match a pattern, or several patterns at once."""

import re
import time
import tracemalloc
from contextlib import suppress

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from constraints.grammars.example_text import MAX_LEN, example_text
from constraints.grammars.pattern_escapes import Dialect
from constraints.grammars.pattern_parser import parse
from constraints.grammars.patterns import Pattern
from constraints.grammars.regex_intersection import (
    Effort,
    PatternAutomaton,
    PatternTooLarge,
    common_text,
)

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


def read(pattern: str) -> Pattern:
    return parse(pattern, Dialect.PYTHON)


@given(PATTERNS, PATTERNS, st.integers(0, 5))
def test_what_is_found_matches_both_and_is_long_enough(one: str, other: str, min_len: int) -> None:
    text = common_text([read(one), read(other)], Effort(), min_len, 12)
    assume(text is not None)
    assert text is not None
    assert re.fullmatch(one, text)
    assert re.fullmatch(other, text)
    assert min_len <= len(text) <= 12


@given(PATTERNS, st.text("abc01 -.é", max_size=6))
def test_a_text_matches_as_it_does_elsewhere(pattern: str, text: str) -> None:
    assert PatternAutomaton(read(pattern), Effort()).matches(text) == bool(
        re.fullmatch(pattern, text)
    )


@pytest.mark.parametrize(
    ("patterns", "min_len", "max_len", "text"),
    [
        (["a*b", "(?:ab)+"], 0, None, "ab"),
        ([".*[A-Z].*", ".*[0-9].*", "a.*"], 0, None, "a0A"),
        ([".*[A-Z].*", ".*[0-9].*"], 5, 5, "aaa0A"),
        (["a+", "b+"], 0, None, None),
        (["a{3,}"], 0, 2, None),
        (["(?:aa)*", "(?:aaa)*"], 1, None, "aaaaaa"),
        (["[α-ω]+", "[^α]+"], 2, None, "ωω"),
        (["(?:)*b{0}", "c*"], 0, None, ""),
    ],
)
def test_the_text_is_the_shortest(
    patterns: list[str], min_len: int, max_len: int | None, text: str | None
) -> None:
    assert common_text([read(each) for each in patterns], Effort(), min_len, max_len) == text


def test_patterns_without_bounds_take_a_bounded_time() -> None:
    began_s = time.thread_time()
    many = [read(f"(?:a|b)*a(?:a|b){{{length}}}c?") for length in range(10, 40)]
    with pytest.raises(PatternTooLarge):
        common_text(many, Effort())
    with pytest.raises(PatternTooLarge):
        PatternAutomaton(read("a{9999}"), Effort())
    assert time.thread_time() - began_s < 2


def signs(first: int, count: int) -> str:
    return "|".join(chr(0x4E00 + first + index) for index in range(count))


@pytest.mark.parametrize(
    ("patterns", "min_len"),
    [
        ([f"(?:{signs(0, 1400)})*", f"(?:{signs(700, 1400)})*"], 1),
        (["(?:a(?:" + "|" * 20_000 + ")){1000}", "b"], 0),
        (["(?:a" + "(?:)" * 10_000 + "){1000}", "b"], 0),
        (["[abc]*", "(?:a|[bc])*"], 8_000),
    ],
    ids=["many characters", "empty options", "empty parts", "long texts"],
)
def test_what_is_large_is_soon_done_and_takes_little_memory(
    patterns: list[str], min_len: int
) -> None:
    read_patterns = [read(each) for each in patterns]
    began_s = time.thread_time()
    with suppress(PatternTooLarge):
        common_text(read_patterns, Effort(), min_len)
    assert time.thread_time() - began_s < 2
    tracemalloc.start()
    try:
        with suppress(PatternTooLarge):
            common_text(read_patterns, Effort(), min_len)
        _, most_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most_bytes < 50 << 20
