"""What the planner refuses, with the place and the rule; and where stop phrases end a text."""

from dataclasses import dataclass

import pytest

from client.calls import Constraint
from client.errors import Unreachable
from client.query.conditions.evaluate import Finished, evaluate
from client.query.conditions.planner import StopMode, plan
from client.query.errors import BadCondition, Place, ProgramFailed
from tests.client.query.conditions.clauses import term

NAMES: dict[str, object] = {"NAN": float("nan")}


def refusal(clause: str, kind: object = None) -> BadCondition:
    with pytest.raises(BadCondition) as caught:
        plan((term(clause, "XYZ", **NAMES),), "X", kind, {"Y": "cat"}, StopMode.CUT)
    return caught.value


@pytest.mark.parametrize(
    ("clause", "told", "columns"),
    [
        ("len(X) < 'a'", "compared with numbers. Given: 'a'", (1, 13)),
        ("len(X, X) < 1", "`len` takes 1 argument, as in len(X)", (1, 10)),
        ("stops_at(X)", "`stops_at` takes 2 or more arguments", (1, 12)),
        ("'b' in X and stops_at(X, '')", "phrases that are not empty", (14, 29)),
        ("stops_at(X, 3)", "phrases of `stops_at` are strings. Given: 3", (1, 15)),
        ("not stops_at(X, '.')", "`stops_at` cannot stand under `not`", (5, 21)),
        ("not (len(X) < 3 or stops_at(X, '.'))", "cannot stand under `not`", (20, 36)),
        ("len(X) < 3 or stops_before(X, '.')", "cannot stand under `or`", (15, 35)),
        ("regex(X, '[a')", "the pattern is wrong: unterminated", (1, 15)),
        ("regex(X, 3)", "a pattern is a string. Given: 3", (1, 12)),
        ("words(X) < 3", "can only be counted: write len(words(X))", (1, 13)),
        ("words(Y) == words(X)", "words(Y) can only be counted: write len(words(Y))", (1, 21)),
        ("X == words(Y)", "words(Y) can only be counted: write len(words(Y))", (1, 14)),
        ("X in tokens(Y)", "tokens(Y) can only be counted: write len(tokens(Y))", (1, 15)),
        ("1 + words(X) < 3", "can only be counted: write len(words(X))", (1, 13)),
        ("tokens(Y) - len(X) < 3", "can only be counted: write len(tokens(Y))", (1, 19)),
        ("len(X) in words(Y)", "compared with numbers. Given: in ('cat',)", (1, 19)),
        ("len(X)", "`len` alone is no condition", (1, 7)),
        ("X", "the hole alone is no condition", (1, 2)),
        ("X == 3", "never 3: compare int(X), or write [X: int]", (1, 7)),
        ("X < 3", "the hole is text, which `<` does not compare with 3", (1, 6)),
        ("X in [1, 2]", "never one of [1, 2]", (1, 12)),
        ("3 in X", "3 cannot be looked for in a text", (1, 7)),
        ("X in 3", "nothing is in 3", (1, 7)),
        ("X in iter(['a'])", "can be read only once", (1, 17)),
        ("X.lower() in iter(['a'])", "can be read only once", (1, 25)),
        ("type(X) is 3", "`3` is no type of a hole", (1, 13)),
        ("type(X) in [int]", "compared with a type by `is`", (1, 17)),
        ("type(X) is int or X == 'a'", "let it stand alone", (1, 15)),
        ("stops_at(Y, X)", "about a hole and phrases that are known", (1, 15)),
    ],
)
def test_is_refused_with_its_place(clause: str, told: str, columns: tuple[int, int]) -> None:
    error = refusal(clause)

    assert told in str(error)
    assert error.place == Place(1, columns[0], 1, columns[1])


@pytest.mark.parametrize(
    "clause",
    [
        "len(words(X)) < 9",
        "'a' not in words(X)",
        "stops_at(X, '.')",
        "regex(X, 'a+')",
        "len(tokens(X)) > 2",
    ],
)
def test_conditions_on_the_text_of_json_would_be_weak(clause: str) -> None:
    assert "JSON" in str(refusal(clause, kind=list[int]))


def test_an_instance_without_a_length_is_refused_before_it_is_made() -> None:
    @dataclass
    class Point:
        x: int

    assert "`len` is about texts, and the hole is a Point" in str(refusal("len(X) < 9", Point))


@pytest.mark.parametrize(
    ("clause", "told"),
    [
        ("len(NAME) < 'X'", "len(NAME) is a number, compared with numbers. Given: 'X'"),
        ("len(NAME) in 'X'", "len(NAME) is a number, compared with numbers. Given: in 'X'"),
        ("float(NAME) < 'X'", "float(NAME) is a number"),
        ("NAME == 3", "compare int(NAME), or write [NAME: int]"),
        ("NAME < 3", "compare int(NAME) or len(NAME), or write [NAME: int]"),
        ("NAME in [3]", "or write [NAME: int]"),
        ("type(NAME) in [int]", "type(NAME) is compared with a type"),
        ("type(NAME) is int or NAME == 'a'", "type(NAME) is int says what a hole is"),
        ("NAME", 'compare it, as in NAME == "yes"'),
        ("regex(NAME)", 'as in regex(NAME, r"[a-z]+")'),
        ("stops_at(NAME, '')", 'as in stops_at(NAME, ".")'),
        # Of an earlier hole, and of what the program says itself.
        ("X == 3 or NAME == 'a'", "compare int(X), or write [X: int]"),
        ("OTHER == 3 or NAME == 'a'", "compare int(OTHER), or write [OTHER: int]"),
        ("OTHER in tokens(X) or NAME == 'a'", "tokens(X) can only be counted"),
    ],
)
def test_a_refusal_calls_its_hole_by_its_name(clause: str, told: str) -> None:
    earlier = {"X": "cat", "OTHER": "dog"}
    with pytest.raises(BadCondition) as caught:
        plan((term(clause, ["NAME", *earlier]),), "NAME", None, earlier, StopMode.CUT)
    assert told in str(caught.value)


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        (object(), "is no type of a hole"),
        (print, "`print` is no type of a hole"),
        ("[a", "the hole's pattern is wrong"),
        ([], "one value or more"),
        ([b"a"], "strings and numbers. Given: b'a'"),
        ([1, "a"], "among strings, or among numbers. Given: '1', 'a'"),
    ],
)
def test_what_is_no_type_of_a_hole_is_refused(kind: object, told: str) -> None:
    with pytest.raises(BadCondition) as caught:
        plan((), "X", kind, {}, StopMode.CUT)
    assert told in str(caught.value)


@pytest.mark.parametrize(
    ("clause", "told"),
    [
        ("X == 3", "one is text"),
        ("X < 3", "cannot be compared by `<`"),
        ("len(N) < 'a'", "cannot be compared by `<`"),
        ("N in 3", "cannot be looked for in 3"),
        ("N == words(X)", "words(X) can only be counted: write len(words(X))"),
        ("words(X) in [['cat']]", "words(X) can only be counted"),
        ("'a' in tokens(X)", "tokens(X) can only be counted: write len(tokens(X))"),
        ("starts_with(L, 'a')", "`starts_with` is about texts, not about ['a']"),
        ("len(tokens(L)) < 3", "`tokens` is about texts"),
    ],
)
def test_finished_holes_are_judged_by_the_same_rules(clause: str, told: str) -> None:
    holes = {"X": "cat", "N": Finished(3, "3"), "L": Finished(["a"], '["a"]')}
    with pytest.raises(BadCondition) as caught:
        evaluate(term(clause, "XNL"), holes)
    assert told in str(caught.value)


def test_a_function_that_raises_fails_the_program_at_its_place() -> None:
    with pytest.raises(ProgramFailed) as caught:
        evaluate(term("len(X) < 9 and X.index('b') < 2"), {"X": "a"})
    assert "`X.index('b')` raised ValueError: substring not found" in str(caught.value)
    assert caught.value.place == Place(1, 16, 1, 28)
    assert isinstance(caught.value.__cause__, ValueError)


def test_an_error_of_ours_in_a_function_stays_itself() -> None:
    def asks(_: object) -> bool:
        raise Unreachable("nobody answers at the address")

    with pytest.raises(Unreachable):
        evaluate(term("asks(X)", asks=asks), {"X": "a"})


def test_phrases_that_stay_and_phrases_that_go_together_are_a_mask() -> None:
    clause = term("stops_at(X, '.') and stops_before(X, '\\n')")
    made = plan((clause,), "X", None, {}, StopMode.CUT)

    assert made.stop == ()
    assert made.constraint == Constraint("where", 'stops_at(X, ".") and stops_before(X, "\\n")')


@pytest.mark.parametrize("operator", ["stops_at", "stops_before"])
def test_either_of_two_phrases_ends_a_hole_whichever_word_joins_them(operator: str) -> None:
    either, both = (
        plan((term(f"{operator}(X, '.') {word} {operator}(X, '!')"),), "X", None, {}, StopMode.CUT)
        for word in ("or", "and")
    )

    assert either.stop == both.stop == (".", "!")
    assert either.keeps_stop is (operator == "stops_at")
    assert either.constraint is None
