r"""Finished texts are judged by a schema's patterns as masks read them: as ECMA 262 has them."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from constraints.errors import ConstraintError
from constraints.grammars.pattern_search import is_found
from constraints.grammars.schema_validation import violations

ARABIC_FIVE = "\u0665"


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        (r"^\p{L}+$", "Äя漢"),
        (r"^[\p{L}\p{N}_]+$", "é٥_"),
        (r"^\P{L}$", "1"),
        (r"^\D$", ARABIC_FIVE),
        (r"^\W$", "é"),
        (r"^[^\w]$", "é"),
        (r"^\s$", "\ufeff"),
        (r"^a\/b$", "a/b"),
        (r"^\u{1F600}$", "😀"),
        (r"^\ud83d\ude00$", "😀"),
        (r"^\cA$", "\x01"),
        (r"^{,3}$", "{,3}"),
        (r"^(?<year>\d{4})$", "2024"),
        (r"^[^]$", "\n"),
        (r"^[[]$", "["),
        (r"^[^a]$", "\0"),
        ("b", "abc"),
        ("", ""),
        ("^.$", "\ud800"),
        # What masks do not hold:
        (r"^(?=.*\p{Lu})(?=.*\d)\S+$", "aÄ1"),
        (r"(?<year>\d)-\k<year>", "1-1"),
        (r"^(a)?\1b$", "b"),
        (r"(?<=a[ab])b", "aab"),
        (r"\bfoo\b", "éfoo"),
        (r"^(?!.*[^\w/])[\w\/]+$", "a/b"),
        (r"(?:(?!x).)$", "b"),
    ],
)
def test_a_pattern_is_found_as_ecma_262_has_it(pattern: str, text: str) -> None:
    assert is_found(pattern, text)


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        (r"^\p{L}+$", "a1"),
        (r"^\d$", ARABIC_FIVE),
        (r"^\w$", "é"),
        (r"^[\w]$", "é"),
        (r"^\s$", "\x1c"),
        ("^a$", "a\n"),
        ("^.$", "\u2028"),
        (r"^[]$", "a"),
        (r"^(?=.*\d)\S+$", ARABIC_FIVE),
        (r"^(?!b)a$", "a\n"),
        (r"(?!b)^\w$", "é"),
        (r"(?<=a{2})b", "ab"),
        (r"^(a|b)\1$", "ab"),
        (r"(?=x)[^\p{L}]", "x"),
    ],
)
def test_a_pattern_is_found_nowhere_else(pattern: str, text: str) -> None:
    assert not is_found(pattern, text)


def test_what_takes_python_time_beyond_all_bounds_is_followed_by_states() -> None:
    assert not is_found(r"^(?!b)(a+)+$", "a" * 100 + "!")


SAMPLE = st.text(st.sampled_from("ab1_ é\n-٥"), max_size=5)
PIECE = st.sampled_from(
    [r"\d", r"\w", r"\W", r"\S", ".", "a", "[a-b]", r"[^\w-]", "(?:a|b1)", r"[\d_]", "-"]
)
PIECES = st.lists(st.tuples(PIECE, st.sampled_from(["", "*", "+?", "{1,2}"])), max_size=4)


@given(PIECES, SAMPLE)
def test_both_readings_of_a_pattern_agree(pieces: list[tuple[str, str]], text: str) -> None:
    pattern = "".join(f"{piece}{times}" for piece, times in pieces)
    # A look ahead that always holds leaves the pattern to the other reader.
    assert is_found(f"^{pattern}$", text) == is_found(f"(?=)^{pattern}$", text)


@pytest.mark.parametrize(
    "pattern", ["(", r"(?=\p{Script=Greek})a", r"\p{Foo}", "a**", r"(?=\q)", "(?<=a+)b"]
)
def test_what_cannot_be_read_is_an_error_of_ours(pattern: str) -> None:
    with pytest.raises(ConstraintError):
        is_found(pattern, "a")
    schema = json.dumps({"contains": {"pattern": pattern}})
    (violation,) = violations(schema, '["a"]')
    assert str(violation).startswith("the schema cannot be followed")


def told(schema: object, instance: object) -> tuple[str, ...]:
    return tuple(map(str, violations(json.dumps(schema), json.dumps(instance))))


LETTERS = {r"^\p{L}+$": {"type": "integer"}}


@pytest.mark.parametrize(
    "schema",
    [
        {"patternProperties": LETTERS, "additionalProperties": False},
        {"patternProperties": LETTERS, "unevaluatedProperties": False},
        {"allOf": [{"patternProperties": LETTERS}], "unevaluatedProperties": False},
        {
            "$ref": "#/$defs/a",
            "$defs": {"a": {"patternProperties": LETTERS}},
            "unevaluatedProperties": False,
        },
        {
            "if": {"patternProperties": LETTERS},
            "then": True,
            "else": False,
            "unevaluatedProperties": False,
        },
    ],
)
def test_names_of_properties_are_read_like_strings(schema: dict[str, object]) -> None:
    assert told(schema, {"é": 1}) == ()
    assert len(told(schema, {"1": 1})) == 1
    assert "'1' was unexpected" in told(schema, {"1": 1})[0]
    drafted = schema | {"$schema": "https://json-schema.org/draft/2019-09/schema"}
    assert told(drafted, {"é": 1}) == ()
    assert len(told(drafted, {"1": 1})) == 1


def test_a_violation_shows_the_pattern_as_it_was_written() -> None:
    assert told({"pattern": r"^\p{L}$"}, "1") == (r"'1' does not match '^\\p{L}$'",)
    assert told({"patternProperties": LETTERS}, {"é": "x"}) == (
        "at /é: 'x' is not of type 'integer'",
    )
    assert told(
        {"additionalProperties": {"type": "integer"}, "patternProperties": LETTERS}, {"1": "x"}
    ) == ("at /1: 'x' is not of type 'integer'",)
