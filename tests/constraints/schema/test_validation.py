"""What `jsonschema` says of finished texts, patterns read as ECMA 262 has them, as masks do."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from constraints.errors import ConstraintError
from constraints.regex.writing import is_found
from constraints.schema.validation import MaskFormats, judge_of, loads, violations
from tests.constraints.cases import Json
from tests.constraints.grammars.rig import table


@pytest.mark.parametrize("row", table("schema/finished"))
def test_violations_are_told_in_numbers_as_they_are_written(row: Json) -> None:
    assert list(violations(row["schema"], row["text"])) == row.get("violations", [])


def test_numbers_of_a_million_digits_are_judged() -> None:
    assert violations('{"multipleOf": 0.25}', f"{'1' * 900_000}.75") == ()


def test_a_schema_that_refers_to_itself_without_end_cannot_be_followed_at_any_depth() -> None:
    schema = '{"oneOf": [{"type": "integer"}, {"allOf": [{"$ref": "#"}, {"type": "array"}]}]}'

    def judged_below(num_frames: int) -> tuple[str, ...]:
        return judged_below(num_frames - 1) if num_frames else violations(schema, "[]")

    # The stack may end within the package, or within what it is made of.
    for num_frames in range(16):
        assert judged_below(num_frames) == ("the schema cannot be followed: RecursionError",)


@pytest.mark.parametrize("row", table("schema/found"), ids=lambda row: row["pattern"])
def test_a_pattern_is_found_as_ecma_262_has_it(row: Json) -> None:
    assert is_found(row["pattern"], row["text"]) is row["is_found"]


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


@pytest.mark.parametrize("pattern", ["(", r"\p{Foo}", "a**", r"(?=\q)"])
def test_what_cannot_be_read_is_an_error_of_ours(pattern: str) -> None:
    with pytest.raises(ConstraintError):
        is_found(pattern, "a")
    (violation,) = violations(json.dumps({"contains": {"pattern": pattern}}), '["a"]')
    assert violation.startswith("the schema cannot be followed")


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
