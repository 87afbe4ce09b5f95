"""What `jsonschema` says of finished texts, also where a schema is none."""

import pytest

from constraints.grammars.instances import violations


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
