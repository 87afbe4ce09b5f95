"""What is said of a mask speaks of the hole by its own name."""

import pytest

from client.query.conditions.rename_subject import errors_about, rename_subject
from client.query.errors import BadCondition
from client.query.place import Place


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


def test_a_hole_may_be_called_x() -> None:
    assert rename_subject("`len(X) < 0`", "X") == "`len(X) < 0`"


def test_what_is_refused_keeps_its_place_and_cause() -> None:
    cause, place = ValueError(), Place(1, 2, 1, 3)
    with pytest.raises(BadCondition) as caught, errors_about("NAME"):
        raise BadCondition("X is 'X'", place) from cause

    assert caught.value.message == "NAME is 'X'"
    assert (caught.value.place, caught.value.__cause__) == (place, cause)
