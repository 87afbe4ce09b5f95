"""Patterns mean what re.fullmatch says, and schemas' patterns what re.search does."""

import json
import re
import warnings
from itertools import product

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from constraints.errors import Contradiction, Malformed, NotEnforced
from constraints.regex.dfa import matches
from constraints.regex.writing import translate, translate_search
from constraints.spec import ConstraintSpec, Kind
from tests.constraints.grammars.rig import accepts, compiled, compiler, of_schema, takes, walk
from tests.hypothesis_profiles import more_examples

ATOMS = [
    *(
        "a b . \\d \\w \\s \\S [ab] [^a] []a] [^]b] ^ $ (?:^a|b) (?:a|b$) (a|b) (?i:a) [a-c] { } |"
        " \\. \\n x{1 (?P<n>a) \\Z \\A [\\w-] [a&&b] [[] é - () (?:) \\x61 \\u0062 \\141 \\- ~ #"
        " & / a{,2} a{2} a{1,2} a{,} b+ a* a? a*? (a*)* (?s:.) [\\d\\s] (?:^)? ($)* (\\A){1,2}"
        " (?m:^)+?"
    ).split(),
]
TEXTS = st.text(st.sampled_from("abA1 \né{},-./&~x"), max_size=4)
PATTERNS = st.lists(st.sampled_from(ATOMS), min_size=1, max_size=4).map("".join)


def python_accepts(pattern: str) -> bool:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            re.compile(pattern)
        except re.error:
            return False
        return True


@more_examples(8)
@given(PATTERNS, st.lists(TEXTS, min_size=5, max_size=15))
def test_texts_match_as_in_python(pattern: str, texts: list[str]) -> None:
    assume(python_accepts(pattern))
    try:
        language = compiler().compile(ConstraintSpec(Kind.REGEX, pattern))
    except NotEnforced:
        return
    except Contradiction:
        assert not any(re.fullmatch(pattern, text) for text in texts)
        return
    for text in texts:
        assert accepts(language, text) == bool(re.fullmatch(pattern, text)), text


REPEATS = st.sampled_from("* + ? {0} {2} {1,2} {0,3} {2,3} {1,} {2,}".split())
NESTED = st.recursive(
    st.sampled_from(["a", "b", "ab", "a|", "(?:)"]),
    lambda inner: st.one_of(
        st.builds("(?:{}){}".format, inner, REPEATS),
        st.builds("(?:{}|{})".format, inner, inner),
        st.builds("(?:{}){}(?:{})".format, inner, REPEATS, inner),
    ),
    max_leaves=5,
)
SHORT = ["".join(chars) for length in range(7) for chars in product("ab", repeat=length)]


@more_examples(4)
@given(NESTED)
def test_repeats_of_repeats_have_the_same_texts_in_fewer_readings(pattern: str) -> None:
    fewer = re.compile(translate(pattern))
    for text in SHORT:
        assert bool(fewer.fullmatch(text)) == bool(re.fullmatch(pattern, text)), text


@pytest.mark.parametrize(
    ("pattern", "written"),
    [
        ("(?:a+|b)*", "(?:a|b)*"),
        ("(?:a?|b+)+", "(?:a?|b)+"),
        ("((a{1,200}){1,200})", "a{1,40000}"),
        ("(a{2}){1,3}", "(?:a{2}){1,3}"),
        ("(a{1,9999}){1,9999}", "(?:a{1,9999}){1,9999}"),
    ],
)
def test_of_loops_in_loops_and_of_counts_of_counts_there_is_one(pattern: str, written: str) -> None:
    assert translate(pattern) == written


WRONG = st.sampled_from(
    ["(", ")", "[", "[b-a]", "a**", "\\q", "a{3,2}", "(?P<1>a)", "(?Q)", "\\x1"]
)


@more_examples(4)
@given(PATTERNS, WRONG, PATTERNS)
def test_what_python_refuses_is_refused(before: str, wrong: str, after: str) -> None:
    pattern = before + wrong + after
    assume(not python_accepts(pattern))
    with pytest.raises((Malformed, NotEnforced)):
        translate(pattern)


_ITEMS = ("k", "s", "[a-z]", "[^k]", "[\u0130-\u0131ß]", "[A-Zµ]", r"\w", r"[^\Wk]", ".", r"[\S]")
FLAGGED = [
    *(flags + item for flags in ("", "(?i)", "(?a)", "(?ai)", "(?s)", "(?is)") for item in _ITEMS),
    *("(?i)i", "(?i)\u0130", "(?i)[a-j]", "(?i)[^a-z]", "(?ai)\xe9", "(?ai)[^k\xe9]"),
    *(r"(?i)[^\w]", r"(?i)[\W]", r"(?i)[\d\W]", r"(?i)[\wé]", r"(?i)[^i\W]", r"(?i)[\Wk-m]"),
    *(r"(?ai)[\Wk-m]", r"(?ai)[^é\w]"),
]
# Marks, and letters newer than this Python, that have a letter for their other case.
_ODD = "\n \tİısßẞµμΜ\u212aÅåΣσς٣_日ŉǰ"
_ODD += "\u0345\u03b9\u1fbe\u1e9e\U00010400\U00010428\u1c80в\ua7cb\ua7dc\u0264"


@pytest.mark.parametrize("pattern", FLAGGED)
def test_flags_say_which_characters_match_in_both_engines(pattern: str) -> None:
    automaton, language = matches(pattern), compiled(Kind.REGEX, pattern)
    for char in (*map(chr, range(0x180)), *_ODD):
        expected = bool(re.fullmatch(pattern, char))
        assert takes(automaton, char) is expected, char
        assert accepts(language, char) is expected, char


@pytest.mark.parametrize(
    "pattern", ["(?i:a)b", "(?i)a(?-i:b)c", r"(?i)(?a:k\w)k", "(?s:.).", "(?i)fox$"]
)
def test_flags_hold_where_they_are_said(pattern: str) -> None:
    automaton = matches(pattern)
    for text in map("".join, product("aAbBcCkK\nKé", repeat=3)):
        for part in (text, text[:2], "FoX", "fox\n"):
            assert takes(automaton, part) == bool(re.fullmatch(pattern, part)), repr(part)


@more_examples(2)
@given(
    st.sampled_from([r"[a-c]{2,5}x?", r"(ab|ba)+\d{2}", r"\w+@\w+\.org", r"(?:a|\s){3}", ".{4}"])
)
def test_texts_drawn_from_masks_match(pattern: str) -> None:
    text = walk(compiled(Kind.REGEX, pattern), np.random.default_rng(3), 30)
    assert text is not None
    assert re.fullmatch(pattern, text)


def test_every_character_is_in_the_classes_that_python_puts_it_in() -> None:
    characters = [chr(code) for code in range(0x20, 0x3000, 7)]
    for pattern in (r"\w", r"\d", r"\s"):
        language = compiled(Kind.REGEX, pattern)
        wrong = [
            each for each in characters if accepts(language, each) != bool(re.match(pattern, each))
        ]
        assert wrong == []


@pytest.mark.parametrize("pattern", [r"[^\s\S]", "foo$bar", r"a(?=b)c|\b\B"])
def test_a_pattern_that_nothing_matches_is_a_contradiction(pattern: str) -> None:
    with pytest.raises(Contradiction, match="position 0: nothing matches") as contradiction:
        compiled(Kind.REGEX, pattern)
    assert contradiction.value.parts == (pattern,)


SEARCH_ATOMS = ["a", "b", ".", "\\d", "[ab]", "^", "$", "a*", "(^a|b)", "(a|b$)", "b+", "^^a", "|"]


@more_examples(4)
@given(
    st.lists(st.sampled_from(SEARCH_ATOMS), min_size=1, max_size=3).map("".join),
    st.lists(st.text("ab1", max_size=4), min_size=8, max_size=8),
)
def test_patterns_of_schemas_are_looked_for_anywhere(pattern: str, texts: list[str]) -> None:
    assume(python_accepts(pattern))
    try:
        language = of_schema({"type": "string", "pattern": pattern})
    except NotEnforced:
        return
    except Contradiction:
        assert not any(re.search(pattern, text) for text in texts)
        return
    for text in texts:
        assert accepts(language, json.dumps(text)) == bool(re.search(pattern, text)), text


@pytest.mark.parametrize("pattern", ["[]", "\\cJ", "\\p{L}", "[^]", "a{,3}", "\\u{1F600}"])
def test_patterns_of_schemas_are_of_ecma(pattern: str) -> None:
    assert translate_search(pattern)
