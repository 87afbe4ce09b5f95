"""What `jsonschema` says of finished texts, patterns read as ECMA 262 has them, as masks do."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from constraints.errors import ConstraintError
from constraints.regex.search import is_found
from constraints.schema.validation import MaskFormats, judge_of, loads, violations


def told(schema: str, text: str) -> tuple[str, ...]:
    return tuple(map(str, violations(schema, text)))


def test_an_instance_has_no_violations() -> None:
    assert told('{"type": "integer"}', "3") == ()


def test_a_violation_tells_its_place() -> None:
    assert told('{"items": {"type": "integer"}}', '[1, "a"]') == (
        "at /1: 'a' is not of type 'integer'",
    )


def test_items_in_a_list_are_read_by_the_draft_that_has_them() -> None:
    schema = '{"items": [{"type": "integer"}]}'
    assert told(schema, '[1, "a"]') == ()
    assert told(schema, '["a"]') == ("at /0: 'a' is not of type 'integer'",)


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ('{"required": true}', "{}"),
        ('{"properties": 5}', '{"a": 1}'),
        ('{"items": 5}', "[1]"),
        ('{"$schema": "https://json-schema.org/draft/2020-12/schema", "items": [{}]}', "[1]"),
    ],
)
def test_a_schema_that_is_none_cannot_be_followed(schema: str, text: str) -> None:
    assert told(schema, text) == ("the schema cannot be followed: a keyword's value is wrong",)


DRAFT_4 = "http://json-schema.org/draft-04/schema#"
LONG = "9" * 400


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ('{"multipleOf": 0.01}', "19.99"),
        ('{"multipleOf": 0.1}', "1e400"),
        ('{"multipleOf": 0.1}', LONG),
        ('{"multipleOf": 3}', LONG),
        ('{"multipleOf": 1e-300}', "1"),
        ('{"multipleOf": 1e308}', "1e999999"),
        (f'{{"multipleOf": 1{"0" * 400}}}', "0e5"),
        ('{"multipleOf": 2}', "8" * 5000),
        ('{"multipleOf": 0.25}', f"{'1' * 900_000}.75"),
        ('{"type": "integer"}', "9" * 5000),
        ('{"type": "integer"}', "1.50e1"),
        ('{"minimum": 1}', "1e400"),
        ('{"const": 1}', "1.0"),
        ('{"enum": [1e400]}', "10e399"),
        ('{"multipleOf": 2}', f"4e+00{LONG}"),
        ('{"multipleOf": 2}', f"4e{'0' * 20}1"),
        ('{"$ref": "#/$defs/a", "$defs": {"a": {"multipleOf": 0.1}}}', "1e400"),
        (f'{{"$schema": "{DRAFT_4}", "type": "integer"}}', "9" * 5000),
        (
            '{"$schema": "https://json-schema.org/draft/2020-12/schema",'
            ' "properties": {"a": {"$ref": "#"}}, "multipleOf": 0.01}',
            '{"a": 1e400}',
        ),
    ],
)
def test_numbers_are_judged_as_they_are_written(schema: str, text: str) -> None:
    assert told(schema, text) == ()


@pytest.mark.parametrize(
    ("schema", "text", "violation"),
    [
        ('{"multipleOf": 0.01}', "19.999", "19.999 is not a multiple of 0.01"),
        ('{"multipleOf": 7}', "1e400", "1e+400 is not a multiple of 7"),
        ('{"multipleOf": 0.5}', "1e-400", "1e-400 is not a multiple of 0.5"),
        ('{"multipleOf": 2}', "1e-999999", "1e-999999 is not a multiple of 2"),
        ('{"maximum": 9}', "1e400", "1e+400 is greater than the maximum of 9"),
        ('{"type": "integer"}', "1.5", "1.5 is not of type 'integer'"),
        ('{"uniqueItems": true}', "[1e400, 10e399]", "[1e+400, 1.0e+400] has non-unique elements"),
        (f'{{"$schema": "{DRAFT_4}", "type": "integer"}}', "1.0", "1.0 is not of type 'integer'"),
        ('{"maximum": 9}', f"1e{LONG}", "1e+100000000000000 is greater than the maximum of 9"),
        ('{"multipleOf": 2}', f"1E-{LONG}", "1e-100000000000000 is not a multiple of 2"),
        ("{}", "NaN", "not JSON: NaN is no JSON number"),
    ],
)
def test_numbers_beyond_doubles_are_told_like_others(
    schema: str, text: str, violation: str
) -> None:
    assert told(schema, text) == (violation,)


def test_a_step_of_nothing_cannot_be_followed() -> None:
    assert told('{"multipleOf": 1e-400, "maximum": 0.0}', "0") == ()
    assert told('{"multipleOf": 0.0}', "0") == (
        "the schema cannot be followed: a keyword's value is wrong",
    )


def test_a_schema_that_refers_to_itself_without_end_cannot_be_followed_at_any_depth() -> None:
    schema = '{"oneOf": [{"type": "integer"}, {"allOf": [{"$ref": "#"}, {"type": "array"}]}]}'

    def told_below(num_frames: int) -> tuple[str, ...]:
        return told_below(num_frames - 1) if num_frames else told(schema, "[]")

    # The stack may end within the package, or within what it is made of.
    for num_frames in range(16):
        assert told_below(num_frames) == ("the schema cannot be followed: RecursionError",)


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
        (r"(?<=a{2,})b", "ab"),
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


@pytest.mark.parametrize("pattern", ["(", r"(?=\p{Script=Greek})a", r"\p{Foo}", "a**", r"(?=\q)"])
def test_what_cannot_be_read_is_an_error_of_ours(pattern: str) -> None:
    with pytest.raises(ConstraintError):
        is_found(pattern, "a")
    schema = json.dumps({"contains": {"pattern": pattern}})
    (violation,) = violations(schema, '["a"]')
    assert str(violation).startswith("the schema cannot be followed")


def violations_told(schema: object, instance: object) -> tuple[str, ...]:
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
    assert violations_told(schema, {"é": 1}) == ()
    assert len(violations_told(schema, {"1": 1})) == 1
    assert "'1' was unexpected" in violations_told(schema, {"1": 1})[0]
    drafted = schema | {"$schema": "https://json-schema.org/draft/2019-09/schema"}
    assert violations_told(drafted, {"é": 1}) == ()
    assert len(violations_told(drafted, {"1": 1})) == 1


def test_a_violation_shows_the_pattern_as_it_was_written() -> None:
    assert violations_told({"pattern": r"^\p{L}$"}, "1") == (r"'1' does not match '^\\p{L}$'",)
    assert violations_told({"patternProperties": LETTERS}, {"é": "x"}) == (
        "at /é: 'x' is not of type 'integer'",
    )
    assert violations_told(
        {"additionalProperties": {"type": "integer"}, "patternProperties": LETTERS}, {"1": "x"}
    ) == ("at /1: 'x' is not of type 'integer'",)


@pytest.mark.parametrize(
    ("name", "text", "conforms"),
    [
        ("date", '"2000-02-29"', True),
        ("date", '"1900-02-29"', False),
        ("date", '"2000-02-29 "', False),
        ("date", "7", True),
        ("int8", "-128", True),
        ("int8", "128", False),
        ("int8", "1e2", True),
        ("int8", "1.5", False),
        ("int8", "1e9999999", True),  # not written out
        ("int8", "null", True),
        ("int8", "true", True),
        ("hostname", r'"\ud800"', False),
        ("nobody's", '"x"', True),
        (["date"], '"x"', True),
    ],
)
def test_a_value_conforms_where_masks_write_it(name: Any, text: str, conforms: bool) -> None:
    assert MaskFormats().conforms(loads(text), name) is conforms


@pytest.mark.parametrize(
    ("kept", "depth", "is_told"),
    [
        ({"$ref": "#/$defs/twice"}, 8, True),
        # Of each array twice as many questions as of the one around it, and no end of them.
        ({"$ref": "#/$defs/twice"}, 60, False),
        ({"type": "array"}, 60, True),
        ({"type": "array"}, 5000, False),
    ],
)
def test_a_judge_does_not_take_what_it_cannot_tell_in_its_time(
    kept: Any, depth: int, is_told: bool
) -> None:
    inner = {"$ref": "#/$defs/twice"}
    schema = {"$defs": {"twice": {"items": {"allOf": [inner, inner]}}}, **kept}
    judge = judge_of(json.dumps(schema), json.dumps(schema))
    assert judge("[" * depth + "]" * depth) is is_told


def test_a_judge_compares_many_items_by_their_values() -> None:
    schema = '{"uniqueItems": true}'
    judge = judge_of(schema, schema)
    # Each with each they would be compared for minutes.
    rows = [{"id": number, "tags": [str(number)]} for number in range(20_000)]
    assert judge(json.dumps(rows))
    assert not judge(json.dumps([*rows, {"tags": ["7"], "id": 7.0}]))


@pytest.mark.parametrize(
    ("items", "differ"),
    [
        ("[1, true]", True),
        ("[[0], [false]]", True),
        ('[null, "null"]', True),
        ("[[], {}]", True),
        ("[1e400, 1e401]", True),
        ("[1, 1.0]", False),
        ("[0, -0.0]", False),
        ('[{"a": 1, "b": 2}, {"b": 2e0, "a": 1}]', False),
        ('[["x", true], ["x", true]]', False),
    ],
)
def test_items_differ_by_value_not_by_spelling(items: str, differ: bool) -> None:
    assert (told('{"uniqueItems": true}', items) == ()) is differ
