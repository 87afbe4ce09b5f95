"""Arithmetic and decimals in comparisons, sums over several holes; errors that name the hole."""

from itertools import product
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from client.errors import TandemError
from client.query.conditions.evaluate import Finished, evaluate
from client.query.conditions.planner import HolePlan, StopMode, plan
from client.query.conditions.terms import Term, errors_about, rename_subject, written
from client.query.errors import BadCondition, Place, ProgramFailed, Unsatisfiable
from tests.client.query.conditions.clauses import admits, all_hold, term

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
        ("1 < int(X) + 1 <= 10 ** 30", "int(X) > 0 and float(X) and not regex"),
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

    assert [written(check) for check in made.checks] == [clause]


def test_what_cannot_be_is_told_at_once() -> None:
    with pytest.raises(Unsatisfiable):
        planned("2 * len(X) == 5")


def test_what_it_raises_points_to_it() -> None:
    with pytest.raises(ProgramFailed, match=r"`X - 1` raised TypeError") as caught:
        evaluate(term("X - 1 < 2"), {"X": Finished("a", "a")})

    assert isinstance(caught.value, TandemError)
    assert caught.value.place is not None


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


def test_what_is_refused_keeps_its_place_and_cause() -> None:
    cause, place = ValueError(), Place(1, 2, 1, 3)
    with pytest.raises(BadCondition) as caught, errors_about("NAME"):
        raise BadCondition("X is 'X'", place) from cause

    assert caught.value.message == "NAME is 'X'"
    assert (caught.value.place, caught.value.__cause__) == (place, cause)
