"""Patterns of texts in either case: a text matches where Python makes the wanted text of it."""

import re
import sys
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from client.query.conditions.letter_case import (
    FOLDS,
    beginning_with,
    containing,
    ending_with,
    one_of,
)
from client.query.conditions.plan import StopMode
from client.query.conditions.planner import plan
from constraints.where.terms import Expression, Matches, OneOf
from tests.client.query.conditions.clauses import term

# Letters that become two or three, that two others become, and ones without a case.
LETTERS = "sSſßẞfFiIıİlLtTﬁﬂﬀﬃﬄﬅŉnNʼkK\u212aåÅ\u212b\u0307ǅǆǄ1 -Ωωω"
TEXTS = st.text(alphabet=LETTERS, max_size=5)
SIGMAS = frozenset("Σσς")


def holds(said: Expression, text: str) -> bool:
    if isinstance(said, OneOf):
        return text in said.values
    assert isinstance(said, Matches)
    return re.fullmatch(said.pattern, text) is not None


@given(st.sampled_from(sorted(FOLDS)), TEXTS, TEXTS)
def test_a_text_matches_where_python_makes_the_wanted_text_of_it(
    fold: str, text: str, other: str
) -> None:
    become = FOLDS[fold]
    for wanted in (become(text), become(other), other):
        said = one_of(fold, [wanted])
        assert said is not None
        for tried in (text, other, text.swapcase(), text.title()):
            assert holds(said, tried) == (become(tried) == wanted)


PARTS = st.text(alphabet=LETTERS, max_size=3)


@given(st.sampled_from(sorted(FOLDS)), TEXTS, PARTS, st.data())
def test_a_text_has_a_part_where_python_finds_it(
    fold: str, text: str, other: str, data: st.DataObject
) -> None:
    become = FOLDS[fold]
    whole = become(text)
    start = data.draw(st.integers(0, len(whole)))
    end = data.draw(st.integers(start, len(whole)))
    for part in (whole[start:end], become(other), other):
        within, first, last = (
            containing(fold, part),
            beginning_with(fold, [part]),
            ending_with(fold, [part]),
        )
        assert within is not None
        assert first is not None
        assert last is not None
        for tried in (text, text.swapcase(), text + other, other + text, "\n" + text + "\n"):
            assert holds(within, tried) == (part in become(tried))
            assert holds(first, tried) == become(tried).startswith(part)
            assert holds(last, tried) == become(tried).endswith(part)


def test_a_character_may_bring_more_than_what_is_asked_for() -> None:
    begins = beginning_with("upper", ["S"])
    assert begins is not None
    assert holds(begins, "ßa")
    hot = containing("lower", "hi")
    assert hot is not None
    assert holds(hot, "OHİ")
    assert not holds(hot, "H")


@pytest.mark.parametrize(
    ("clause", "kept"),
    [
        ("'fox' in X.lower()", "(?s:.*)(?:[fF][oO][xX])(?s:.*)"),
        ("starts_with(X.lower(), 'a', 'b')", "(?:[aA]|[bB])(?s:.*)"),
        ("ends_with(X.upper(), ['G'])", "(?s:.*)(?:[Gg])"),
    ],
)
def test_parts_in_either_case_are_masks(clause: str, kept: str) -> None:
    planned = plan((term(clause, "X"),), "X", str, {}, StopMode.CUT)
    assert planned.checks == ()
    assert planned.constraint is not None
    assert kept in str(planned.constraint.value)


def test_what_has_no_part_in_either_case_is_a_mask_as_well() -> None:
    planned = plan((term("'fox' not in X.lower()", "X"),), "X", str, {}, StopMode.CUT)
    assert planned.checks == ()
    assert planned.constraint is not None
    assert str(planned.constraint.value).startswith("not regex(X, ")


@pytest.mark.parametrize("fold", FOLDS)
def test_every_character_is_among_those_that_become_what_it_becomes(fold: str) -> None:
    become = FOLDS[fold]
    changed = [
        char
        for char in map(chr, range(sys.maxunicode + 1))
        if become(char) != char and not SIGMAS & set(char + become(char))
    ]
    assert len(changed) > 1000
    for char in changed:
        said = one_of(fold, [become(char)])
        assert said is not None
        assert holds(said, char)


def test_what_no_text_becomes_is_nothing() -> None:
    assert one_of("lower", ["Yes"]) == OneOf(())
    assert one_of("upper", ["ß", "no"]) == OneOf(())


def test_a_sigma_depends_on_its_neighbours() -> None:
    assert ("ΑΣ".lower(), "ΑΣΑ".lower()) == ("ας", "ασα")
    assert one_of("lower", ["a", "σας"]) is None
    assert one_of("upper", ["ΣΑΣ"]) is not None


def test_what_would_be_too_long_is_left_to_a_check() -> None:
    assert one_of("upper", ["S" * 60]) is None
    assert one_of("lower", ["s" * 60]) is not None


class Dictionary(frozenset[str]):
    """Of a million words, which take their time to read."""

    def __len__(self) -> int:
        return 1_000_000

    def __repr__(self) -> str:
        return "WORDS"

    def __iter__(self) -> Iterator[str]:
        raise AssertionError("all of it is read")


def test_a_dictionary_is_left_to_a_check_and_not_read() -> None:
    clause = term("X.lower() in WORDS", "X", WORDS=Dictionary(["a"]))

    planned = plan((clause,), "X", str, {}, StopMode.CUT)

    assert planned.constraint is None
    assert len(planned.checks) == 1
