"""Schemas and values at random, small enough to meet by chance."""

import random
from decimal import Decimal
from typing import Any

_KEYS = ["a", "b", "tag"]
_PATTERNS = [
    "^a",
    "b$",
    "^[a-c]+$",
    "x|y",
    "^(ab)*$",
    "[^a]",
    r"\d",
    "^a|b$",
    '^[^"]+$',
    r"^[^\\b]",
    *[r"^(?=.*b)[ab]", r"(?!b)a$", r"\bab\b", "^(?!a)|(y)", "^(?!ab)(?=a|x)", "(?<=x)y"],
]
_PARTS: list[Any] = [
    *[{}, {"type": "null"}, {"type": "boolean"}, {"type": "integer", "minimum": 3}],
    *[{"type": "integer", "minimum": -7, "exclusiveMaximum": 120}, {"type": "number"}],
    *[{"type": "number", "minimum": -1.5, "maximum": 2.25}, {"multipleOf": 3, "type": "integer"}],
    *[{"type": "string", "maxLength": 3}, {"minLength": 2}, {"const": "a\nb"}, {"const": -3}],
    *[{"type": "string", "pattern": pattern} for pattern in _PATTERNS],
    *[{"type": "string", "format": name} for name in ("date", "ipv4", "email", "uuid")],
    *[{"enum": ["a", 1, None]}, {"enum": ["a", "b"]}, {"type": ["string", "object"]}],
]
_VALUES: list[Any] = [
    *["a", "b", "x", "", '"', "\\", "ab", "xy", "2020-02-29"],
    *[0, 1, 3, -3, Decimal("1.5"), 17, None, True],
]


def whole_schema(draw: random.Random) -> dict[str, Any]:
    """A schema, with a definition that it may refer to."""
    drawn = any_schema(draw, 3)
    rest = drawn if isinstance(drawn, dict) else {}
    return {**rest, "$defs": {"other": any_object(draw, 1)}}


def any_schema(draw: random.Random, depth: int) -> Any:
    if depth <= 0 or draw.random() < 0.35:
        return _bounded(draw) if draw.random() < 0.2 else draw.choice(_PARTS)
    match draw.randrange(8):
        case 0 | 1 | 2:
            return any_object(draw, depth - 1)
        case 3:
            items = {"type": "array", "items": any_schema(draw, depth - 1)}
            return items | draw.choice([{}, {"minItems": 1}, {"maxItems": 2}])
        case 4:
            keyword = draw.choice(["anyOf", "oneOf", "allOf"])
            return {keyword: [any_schema(draw, depth - 1) for _ in range(draw.randint(1, 3))]}
        case 5:
            return {"not": any_schema(draw, depth - 2)}
        case 6:
            beside: list[Any] = [{}, {}, {"type": "object"}, {"required": ["b"]}]
            return {"$ref": "#/$defs/other", **draw.choice([*beside, {"maxProperties": 1}])}
    condition = {"properties": {"tag": {"const": "x"}}, "required": ["tag"]}
    return {
        "type": "object",
        "properties": {"tag": {"enum": ["x", "y"]}},
        "if": condition,
        "then": {"required": ["a"], "properties": {"a": any_schema(draw, depth - 2)}},
        "else": {"required": ["b"]},
    }


def any_object(draw: random.Random, depth: int) -> dict[str, Any]:
    names = draw.sample(_KEYS, draw.randint(0, 3))
    made: dict[str, Any] = {
        "type": "object",
        "properties": {name: any_schema(draw, depth) for name in names},
        "required": draw.sample(_KEYS, draw.randint(0, 2)),
    }
    extra: list[Any] = [
        *[{}, {}, {"additionalProperties": False}],
        *[{"additionalProperties": any_schema(draw, depth)}, {"minProperties": 1}],
        *[{"patternProperties": {"^x": any_schema(draw, depth)}}, {"maxProperties": 2}],
        *[{"dependentRequired": {"a": ["b"]}}, {"propertyNames": _of_names(draw)}],
        {"propertyNames": _of_names(draw), "additionalProperties": any_schema(draw, depth)},
        {"patternProperties": {"^x": any_schema(draw, depth), "1$|^a": any_schema(draw, depth)}},
        {
            "patternProperties": {"^x": {"type": "string"}, "^.1$": {}},
            "propertyNames": _of_names(draw),
        },
    ]
    chosen: dict[str, Any] = draw.choice(extra)
    return made | chosen


def _of_names(draw: random.Random) -> dict[str, Any]:
    patterns: list[Any] = [{"pattern": each} for each in ("^[abx]", "^tag$|1", "^(?!b)")]
    lengths: list[Any] = [{"maxLength": 2}, {"minLength": 2}, {"pattern": "a", "maxLength": 1}]
    chosen: dict[str, Any] = draw.choice([*patterns, *lengths, {"enum": ["a", "x1"]}])
    return chosen


def _bounded(draw: random.Random) -> dict[str, Any]:
    """A number between bounds, which are kept or left out, or a list of such options."""
    if draw.random() < 0.3:
        return {draw.choice(["anyOf", "oneOf", "allOf"]): [_bounded(draw), _bounded(draw)]}
    ends = sorted(draw.choice([-7, -1.5, -1, 0, 0.5, 1, 2, 2.25, 9, 10, 100]) for _ in range(2))
    least = draw.choice(["minimum", "exclusiveMinimum"])
    most = draw.choice(["maximum", "exclusiveMaximum"])
    bounds = draw.choice([{least: ends[0]}, {most: ends[1]}, {least: ends[0], most: ends[1]}])
    step = draw.choice([{}, {}, {}, {"multipleOf": draw.choice([2, 3, 0.5, 0.25])}])
    return {"type": draw.choice(["integer", "number"]), **bounds, **step}


def any_value(draw: random.Random, depth: int = 2) -> Any:
    """Its fractions are decimals."""
    kind = draw.randrange(9 if depth else 6)
    if kind < 6:
        return draw.choice(_VALUES)
    if kind == 6:
        return [any_value(draw, depth - 1) for _ in range(draw.randint(0, 3))]
    names = draw.sample([*_KEYS, "x1"], draw.randint(0, 3))
    return {name: any_value(draw, depth - 1) for name in names}
