"""Rewritten schemas: what their parts say, which exclude each other, and the grammar text of all.

So that `oneOf` becomes `anyOf`, schemas are compared by their types and, of objects, by the values
of keys that one of them requires: the tag of a tagged union. Of others the engine is asked whether
anything is both.

References without a finite instance are taken out first: {"a": {"$ref": "#"}} with "a" required.
The engine would allow their beginnings without end. No value is valid in place of such a reference,
so it is replaced by `false`, which the engine never enters.
"""

import json
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import TypeAlias

from llguidance import LLMatcher

from constraints.definition_graph import check_depth, closure
from constraints.engine import HEADER, LIMITS, error_of
from constraints.errors import ConstraintError, Contradiction
from constraints.schema.reading import Json, hashable
from constraints.spec import Whitespace

# What the engine is not given: keywords for which texts are watched beside it.
WATCH = "x-watch"


def prune(root: Json, definitions: dict[str, Json]) -> bool:
    """Replace such references by `false`, in place; returns whether `root` has an instance.

    Raises TooComplex for definitions that are nested too deeply.
    """
    mentions = {name: mentioned(schema) for name, schema in definitions.items()}
    check_depth(mentioned(root), mentions)
    ending = closure(mentions, lambda name, known: _ends(definitions[name], known))
    unproductive = {f"#/$defs/{name}" for name in definitions if name not in ending}
    if unproductive:
        for part in all_parts(root, definitions):
            if part.get("$ref") in unproductive:
                part.clear()
                part["allOf"] = [False]
    return _ends(root, ending)


def parts(schema: Json) -> Iterator[dict[str, Json]]:
    """The schema and all schemas inside of it that are objects, of a rewritten schema."""
    pending = [schema]
    while pending:
        each = pending.pop()
        if not isinstance(each, dict):
            continue
        yield each
        pending.extend(inside(each))


def inside(schema: dict[str, Json]) -> Iterator[Json]:
    """The schemas that a rewritten one has directly inside."""
    for key, value in schema.items():
        if key in ("allOf", "anyOf", "oneOf", "prefixItems"):
            yield from value
        elif key in ("properties", "patternProperties"):
            yield from value.values()
        elif key in ("additionalProperties", "items"):
            yield value


def all_parts(root: Json, definitions: dict[str, Json]) -> list[dict[str, Json]]:
    """Those of a schema and of its definitions."""
    return [part for schema in (root, *definitions.values()) for part in parts(schema)]


def mentioned(schema: Json) -> list[str]:
    """The definitions that a rewritten schema refers to."""
    return [part["$ref"].rpartition("/")[2] for part in parts(schema) if "$ref" in part]


def _ends(schema: Json, ending: set[str]) -> bool:
    """Whether there is a finite instance, given the definitions known to have one."""
    if isinstance(schema, bool):
        return schema
    reference = schema.get("$ref")
    if reference is not None and reference.rpartition("/")[2] not in ending:
        return False
    if not all(_ends(part, ending) for part in schema.get("allOf", ())):
        return False
    for key in ("anyOf", "oneOf"):
        if key in schema and not any(_ends(option, ending) for option in schema[key]):
            return False
    if "const" in schema or "enum" in schema:
        return True
    return any(_ends_as(name, schema, ending) for name in types_of(schema))


def _ends_as(name: str, schema: Json, ending: set[str]) -> bool:
    if name == "object":
        properties = schema.get("properties", {})
        rest = schema.get("additionalProperties", True)
        # Keys by pattern count as productive: only the engine interprets patterns.
        has_patterns = bool(schema.get("patternProperties"))
        return all(
            _ends(properties[key], ending)
            if key in properties
            else has_patterns or _ends(rest, ending)
            for key in schema.get("required", ())
        )
    if name == "array":
        first = schema.get("prefixItems", [])
        least = int(schema.get("minItems", 0))
        items = first[:least]
        if least > len(first):
            items = [*first, schema.get("items", True)]
        return all(_ends(item, ending) for item in items)
    return True


# The deepest indentation, in blanks or in tabs; more of it, blanks and tabs mixed, and blank lines
# mean that the model is stuck in a loop. The engine lets it stand before a colon, too.
_MAX_BLANKS = 120
_MAX_TABS = 30
_SPELLINGS: dict[Whitespace, dict[str, Json]] = {
    Whitespace.FLEXIBLE: {
        "whitespace_pattern": (
            rf"(?:[\x20\x09]|\x0D?\x0A(?:\x20{{0,{_MAX_BLANKS}}}|\x09{{1,{_MAX_TABS}}}))"
        )
    },
    Whitespace.COMPACT: {"whitespace_flexible": False},
    Whitespace.SPACED: {
        "whitespace_flexible": False,
        "item_separator": ", ",
        "key_separator": ": ",
    },
    # Separators are patterns.
    Whitespace.OPTIONAL: {
        "whitespace_flexible": False,
        "item_separator": ", ?",
        "key_separator": ": ?",
    },
}
# All escapes of JSON except \u and \/.
_PLAIN_ESCAPES = 'nrbtf\\"'


def may_respell_keys(root: Json, definitions: dict[str, Json]) -> bool:
    """Whether some object has both declared and other keys.

    There the engine takes a \\u escape in a key for another key: it would let "\\u0061" have what
    "a" may not.
    """
    return any(map(_may_respell, all_parts(root, definitions)))


def _may_respell(part: dict[str, Json]) -> bool:
    if part.get("additionalProperties") is not False:
        return bool({"properties", "patternProperties", "required"} & part.keys())
    # Keys by patterns have escapes only of what JSON has to escape; and more than one each, as
    # \u001f and \u001F are.
    names = (*part.get("properties", ()), *part.get("required", ()))
    return bool(part.get("patternProperties")) and any(map(_has_control, names))


def _has_control(name: str) -> bool:
    return any(char < " " or char == "\x7f" for char in name)


def grammar_of(root: Json, definitions: dict[str, Json], whitespace: Whitespace) -> str:
    return f"{HEADER}start: {json_literal(root, definitions, whitespace)}\n"


def refusal_of(root: Json, definitions: dict[str, Json]) -> ConstraintError | None:
    """Why the engine refuses a rewritten schema; None: it does not."""
    grammar = grammar_of(root, definitions, Whitespace.COMPACT)
    is_wrong, messages = LLMatcher.validate_grammar_with_warnings(grammar, limits=LIMITS)
    return error_of(messages[0]) if is_wrong else None


def json_literal(root: Json, definitions: dict[str, Json], whitespace: Whitespace) -> str:
    """The schema as part of a grammar."""
    options = dict(_SPELLINGS[whitespace])
    if may_respell_keys(root, definitions):
        options["json_allowed_escapes"] = _PLAIN_ESCAPES
    schema = root if isinstance(root, dict) else {"allOf": [root]}
    whole = {**schema, "$defs": definitions, "x-guidance": options}
    return f"%json {json.dumps(whole)}"


OVERLAPPING = (
    "the options of oneOf are not known to exclude each other; write anyOf, or give each"
    " option a required property with a const of its own"
)
# Pairs of options, by their indices; the first one is the smaller.
Pairs: TypeAlias = frozenset[tuple[int, int]]

_TYPES: dict[type, str] = {
    type(None): "null",
    bool: "boolean",
    int: "number",
    float: "number",
    str: "string",
    list: "array",
    dict: "object",
}
_ALL_TYPES = frozenset(_TYPES.values())
_MAX_DEPTH = 5
# The most options of a `oneOf` that are compared.
_MAX_OPTIONS = 200
# The most questions to the engine for one `oneOf`; each takes 1 or 2 ms.
_MAX_ASKED = 66


def open_one_ofs(root: Json, definitions: dict[str, Json]) -> list[tuple[dict[str, Json], Pairs]]:
    """Turn each `oneOf` whose options exclude each other into `anyOf`, in place.

    Returns the other schemas, and the pairs of their options that may have values in common.
    """
    others = []
    for part in [each for each in all_parts(root, definitions) if "oneOf" in each]:
        pairs = _overlaps(part["oneOf"], definitions)
        if pairs:
            others.append((part, pairs))
        else:
            _rename_one_of(part)
    return others


def _rename_one_of(part: dict[str, Json]) -> None:
    if "anyOf" in part:
        part.setdefault("allOf", []).append({"anyOf": part.pop("oneOf")})
        return
    # At the same position: the engine orders keys by their first occurrence.
    renamed = {"anyOf" if key == "oneOf" else key: value for key, value in part.items()}
    part.clear()
    part.update(renamed)


def _overlaps(options: list[Json], definitions: dict[str, Json]) -> Pairs:
    """The pairs that are not known to exclude each other, by their indices."""
    pairs = list(combinations(range(len(options)), 2))
    if len(options) > _MAX_OPTIONS:
        return frozenset(pairs)
    said = [_said(option, definitions) for option in options]
    unlike = [(one, other) for one, other in pairs if not said[one].excludes(said[other])]
    return frozenset(
        (one, other)
        for index, (one, other) in enumerate(unlike)
        if index >= _MAX_ASKED
        or not isinstance(
            refusal_of({"allOf": [options[one], options[other]]}, definitions), Contradiction
        )
    )


@dataclass(frozen=True, slots=True)
class _Said:
    """What a schema says for certain, as far as it is read here.

    types:    that its values may have
    required: keys of objects
    values:   by the key of an object, what it may be there
    """

    types: frozenset[str]
    required: frozenset[str]
    values: Mapping[str, frozenset[Hashable]]

    def excludes(self, other: "_Said") -> bool:
        """Whether no value satisfies both: by type, or by a tag of objects."""
        types = self.types & other.types
        shared = self.values.keys() & other.values.keys() & (self.required | other.required)
        return not types or (
            types == {"object"}
            and any(self.values[key].isdisjoint(other.values[key]) for key in shared)
        )


def _said(schema: Json, definitions: Mapping[str, Json]) -> _Said:
    types = _ALL_TYPES if schema is not False else frozenset()
    required: frozenset[str] = frozenset()
    values: dict[str, frozenset[Hashable]] = {}
    for part in _all_conjuncts(schema, definitions, 0):
        types &= types_of(part)
        required |= {*part.get("required", ())}
        for key, inner in part.get("properties", {}).items():
            for listed in map(values_of, _all_conjuncts(inner, definitions, 0)):
                if listed is not None:
                    values[key] = frozenset(map(hashable, listed))
    return _Said(types, required, values)


def _all_conjuncts(
    schema: Json, definitions: Mapping[str, Json], depth: int
) -> Iterator[dict[str, Json]]:
    """The schema and those that hold beside it, also behind references."""
    if isinstance(schema, dict) and depth <= _MAX_DEPTH:
        yield schema
        for each in conjuncts(schema, definitions):
            yield from _all_conjuncts(each, definitions, depth + 1)


def conjuncts(schema: Json, definitions: Mapping[str, Json]) -> list[Json]:
    """The schemas that hold beside a schema's own keywords."""
    referred = [definitions[schema["$ref"].rpartition("/")[2]]] if "$ref" in schema else []
    return [*referred, *schema.get("allOf", ())]


def types_of(schema: Json) -> frozenset[str]:
    """The types that a schema's own keywords allow; an integer is a number."""
    values = values_of(schema)
    if values is not None:
        return frozenset(_TYPES[type(value)] for value in values)
    types = schema.get("type", _ALL_TYPES)
    names = {types} if isinstance(types, str) else set(types)
    return frozenset("number" if name == "integer" else name for name in names)


def values_of(schema: Json) -> list[Json] | None:
    """The values that a schema lists."""
    if "const" in schema:
        return [schema["const"]]
    values: list[Json] | None = schema.get("enum")
    return values
