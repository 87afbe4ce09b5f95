"""Conditions over holes to come: what they mean for the hole that is asked now."""

from itertools import product
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from client.query.conditions.evaluate import evaluate
from client.query.conditions.operators import errors_about, rename_subject
from client.query.conditions.plan import HolePlan, StopMode
from client.query.conditions.planner import plan
from client.query.conditions.terms import Term
from client.query.conditions.values import RELATIONS, Finished
from client.query.errors import BadCondition, Place, Unsatisfiable
from tests.client.query.conditions.clauses import admits, all_hold, term


def planned(*clauses: str, kind: object = None, **known: str) -> HolePlan:
    """What is asked of X; Y and Z are to come unless they are known."""
    finished = {name: Finished(text, text, 1) for name, text in known.items()}
    terms = tuple(map(term, clauses))
    return plan(terms, "X", kind, finished, StopMode.CUT)


def asked(made: HolePlan) -> object:
    return None if made.constraint is None else made.constraint.value


@pytest.mark.parametrize(
    ("clause", "needed"),
    [
        ("len(X) + len(Y) == 5", "len(X) <= 5"),
        ("len(tokens(X)) + len(tokens(Y)) <= 8", "len(tokens(X)) <= 8"),
        ("len(X) + len(Y) < 9 and len(Y) > 5", "len(X) < 9"),
        ("len(X) + 2 * len(Y) + len(words(Z)) < 5", "len(X) < 5"),
        ("3 < len(X) - len(Y)", "len(X) > 3"),
        ("not len(X) + len(Y) > 7", "not len(X) > 7"),
        ("len(X) + len(Y) in [3, 8, 5]", "len(X) <= 3 or len(X) <= 8 or len(X) <= 5"),
        ("len(X) + len(Y) == 5 or X == 'it is so'", 'len(X) <= 5 or X == "it is so"'),
        ("len(X) + 0.5 + len(Y) <= 8", "len(X) <= 7"),
    ],
)
def test_what_holes_to_come_leave_of_this_one_is_asked_for(clause: str, needed: str) -> None:
    made = planned(clause)

    assert (asked(made), made.max_tokens) in [(needed, None), (None, 8)]
    assert all("Y" in check.names for check in made.deferred)


@pytest.mark.parametrize(
    "clause",
    [
        "len(X) < len(Y)",
        "len(X) - len(Y) == 2 - len(Z)",
        "len(X) + len(Y) != 5",
        "len(X) + int(Y) < 5",
        "X != Y",
        "len(X) * len(Y) < 5",
        "len(X) + len(Y) == 5 or len(Z) > 3",
        "len(X) + len(Y) in range(10**30)",
    ],
)
def test_what_leaves_any_text_asks_for_nothing(clause: str) -> None:
    assert asked(planned(clause)) is None


def test_a_decimal_that_is_no_whole_number_is_in_no_comparison_of_one() -> None:
    made = planned("not int(X) + 1 not in [3, 4]", kind=float)
    texts = {text: Finished(float(text), text, 1) for text in ("0.5", "2", "5")}

    passed = [
        text
        for text, hole in texts.items()
        if admits(made, text, 1) and all_hold(made.checks, {"X": hole})
    ]
    assert passed == ["0.5", "2"]


def test_numbers_that_python_does_not_write_bound_others() -> None:
    """A model may write on and on."""
    clauses = (term("Z + len(X) > 0"),)
    finished = {"Z": Finished(10**5000, "1" + "0" * 5000, 1)}
    made = plan(clauses, "X", None, finished, StopMode.CUT)

    assert admits(made, "any", 1)


def test_what_no_length_to_come_can_fit_is_told_before_any_is_asked() -> None:
    with pytest.raises(Unsatisfiable, match="nothing that `X` could be satisfies"):
        planned("2 * len(X) + 4 * len(Y) == 7")


# Against all texts of a small world

TEXTS = ["", "a", "aa", "a b", "aaa", "a b c", "7", "12", "-3", "a. b."]
MEASURES = ["len({})", "len(words({}))", "len(sentences({}))", "int({})"]


def random_clause(random: Random) -> str:
    """Most of them about two holes or three."""
    if random.random() < 0.2:
        return random.choice(
            ["Y in ['a', 'a b', '12']", "int(Z) > 2", "len(Y) < 3 or Y == '12'", "int(Y)"]
        )
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
def test_no_text_is_left_out_that_some_texts_to_come_would_allow(random: Random) -> None:
    clauses = [random_clause(random) for _ in range(random.randint(1, 3))]
    terms = tuple(map(term, clauses))
    for x, y, z in random.sample(list(product(TEXTS, repeat=3)), 40):
        values = {"X": Finished(x, x, 1), "Y": Finished(y, y, 1), "Z": Finished(z, z, 1)}
        if not all(evaluate(each, values) for each in terms):
            continue
        assert is_passed(terms, "X", x, {}), (clauses, x, y, z)
        assert is_passed(terms, "Y", y, {"X": values["X"]}), (clauses, x, y, z)
        assert is_passed(terms, "Z", z, {"X": values["X"], "Y": values["Y"]}), (clauses, x, y, z)


@given(
    st.sampled_from([-2, -1, 1, 2, 3]),
    st.sampled_from([-1, 1]),
    st.integers(-6, 12),
    st.sampled_from(sorted(RELATIONS)),
    st.booleans(),
)
def test_a_length_is_allowed_if_and_only_if_some_length_to_come_fits_it(
    a: int, b: int, constant: int, relation: str, is_denied: bool
) -> None:
    clause = f"({a}) * len(X) + ({b}) * len(Y) {relation} {constant}"
    clauses = (term(f"not {clause}" if is_denied else clause),)

    for x in range(12):
        fits = [RELATIONS[relation](a * x + b * y, constant) for y in range(60)]
        wanted = not all(fits) if is_denied else any(fits)
        assert is_passed(clauses, "X", "x" * x, {}) == wanted, (clause, x)


def test_what_a_condition_leaves_of_a_later_hole_does_not_fulfil_it() -> None:
    for clause in ("len(X) == len(Y)", "not len(X) != len(Y)", "len(X) - len(Y) not in [1, -1]"):
        made = planned(clause, "len(X) < 1")
        assert len(made.deferred) == 1, clause


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
