"""What each operator asks of a server: one row for each way to write it."""

import re
from pathlib import Path

import pytest

from client.calls import Constraint
from client.query.conditions.evaluate import Finished
from client.query.conditions.planner import HolePlan, StopMode, plan
from client.query.errors import Unsatisfiable
from tests.client.query.conditions.clauses import term

EARLIER = {"Y": Finished("cat or dog", "cat or dog", 4), "N": Finished(12, "12", 1)}


def planned(clause: str, kind: object = None, stops: StopMode = StopMode.CUT) -> HolePlan:
    return plan((term(clause, "XYZN"),), "X", kind, EARLIER, stops)


@pytest.mark.parametrize(
    ("clause", "asked"),
    [
        ("len(X) < 5", "len(X) < 5"),
        ("5 > len(X)", "len(X) < 5"),
        ("1 <= len(X) != 4", "len(X) >= 1 and len(X) != 4"),
        ("2 < len(X) <= 5", "len(X) > 2 and len(X) <= 5"),
        ("len(X) < 2 * 3", "len(X) < 6"),
        ("len(X) < 2.5", "len(X) <= 2"),
        ("len(X) > 2.5", "len(X) >= 3"),
        ("len(X) in [1, 3]", "len(X) == 1 or len(X) == 3"),
        ("len(X) in range(1, 4)", "len(X) >= 1 and len(X) <= 3"),
        ("len(characters(X)) < 5", "len(X) < 5"),
        ("len(CHARS(X)) < 5", "len(X) < 5"),
        ("len(words(X)) >= 2", "len(words(X)) >= 2"),
        ("len(WORDS(X)) == 2", "len(words(X)) == 2"),
        ("len(sentences(X)) < 3", "len(sentences(X)) < 3"),
        ("len(tokens(X)) > 3", "len(tokens(X)) > 3"),
        ("len(tokens(X)) != 3", "len(tokens(X)) != 3"),
        ("X != 'a'", 'X != "a"'),
        ("'a' != X", 'X != "a"'),
        ("X not in ['a', 'b']", 'X not in ["a", "b"]'),
        ("not X in {'a', 'b'}", 'X not in ["a", "b"]'),
        ("'a' in X", '"a" in X'),
        ("'a' not in X", '"a" not in X'),
        ("starts_with(X, 'a')", 'starts_with(X, ["a"])'),
        ("STARTS_WITH(X, ['a', 'b'])", 'starts_with(X, ["a", "b"])'),
        ("ends_with(X, 'a', 'b')", 'ends_with(X, ["a", "b"])'),
        ("1 <= int(X) <= 5", "int(X) >= 1 and int(X) <= 5"),
        ("int(X) != 1.5", "int(X)"),
        ("type(X) is int and X < 3", 'regex(X, "0|-?[1-9][0-9]*") and int(X) < 3'),
        ("int(X) or X == 'no'", 'int(X) or X == "no"'),
        ("len(X) < 3 or 'a' in X", 'len(X) < 3 or "a" in X'),
        ("not (len(X) < 3 or 'a' in X)", 'not (len(X) < 3 or "a" in X)'),
        ("len(X) < 3 or stops_at(X, '.')", 'len(X) < 3 or stops_at(X, ".")'),
        ("stops_at(X, '.') and len(X) < 9", 'stops_at(X, ".") and len(X) < 9'),
        ("STOPS_BEFORE(X, '.') and len(X) < 9", 'stops_before(X, ".") and len(X) < 9'),
        # An earlier hole is a constant.
        ("len(X) < len(Y)", "len(X) < 10"),
        ("len(words(X)) <= len(words(Y))", "len(words(X)) <= 3"),
        ("len(X) < len(Y) - 2", "len(X) < 8"),
        ("len(X) < N", "len(X) < 12"),
        ("Y in X", '"cat or dog" in X'),
        ("X not in words(Y)", 'X not in ["cat", "or", "dog"]'),
        ("X != Y", 'X != "cat or dog"'),
        ("stops_at(X, Y) and len(X) > 1", 'stops_at(X, "cat or dog") and len(X) > 1'),
        ("len(tokens(X)) >= len(tokens(Y))", "len(tokens(X)) >= 4"),
        ("len(X) < 3 and len(Y) > 3", "len(X) < 3"),
        ("len(X) < 3 or len(Y) < 3", "len(X) < 3"),
    ],
)
def test_is_said_in_the_servers_language(clause: str, asked: str) -> None:
    made = planned(clause)

    assert made.constraint == Constraint("where", asked)
    assert (made.stop, made.checks, made.deferred) == ((), (), ())


@pytest.mark.parametrize(
    ("clause", "texts"),
    [
        ("X in ['b', 'a', 'b']", ["b", "a"]),
        ("X in ('a', 'b')", ["a", "b"]),
        ("X in {'b', 'a'}", ["a", "b"]),
        ("X in {'b': 1, 'a': 2}", ["b", "a"]),
        ("X in set(['b', 'a'])", ["a", "b"]),
        ("X in Y.split()", ["cat", "or", "dog"]),
        ("X in words(Y)", ["cat", "or", "dog"]),
        ("X in WORDS(Y) and len(X) > 2", ["cat", "dog"]),
        ("X in sentences(Y)", ["cat or dog"]),
        ("X == 'a'", ["a"]),
        ("X == Y", ["cat or dog"]),
        ("X in ['a', 'bb', 'ccc'] and len(X) > 1", ["bb", "ccc"]),
        ("X in ['aa', 'bb'] and not X in ['aa']", ["bb"]),
        ("X in Y.split() and X != 'or'", ["cat", "dog"]),
        ("X in ['1', '22', 'x'] and int(X) > 1", ["22"]),
        ("X in ['a.', 'a.b'] and stops_at(X, '.')", ["a."]),
        ("X in ['a', 'b '] and X.strip() == X", ["a"]),
        ("X in Y.split() and X > 'd'", ["or", "dog"]),
        ("X in Y.split() and starts_with(Y, X)", ["cat"]),
        ("X in ['b', 'cat', 'dog'] and X in Y * 9", ["cat", "dog"]),
    ],
)
def test_one_of_some_texts_is_a_choice(clause: str, texts: list[str]) -> None:
    assert planned(clause).constraint == Constraint("choice", texts)


def test_a_pattern_alone_is_a_regex() -> None:
    assert planned(r"regex(X, r'[a-z]+')").constraint == Constraint("regex", "[a-z]+")


@pytest.mark.parametrize(
    ("clause", "stop", "keeps_stop", "max_tokens"),
    [
        ("stops_at(X, '.')", (".",), True, None),
        ("STOPS_AT(X, '.', '!')", (".", "!"), True, None),
        ("stop_at(X, ['.', '!'])", (".", "!"), True, None),
        ("stops_before(X, '\\n')", ("\n",), False, None),
        ("stops_at(X, '.') and stops_at(X, 'so')", (".", "so"), True, None),
        ("stops_at(X, '.') and len(tokens(X)) < 20", (".",), True, 19),
        ("len(TOKENS(X)) <= 20", (), True, 20),
        ("30 > len(tokens(X)) < 20", (), True, 19),
        ("stops_at(X, '.') and X.upper() != X", (".",), True, None),
    ],
)
def test_stops_alone_need_no_mask(
    clause: str, stop: tuple[str, ...], keeps_stop: bool, max_tokens: int | None
) -> None:
    made = planned(clause)

    assert (made.stop, made.keeps_stop, made.max_tokens) == (stop, keeps_stop, max_tokens)
    assert made.constraint is None


def test_exact_stops_are_masks() -> None:
    made = planned("stops_at(X, '.') and len(tokens(X)) < 9", stops=StopMode.EXACT)

    assert made.constraint == Constraint("where", 'stops_at(X, ".") and len(tokens(X)) < 9')
    assert (made.stop, made.max_tokens) == ((), 8)


def test_more_stop_strings_than_servers_take_are_masks() -> None:
    made = planned("stops_at(X, 'a', 'b', 'c', 'd', 'e')")

    assert made.constraint == Constraint("where", 'stops_at(X, "a", "b", "c", "d", "e")')


@pytest.mark.parametrize(
    ("clause", "asked", "checks"),
    [
        ("X.strip() == X", None, ["X.strip() == X"]),
        ("len(X) < 3 and X.strip() == X", "len(X) < 3", ["X.strip() == X"]),
        ("len(X) < 3 or X.strip() == X", None, ["len(X) < 3 or X.strip() == X"]),
        ("X < 'b'", None, ["X < 'b'"]),
        ("len(X) < len(words(X)) + 1", None, ["len(X) < len(words(X)) + 1"]),
        (
            "(len(X) < 3 and X.strip() == X) or 'a' in X",
            'len(X) < 3 or "a" in X',
            ["len(X) < 3 and X.strip() == X or 'a' in X"],
        ),
        (
            "not (len(X) < 3 or X == X.strip())",
            "not len(X) < 3",
            ["not (len(X) < 3 or X == X.strip())"],
        ),
    ],
)
def test_what_no_mask_keeps_is_checked(clause: str, asked: str | None, checks: list[str]) -> None:
    made = planned(clause)

    assert made.constraint == (None if asked is None else Constraint("where", asked))
    assert [check.names for check in made.checks] == [frozenset("X")] * len(checks)
    assert [check.text for check in made.checks] == checks
    assert made.deferred == ()


@pytest.mark.parametrize(
    ("clause", "asked"),
    [
        ("len(X) < len(Z)", None),
        ("len(X) < 3 and X != Z", "len(X) < 3"),
        ("len(X) < 3 or X != Z", None),
        ("not X == Z", None),
        ("X != Z and X.strip() == Z", None),
    ],
)
def test_holes_to_come_are_left_for_later(clause: str, asked: str | None) -> None:
    made = planned(clause)

    assert made.constraint == (None if asked is None else Constraint("where", asked))
    assert made.checks == ()
    assert {check.names for check in made.deferred} == {frozenset("XZ")}


def test_a_deferred_check_is_a_mask_where_its_last_hole_stands() -> None:
    (check,) = planned("len(X) < len(Z)").deferred

    made = plan((check.term,), "Z", None, {"X": "four"}, StopMode.CUT)

    assert made.constraint == Constraint("where", "len(X) > 4")
    assert made.checks == made.deferred == ()


def test_a_short_text_around_the_hole_lists_its_pieces() -> None:
    assert planned("X in 'aba'").constraint == Constraint(
        "where", 'X in ["", "a", "ab", "aba", "b", "ba"]'
    )


def test_functions_that_raise_on_a_text_are_left_to_the_end() -> None:
    made = planned("X in ['a', 'b'] and X.index('a') == 0")

    assert made.constraint == Constraint("choice", ["a", "b"])
    assert [check.text for check in made.checks] == ["X.index('a') == 0"]


def test_a_long_text_around_the_hole_is_a_wider_mask_and_a_check() -> None:
    made = planned("X in 'abcd' * 100")

    assert made.constraint == Constraint("where", 'len(X) <= 400 and regex(X, "[abcd]*")')
    assert len(made.checks) == 1


@pytest.mark.parametrize(
    ("clause", "told"),
    [
        ("False", "False"),
        ("len(X) < 0", "len(X) < 0"),
        ("len(X) < 3 and len(X) > 5", "len(X) < 3"),
        ("len(tokens(X)) < 3 and len(tokens(X)) > 5", "len(tokens(X)) > 5"),
        ("X in ['a'] and X in ['b']", "none of the texts"),
        ("X in []", "none of the texts"),
        ("X in Y.split() and len(X) > 5", "none of the texts"),
        ("X == 'a' and X != 'a'", "none of the texts"),
        ("X in ['a', 'b'] and X.upper() == X", "none of the texts"),
        ("int(X) and X == 'a'", "none of the texts"),
    ],
)
def test_nothing_that_satisfies_is_told_before_any_request(clause: str, told: str) -> None:
    with pytest.raises(Unsatisfiable) as caught:
        planned(clause)
    assert told in str(caught.value)


PAGE = Path(__file__).parents[4] / "docs" / "query-conditions.md"


def rows() -> list[tuple[str, str, str]]:
    table = PAGE.read_text().partition("| condition at the hole `X` |")[2].partition("\n\n")[0]
    cells = [[cell.strip() for cell in line.split(" |")] for line in table.splitlines()[2:]]
    return [(row[0].removeprefix("| ").strip("`"), row[1], row[2]) for row in cells]


def asked(plan: HolePlan) -> str:
    """The request in the words of the page."""
    if plan.constraint is None:
        bound = f"at most {plan.max_tokens} tokens" if plan.max_tokens else ""
        stops = " or ".join(f"ends at `{phrase}`" for phrase in plan.stop)
        return ", ".join(part for part in (stops, bound) if part)
    if isinstance(plan.constraint.value, list):
        return "one of " + ", ".join(f"`{text}`" for text in plan.constraint.value)
    return f"`{plan.constraint.value}`"


def checked(plan: HolePlan, clause: str) -> str:
    moments = (("at the end of X", plan.checks), ("at Z", plan.deferred))
    told = [
        f"{moment}: " + ("the whole" if " or " in clause else f"`{check.text}`")
        for moment, checks in moments
        for check in checks
    ]
    return ", ".join(told)


@pytest.mark.parametrize(("clause", "request_told", "checks_told"), rows())
def test_row(clause: str, request_told: str, checks_told: str) -> None:
    made = plan((term(clause, "XYZ", n=5),), "X", None, {"Y": "cat or dog"}, StopMode.CUT)

    assert (asked(made), checked(made, clause)) == (request_told, checks_told)


def test_the_table_is_read() -> None:
    assert len(rows()) == 19
    assert not [row for row in rows() if re.search(r"^\W*$", row[0])]
