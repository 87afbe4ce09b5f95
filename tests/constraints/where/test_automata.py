"""Each atom's automaton against the evaluator, on every short text over an alphabet."""

import itertools
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from constraints.regex.automaton import Automaton
from constraints.regex.char_sets import NUM_CODE_POINTS, WHITESPACE, Partition, Utf8, join, utf8_of
from constraints.regex.dfa import matches
from constraints.where.evaluate import holds
from constraints.where.machine import automaton_of
from constraints.where.parser import parse
from constraints.where.terms import Compare, Contains, Expression, Measure, Relation

ATOMS = (
    '"aba" in X',
    'starts_with(X, "ab", "b1")',
    'ends_with(X, "aba", "ba.", "ä")',
    'stops_at(X, "aa", ".", "ba")',
    'X in ["", "ab", "aba", "ä1"]',
    "int(X)",
    "float(X)",
    'regex(X, "a*b|(ab)+1?")',
    'regex(X, "[^a]{2,3}")',
    'regex(X, "(a|ab)(ba)?.")',
    'regex(X, r"^\\w+$|-?\\d\\.\\d")',
    'regex(X, r"(a?){3}\\S*?\\s")',
    'regex(X, r"(^a|b)*\\Z")',
    'regex(X, "a*$^")',
    'regex(X, "[a-c1-]+|\\n")',
)
ALPHABET = "ab1-.ä\n "


def accepts(automaton: Automaton, text: str) -> bool:
    state = 0
    for char in text:
        state = int(automaton.steps[state, automaton.partition.label_of(ord(char))])
    return bool(automaton.accepts[state])


@pytest.mark.parametrize("written", ATOMS)
def test_an_automaton_accepts_what_the_evaluator_does(written: str) -> None:
    atom = parse(written)
    automaton = automaton_of(atom)
    for length in range(5):
        for chars in itertools.product(ALPHABET, repeat=length):
            text = "".join(chars)
            assert accepts(automaton, text) == holds(atom, text), text


@pytest.mark.parametrize("relation", Relation)
def test_integers_compare_by_their_value(relation: Relation) -> None:
    written = [
        f"{sign}{zeros}{value}"
        for sign in ("", "-")
        for zeros in ("", "0", "00")
        for value in range(120)
    ]
    others = ["", "-", "--1", "1-", "1.0", " 1", "+1", "٣", "9" * 50, "-" + "9" * 50]
    for bound in (0, 1, 9, 10, 47, 100, -1, -10, -47):
        atom = Compare(Measure.INT, relation, bound)
        automaton = automaton_of(atom)
        for text in (*written, *others):
            assert accepts(automaton, text) == holds(atom, text), (bound, text)


_ITEMS = ("k", "s", "[a-z]", "[^k]", "[\u0130-\u0131ß]", "[A-Zµ]", r"\w", r"[^\Wk]", ".", r"[\S]")
_ODD = "\n \tkKsSiIıİſßẞµμΜKÅåΣσς٣_日ŉǰ\u0345\u03b9\u1fbe\u1e9e\U00010400\U00010428\u1c80в"


@pytest.mark.parametrize("flags", ["", "(?i)", "(?a)", "(?ai)", "(?s)", "(?is)", "(?x)"])
def test_flags_say_which_characters_an_item_matches(flags: str) -> None:
    for pattern in (flags + item for item in _ITEMS):
        automaton = matches(pattern)
        for char in (*map(chr, range(0x250)), *_ODD):
            assert accepts(automaton, char) == bool(re.fullmatch(pattern, char)), (pattern, char)


@pytest.mark.parametrize(
    "pattern", ["(?i:a)b", "(?i)a(?-i:b)c", r"(?i)(?a:k\w)k", "(?s:.).", "(?i)fox$"]
)
def test_flags_hold_where_they_are_said(pattern: str) -> None:
    automaton = matches(pattern)
    for text in map("".join, itertools.product("aAbBcCkK\nKé", repeat=3)):
        for part in (text, text[:2], "FoX", "fox\n"):
            assert accepts(automaton, part) == bool(re.fullmatch(pattern, part)), repr(part)


def test_whitespace_is_what_splits_words() -> None:
    named = {code for first, last in WHITESPACE for code in range(first, last + 1)}
    assert named == {code for code in range(NUM_CODE_POINTS) if len(f"a{chr(code)}a".split()) == 2}


def spelled_label(utf8: Utf8, text: bytes) -> int | None:
    """The label of the one character that the bytes spell; None where they spell none."""
    place = 0
    for index, byte in enumerate(text):
        column = utf8.classes[byte]
        label, deeper = int(utf8.labels[place, column]), int(utf8.places[place, column])
        if label >= 0:
            return label if index == len(text) - 1 else None
        if deeper < 0:
            return None
        place = deeper
    return None


PARTITIONS = (
    Partition.of_sets([]),
    Partition.of_sets([WHITESPACE]),
    Partition.of_chars("aä日😀\U0010ffff"),
    join([Partition.of_sets([WHITESPACE]), Partition.of_chars(" \u2003.")])[0],
)


@pytest.mark.parametrize("partition", PARTITIONS)
def test_every_character_is_spelled_with_its_label(partition: Partition) -> None:
    utf8 = utf8_of(partition)
    labels = np.repeat(
        partition.labels, np.diff(np.append(partition.starts, NUM_CODE_POINTS))
    ).tolist()
    surrogates = range(0xD800, 0xE000)
    scattered = (*range(0x3100, surrogates.start, 61), *range(surrogates.stop, NUM_CODE_POINTS, 61))
    for code in (*range(0x3100), *scattered, NUM_CODE_POINTS - 1):
        assert spelled_label(utf8, chr(code).encode()) == labels[code], hex(code)


@given(st.binary(min_size=1, max_size=4))
def test_what_is_no_character_is_spelled_by_nothing(text: bytes) -> None:
    try:
        is_character = len(text.decode()) == 1
    except UnicodeDecodeError:
        is_character = False
    assert (spelled_label(utf8_of(PARTITIONS[1]), text) is not None) == is_character


def test_surrogates_and_overlong_forms_are_no_characters() -> None:
    utf8 = utf8_of(PARTITIONS[0])
    surrogate = "\ud800".encode("utf-8", "surrogatepass")
    for text in (surrogate, b"\xc0\x80", b"\xe0\x80\x80", b"\xf0\x80\x80\x80", b"\xf4\x90\x80\x80"):
        assert spelled_label(utf8, text) is None


def test_a_phrase_may_be_empty() -> None:
    empty: Expression = Contains("")
    assert accepts(automaton_of(empty), "") == holds(empty, "")
