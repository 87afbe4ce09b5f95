"""Arithmetic and decimals in comparisons: part of the mask, and meaning what Python says."""

import re
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from client.errors import TandemError
from client.query.conditions.bounds import numerals_among, numerals_related
from client.query.conditions.evaluate import RELATIONS, Finished, evaluate
from client.query.conditions.planner import HolePlan, StopMode, plan
from client.query.errors import ProgramFailed, Unsatisfiable
from tests.client.query.conditions.clauses import admits, term

CAT = Finished("cat or dog", "cat or dog", 4)


def planned(clause: str, kind: object = None, **values: object) -> HolePlan:
    return plan((term(clause, "XYZ", **values),), "X", kind, {"Y": CAT}, StopMode.CUT)


@pytest.mark.parametrize(
    ("clause", "asked"),
    [
        ("len(X) + 1 < 9", "len(X) < 8"),
        ("9 > 1 + len(X)", "len(X) < 8"),
        ("len(X) - n == len(Y)", "len(X) == 13"),
        ("10 - len(X) > 3", "len(X) < 7"),
        ("2 * len(words(X)) <= 5", "len(words(X)) <= 2"),
        ("len(X) * -2 < -5", "len(X) >= 3"),
        ("2 * (len(X) + len(Y)) - 1 <= 30", "len(X) <= 5"),
        ("len(tokens(X)) + len(tokens(Y)) != 9", "len(tokens(X)) != 5"),
        ("1 < int(X) + 1 <= 10 ** 30", "int(X) > 0 and regex"),
        ("len(X) + len(X) < 9", "len(X) <= 4"),
        ("X + 1 < len(Y) and int(X)", 'regex(X, "0|-?[1-9][0-9]*") and int(X) < 9'),
    ],
)
def test_a_measure_with_whole_numbers_is_a_bound_of_it(clause: str, asked: str) -> None:
    made = planned(clause, n=3)

    assert made.constraint is not None
    assert str(made.constraint.value).startswith(asked)
    assert (made.checks, made.deferred) == ((), ())


def test_the_value_of_a_number_is_such_a_measure() -> None:
    made = planned("X + 3 == 10", int)

    assert [admits(made, text, 1) for text in ("7", "10", "-7")] == [True, False, False]
    assert made.checks == ()


@pytest.mark.parametrize(
    ("clause", "kind"),
    [
        ("len(X) + 0.5 < 9", None),
        ("len(X) + 1 in [2, 3]", None),
        ("len(X) + len(words(X)) < 9", None),
        ("X + 'a' == Y", None),
        ("X * 2 < 9", float),
        ("len(X) * len(X) < 9", None),
        ("len(X) + 1 < 9", list[int]),
    ],
)
def test_other_arithmetic_is_asked_at_the_end(clause: str, kind: object) -> None:
    made = planned(clause, kind)

    assert [check.text for check in made.checks] == [clause]


def test_what_cannot_be_is_told_at_once() -> None:
    with pytest.raises(Unsatisfiable):
        planned("2 * len(X) == 5")


def test_what_it_raises_points_to_it() -> None:
    with pytest.raises(ProgramFailed, match=r"`X - 1` raised TypeError") as caught:
        evaluate(term("X - 1 < 2"), {"X": Finished("a", "a")})

    assert isinstance(caught.value, TandemError)
    assert caught.value.place is not None


small = st.integers(-4, 4)


@given(
    st.sampled_from(["{a} * len(X) + {b}", "{b} - {a} * len(X)", "(len(X) - {b}) * {a}"]),
    st.sampled_from(sorted(RELATIONS)),
    small,
    small,
    st.integers(-12, 12),
)
def test_the_texts_that_may_be_written_are_those_for_which_python_says_so(
    formula: str, relation: str, a: int, b: int, constant: int
) -> None:
    formula = formula.format(a=f"({a})", b=f"({b})")
    try:
        made = planned(f"{formula} {relation} ({constant})")
    except Unsatisfiable:
        made = None

    for length in range(9):
        text = "x" * length
        wanted = RELATIONS[relation](eval(formula, {"X": text}), Fraction(constant))
        holes = {"X": Finished(text, text, 1)}
        passed = made is not None and admits(made, text, 1)
        if made is not None and made.checks:
            passed = passed and evaluate(made.checks[0].term, holes) is True
        assert passed == wanted


# Few digits, so that numerals and bounds are often equal or nearly so.
digits = st.text("0159", min_size=1, max_size=4)
numerals = st.builds(
    lambda sign, whole, fraction: sign + whole + (f".{fraction}" if fraction else ""),
    st.sampled_from(["", "-"]),
    digits,
    st.one_of(st.just(""), digits),
)
integers = st.builds(lambda sign, whole: sign + whole, st.sampled_from(["", "-"]), digits)


@given(numerals, numerals, st.sampled_from(sorted(RELATIONS)))
def test_decimals_are_compared_by_value(numeral: str, bound: str, relation: str) -> None:
    pattern = numerals_related(relation, Decimal(bound), decimals=True)

    is_matched = re.fullmatch(pattern, numeral) is not None
    assert is_matched == RELATIONS[relation](Decimal(numeral), Decimal(bound))


@given(numerals, numerals, st.sampled_from(sorted(RELATIONS)))
def test_of_integers_those_without_a_point(numeral: str, bound: str, relation: str) -> None:
    pattern = numerals_related(relation, Decimal(bound), decimals=False)

    is_matched = re.fullmatch(pattern, numeral) is not None
    holds = RELATIONS[relation](Decimal(numeral), Decimal(bound))
    assert is_matched == (holds and "." not in numeral)


@given(numerals, st.lists(numerals, max_size=3), st.booleans())
def test_one_of_some_numbers(numeral: str, bounds: list[str], decimals: bool) -> None:
    pattern = numerals_among(map(Decimal, bounds), decimals=decimals)

    is_one = Decimal(numeral) in map(Decimal, bounds)
    is_matched = re.fullmatch(pattern, numeral) is not None
    assert is_matched == (is_one and (decimals or "." not in numeral))


@pytest.mark.parametrize("text", ["", "-", ".5", "5.", "+1", " 1", "1 ", "1e3", "٣", "--1"])
@pytest.mark.parametrize("relation", ["<", "!=", ">="])
def test_other_texts_are_no_numerals(text: str, relation: str) -> None:
    for bound in ("-10", "0", "2.5"):
        assert not re.fullmatch(numerals_related(relation, Decimal(bound), decimals=True), text)


@pytest.mark.parametrize("relation", sorted(RELATIONS))
@pytest.mark.parametrize("unit", ["1", "0.05"])
def test_every_number_of_a_small_grid(relation: str, unit: str) -> None:
    grid = [number * Decimal(unit) for number in range(-121, 122)]
    for bound in grid:
        pattern = re.compile(numerals_related(relation, bound, decimals=True))
        found = [number for number in grid if pattern.fullmatch(str(number))]
        assert found == [number for number in grid if RELATIONS[relation](number, bound)], bound
