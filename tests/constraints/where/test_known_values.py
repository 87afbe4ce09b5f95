"""Of a value that is known before generation all can be said that can be said of the output."""

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from constraints.errors import Malformed
from constraints.where.evaluate import holds
from constraints.where.measures import atoms
from constraints.where.parser import Value, parse
from constraints.where.terms import Compare, Expression, Measure, OneOf
from constraints.where.writing import text
from tests.constraints.where.any_expressions import conditions, texts

values_of_x = st.one_of(texts, st.integers(-20, 20).map(str))


@given(conditions, values_of_x)
def test_what_is_said_of_a_value_is_true_where_it_would_be_of_the_output(
    expression: Expression, value: str
) -> None:
    assume(not any(counts_tokens(atom) for atom in atoms(expression)))
    said = parse(text(expression), values={"X": value})
    assert holds(said, "") is holds(expression, value)


def counts_tokens(atom: Expression) -> bool:
    return isinstance(atom, Compare) and atom.measure is Measure.TOKENS


@pytest.mark.parametrize(
    ("written", "values", "expected"),
    [
        ("int(LAST)", {"LAST": "5"}, True),
        ("int(LAST)", {"LAST": "x"}, False),
        ("not int(LAST)", {"LAST": "x"}, True),
        ("int(LAST) == 5", {"LAST": "x"}, False),
        ("int(LAST) != 5", {"LAST": "x"}, False),
        ("not int(LAST) == 5", {"LAST": "x"}, True),
        ("int(LAST) == 5 or len(X) < 3", {"LAST": "x"}, True),
        ("1 <= int(LAST) <= 5", {"LAST": "007"}, False),
        ("int(LAST) == int(FIRST)", {"LAST": "07", "FIRST": "7"}, True),
        ("int(LAST) == int(FIRST)", {"LAST": "x", "FIRST": "x"}, False),
        ("len(X) < int(LAST)", {"LAST": "x"}, False),
        ("int(LAST) > len(X)", {"LAST": "1"}, True),
        ('len(["a", "a"]) == 2', {}, True),
        ('len({"a", "a"}) == 1', {}, True),
        ('len(set(["a", "a"])) == 1', {}, True),
        ("len(O) == 2 and len(set(O)) == 1", {"O": ["a", "a"]}, True),
        ('["a", "a"] == ["a"]', {}, False),
        ("len(words(LAST)) == 2", {"LAST": "a a"}, True),
    ],
)
def test_what_is_said_of_values_is_decided(
    written: str, values: dict[str, Value], expected: bool
) -> None:
    assert holds(parse(written, values=values), "") is expected


@pytest.mark.parametrize("written", ['X in ["a", "a"]', "X in O", "X in words(LAST)"])
def test_a_string_that_is_listed_twice_is_one_text(written: str) -> None:
    assert parse(written, values={"O": ["a", "a"], "LAST": "a a"}) == OneOf(("a",))


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("len(tokens(LAST)) < 3", "only the output has tokens"),
        ('stops_before(LAST, ".")', "only the output can stop before a phrase"),
        ('int(LAST) == "5"', "a number cannot be compared with a string"),
        ("int(LAST) in X", "a number cannot be looked for"),
        ("X == int(LAST)", "the output is a string, no number"),
        ('"a" in [int(LAST)]', "a list holds strings, not a number"),
    ],
)
def test_what_cannot_be_said_is_refused(written: str, said: str) -> None:
    with pytest.raises(Malformed, match=said):
        parse(written, values={"LAST": "5"})
