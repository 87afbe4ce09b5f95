"""What is asked for each condition: no more, no less than Python says; what is refused."""

import re
from collections.abc import Mapping
from pathlib import Path
from random import Random

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from client.calls import Constraint
from client.query.conditions.bounds import names_of
from client.query.conditions.evaluate import Finished, evaluate
from client.query.conditions.planner import HolePlan, StopMode, plan
from client.query.conditions.terms import Term, written
from client.query.errors import BadCondition, Place, ProgramFailed, Unsatisfiable
from tests.client.query.conditions.clauses import (
    KINDS,
    Clauses,
    Kind,
    Text,
    admits,
    all_hold,
    holds,
    random_text,
    term,
)
from tests.hypothesis_profiles import more_examples

NAMES: dict[str, object] = {"NAN": float("nan")}


def refusal(clause: str, kind: object = None) -> BadCondition:
    with pytest.raises(BadCondition) as caught:
        plan((term(clause, "XYZ", **NAMES),), "X", kind, {"Y": "cat"}, StopMode.CUT)
    return caught.value


@pytest.mark.parametrize(
    ("clause", "told", "columns"),
    [
        ("len(X) < 'a'", "compared with numbers. Given: < 'a'", (1, 13)),
        ("len(X, X) < 1", "`len` takes 1 argument, as in len(X)", (1, 10)),
        ("stops_at(X)", "`stops_at` takes 2 or more arguments", (1, 12)),
        ("'b' in X and stops_at(X, '')", "phrases that are not empty", (14, 29)),
        ("stops_at(X, 3)", "phrases of `stops_at` are strings. Given: 3", (1, 15)),
        ("not (len(X) < 3 or stops_at(X, '.'))", "cannot stand under `not`", (20, 36)),
        ("len(X) < 3 or stops_before(X, '.')", "cannot stand under `or`", (15, 35)),
        ("regex(X, '[a')", "the pattern is wrong: unterminated", (1, 15)),
        ("words(X) < 3", "can only be counted: write len(words(X))", (1, 13)),
        ("words(Y) == words(X)", "words(Y) can only be counted: write len(words(Y))", (1, 21)),
        ("X == words(Y)", "words(Y) can only be counted: write len(words(Y))", (1, 14)),
        ("X in tokens(Y)", "tokens(Y) can only be counted: write len(tokens(Y))", (1, 15)),
        ("1 + words(X) < 3", "can only be counted: write len(words(X))", (1, 13)),
        ("tokens(Y) - len(X) < 3", "can only be counted: write len(tokens(Y))", (1, 19)),
        ("len(X) in words(Y)", "compared with numbers. Given: in ('cat',)", (1, 19)),
        ("X", "the hole alone is no condition", (1, 2)),
        ("X == 3", "never 3: compare int(X), or write [X: int]", (1, 7)),
        ("X < 3", "the hole is text, which `<` does not compare with 3", (1, 6)),
        ("X in [1, 2]", "never one of [1, 2]", (1, 12)),
        ("3 in X", "3 cannot be looked for in a text", (1, 7)),
        ("X in 3", "nothing is in 3", (1, 7)),
        ("type(X) is 3", "`3` is no type of a hole", (1, 13)),
        ("type(X) in [int]", "compared with a type by `is`", (1, 17)),
        ("type(X) is int or X == 'a'", "let it stand alone", (1, 15)),
        ("stops_at(Y, X)", "about a hole and phrases that are known", (1, 15)),
    ],
)
def test_is_refused_with_its_place(clause: str, told: str, columns: tuple[int, int]) -> None:
    error = refusal(clause)

    assert told in str(error)
    assert error.place == Place(3, columns[0], 3, columns[1])


@pytest.mark.parametrize(
    "clause",
    ["'a' not in words(X)", "stops_at(X, '.')", "regex(X, 'a+')", "len(tokens(X)) > 2"],
)
def test_conditions_on_the_text_of_json_would_be_weak(clause: str) -> None:
    assert "JSON" in str(refusal(clause, kind=list[int]))


@pytest.mark.parametrize(
    ("clause", "told"),
    [
        ("len(NAME) < 'X'", "len(NAME) is a number, compared with numbers. Given: < 'X'"),
        ("NAME == 3", "compare int(NAME), or write [NAME: int]"),
        ("NAME in [3]", "or write [NAME: int]"),
        ("NAME", 'compare it, as in NAME == "yes"'),
        ("regex(NAME)", 'as in regex(NAME, r"[a-z]+")'),
        ("stops_at(NAME, '')", 'as in stops_at(NAME, ".")'),
        # Of an earlier hole, and of what the program says itself.
        ("X == 3 or NAME == 'a'", "compare int(X), or write [X: int]"),
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
        ("N in 3", "cannot be looked for in 3"),
        ("N == words(X)", "words(X) can only be counted: write len(words(X))"),
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
    assert caught.value.place == Place(3, 16, 3, 28)
    assert isinstance(caught.value.__cause__, ValueError)


EARLIER = {"Y": Finished("cat or dog", "cat or dog", 4), "N": Finished(12, "12", 1)}


def planned(clause: str, kind: object = None, stops: StopMode = StopMode.CUT) -> HolePlan:
    return plan((term(clause, "XYZN"),), "X", kind, EARLIER, stops)


@pytest.mark.parametrize(
    ("clause", "asked"),
    [
        ("len(X) < 5", "len(X) < 5"),
        ("1 <= len(X) != 4", "len(X) >= 1 and len(X) != 4"),
        ("len(X) < 2.5", "len(X) <= 2"),
        ("len(X) in range(1, 4)", "len(X) >= 1 and len(X) <= 3"),
        ("len(characters(X)) < 5", "len(X) < 5"),
        ("len(sentences(X)) < 3", "len(sentences(X)) < 3"),
        ("X != 'a'", 'X != "a"'),
        ("not X in {'a', 'b'}", 'X not in ["a", "b"]'),
        ("'a' in X", '"a" in X'),
        ("STARTS_WITH(X, ['a', 'b'])", 'starts_with(X, ["a", "b"])'),
        ("int(X) != 1.5", "int(X)"),
        ("type(X) is int and X < 3", 'regex(X, "0|-?[1-9][0-9]*") and int(X) < 3'),
        ("int(X) or X == 'no'", 'int(X) or X == "no"'),
        ("not (len(X) < 3 or 'a' in X)", 'not (len(X) < 3 or "a" in X)'),
        ("len(X) < 3 or stops_at(X, '.')", 'len(X) < 3 or stops_at(X, ".")'),
        ("stops_at(X, '.') and len(X) < 9", 'stops_at(X, ".") and len(X) < 9'),
        ("STOPS_BEFORE(X, '.') and len(X) < 9", 'stops_before(X, ".") and len(X) < 9'),
        # An earlier hole is a constant.
        ("len(X) < len(Y) - 2", "len(X) < 8"),
        ("stops_at(X, Y) and len(X) > 1", 'stops_at(X, "cat or dog") and len(X) > 1'),
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
        ("X in {'b', 'a'}", ["a", "b"]),
        ("X in iter(['b', 'a'])", ["b", "a"]),
        ("X in map(str.strip, Y.split())", ["cat", "or", "dog"]),
        ("X in WORDS(Y) and len(X) > 2", ["cat", "dog"]),
        ("X in sentences(Y)", ["cat or dog"]),
        ("X == Y", ["cat or dog"]),
        ("X in ['a', 'bb', 'ccc'] and len(X) > 1", ["bb", "ccc"]),
        ("X in ['1', '22', 'x'] and int(X) > 1", ["22"]),
        ("X in ['a.', 'a.b'] and stops_at(X, '.')", ["a."]),
        ("X in Y.split() and X > 'd'", ["or", "dog"]),
        ("X in ['b', 'cat', 'dog'] and X in Y * 9", ["cat", "dog"]),
    ],
)
def test_one_of_some_texts_is_a_choice(clause: str, texts: list[str]) -> None:
    assert planned(clause).constraint == Constraint("choice", texts)


@pytest.mark.parametrize(
    ("clause", "stop", "keeps_stop", "max_tokens"),
    [
        ("stops_at(X, '.')", (".",), True, None),
        ("STOPS_AT(X, '.', '!')", (".", "!"), True, None),
        ("stop_at(X, ['.', '!'])", (".", "!"), True, None),
        ("stops_before(X, '\\n')", ("\n",), False, None),
        ("stops_at(X, '.') and stops_at(X, 'so')", (".", "so"), True, None),
        ("stops_before(X, '.') or stops_before(X, '!')", (".", "!"), False, None),
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


@pytest.mark.parametrize(
    "asked",
    [
        'stops_at(X, "a", "b", "c", "d", "e")',
        # A server keeps all of them in the text, or none.
        'stops_at(X, ".") and stops_before(X, "!")',
    ],
)
def test_stop_strings_that_servers_do_not_take_are_masks(asked: str) -> None:
    assert planned(asked).constraint == Constraint("where", asked)


@pytest.mark.parametrize(
    ("clause", "asked", "checks"),
    [
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
    assert [names_of(check) for check in made.checks] == [frozenset("X")] * len(checks)
    assert [written(check) for check in made.checks] == checks
    assert made.deferred == ()


def test_a_long_text_around_the_hole_is_a_check() -> None:
    made = planned("X in 'abcd' * 100")

    assert (made.constraint, len(made.checks)) == (None, 1)


def test_functions_that_raise_on_a_text_are_left_to_the_end() -> None:
    made = planned("X in ['a', 'b'] and X.index('a') == 0")

    assert made.constraint == Constraint("choice", ["a", "b"])
    assert [written(check) for check in made.checks] == ["X.index('a') == 0"]


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
        f"{moment}: " + ("the whole" if " or " in clause else f"`{written(check)}`")
        for moment, checks in moments
        for check in checks
    ]
    return ", ".join(told)


@pytest.mark.parametrize(("clause", "request_told", "checks_told"), rows())
def test_row(clause: str, request_told: str, checks_told: str) -> None:
    made = plan((term(clause, "XYZ", n=5),), "X", None, {"Y": "cat or dog"}, StopMode.CUT)

    assert (asked(made), checked(made, clause)) == (request_told, checks_told)


def test_the_table_is_read() -> None:
    assert len(rows()) == 20
    assert not [row for row in rows() if re.search(r"^\W*$", row[0])]


randoms = st.randoms(use_true_random=False)


def witnesses(random: Random, names: str) -> dict[str, Text]:
    """A text for each hole."""
    return {name: Text(random_text(random)) for name in names}


def finished(texts: Mapping[str, Text]) -> dict[str, Finished]:
    return {name: Finished(str(text), text, text.num_tokens) for name, text in texts.items()}


def passes(
    terms: tuple[Term, ...], name: str, texts: Mapping[str, Text], stops: StopMode
) -> tuple[bool, tuple[Term, ...]]:
    """Whether the hole may have its text, the others being finished, and what is left for later."""
    text = texts[name]
    others = finished({other: texts[other] for other in texts if other != name})
    try:
        made = plan(terms, name, None, others, stops)
    except Unsatisfiable:
        return False, ()
    is_passed = admits(made, text, text.num_tokens) and all_hold(made.checks, finished(texts))
    return is_passed, made.deferred


def several_texts(random: Random, witness: Text) -> list[Text]:
    """Texts near the witness and far from it, all but it with any number of tokens."""
    cut = random.randint(0, len(witness))
    near = witness[:cut] + random.choice(["", "a", ".", "\n", "so", " b", "7"]) + witness[cut:]
    texts = [witness[:cut], near, random_text(random), str(random.randint(-12, 12))]
    return [witness, *(Text(text, random.randint(0, 6)) for text in texts)]


@given(randoms, st.sampled_from(StopMode))
@more_examples(3)
def test_one_hole_beside_a_finished_one(random: Random, stops: StopMode) -> None:
    known = witnesses(random, "XY")
    clause = Clauses(random, known).about("X", "Y")

    for text in several_texts(random, known["X"]):
        texts = {"X": text, "Y": known["Y"]}
        is_passed, deferred = passes((term(clause),), "X", texts, stops)
        assert (is_passed, deferred) == (holds(clause, texts), ()), (clause, texts)


@pytest.mark.slow
@given(randoms, st.sampled_from(StopMode))
@more_examples(3)
def test_a_hole_that_speaks_of_one_to_come(random: Random, stops: StopMode) -> None:
    known = witnesses(random, "XZ")
    clause = Clauses(random, known).about("X", "Z")
    clauses = (term(clause),)

    for text in several_texts(random, known["X"]):
        is_passed, deferred = passes(clauses, "X", {"X": text}, stops)
        for later in several_texts(random, known["Z"]):
            texts = {"X": text, "Z": later}
            is_passed_later, left = passes(deferred, "Z", texts, stops)
            assert left == ()
            both = is_passed and is_passed_later
            assert both == holds(clause, texts), (clause, texts)


NUMERALS = ("7", "-3", "007", "-0", "12", "0.5", "2.50", "-1.25", "True", "False", "ab", "so", "")


@given(randoms, st.sampled_from(KINDS[1:]))
@more_examples(3)
def test_a_hole_of_a_type(random: Random, kind: Kind) -> None:
    clause = Clauses(random, {"X": kind.read(kind.draw(random))}).about("X")
    try:
        made = plan((term(clause),), "X", kind.declared, {}, StopMode.CUT)
    except Unsatisfiable:
        made = None

    for text in map(Text, (*NUMERALS, str(random.randint(-12, 16)), random_text(random, 1))):
        is_passed = made is not None and admits(made, text, text.num_tokens)
        if made is not None and is_passed:
            holes = {"X": Finished(made.value(text), text, text.num_tokens)}
            is_passed = all_hold(made.checks, holes)
        is_one = re.fullmatch(kind.pattern, text) is not None
        assert is_passed == (is_one and holds(clause, {"X": kind.read(text)})), (clause, text)


@given(randoms)
@more_examples(2)
def test_a_refused_text_is_left_out_and_no_other(random: Random) -> None:
    known = witnesses(random, "X")
    clause = Clauses(random, known, checks=False).about("X")
    refused = random_text(random)
    # What stands in front of a phrase that is dropped is what was written, and so refused.
    assume("stops_before" not in clause or holds(clause, {"X": Text(refused, 2)}))
    try:
        made = plan((term(clause),), "X", None, {}, StopMode.CUT, (refused,))
    except Unsatisfiable:
        return

    for text in [*several_texts(random, known["X"]), Text(refused, 2)]:
        wanted = holds(clause, {"X": text}) and text != refused
        assert admits(made, text, text.num_tokens) == wanted, (clause, text, refused)


@pytest.mark.parametrize("seed", range(3))
def test_most_random_clauses_can_be_satisfied(seed: int) -> None:
    random = Random(seed)
    satisfied = 0
    for _ in range(200):
        known = witnesses(random, "XY")
        satisfied += holds(Clauses(random, known).about("X", "Y"), known)
    assert 100 < satisfied < 200
