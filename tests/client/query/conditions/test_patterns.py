"""Patterns let pass what Python says is so: sufficient ones nothing else, necessary ones all."""

import sys
from collections.abc import Callable, Iterator
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from client.query.conditions.bounds import OPEN, Bounds, CurrentHole, bounds
from client.query.conditions.evaluate import RELATIONS
from client.query.conditions.kinds import TEXT
from client.query.conditions.patterns import FOLDS, folded, numerals_among, numerals_related
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


# Letters that become two or three, that two others become, and ones without a case.
LETTERS = "sSſßẞfFiIıİlLtTﬁﬂﬀﬃﬄﬅŉnNʼkK\u212aåÅ\u212b\u0307ǅǆǄ1 -ΩωωΣσς"
TEXTS = st.text(alphabet=LETTERS, max_size=5)
WAYS: dict[tuple[bool, bool], Callable[[str, str], bool]] = {
    (False, False): str.__eq__,
    (False, True): str.startswith,
    (True, False): str.endswith,
    (True, True): str.__contains__,
}


@given(st.sampled_from(sorted(FOLDS)), TEXTS, TEXTS, st.data())
def test_what_is_sufficient_is_true_and_what_is_true_is_necessary(
    fold: str, text: str, other: str, data: st.DataObject
) -> None:
    become = FOLDS[fold]
    whole = become(text)
    start = data.draw(st.integers(0, len(whole)))
    end = data.draw(st.integers(start, len(whole)))
    for wanted in (whole, whole[start:end], become(other), other):
        for (before, behind), is_true in WAYS.items():
            found = folded(fold, [wanted], before=before, behind=behind)
            assert found is not None
            for tried in (text, text.swapcase(), text + other, other + text, f"\n{text}\n"):
                truth = is_true(become(tried), wanted)
                assert holds(found[0], tried) <= truth <= holds(found[1], tried)


@pytest.mark.parametrize("fold", FOLDS)
def test_a_character_that_becomes_one_is_told_exactly(fold: str) -> None:
    become = FOLDS[fold]
    changed = [
        char
        for char in map(chr, range(sys.maxunicode + 1))
        if become(char) != char and len(become(char)) == 1 and char not in "Σ"
    ]
    assert len(changed) > 1000
    for char in changed:
        found = folded(fold, [become(char)])
        assert found is not None
        assert holds(found[0], char)


@pytest.mark.parametrize(
    ("clause", "kept"),
    [
        ("X.lower() == 'this'", "[tT][hH][iI][sS]"),
        ("X.upper() in ['NO', 'OK']", "[Nn][Oo]|[Oo][Kk]"),
        ("'fox' in X.lower()", "(?s:.*)(?:[fF][oO][xX])(?s:.*)"),
        ("starts_with(X.lower(), 'a', 'b')", "(?:[aA]|[bB])(?s:.*)"),
        ("ends_with(X.upper(), ['G'])", "(?s:.*)(?:[Gg])"),
    ],
)
def test_what_people_write_is_a_mask_and_needs_no_check(clause: str, kept: str) -> None:
    found, opposite = (said(text) for text in (clause, f"not ({clause})"))

    assert found.is_exact
    assert opposite.is_exact
    assert getattr(found.upper, "pattern", None) == kept


@pytest.mark.parametrize(
    ("clause", "texts", "others"),
    [
        ("X.upper() == 'STRASSE'", ["straße", "STRASSE", "Straſſe"], ["strae"]),
        ("starts_with(X.upper(), 'S')", ["ßa", "s"], ["a"]),
        ("'hi' in X.lower()", ["OHİ", "oHi"], ["H"]),
        ("X.lower() == 'ας'", ["ΑΣ", "ας"], ["ασ"]),
    ],
)
def test_odd_characters_are_let_pass_and_checked(
    clause: str, texts: list[str], others: list[str]
) -> None:
    found = said(clause)

    assert not found.is_exact
    assert all(holds(found.upper, text) for text in texts)
    assert not any(holds(found.upper, text) for text in others)


def said(clause: str, **values: object) -> Bounds:
    return bounds(term(clause, "X", **values), CurrentHole("X", TEXT, {}))


def test_what_no_text_becomes_is_nothing() -> None:
    assert folded("lower", ["Yes"]) == (OneOf(()), OneOf(()))


class Dictionary(frozenset[str]):
    """Of a million words, which take their time to read."""

    def __len__(self) -> int:
        return 1_000_000

    def __repr__(self) -> str:
        return "WORDS"

    def __iter__(self) -> Iterator[str]:
        raise AssertionError("all of it is read")


def test_what_would_be_too_long_is_left_to_a_check() -> None:
    assert folded("upper", ["S" * 8000]) is None
    assert said("X.lower() in WORDS", WORDS=Dictionary(["a"])) == OPEN
