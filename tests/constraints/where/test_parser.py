"""The parser: what it reads, what it refuses and how; and that docs/constraints.md says so."""

import ast
import re
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from constraints.errors import Contradiction, Malformed, TooComplex
from constraints.where.evaluate import contradiction, holds
from constraints.where.parser import FUNCTIONS, MAX_DEPTH, MAX_TERMS, MAX_TEXT_LEN, parse
from constraints.where.terms import (
    And,
    Compare,
    Constant,
    Contains,
    EndsWith,
    Expression,
    IsFloat,
    IsInt,
    Matches,
    Measure,
    Not,
    OneOf,
    Or,
    Relation,
    StartsWith,
    StopsAt,
    StopsBefore,
    text,
)
from tests.constraints.where.expressions import expressions

A, B = OneOf(("a",)), OneOf(("b",))


def chars(relation: str, bound: int) -> Compare:
    return Compare(Measure.CHARS, Relation(relation), bound)


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("len(X) < 5", chars("<", 5)),
        ("len(X) >= 1_000", chars(">=", 1000)),
        ("5 > len(X)", chars("<", 5)),
        ("5 == len(X)", chars("==", 5)),
        ("len(characters(X)) != 5", chars("!=", 5)),
        ("len(words(X)) <= 2", Compare(Measure.WORDS, Relation.LE, 2)),
        ("len(sentences(X)) > 2", Compare(Measure.SENTENCES, Relation.GT, 2)),
        ("len(tokens(X)) == 2", Compare(Measure.TOKENS, Relation.EQ, 2)),
        ("int(X)", IsInt()),
        ("int(X) > -5", Compare(Measure.INT, Relation.GT, -5)),
        ("float(X)", IsFloat()),
        ('X == "a"', A),
        ('"a" == X', A),
        ('X != "a"', Not(A)),
        ('X in ["a"]', A),
        ("X in []", OneOf(())),
        ('X in ["a", "b", "a",]', OneOf(("a", "b"))),
        ('X in ("a", "b")', OneOf(("a", "b"))),
        ('X in ("a",)', A),
        ('X in {"a", "b"}', OneOf(("a", "b"))),
        ('X in set(["a", "b"])', OneOf(("a", "b"))),
        ('X not in ["a", "b"]', Not(OneOf(("a", "b")))),
        ('"a" in X', Contains("a")),
        ('"a" not in X', Not(Contains("a"))),
        ('starts_with(X, "a")', StartsWith(("a",))),
        ('starts_with(X, "a", "b")', StartsWith(("a", "b"))),
        ('starts_with(X, ["a", "b"])', StartsWith(("a", "b"))),
        ('ends_with(X, ["a", "b"])', EndsWith(("a", "b"))),
        ('stops_at(X, ".", "!")', StopsAt((".", "!"))),
        ('stops_before(X, ["\\n"])', StopsBefore(("\n",))),
        ("regex(X, r'\\d+')", Matches(r"\d+")),
        ("True", Constant(True)),
        ("ANSWER == 'a'", A),
    ],
)
def test_every_operator_is_read(written: str, expected: Expression) -> None:
    assert parse(written) == expected


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("not X == 'a' and X == 'b' or X == 'a'", Or((And((Not(A), B)), A))),
        ("X == 'a' or X == 'b' and not X == 'a'", Or((A, And((B, Not(A)))))),
        ("(X == 'a' or X == 'b') and X == 'a'", And((Or((A, B)), A))),
        ("not (X == 'a' or X == 'b')", Not(Or((A, B)))),
        ("not not X == 'a'", Not(Not(A))),
        ("X == 'a' and X == 'b' and X == 'a'", And((A, B, A))),
        ("X == 'a' and (X == 'b' and X == 'a')", And((A, And((B, A))))),
        ("(len(X)) < (5)", chars("<", 5)),
        ("((X == 'a'))", A),
        ("X == 'a'\n  and\tX == 'b'", And((A, B))),
    ],
)
def test_parts_are_joined_as_in_python(written: str, expected: Expression) -> None:
    assert parse(written) == expected


def test_chains_are_conjunctions() -> None:
    assert parse("2 <= len(X) < 5 != len(X)") == And(
        (chars(">=", 2), chars("<", 5), chars("!=", 5))
    )
    assert parse("not 1 < int(X) < 5") == Not(
        And(
            (
                Compare(Measure.INT, Relation.GT, 1),
                Compare(Measure.INT, Relation.LT, 5),
            )
        )
    )


@pytest.mark.parametrize(
    ("capitals", "small"),
    [
        ('STOPS_AT(X, ".")', 'stops_at(X, ".")'),
        ('STOPS_BEFORE(X, ".")', 'stops_before(X, ".")'),
        ("INT(X) and FLOAT(X)", "int(X) and float(X)"),
        ('REGEX(X, "a")', 'regex(X, "a")'),
        ("len(TOKENS(X)) < 5", "len(tokens(X)) < 5"),
        ("len(WORDS(X)) < len(CHARS(X))", None),
        ("len(CHARS(X)) < 5", "len(chars(X)) < 5"),
        ('STARTS_WITH(X, "a")', 'starts_with(X, "a")'),
        ('int(X) AND NOT "a" IN X OR float(X)', 'int(X) and not "a" in X or float(X)'),
        ('X NOT IN ["a"] and X IN ["b"]', 'X not in ["a"] and X in ["b"]'),
    ],
)
def test_capitals_mean_the_same(capitals: str, small: str | None) -> None:
    if small is None:
        with pytest.raises(Malformed, match="cannot be compared"):
            parse(capitals)
    else:
        assert parse(capitals) == parse(small)


@pytest.mark.parametrize(
    "literal",
    [
        r"'a\'b'", r'"a\"b"', r"'\n\t\\\x41\u00e4\U0001f600\101\0'", r"r'\d\''", r'R"\n"', "u'ä'",
        "'''a'b\n'''", '"""a"b"""', r"'\N{GREEK SMALL LETTER ALPHA}'", "'a\\\nb'", "''", "'日本😀'",
    ],
)  # fmt: skip
def test_strings_are_those_of_python(literal: str) -> None:
    assert parse(f"X == {literal}") == OneOf((eval(literal),))


def test_an_unknown_escape_is_a_backslash_as_in_python() -> None:
    assert parse(r"regex(X, '\d+\.')") == Matches(r"\d+\.")


@given(expressions)
def test_what_is_written_reads_back_as_the_same(expression: Expression) -> None:
    assert parse(text(expression)) == expression


@given(st.text(st.characters(codec="utf-8")))
def test_any_text_can_be_said(said: str) -> None:
    assert parse(text(Contains(said))) == Contains(said)


def test_the_caret_stands_below_wide_characters() -> None:
    with pytest.raises(Malformed) as refused:
        parse('"日本e\u0301" in X and "語" = X')
    assert str(refused.value).splitlines()[2] == "  " + " " * 22 + "^"


def test_of_a_long_line_the_place_is_shown() -> None:
    with pytest.raises(Malformed) as caught:
        parse("int(X) or " * 90 + "lem(X)" + " or int(X)" * 9)
    _, shown, carets, hint = str(caught.value).split("\n")
    assert len(shown) < 80
    assert shown[carets.index("^") :].startswith("lem(X)")
    assert hint == "did you mean `len`?"


@pytest.mark.parametrize(
    "written",
    [
        "a" * 9_000 + "(X)",
        "len(X) < 5 and " + "a" * 9_000,
        "b" * 9_000 + " == 'a' and " + "a" * 9_000,
        "len(X) < " + "9" * 9_000,
        "len(X) < 5 '" + "a" * 9_000 + "'",
        "'\\N{" + "a" * 9_000 + "}'",
        "f" * 9_000 + "'a'",
    ],
)
def test_an_error_is_short_however_long_the_text(written: str) -> None:
    with pytest.raises(Malformed) as caught:
        parse(written)
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize(
    ("written", "limit"),
    [
        ("(" * 100_000, MAX_DEPTH),
        ("(" * 65 + "int(X)" + " and int(X))" * 65, MAX_DEPTH),
        ("not " * 20_000 + "int(X)", MAX_DEPTH),
        ("len(" * 20_000, MAX_DEPTH),
        ("int(X) or " * 1_000 + "int(X)", MAX_TERMS),
        ("1 < len(X) > " * 5_000 + "1", MAX_TERMS),
        ("a" * 10_000_000, MAX_TEXT_LEN),
    ],
)
def test_limits_are_told(written: str, limit: int) -> None:
    began = time.thread_time()
    with pytest.raises(TooComplex, match=str(limit)):
        parse(written)
    assert time.thread_time() - began < 3


def test_what_is_within_the_limits_is_read() -> None:
    assert parse("(" * 63 + "int(X)" + ")" * 63) == IsInt()
    assert parse(" or ".join(["len(X) < 5"] * 500)) == Or((chars("<", 5),) * 500)
    values = [f"value {index}" for index in range(6_000)]
    assert parse(text(OneOf(tuple(values)))) == OneOf(tuple(values))


PIECES = (
    "X Y len words int regex stops_before and or not in ( ) [ ] { } , . < <= == != - 5 'a' \"b\""
    " r'[' True \n # = \\ '' Y Z set \ud800 é"
).split(" ")


@given(st.one_of(st.lists(st.sampled_from(PIECES)).map(" ".join), st.text()))
def test_any_text_is_read_or_refused(written: str) -> None:
    outcome = outcome_of(written)
    position = outcome.position if isinstance(outcome, Malformed) else 0
    assert position is not None
    assert 0 <= position <= len(written)


def outcome_of(written: str) -> Expression | Malformed | TooComplex:
    try:
        return parse(written)
    except (Malformed, TooComplex) as error:
        return error


ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "constraints.md").read_text()
LANGUAGE = PAGE[PAGE.index("## `where`") : PAGE.index("## JSON schemas")]


def blocks(kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)


def rows() -> list[tuple[str, str, str]]:
    table = LANGUAGE[LANGUAGE.index("| condition | holds for") :].split("\n\n")[0]
    cells = [line.strip("|").split(" | ") for line in table.splitlines()[2:]]
    return [(quoted(one)[0], two, three) for one, two, three in cells]


def quoted(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


@pytest.mark.parametrize(("written", "held", "refused"), rows())
def test_conditions_hold_for_what_the_page_says(written: str, held: str, refused: str) -> None:
    expression = parse(written)
    for literal in quoted(held):
        assert holds(expression, ast.literal_eval(literal)), literal
    for literal in quoted(refused):
        assert not holds(expression, ast.literal_eval(literal)), literal


@pytest.mark.parametrize("block", blocks("error"))
def test_its_errors_are_shown(block: str) -> None:
    written, shown = block.rstrip("\n").split("\n\n")
    with pytest.raises(Malformed) as caught:
        parse(written)
    assert str(caught.value) == shown


@pytest.mark.parametrize("block", blocks("contradiction"))
def test_its_contradictions_are_found(block: str) -> None:
    written, parts = block.rstrip("\n").split("\n\n")
    found = contradiction(parse(written))
    assert isinstance(found, Contradiction)
    assert found.parts == tuple(parts.split("\n"))


def test_its_shell_lines_ask_for_what_can_be_read() -> None:
    asked = re.findall(r"^ask '(.*)'$", PAGE, re.MULTILINE)
    asked += re.findall(r"--type where --constraint '([^']*)'", PAGE)
    asked += [
        ast.literal_eval(f'"{value}"')
        for value in re.findall(r'"where"(?:, "value")?: "((?:[^"\\]|\\.)*)"', PAGE)
    ]
    assert len(asked) >= 4
    for written in asked:
        parse(written)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_it_names_every_function(name: str) -> None:
    assert re.search(rf"`[^`]*\b{name}\(", LANGUAGE)
