"""Patterns let pass what Python says is so, and nothing else."""

import sys
from collections.abc import Callable, Iterator
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from client.query.conditions.bounds import OPEN, Bounds, CurrentHole, bounds
from client.query.conditions.evaluate import RELATIONS
from client.query.conditions.kinds import TEXT
from client.query.conditions.patterns import lowered, numerals_among, numerals_related
from constraints.where.evaluate import holds
from constraints.where.terms import OneOf
from tests.client.query.conditions.clauses import term

# Few digits, so that numerals and bounds are often equal or nearly so.
digits = st.text("0159", min_size=1, max_size=4)
numerals = st.builds(
    lambda sign, whole, fraction: sign + whole + (f".{fraction}" if fraction else ""),
    st.sampled_from(["", "-"]),
    digits,
    st.one_of(st.just(""), digits),
)


@given(numerals, numerals, st.sampled_from(sorted(RELATIONS)))
def test_decimals_are_compared_by_value(numeral: str, bound: str, relation: str) -> None:
    is_held = holds(numerals_related(relation, Decimal(bound)), numeral)

    assert is_held == RELATIONS[relation](Decimal(numeral), Decimal(bound))


@given(numerals, st.lists(numerals, max_size=3))
def test_one_of_some_numbers(numeral: str, some: list[str]) -> None:
    is_held = holds(numerals_among(map(Decimal, some)), numeral)

    assert is_held == (Decimal(numeral) in map(Decimal, some))


@pytest.mark.parametrize("text", ["", "-", ".5", "5.", "+1", " 1", "1 ", "1e3", "٣", "--1"])
@pytest.mark.parametrize("relation", ["<", "!=", ">="])
def test_other_texts_are_no_numerals(text: str, relation: str) -> None:
    for bound in ("-10", "0", "2.5"):
        assert not holds(numerals_related(relation, Decimal(bound)), text)


@pytest.mark.parametrize("relation", sorted(RELATIONS))
@pytest.mark.parametrize("unit", ["1", "0.05"])
def test_every_number_of_a_small_grid(relation: str, unit: str) -> None:
    grid = [number * Decimal(unit) for number in range(-121, 122, 3)]
    for bound in grid:
        pattern = numerals_related(relation, bound)
        found = [number for number in grid if holds(pattern, str(number))]
        assert found == [number for number in grid if RELATIONS[relation](number, bound)], bound


# Letters that become two, that two others become, and ones without a case.
LETTERS = "sSſßẞfFiIıİlLtTﬁﬂﬀﬃﬄﬅŉnNʼkK\u212aåÅ\u212b\u0307ǅǆǄ1 -ΩωωΣσς"
TEXTS = st.text(alphabet=LETTERS, max_size=5)
WAYS: dict[tuple[bool, bool], Callable[[str, str], bool]] = {
    (False, False): str.__eq__,
    (False, True): str.startswith,
    (True, False): str.endswith,
    (True, True): str.__contains__,
}


@given(TEXTS, TEXTS, st.data())
def test_a_pattern_of_lower_case_is_exact_or_there_is_none(
    text: str, other: str, data: st.DataObject
) -> None:
    whole = text.lower()
    start = data.draw(st.integers(0, len(whole)))
    end = data.draw(st.integers(start, len(whole)))
    for wanted in (whole, whole[start:end], other.lower(), other):
        for (before, behind), is_true in WAYS.items():
            found = lowered([wanted], before=before, behind=behind)
            assert (found is None) == bool(set("σς\u0307") & set(wanted))
            for tried in (text, text.swapcase(), text + other, other + text, f"\n{text}\n"):
                if found is not None:
                    assert holds(found, tried) == is_true(tried.lower(), wanted)


def test_every_character_with_a_lower_case_is_in_its_pattern() -> None:
    changed = [
        char
        for char in map(chr, range(sys.maxunicode + 1))
        if char.lower() != char and char not in "Σİ"
    ]
    assert len(changed) > 1000
    assert all(holds(lowered([char.lower()]) or OneOf(()), char) for char in changed)


@pytest.mark.parametrize(
    ("clause", "kept"),
    [
        ("X.lower() == 'this'", "[tT][hH][iI][sS]"),
        ("X.lower() in ['no', 'ok']", "[nN][oO]|[oO][kK\u212a]"),
        ("'fox' in X.lower()", "(?s:.*)(?:[fF][oO][xX])(?s:.*)"),
        ("starts_with(X.lower(), 'a', 'b')", "(?:[aA]|[bB])(?s:.*)"),
        ("ends_with(X.lower(), ['g'])", "(?s:.*)(?:[gG])"),
    ],
)
def test_what_people_write_is_a_mask_and_needs_no_check(clause: str, kept: str) -> None:
    found, opposite = (said(text) for text in (clause, f"not ({clause})"))

    assert found.is_exact
    assert opposite.is_exact
    assert getattr(found.upper, "pattern", None) == kept


@pytest.mark.parametrize("clause", ["X.lower() == 'ας'", "X.upper() == 'NO'"])
def test_other_letters_and_upper_case_are_left_to_a_check(clause: str) -> None:
    assert said(clause) == OPEN


def said(clause: str, **values: object) -> Bounds:
    return bounds(term(clause, "X", **values), CurrentHole("X", TEXT, {}))


def test_what_no_text_becomes_is_nothing() -> None:
    assert lowered(["Yes"]) == OneOf(())


class Dictionary(frozenset[str]):
    """Of a million words, which take their time to read."""

    def __len__(self) -> int:
        return 1_000_000

    def __repr__(self) -> str:
        return "WORDS"

    def __iter__(self) -> Iterator[str]:
        raise AssertionError("all of it is read")


def test_what_would_be_too_long_is_left_to_a_check() -> None:
    assert lowered(["s" * 8000]) is None
    assert said("X.lower() in WORDS", WORDS=Dictionary(["a"])) == OPEN
