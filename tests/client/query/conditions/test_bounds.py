"""Sums over several holes, kept at the last of them; and errors that name the hole."""

from itertools import product
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from client.calls import Constraint
from client.query.conditions.evaluate import Finished, evaluate
from client.query.conditions.operators import errors_about, rename_subject
from client.query.conditions.planner import StopMode, plan
from client.query.conditions.terms import Term
from client.query.errors import BadCondition, Place, Unsatisfiable
from tests.client.query.conditions.clauses import admits, all_hold, term


def test_the_last_hole_of_a_sum_is_the_one_that_it_restricts() -> None:
    clauses = (term("len(X) + 2 * len(Y) == 5"), term("len(X) < 4"))
    first = plan(clauses, "X", None, {}, StopMode.CUT)
    last = plan(clauses, "Y", None, {"X": "abc"}, StopMode.CUT)

    assert first.constraint == Constraint("where", "len(X) < 4")
    assert [check.names for check in first.deferred] == [frozenset("XY")]
    assert last.constraint == Constraint("where", "len(X) == 1")
    assert last.checks == last.deferred == ()


def test_a_sum_that_the_last_hole_cannot_have_is_told_before_it_is_asked() -> None:
    with pytest.raises(Unsatisfiable, match="nothing that `Y` could be satisfies"):
        plan((term("len(X) + 2 * len(Y) == 4"),), "Y", None, {"X": "abc"}, StopMode.CUT)


def test_numbers_that_python_does_not_write_bound_others() -> None:
    """A model may write on and on."""
    finished = {"Z": Finished(10**5000, "1" + "0" * 5000, 1)}
    made = plan((term("Z + len(X) > 0"),), "X", None, finished, StopMode.CUT)

    assert admits(made, "any", 1)


# Against all texts of a small world

TEXTS = ["", "a", "aa", "a b", "aaa", "a b c", "7", "12", "-3", "a. b."]
MEASURES = ["len({})", "len(words({}))", "len(sentences({}))", "int({})"]


def random_clause(random: Random) -> str:
    """Most of them about two holes or three."""
    parts = [
        f"{random.choice([1, 1, 2, -1])} * {random.choice(MEASURES).format(random.choice('XYZ'))}"
        for _ in range(random.randint(1, 3))
    ]
    sum_ = " + ".join([*parts, str(random.randint(-3, 3))])
    relation = random.choice(["<", "<=", "==", "!=", ">=", ">"])
    other = random.choice([str(random.randint(-2, 9)), MEASURES[random.randrange(3)].format("Y")])
    clause = random.choice(
        [f"{sum_} {relation} {other}", f"{sum_} in [1, 4, 5]", f"0 <= {sum_} < {other}"]
    )
    return f"not ({clause})" if random.random() < 0.2 else clause


def is_passed(terms: tuple[Term, ...], name: str, text: str, known: dict[str, Finished]) -> bool:
    try:
        made = plan(terms, name, None, known, StopMode.CUT)
    except Unsatisfiable:
        return False
    holes = {**known, name: Finished(text, text, 1)}
    return admits(made, text, 1) and all_hold(made.checks, holes)


@given(st.randoms(use_true_random=False))
def test_the_holes_let_pass_together_what_satisfies_a_sum_and_nothing_else(random: Random) -> None:
    clauses = [random_clause(random) for _ in range(random.randint(1, 3))]
    terms = tuple(map(term, clauses))
    for x, y, z in random.sample(list(product(TEXTS, repeat=3)), 40):
        values = {"X": Finished(x, x, 1), "Y": Finished(y, y, 1), "Z": Finished(z, z, 1)}
        passed = (
            is_passed(terms, "X", x, {})
            and is_passed(terms, "Y", y, {"X": values["X"]})
            and is_passed(terms, "Z", z, {"X": values["X"], "Y": values["Y"]})
        )
        holding = all(evaluate(each, values) for each in terms)
        assert passed == holding, (clauses, x, y, z)


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
