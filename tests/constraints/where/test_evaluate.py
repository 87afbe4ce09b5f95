"""The evaluator: what every operator means, corner by corner."""

import pytest

from constraints.where.evaluate import holds, integer, measured
from constraints.where.parser import parse
from constraints.where.terms import Measure
from tests.constraints.cases import Json
from tests.constraints.grammars.rig import table


@pytest.mark.parametrize(
    ("text", "num_chars", "num_words", "num_sentences"),
    [
        ("", 0, 0, 0),
        ("a", 1, 1, 1),
        (" \n\t", 3, 0, 1),
        ("a  b\nc", 6, 3, 1),
        ("äö 日本", 5, 2, 1),
        ("a\u3000b\xa0c\x1cd\x85e", 9, 5, 1),
        ("a\u200bb", 3, 1, 1),  # zero-width space is no whitespace
        ("😀", 1, 1, 1),
        ("e\u0301", 2, 1, 1),  # two code points, whatever is seen
        ("a.", 2, 1, 1),
        ("a. b", 4, 2, 2),
        ("a. ", 3, 1, 2),
        ("...", 3, 1, 3),
        ("3.14", 4, 1, 2),
        ("a! b? c。", 8, 3, 1),
    ],
)
def test_counts(text: str, num_chars: int, num_words: int, num_sentences: int) -> None:
    assert measured(Measure.CHARS, text) == num_chars
    assert measured(Measure.WORDS, text) == num_words
    assert measured(Measure.SENTENCES, text) == num_sentences


def test_tokens_are_told() -> None:
    assert holds(parse("len(tokens(X)) == 3"), "any", 3)
    assert not holds(parse("len(tokens(X)) == 3"), "any", 2)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0", 0), ("-0", 0), ("007", 7), ("-12", -12), ("", None), ("-", None), ("+7", None),
        (" 7", None), ("7 ", None), ("7\n", None), ("1_000", None), ("--1", None), ("1.0", None),
        ("١٢", None), ("7a", None), ("0" * 5000 + "7", 7),
    ],
)  # fmt: skip
def test_integers(text: str, value: int | None) -> None:
    assert integer(text) == value
    assert holds(parse("int(X)"), text) is (value is not None)


def test_longer_integers_than_python_reads_are_beyond_every_bound() -> None:
    assert holds(parse("int(X) > 999999999999999999"), "9" * 10_000)
    assert holds(parse("int(X) < -999999999999999999"), "-" + "9" * 10_000)


@pytest.mark.parametrize("row", table("where/conditions"))
def test_conditions(row: Json) -> None:
    expression = parse(row["written"])
    assert [text for text in row.get("holds", []) if not holds(expression, text)] == []
    assert [text for text in row.get("fails", []) if holds(expression, text)] == []
