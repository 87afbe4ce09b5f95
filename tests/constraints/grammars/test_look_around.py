"""Patterns with look-around against Python's `re`, by all short texts."""

import re
from itertools import product

import pytest

from constraints.errors import NotEnforced
from constraints.grammars.look_around import conjuncts, opposites
from constraints.grammars.regex import searching
from tests.constraints.grammars.rig import accepts_value, of_schema

TEXTS = ["".join(chars) for size in range(6) for chars in product("ab1", repeat=size)]
PATTERNS = [
    *[
        r"^(?=.*a)(?=.*b).{2,4}$",
        r"^(?!a)",
        r"(?!a)b",
        r"a(?!b)",
        r"(?<=a)b",
        r"(?<!a)b$",
        r"^(?=a)b|1$",
    ],
    *[r"^(?!ab$)[ab]+$", r"^(?:a|(?!.*1)(?=b)b*a)$", r"^(?=a|b)(?!.*11)\w+$", r"^(?!(?:ab)+$)"],
    *[r"^(?=[)a(]+$)a{2}", r"^(?!a)|(b)", r"^(?!a)?(b)", r"\Ba", r"^(?=a)?b"],
]


@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_text_is_taken_if_the_pattern_is_found_in_it(pattern: str) -> None:
    language = of_schema({"type": "string", "pattern": pattern})
    expected = [text for text in TEXTS if re.search(pattern, text)]
    assert [text for text in TEXTS if accepts_value(language, text)] == expected


@pytest.mark.parametrize("pattern", [r"^(?=.*a)(?!.*1)b", r"^(?!a)", r"\Bb\B", "a", "^a|b$"])
def test_the_opposite_is_found_where_the_pattern_is_not(pattern: str) -> None:
    language = of_schema({"type": "string", "not": {"pattern": pattern}})
    expected = [text for text in TEXTS if not re.search(pattern, text)]
    assert [text for text in TEXTS if accepts_value(language, text)] == expected


@pytest.mark.parametrize(
    ("pattern", "parts"),
    [
        ("^(?=a)(?!b)c$", ["^(?:a)", "^(?!b)", "^c$"]),
        ("^(?=a)", ["^(?:a)"]),
        ("^(?=a)|b", ["^(?=a)|b"]),
        ("^(?=a)*b", ["^(?=a)*b"]),
        ("(?=a)b", ["(?=a)b"]),
        ("^a(?=b)", ["^a(?=b)"]),
        (r"^(?=[)]\))b", [r"^(?:[)]\))", "^b"]),
        ("", [""]),
        ("^", ["^"]),
    ],
)
def test_leading_look_aheads_are_patterns_of_their_own(pattern: str, parts: list[str]) -> None:
    assert conjuncts(pattern) == parts


def test_the_opposite_of_what_must_not_lie_ahead_is_that_it_does() -> None:
    assert opposites("^(?!a)(?=c)b") == ["^(?:a)", "^(?:(?!c))", r"^(?![\s\S]*(?:^b))"]
    assert opposites("^(?!a)|(b)") == [r"^(?![\s\S]*(?:^(?!a)|(b)))"]


@pytest.mark.parametrize("pattern", ["a(?!b)", "^(?!a)|(b)", "^(?!a)?(b)"])
def test_the_opposite_of_what_looks_around_inside_is_refused(pattern: str) -> None:
    with pytest.raises(NotEnforced) as refusal:
        of_schema({"type": "string", "not": {"pattern": pattern}})
    assert refusal.value.pointer == "/not"


def test_an_automaton_that_is_too_large_is_refused_as_before() -> None:
    with pytest.raises(NotEnforced, match="look-ahead"):
        searching("^a(?=.{0,400}b.{0,400}$).*c")
