"""Negates schemas: the schema of everything that another one refuses, where it can be expressed.

not {"type": "null"}                    ->  every other type
not {"enum": ["a", "b"]}                ->  other types, or strings by a pattern that avoids both
not {"required": ["x"]}                 ->  an object without "x"
not {"properties": {"kind": S}}         ->  an object that has "kind", and there not S

So `not`, `if` and dependencies, which the engine lacks, are rewritten as alternatives.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby, pairwise

from constraints.errors import Malformed, NotEnforced
from constraints.grammars.look_around import opposites
from constraints.grammars.regex import searching
from constraints.grammars.schema.drafts import Draft
from constraints.grammars.schema.keywords import is_annotation
from constraints.grammars.schema.reading import Json

# "integer" is a part of "number", so neither has a complement among the types alone.
_DISTINCT = ("null", "boolean", "string", "array", "object")
_MAX_REFERENCES = 20
_COUNTS = frozenset(("minContains", "maxContains"))

# Resolves a reference at a pointer: returns the schema and its pointer.
Resolve = Callable[[str], Json]


class NoNegation(Exception):
    """The negation cannot be expressed; the message names the keyword that prevents it."""


def negation(schema: Json, resolve: Resolve, draft: Draft, depth: int = 0) -> Json:
    """A schema of exactly what `schema` refuses, as its draft reads it. Raises NoNegation."""
    if isinstance(schema, bool):
        return not schema
    if depth > _MAX_REFERENCES:
        raise NoNegation("$ref")
    refusals: list[Json] = []
    for keyword, value in draft.read(schema).items():
        if draft.ignores(keyword, value):
            raise NoNegation(keyword)
        if is_annotation(keyword) or (keyword in _COUNTS and "contains" not in schema):
            continue
        if keyword == "contains" and not schema.keys() & _COUNTS:
            items = negation(value, resolve, draft, depth + 1)
            refusals.append({"type": "array", "items": items})
            continue
        refusals.append(_of_keyword(keyword, value, resolve, draft, depth + 1))
    return _any_of(refusals)


def _of_keyword(keyword: str, value: Json, resolve: Resolve, draft: Draft, depth: int) -> Json:
    match keyword:
        case "type":
            return _not_types(value)
        case "const" | "enum":
            return _not_values([value] if keyword == "const" else value)
        case "pattern":
            return _any_of({"type": "string", "pattern": each} for each in _opposites(value))
        case "required":
            return _any_of({"type": "object", "properties": {name: False}} for name in value)
        case "properties":
            return _any_of(
                {"type": "object", "required": [name], "properties": {name: refused}}
                for name, inner in value.items()
                if (refused := negation(inner, resolve, draft, depth)) is not False
            )
        case "anyOf":
            return _all_of(negation(inner, resolve, draft, depth) for inner in value)
        case "allOf":
            return _any_of(negation(inner, resolve, draft, depth) for inner in value)
        case "not":
            return value
        case "$ref":
            return negation(resolve(value), resolve, draft, depth)
    return _beyond_bound(keyword, value)


def _beyond_bound(keyword: str, value: Json) -> Json:
    match keyword:
        case "minimum" | "maximum" | "exclusiveMinimum" | "exclusiveMaximum":
            if isinstance(value, bool):
                raise NoNegation(keyword)
            beyond = {
                "minimum": "exclusiveMaximum",
                "maximum": "exclusiveMinimum",
                "exclusiveMinimum": "maximum",
                "exclusiveMaximum": "minimum",
            }[keyword]
            return {"type": "number", beyond: value}
        case "minLength" | "minItems" | "minProperties":
            kind = {"minLength": "string", "minItems": "array"}.get(keyword, "object")
            if value < 1:
                return False
            return {"type": kind, keyword.replace("min", "max"): int(value) - 1}
        case "maxLength" | "maxItems" | "maxProperties":
            kind = {"maxLength": "string", "maxItems": "array"}.get(keyword, "object")
            return {"type": kind, keyword.replace("max", "min"): int(value) + 1}
    raise NoNegation(keyword)


def _not_types(value: Json) -> Json:
    named = set(value if isinstance(value, list) else [value])
    if "integer" in named and "number" not in named:
        raise NoNegation("type")
    others = [name for name in _DISTINCT if name not in named]
    if "number" not in named:
        others.append("number")
    return {"type": others} if others else False


def _not_values(values: Sequence[Json]) -> Json:
    """Everything except some values, each a null, a boolean, a number or a string."""
    if any(isinstance(value, dict | list) for value in values):
        raise NoNegation("enum")
    strings = sorted({value for value in values if isinstance(value, str)})
    numbers = sorted({value for value in values if _is_number(value)})
    bools = {value for value in values if isinstance(value, bool)}
    untouched = ["array", "object"]
    options: list[Json] = []
    if None not in values:
        untouched.append("null")
    if not bools:
        untouched.append("boolean")
    elif len(bools) == 1:
        options.append({"const": not bools.pop()})
    if strings:
        options.append({"type": "string", "pattern": _pattern_besides(strings)})
    else:
        untouched.append("string")
    if numbers:
        options.extend(_ranges_besides(numbers))
    else:
        untouched.append("number")
    return _any_of([{"type": untouched}, *options])


def _is_number(value: Json) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _ranges_besides(numbers: Sequence[float]) -> list[Json]:
    between = [
        {"type": "number", "exclusiveMinimum": low, "exclusiveMaximum": high}
        for low, high in pairwise(numbers)
    ]
    return [
        {"type": "number", "exclusiveMaximum": numbers[0]},
        *between,
        {"type": "number", "exclusiveMinimum": numbers[-1]},
    ]


def _opposites(pattern: str) -> list[str]:
    """Patterns of which at least one is found where this one is not."""
    found = opposites(pattern)
    try:
        for each in found:
            searching(each)
    except (Malformed, NotEnforced):
        raise NoNegation("pattern") from None
    return found


def _pattern_besides(strings: Sequence[str]) -> str:
    """A pattern (ECMA 262) of all strings except these, which are sorted."""
    return f"^(?:{_besides(strings)})$"


def _besides(strings: Sequence[str]) -> str:
    """A pattern by first characters: one that no string has, or a shared one and another rest."""
    options = [] if "" in strings else [""]
    firsts = []
    for first, group in groupby((each for each in strings if each), key=lambda each: each[0]):
        firsts.append(first)
        rests = [each[1:] for each in group]
        options.append(f"{_escaped(first)}(?:{_besides(rests)})")
    others = f"[^{''.join(map(_escaped, firsts))}]" if firsts else r"[\s\S]"
    options.append(rf"{others}[\s\S]*")
    return "|".join(options)


def _escaped(char: str) -> str:
    return rf"\u{{{ord(char):x}}}" if not re.fullmatch(r"[a-zA-Z0-9]", char) else char


def _any_of(schemas: Iterable[Json]) -> Json:
    options = [each for each in schemas if each is not False]
    if not options or True in options:
        return bool(options)
    return options[0] if len(options) == 1 else {"anyOf": options}


def _all_of(schemas: Iterable[Json]) -> Json:
    parts = [each for each in schemas if each is not True]
    if False in parts:
        return False
    return {"allOf": parts} if len(parts) > 1 else parts[0] if parts else True
