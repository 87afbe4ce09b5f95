"""Declared keys are themselves however they are spelled: no escape makes them keys of a pattern."""

from typing import Any

import pytest

from constraints.errors import NotEnforced
from tests.constraints.grammars.rig import accepts, of_schema

BY_PATTERN: dict[str, Any] = {
    "type": "object",
    "patternProperties": {r"^\s+$": {"type": ["integer", "string"]}},
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    "declared",
    [
        {"properties": {"\t": {"const": 1}}},
        {"properties": {"\t": {"const": 1}}, "required": ["\t"]},
        {"required": ["\t"]},
    ],
)
@pytest.mark.parametrize("wrong", ['{"\\u0009":"x"}', '{"\\t":1,"\\u0009":"x"}'])
def test_an_escape_makes_no_declared_key_one_of_a_pattern(
    declared: dict[str, Any], wrong: str
) -> None:
    for schema in (BY_PATTERN | declared, {"allOf": [{"type": "object"}, BY_PATTERN | declared]}):
        language = of_schema(schema)
        assert accepts(language, '{"\\t":1}')
        assert not accepts(language, wrong)


def test_a_key_that_is_refused_is_refused_with_an_escape_as_well() -> None:
    language = of_schema(BY_PATTERN | {"properties": {"\t": False}})
    assert accepts(language, '{"\\n":1}')
    assert not accepts(language, '{"\\u0009":1}')


@pytest.mark.parametrize("key", ["\x1f", "\x7f"])
def test_a_declared_key_that_two_escapes_could_spell_is_refused_beside_patterns(key: str) -> None:
    with pytest.raises(NotEnforced) as refusal:
        of_schema(BY_PATTERN | {"patternProperties": {"[^a]": {}}, "properties": {key: {}}})
    assert refusal.value.pointer == "/properties"


@pytest.mark.parametrize("name", ["a", "é", "/", '"', "\\", "\x85"])
def test_keys_of_patterns_have_escapes_of_control_characters_alone(name: str) -> None:
    declared = {"patternProperties": {"": {}}, "properties": {name: {"const": 1}}}
    language = of_schema(BY_PATTERN | declared)
    assert accepts(language, '{"\\u0009":2}')
    assert not accepts(language, f'{{"\\u{ord(name):04x}":2}}')
    assert not accepts(language, f'{{"\\{name}":2}}')
