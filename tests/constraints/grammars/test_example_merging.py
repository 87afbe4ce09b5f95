"""Schemas that hold together as one."""

from typing import Any

import pytest

from constraints.grammars.example_merging import merged

A, B = {"minimum": 1}, {"maximum": 5}


@pytest.mark.parametrize(
    ("one", "other", "both"),
    [
        ({}, A, A),
        ({"type": "number"}, {"type": "integer"}, {"type": "integer"}),
        ({"type": ["string", "null"]}, {"type": ["null", "array"]}, {"type": "null"}),
        ({"type": "string"}, {"type": "object"}, None),
        ({"minimum": 1}, {"minimum": 3, "maximum": 9}, {"minimum": 3, "maximum": 9}),
        ({"multipleOf": 4}, {"multipleOf": 6}, {"multipleOf": [4, 6]}),
        (
            {"pattern": "a"},
            {"pattern": "b", "format": "uri"},
            {"pattern": ["a", "b"], "format": "uri"},
        ),
        ({"enum": [1, "a", True]}, {"enum": [True, 1.0]}, {"enum": [1, True]}),
        ({"const": 2}, {"enum": [1, 2]}, {"enum": [2]}),
        ({"const": 2}, {"const": 3}, None),
        ({"const": 0}, {"const": False}, None),
        ({"const": 2}, {"type": "integer"}, {"enum": [2], "type": "integer"}),
        (
            {"type": "object", "properties": {"a": False}},
            {"required": ["a"]},
            None,
        ),
        (
            {"properties": {"a": A, "b": A}},
            {"properties": {"c": B, "a": B}},
            {
                "properties": {"a": {"allOf": [A, B]}, "b": A, "c": B},
                "additionalProperties": True,
            },
        ),
        (
            {"properties": {"a": A}, "additionalProperties": False},
            {"properties": {"b": B}},
            {"properties": {"a": A, "b": False}, "additionalProperties": False},
        ),
        (
            {"patternProperties": {"^x": A}},
            {"patternProperties": {"^x": B}, "additionalProperties": B},
            {
                "properties": {},
                "patternProperties": {"^x": {"allOf": [A, B]}},
                "additionalProperties": B,
            },
        ),
        (
            {"prefixItems": [A], "items": False},
            {"items": B},
            {"prefixItems": [{"allOf": [A, B]}], "items": False},
        ),
    ],
    ids=str,
)
def test_both_hold(one: Any, other: Any, both: Any) -> None:
    assert merged(one, other) == both
