"""Random schemas: whatever masks let through is an instance, and contradictions have none."""

import json
import random
from typing import Any

import jsonschema
import numpy as np
import pytest

from constraints.errors import Contradiction, NotEnforced
from constraints.spec import Whitespace
from tests.constraints.grammars.rig import accepts_value, of_schema, walk

KEYS = ["a", "b", "tag"]
DRAFTS = [
    *[f"http://json-schema.org/draft-0{number}/schema#" for number in (4, 6, 7)],
    "https://json-schema.org/draft/2019-09/schema",
]
FORMATS = jsonschema.FormatChecker(["date", "ipv4", "ipv6", "uuid", "email"])
PATTERNS = ["^a", "b$", "^[a-c]+$", "x|y", "^(ab)*$", "[^a]", r"\d", "^a|b$", '^[^"]+$', r"^[^\\b]"]
ATOMS: list[Any] = [
    *[True, {}, {"type": "null"}, {"type": "boolean"}, {"type": "integer", "minimum": 3}],
    *[{"type": "integer", "minimum": -7, "exclusiveMaximum": 120}, {"type": "number"}],
    *[{"type": "number", "minimum": -1.5, "maximum": 2.25}, {"multipleOf": 3, "type": "integer"}],
    *[{"type": "string", "maxLength": 3}, {"minLength": 2}, {"const": "a\nb"}, {"const": -3}],
    *[{"type": "string", "pattern": pattern} for pattern in PATTERNS],
    *[{"type": "string", "format": name} for name in ("date", "ipv4", "email", "uuid")],
    *[{"enum": ["a", 1, None]}, {"enum": ["a", "b"]}, {"type": ["string", "object"]}],
]
VALUES: list[Any] = [
    "a",
    "b",
    "x",
    "",
    '"',
    "\\",
    "ab",
    "xy",
    0,
    1,
    3,
    -3,
    1.5,
    17,
    None,
    True,
    "2020-02-29",
]


def any_schema(draw: random.Random, depth: int) -> Any:
    if depth <= 0 or draw.random() < 0.35:
        return draw.choice(ATOMS)
    match draw.randrange(8):
        case 0 | 1 | 2:
            return an_object(draw, depth - 1)
        case 3:
            items = {"type": "array", "items": any_schema(draw, depth - 1)}
            return items | draw.choice([{}, {"minItems": 1}, {"maxItems": 2}])
        case 4:
            keyword = draw.choice(["anyOf", "oneOf", "allOf"])
            return {keyword: [any_schema(draw, depth - 1) for _ in range(draw.randint(1, 3))]}
        case 5:
            return {"not": any_schema(draw, depth - 2)}
        case 6:
            beside: list[Any] = [
                {},
                {},
                {"type": "object"},
                {"required": ["b"]},
                {"maxProperties": 1},
            ]
            return {"$ref": "#/$defs/other", **draw.choice(beside)}
    condition = {"properties": {"tag": {"const": "x"}}, "required": ["tag"]}
    return {
        "type": "object",
        "properties": {"tag": {"enum": ["x", "y"]}},
        "if": condition,
        "then": {"required": ["a"], "properties": {"a": any_schema(draw, depth - 2)}},
        "else": {"required": ["b"]},
    }


def an_object(draw: random.Random, depth: int) -> Any:
    names = draw.sample(KEYS, draw.randint(0, 3))
    made: dict[str, Any] = {
        "type": "object",
        "properties": {name: any_schema(draw, depth) for name in names},
        "required": draw.sample(KEYS, draw.randint(0, 2)),
    }
    extra: list[Any] = [
        *[{}, {}, {"additionalProperties": False}, {"additionalProperties": any_schema(draw, depth)}],
        *[{"patternProperties": {"^x": any_schema(draw, depth)}}, {"minProperties": 1}],
        *[{"maxProperties": 2}, {"dependentRequired": {"a": ["b"]}}],
    ]
    return made | draw.choice(extra)


def any_value(draw: random.Random, depth: int = 2) -> Any:
    kind = draw.randrange(9 if depth else 6)
    if kind < 6:
        return draw.choice(VALUES)
    if kind == 6:
        return [any_value(draw, depth - 1) for _ in range(draw.randint(0, 3))]
    names = draw.sample([*KEYS, "x1"], draw.randint(0, 3))
    return {name: any_value(draw, depth - 1) for name in names}


def is_valid(validator: jsonschema.Validator, instance: Any) -> bool:
    try:
        return bool(validator.is_valid(instance))
    except RecursionError:
        return False  # a reference to itself: no instance ends


@pytest.mark.parametrize("seed", range(40))
def test_what_masks_let_through_is_an_instance(seed: int) -> None:
    draw = random.Random(seed)
    judge(seed, draw, {}, any_schema(draw, 3))


@pytest.mark.parametrize("seed", range(40))
def test_what_masks_let_through_is_an_instance_in_the_draft_that_is_named(seed: int) -> None:
    draw = random.Random(1000 + seed)
    judge(seed, draw, {"$schema": draw.choice(DRAFTS)}, an_object(draw, 3))


def judge(seed: int, draw: random.Random, named: dict[str, str], drawn: Any) -> None:
    """Texts that masks of a schema let through against the validator of its draft."""
    rest = drawn if isinstance(drawn, dict) else {}
    whole = {**named, **rest, "$defs": {"other": an_object(draw, 1)}}
    kind = jsonschema.validators.validator_for(whole, default=jsonschema.Draft202012Validator)
    validator = kind(whole, format_checker=FORMATS)
    values = [any_value(draw) for _ in range(30)]
    try:
        language = of_schema(whole, whitespace=draw.choice(list(Whitespace)))
    except Contradiction:
        assert [each for each in values if is_valid(validator, each)] == []
        return
    except NotEnforced:
        return
    for each in values:
        assert not accepts_value(language, each) or is_valid(validator, each), each
    for turn in range(3):
        text = walk(language, np.random.default_rng((seed, turn)), 40)
        assert text is None or is_valid(validator, json.loads(text)), text
