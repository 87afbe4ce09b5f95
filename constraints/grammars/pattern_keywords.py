"""The keywords of JSON Schema with patterns, for the `jsonschema` package.

The package uses Python's `re`; these keywords use `pattern_search`.
"""

from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any

import jsonschema
from referencing.jsonschema import lookup_recursive_ref

from constraints.grammars.pattern_search import is_found
from constraints.grammars.schema.reading import Json

_Errors = Iterator[jsonschema.ValidationError]
_Keyword = Callable[[Any, Json, Json, Json], _Errors]


@lru_cache(maxsize=32)
def with_patterns(kind: type[jsonschema.Validator]) -> type[jsonschema.Validator]:
    """The validator of the same draft with these keywords."""
    ours: dict[str, _Keyword] = {
        "pattern": _pattern,
        "patternProperties": _pattern_properties,
        "additionalProperties": _additional_properties,
        "unevaluatedProperties": _unevaluated_properties,
    }
    known = {name: ours[name] for name in ours.keys() & kind.VALIDATORS.keys()}
    extend: Callable[..., type[jsonschema.Validator]] = jsonschema.validators.extend
    return extend(kind, validators=known)


def _pattern(validator: Any, pattern: Json, instance: Json, schema: Json) -> _Errors:
    if validator.is_type(instance, "string") and not is_found(pattern, instance):
        yield jsonschema.ValidationError(f"{instance!r} does not match {pattern!r}")


def _pattern_properties(validator: Any, patterns: Json, instance: Json, schema: Json) -> _Errors:
    if not validator.is_type(instance, "object"):
        return
    for pattern, inner in patterns.items():
        for name, value in instance.items():
            if is_found(pattern, name):
                yield from validator.descend(value, inner, path=name, schema_path=pattern)


def _additional_properties(validator: Any, rest: Json, instance: Json, schema: Json) -> _Errors:
    if not validator.is_type(instance, "object"):
        return
    declared = _declared(instance, schema)
    extras = [name for name in instance if name not in declared]
    if validator.is_type(rest, "object"):
        for name in extras:
            yield from validator.descend(instance[name], rest, path=name)
    elif not rest and extras:
        yield jsonschema.ValidationError(
            f"Additional properties are not allowed ({_unexpected(extras)})"
        )


def _unevaluated_properties(validator: Any, rest: Json, instance: Json, schema: Json) -> _Errors:
    if not validator.is_type(instance, "object"):
        return
    evaluated = _evaluated(validator, instance, schema)
    extras = [name for name in instance if name not in evaluated]
    if extras:
        yield jsonschema.ValidationError(
            f"Unevaluated properties are not allowed ({_unexpected(extras)})"
        )


def _unexpected(names: list[str]) -> str:
    verb = "was" if len(names) == 1 else "were"
    return f"{', '.join(map(repr, sorted(names)))} {verb} unexpected"


def _declared(instance: Json, schema: Json) -> set[str]:
    """The properties that a schema declares, by name or by pattern."""
    patterns = schema.get("patternProperties", {})
    return set(instance.keys() & schema.get("properties", {}).keys()) | {
        name for name in instance if any(is_found(pattern, name) for pattern in patterns)
    }


def _evaluated(validator: Any, instance: Json, schema: Json) -> set[str]:
    """The properties that a schema evaluates, also through references."""
    if not isinstance(schema, dict):
        return set()
    found = _declared(instance, schema)
    for keyword in ("additionalProperties", "unevaluatedProperties"):
        if keyword in schema:
            inner = validator.evolve(schema=schema[keyword])
            found |= {name for name, value in instance.items() if inner.is_valid(value)}
    for resolved in _resolved(validator, schema):
        there = validator.evolve(schema=resolved.contents, _resolver=resolved.resolver)
        found |= _evaluated(there, instance, resolved.contents)
    for inner in _holding(validator, instance, schema):
        found |= _evaluated(validator, instance, inner)
    return found


def _resolved(validator: Any, schema: Json) -> Iterator[Any]:
    for keyword in ("$ref", "$dynamicRef"):
        if keyword in schema:
            yield validator._resolver.lookup(schema[keyword])
    if "$recursiveRef" in schema:
        yield lookup_recursive_ref(validator._resolver)


def _holding(validator: Any, instance: Json, schema: Json) -> Iterator[Json]:
    """The subschemas that apply to the same instance and that it satisfies."""
    for name, inner in schema.get("dependentSchemas", {}).items():
        if name in instance:
            yield inner
    for keyword in ("allOf", "oneOf", "anyOf"):
        for inner in schema.get(keyword, ()):
            if validator.evolve(schema=inner).is_valid(instance):
                yield inner
    if "if" in schema:
        holds = validator.evolve(schema=schema["if"]).is_valid(instance)
        yield from [schema["if"]] if holds else []
        branch = "then" if holds else "else"
        yield from [schema[branch]] if branch in schema else []
