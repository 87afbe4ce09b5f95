"""Two hundred constraints that are made to cost, to break or to mislead whoever compiles them.

Generated, not listed: each family is a function of how bad it is. All of them are short to send but
for the last family. Nothing here is random, so that a failure can be named.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from types import MappingProxyType

from constraints.spec import ConstraintSpec, Kind

NUM_HOSTILE = 200
_NUM_LEVELS = 7
_SCHEMA = "https://json-schema.org/draft/2020-12/schema"


@dataclass(frozen=True, slots=True)
class Hostile:
    """One of them. `name` is its family and how bad it is."""

    name: str
    spec: ConstraintSpec


def hostile() -> list[Hostile]:
    """All of them, one of each family after the other."""
    return [
        Hostile(f"{name}, {level}", family(level))
        for level in range(_NUM_LEVELS)
        for name, family in _FAMILIES.items()
    ][:NUM_HOSTILE]


# A grammar whose beginning is harmless: "x" will do. Behind "y" the engine's expressions multiply
# with every letter, and after some twenty of them it gives up.
BLOWS_UP_LATER = ConstraintSpec(Kind.REGEX, "x|y(((a|b|ab|ba){1,50}c?){1,50}d?){1,50}")
BLOWS_UP_ON = "y" + "ab" * 50


_regex = partial(ConstraintSpec, Kind.REGEX)
_lark = partial(ConstraintSpec, Kind.LARK)
_gbnf = partial(ConstraintSpec, Kind.GBNF)


def _schema(schema: object) -> ConstraintSpec:
    return ConstraintSpec(Kind.JSON_SCHEMA, json.dumps(schema))


def _where(parts: list[str], operator: str) -> ConstraintSpec:
    return ConstraintSpec(Kind.WHERE, f" {operator} ".join(parts))


def _letter(index: int) -> str:
    return chr(97 + index % 26)


def _repeats(depth: int) -> str:
    return "(" * depth + "[a-z]" + "){1,100}" * depth


def _parentheses(level: int) -> ConstraintSpec:
    depth = 2 ** ((level + 6) % 15)
    return _regex("(" * depth + str(level) + ")?" * depth)


def _alternatives(level: int) -> ConstraintSpec:
    return _regex("|".join(f"{index:x}[a-z]*{index % 7}" for index in range(1000 * (level + 1))))


def _looks(level: int) -> ConstraintSpec:
    looks = "".join(f"(?=.*{_letter(index)}.{{{3 * index}}}z)" for index in range(level + 2))
    return _regex(looks + r"\b.{1,80}\b")


_BROKEN_PATTERNS = ("(" * 50, "[a-", "(?P<n>a)(?P=n)", "a{9999999999}", "(?<=a)b", "\\", "*")
_BROKEN_GRAMMARS = (
    *("start: missing", "start: (", "%import common.NOTHING", "start: %json {"),
    *("a: b", "start: /(/", "start: %json [1"),
)


def _required_of_itself(level: int) -> ConstraintSpec:
    names = [f"p{index}" for index in range(20 * (level + 1))]
    node = {
        "type": "object",
        "properties": {name: {"$ref": "#/$defs/n"} for name in names},
        "required": names[: level + 1],
    }
    return _schema({"$defs": {"n": node}, "$ref": "#/$defs/n"})


def _circle_of_references(level: int) -> ConstraintSpec:
    num = level + 1
    defs = {f"d{index}": {"$ref": f"#/$defs/d{(index + 1) % num}"} for index in range(num)}
    return _schema({"$defs": defs, "$ref": "#/$defs/d0"})


def _product_of_alternatives(level: int) -> ConstraintSpec:
    parts = [
        {"anyOf": [{"properties": {f"k{index}": {"const": value}}} for value in range(4)]}
        for index in range(level + 4)
    ]
    return _schema({"type": "object", "allOf": parts})


def _complements(level: int) -> ConstraintSpec:
    parts = [
        {"not": {"type": "string", "pattern": f"{_letter(index)}.{{{index}}}z"}}
        for index in range(level + 3)
    ]
    return _schema({"type": "string", "allOf": parts, "$schema": _SCHEMA})


def _optional_properties(level: int) -> ConstraintSpec:
    names = [f"property_{index}" for index in range(500 * (level + 1))]
    short = {"type": "string", "maxLength": 100}
    return _schema({"type": "object", "properties": dict.fromkeys(names, short)})


def _deep_schema(level: int) -> ConstraintSpec:
    schema: dict[str, object] = {"type": "integer"}
    for _ in range(50 + 60 * level):
        schema = {"type": "array", "items": schema, "minItems": 1}
    return _schema(schema)


def _schema_without_instances(level: int) -> ConstraintSpec:
    parts = [{"minimum": level + 1}, {"maximum": level}, {"pattern": "^a$", "minLength": 2}]
    kept = parts[: 1 + level % 3]
    return _schema({"type": "integer", "allOf": kept, "exclusiveMaximum": level + 1})


def _long_strings(level: int) -> ConstraintSpec:
    lengths = {"minLength": 10 ** (level % 6), "maxLength": 10 ** (level % 7 + 1)}
    return _schema({"type": "string", "pattern": "^[a-f0-9-]*$", **lengths})


def _left_recursion(level: int) -> ConstraintSpec:
    num = level + 1
    rules = [f"r{index}: r{(index + 1) % num} | r{index} r{index} |" for index in range(num)]
    return _lark("start: r0\n" + "\n".join(rules) + "\n")


def _many_rules(level: int) -> ConstraintSpec:
    num = 1000 * (2 * level + 1)
    rules = "\n".join(f'r{index}: "a{index}" r{index + 1}?' for index in range(num))
    return _lark(f'start: r0\n{rules}\nr{num}: "z"\n')


def _lark_complements(level: int) -> ConstraintSpec:
    parts = [f"~/(?s:.*){_letter(index)}(?s:.{{{index}}})z(?s:.*)/" for index in range(level + 3)]
    return _lark(f"start: T\nT: {' & '.join(parts)}\n")


def _gbnf_recursion(level: int) -> ConstraintSpec:
    num = level + 1
    rules = [
        f'r{index} ::= r{(index + 1) % num} r{index} "a" | "" | [^b]{{0,{index}}}'
        for index in range(num)
    ]
    return _gbnf("root ::= r0\n" + "\n".join(rules) + "\n")


def _counters(level: int) -> ConstraintSpec:
    measures = ["len(X)", "len(words(X))", "len(sentences(X))", "len(tokens(X))"]
    parts = [
        f"{measures[index % 4]} {'<' if index % 2 else '>'} {20 + 7 * index}"
        for index in range(5 + 9 * level)
    ]
    return _where([f"({part} and {after})" for part, after in pairwise(parts)], "or")


def _where_patterns(level: int) -> ConstraintSpec:
    patterns = [rf'r".*{_letter(index)}.{{{4 * index}}}z.*"' for index in range(level + 2)]
    parts = [f"not regex(X, {pattern})" for pattern in patterns]
    return _where([*parts, "len(words(X)) < 40"], "and")


def _without_texts(level: int) -> ConstraintSpec:
    num = level + 1
    return _where([f"len(X) < {num}", f"len(words(X)) > {num}", f'"{"a" * num}" in X'], "and")


def _huge(level: int) -> ConstraintSpec:
    """Some 10 MB each: to send them is the attack."""
    size = 10_000_000 + level
    match level % 4:
        case 0:
            return _regex("a?" * (size // 2))
        case 1:
            return _schema({"enum": ["x" * (size // 10)] * 9 + [str(level)]})
        case 2:
            return _lark('start: "' + "a" * size + '"\n')
    return _where(['X == "' + "b" * size + '"'], "and")


_FAMILIES: Mapping[str, Callable[[int], ConstraintSpec]] = MappingProxyType(
    {
        "nested repeats": lambda level: _regex(_repeats(level + 2)),
        "long repeats": lambda level: _regex(f"((a|b|[^c])x?){{{level + 3},{10 ** (level + 3)}}}"),
        "states that double": lambda level: _regex(
            f".*a.{{{level + 10}}}(b|c.*d.{{{level + 10}}})"
        ),
        "parentheses": _parentheses,
        "alternatives": _alternatives,
        "Unicode classes": lambda level: _regex(
            r"(\w+\W+[^\W\d_]*[^\s\w]?)" * (level + 5) + f"{{{level + 5}}}"
        ),
        "broken patterns": lambda level: _regex(_BROKEN_PATTERNS[level]),
        "looks ahead": _looks,
        "long enums": lambda level: _schema(
            {"enum": [f"value {index} {'é' * (index % 5)}" for index in range(5000 * (level + 1))]}
        ),
        "required of itself": _required_of_itself,
        "circles of references": _circle_of_references,
        "products of alternatives": _product_of_alternatives,
        "complements": _complements,
        "optional properties": _optional_properties,
        "deep schemas": _deep_schema,
        "schemas without instances": _schema_without_instances,
        "long strings": _long_strings,
        "left recursion": _left_recursion,
        "ambiguous sums": lambda level: _lark(
            "start: e\ne: " + "e e | " * (level + 2) + '"a" | "a" "a"\n'
        ),
        "many rules": _many_rules,
        "complements in Lark": _lark_complements,
        "broken grammars": lambda level: _lark(_BROKEN_GRAMMARS[level]),
        # The lexer is greedy, so that no text is ever followed by the rest.
        "without an end": lambda level: _lark(f'start: A "{"a" * (level + 1)}b"\nA: /a+/\n'),
        "nested repeats in GBNF": lambda level: _gbnf(f'root ::= {_repeats(level + 2)} "."\n'),
        "recursion in GBNF": _gbnf_recursion,
        "counters": _counters,
        "phrases": lambda level: _where(
            [f'"{_letter(each)}{"b" * (each % 9)}{each}" in X' for each in range(6 * (level + 1))],
            "and",
        ),
        "negations": lambda level: _where(
            ["not (" * (10 + 40 * level) + 'len(X) < 5 or "a" in X' + ")" * (10 + 40 * level)], ""
        ),
        "patterns that must not match": _where_patterns,
        "expressions without texts": _without_texts,
        "huge": _huge,
    }
)
