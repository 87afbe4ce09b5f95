"""Patterns with look-around against Python's `re`, by all short texts."""

import random
import re
from itertools import product

import numpy as np
import pytest

from constraints.engine import HEADER, GrammarLanguage
from constraints.errors import NotEnforced, OutOfReach
from constraints.regex.char_sets import Partition
from constraints.regex.dfa import Automaton, pattern_of
from constraints.regex.syntax import Pattern
from constraints.regex.writing import conjuncts, searching, written
from tests.constraints.cases import byte_vocabulary
from tests.constraints.grammars.rig import accepts, accepts_value, of_schema, takes

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


@pytest.mark.parametrize(
    "pattern",
    [r"^(?=.*a)(?!.*1)b", r"^(?!a)", r"\Bb\B", "a", "^a|b$", "a(?!b)", "^(?!a)|(b)", "^(?!a)?(b)"],
)
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


def test_an_automaton_that_is_too_large_is_refused_as_before() -> None:
    with pytest.raises(NotEnforced, match="look-ahead"):
        searching("^a(?=.{0,400}b.{0,400}$).*c")


SHORT_TEXTS = ["".join(chars) for size in range(6) for chars in product("ab?", repeat=size)]


def an_automaton(draw: random.Random, num_states: int) -> Automaton:
    """Of "a", "b" and what is neither."""
    steps = [[draw.randrange(num_states) for _ in range(3)] for _ in range(num_states)]
    accepts = [draw.random() < 0.4 for _ in range(num_states)]
    return Automaton(Partition.of_chars("ab"), np.array(steps, np.int32), np.array(accepts))


def has(pattern: Pattern | None, texts: list[str]) -> list[str]:
    if pattern is None:
        return []
    grammar = f"{HEADER}start: /{written(pattern)}/\n"
    language = GrammarLanguage(byte_vocabulary(), grammar)
    return [text for text in texts if accepts(language, text)]


@pytest.mark.parametrize("seed", range(30))
def test_the_pattern_has_the_texts_of_the_automaton(seed: int) -> None:
    automaton = an_automaton(random.Random(seed), 1 + seed % 6)
    expected = [text for text in SHORT_TEXTS if takes(automaton, text)]
    assert has(pattern_of(automaton), SHORT_TEXTS) == expected


def test_too_many_states_are_out_of_reach() -> None:
    num_states = 400
    steps = np.minimum(np.arange(num_states)[:, None] + [1, 0, 0], num_states - 1)
    is_last = np.arange(num_states) == num_states - 1
    automaton = Automaton(Partition.of_chars("ab"), steps.astype(np.int32), is_last)
    with pytest.raises(OutOfReach):
        pattern_of(automaton)
