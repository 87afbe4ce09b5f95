"""What `jsonschema` says of finished texts, also where a schema is none."""

import pytest

from constraints.grammars.schema_validation import violations


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
