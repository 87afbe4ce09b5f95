"""Arithmetic in comparisons; errors that name the hole."""

import pytest

from client.calls import Constraint
from client.errors import TandemError
from client.query.conditions.evaluate import Finished, evaluate
from client.query.conditions.planner import HolePlan, StopMode, plan
from client.query.conditions.terms import errors_about, rename_subject, written
from client.query.errors import BadCondition, Place, ProgramFailed
from tests.client.query.conditions.clauses import admits, term

CAT = Finished("cat or dog", "cat or dog", 4)


def planned(clause: str, kind: object = None, **values: object) -> HolePlan:
    return plan((term(clause, "XYZ", **values),), "X", kind, {"Y": CAT}, StopMode.CUT)


def test_arithmetic_of_finished_holes_is_a_bound() -> None:
    made = planned("2 * (len(Y) + 1) - n > len(X)", n=3)

    assert made.constraint == Constraint("where", "len(X) < 19")
    assert made.checks == ()


@pytest.mark.parametrize(
    ("clause", "kind"),
    [
        ("len(X) + 1 < 9", None),
        ("len(X) + len(words(X)) < 9", None),
        ("X + 'a' == Y", None),
        ("X * 2 < 9", float),
        ("len(X) + 1 < 9", list[int]),
    ],
)
def test_arithmetic_of_this_hole_is_asked_at_the_end(clause: str, kind: object) -> None:
    made = planned(clause, kind)

    assert [written(check) for check in made.checks] == [clause]


def test_what_it_raises_points_to_it() -> None:
    with pytest.raises(ProgramFailed, match=r"`X - 1` raised TypeError") as caught:
        evaluate(term("X - 1 < 2"), {"X": Finished("a", "a")})

    assert isinstance(caught.value, TandemError)
    assert caught.value.place is not None


def test_numbers_that_python_does_not_write_bound_others() -> None:
    """A model may write on and on."""
    finished = {"Z": Finished(10**5000, "1" + "0" * 5000, 1)}
    made = plan((term("len(X) > -Z"),), "X", None, finished, StopMode.CUT)

    assert admits(made, "any", 1)


@pytest.mark.parametrize(
    ("told", "said"),
    [
        ("nothing satisfies `len(X) < 0`", "nothing satisfies `len(NAME) < 0`"),
        ("both `X in [\"X\", 'X']` and `X != 5`", "both `NAME in [\"X\", 'X']` and `NAME != 5`"),
        ("it doesn't end: X, isn't it", "it doesn't end: NAME, isn't it"),
        (r'`X == "a\"X"`', r'`NAME == "a\"X"`'),
        ("MAX_X, XX and X.startswith('X')", "MAX_X, XX and NAME.startswith('X')"),
    ],
)
def test_x_is_the_hole_and_texts_stay(told: str, said: str) -> None:
    assert rename_subject(told, "NAME") == said


def test_what_is_refused_keeps_its_place_and_cause() -> None:
    cause, place = ValueError(), Place(1, 2, 1, 3)
    with pytest.raises(BadCondition) as caught, errors_about("NAME"):
        raise BadCondition("X is 'X'", place) from cause

    assert caught.value.message == "NAME is 'X'"
    assert (caught.value.place, caught.value.__cause__) == (place, cause)
