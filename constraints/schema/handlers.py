"""How the keywords of types, values, numbers, strings, objects and arrays are rewritten.

Names that are allowed become a pattern of keys:

    propertyNames P, properties a, others B    ->  {P but not "a": B}, and no others
"""

import re
from collections.abc import Collection, Iterator, Sequence
from math import lcm

from constraints.errors import Malformed, NotEnforced, TooComplex
from constraints.regex.syntax import Pattern, Repeat, between, children
from constraints.regex.writing import conjuncts, is_found, searching
from constraints.schema import formats
from constraints.schema.reading import TYPES, Json, below, is_annotation, shown
from constraints.schema.rewriting import Handler, Place, put_patterns_last

# Whole numbers that a double holds exactly reach to here; the engine counts in doubles.
_EXACT = 2**53
# It counts characters in 32 bits.
_MOST_COUNTED = 2**31
_SMALLEST = 1e-9
_LARGEST = 1e15
_INEXACT = "{} is beyond the numbers that are held exactly"


def _type(place: Place, value: Json, pointer: str) -> None:
    place.out["type"] = value


def _count(place: Place, value: Json, pointer: str) -> None:
    if value > _MOST_COUNTED:
        place.rewriter.refuse(pointer, f"must be at most {_MOST_COUNTED}. Given: {shown(value)}")
    else:
        place.out[pointer.rpartition("/")[2]] = int(value)


def _values(place: Place, value: Json, pointer: str) -> None:
    keyword = pointer.rpartition("/")[2]
    for leaf in _leaves(value):
        if isinstance(leaf, str):
            place.rewriter.string(leaf, pointer)
        elif not _is_exact(leaf):
            place.rewriter.refuse(pointer, _INEXACT.format(leaf))
    if keyword == "enum" and not value:
        place.also.append(False)
    else:
        place.out[keyword] = value


def _leaves(value: Json) -> Iterator[Json]:
    """The scalars and keys inside of a value."""
    if isinstance(value, dict):
        yield from value
    if isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _leaves(inner)
    else:
        yield value


def _is_exact(value: Json) -> bool:
    if isinstance(value, float):
        return value == 0 or _SMALLEST <= abs(value) <= _LARGEST
    return not isinstance(value, int) or abs(value) <= _EXACT


def _bound(place: Place, value: Json, pointer: str) -> None:
    keyword = pointer.rpartition("/")[2]
    is_low = keyword.endswith("inimum")
    is_tiny = bool(value) and abs(value) < _SMALLEST
    if is_tiny or (abs(value) > _EXACT and (value < 0) != is_low):
        place.rewriter.refuse(pointer, _INEXACT.format(value))
    else:
        # The bounds of machine words, and larger ones, are reduced to exact numbers.
        place.out[keyword] = max(-_EXACT, min(value, _EXACT))


def _multiple_of(place: Place, value: Json, pointer: str) -> None:
    # The engine multiplies combined steps in 32 bits.
    digits = repr(value).removesuffix(".0")
    if "e" in digits or len(digits.replace(".", "").strip("0")) > 4 or len(digits) > 9:
        place.rewriter.refuse(pointer, f"a step of {value} has too many digits to be enforced")
        return
    # The engine wants all decimals of the step, and takes no negative number in bounds whose last
    # one is 0: so a multiple of 0.25 may be one of 0.5 as well.
    steps = [value, *_coarser(digits)]
    if len(steps) == 1:
        place.out["multipleOf"] = value
        return
    place.also.append({"anyOf": [_typed(place, {"multipleOf": each}) for each in steps]})


def _coarser(step: str) -> list[float]:
    """The steps of those multiples that have fewer decimals, where the engine cannot tell them."""
    num_decimals = len(step.partition(".")[2])
    digits = int(step.replace(".", ""))
    if 10 % digits == 0:
        return []
    return [lcm(digits, 10**more) / 10**num_decimals for more in range(1, num_decimals)]


def _typed(place: Place, said: dict[str, Json]) -> Json:
    """A further schema of the values that a schema is about."""
    return said | ({"type": place.schema["type"]} if "type" in place.schema else {})


def _pattern(place: Place, value: Json, pointer: str) -> None:
    for piece in conjuncts(value):
        translated = engine_pattern(place, piece, pointer)
        if translated is not None:
            _add_pattern(place, translated)


def _add_pattern(place: Place, pattern: str) -> None:
    if "pattern" in place.out:
        place.also.append(_typed(place, {"pattern": pattern}))
    else:
        place.out["pattern"] = pattern


def engine_pattern(place: Place, pattern: str, pointer: str) -> str | None:
    """The rewritten form of a pattern; None if it was refused."""
    try:
        return place.rewriter.translated(pattern)
    except NotEnforced as error:
        place.rewriter.refuse(pointer, str(error))
    except Malformed as error:
        raise Malformed(f"{pointer}: {error}", pointer=pointer) from None
    return None


def _format(place: Place, value: Json, pointer: str) -> None:
    if value in formats.MAX_LEN:
        place.also.append(_typed(place, {"maxLength": formats.MAX_LEN[value]}))
    if value in formats.PATTERNS:
        _add_pattern(place, f"^(?:{formats.PATTERNS[value]})$")
    elif value in formats.BY_ENGINE:
        place.out["format"] = value
    elif value in formats.RANGES:
        _integer_format(place, value, pointer)
    elif value not in formats.ANNOTATIONS and "pattern" not in place.schema:
        # Generators write a format of their own beside its pattern.
        place.rewriter.note(pointer)


def _integer_format(place: Place, value: Json, pointer: str) -> None:
    """A format that is a range of integers: of numbers, and of strings of digits."""
    types = place.schema.get("type", TYPES)
    names = [types] if isinstance(types, str) else types
    low, high = formats.RANGES[value]
    plain = dict.fromkeys("integer" if name == "number" else name for name in names)
    in_range: Json = {"minimum": low, "maximum": high}
    options: list[Json] = [{"type": [name for name in plain if name != "string"], **in_range}]
    if "string" in plain:
        digits = rf"^(?:{between(0, high)}{f'|-{between(1, -low)}' if low else ''})$"
        options.append({"type": "string", "pattern": digits})
    options = [option for option in options if option["type"]]
    place.more(options[0] if len(options) == 1 else {"anyOf": options}, pointer)


_MAX_REFERENCES = 20
# The engine compares all pairs.
_MAX_PATTERNS = 64
# Lengths are enforced by a pattern, which needs states.
_MAX_NAME_LEN = 1000
_OF_NAMES = frozenset(("pattern", "format", "minLength", "maxLength"))
_OTHER_NAMES = (
    "names of properties are enforced by `enum` or `const`, or by `pattern`, `format` and lengths"
)


def pattern_properties(place: Place, value: Json, pointer: str) -> None:
    """The keyword's handler; also for patterns that another keyword brings."""
    if len(value) > _MAX_PATTERNS:
        raise TooComplex(f"{pointer}: more than {_MAX_PATTERNS} patterns of one object")
    # Other keywords may have been handled before.
    patterns = place.out.setdefault("patternProperties", {})
    for pattern, inner in value.items():
        translated = engine_pattern(place, pattern, pointer)
        if translated is not None and _is_of_names(place, pattern):
            place.rewriter.refuse(pointer, f"only names have the pattern {pattern}: declare them")
        elif translated is not None:
            rule = place.rewriter.schema(inner, below(pointer, pattern))
            patterns[translated] = (
                {"allOf": [patterns[translated], rule]} if translated in patterns else rule
            )


def _is_of_names(place: Place, pattern: str) -> bool:
    """Whether no keys but declared or required ones have a pattern: the engine breaks there."""
    names = [*place.schema.get("properties", ()), *place.schema.get("required", ())]
    found = searching(pattern)
    is_short = bool(names) and found is not None and _is_finite(found)
    return is_short and searching(_cell([pattern], names)) is None


def _is_finite(pattern: Pattern) -> bool:
    is_endless = isinstance(pattern, Repeat) and pattern.max_count is None
    return not is_endless and all(map(_is_finite, children(pattern)))


def _property_names(place: Place, value: Json, pointer: str) -> None:
    """Rewritten as `properties` for a list of names, or as `patternProperties`."""
    match _names(place, pointer):
        case False:
            place.out["maxProperties"] = 0
        case True:
            return
        case _ if "patternProperties" in place.schema:
            place.rewriter.refuse(pointer, "propertyNames beside patternProperties is not enforced")
        case {"enum": listed, **rest} if not rest:
            _only_names(place, listed, pointer)
        case names if not names.keys() <= _OF_NAMES or _is_unknown(names.get("format")):
            place.rewriter.refuse(pointer, _OTHER_NAMES)
        case names:
            longest = max(names.get("minLength", 0), names.get("maxLength", 0))
            if longest > _MAX_NAME_LEN:
                reason = f"lengths of names beyond {_MAX_NAME_LEN} are not enforced"
                place.rewriter.refuse(pointer, reason)
            elif names.get("maxLength", longest) < names.get("minLength", 0):
                place.out["maxProperties"] = 0
            else:
                _names_by_patterns(place, _patterns_of(names), pointer)


def _names(place: Place, pointer: str) -> Json:
    """What `propertyNames` asserts of strings, behind references; true: nothing."""
    names = place.schema.get("propertyNames", True)
    for _ in range(_MAX_REFERENCES):
        if isinstance(names, bool):
            return names
        place.rewriter.check_keywords(names, pointer)
        names = {key: value for key, value in names.items() if not is_annotation(key)}
        if set(names) != {"$ref"}:
            break
        names = place.rewriter.raw(place.rewriter.resolve(names["$ref"], pointer))
    if names.get("type") == "string":
        del names["type"]
    return {"enum": [names["const"]]} if set(names) == {"const"} else names or True


def _is_unknown(name: Json) -> bool:
    return name is not None and name not in formats.PATTERNS and name != "uuid"


def _patterns_of(names: dict[str, Json]) -> list[str]:
    """Patterns that are all found in every name that is allowed."""
    found = [names["pattern"]] if "pattern" in names else []
    if "format" in names and not _is_unknown(names["format"]):
        found.append(f"^(?:{formats.PATTERNS.get(names['format'], formats.UUID)})$")
    if names.get("minLength") or "maxLength" in names:
        most = int(names["maxLength"]) if "maxLength" in names else ""
        found.append(rf"^[\s\S]{{{int(names.get('minLength', 0))},{most}}}$")
    return found


def _only_names(place: Place, names: list[Json], pointer: str) -> None:
    declared = place.schema.get("properties", {})
    rest = place.schema.get("additionalProperties", True)
    listed = [name for name in names if isinstance(name, str)]
    properties: dict[str, Json] = {name: False for name in declared if name not in listed}
    for name in listed:
        if name not in declared:
            properties[name] = place.rewriter.schema(rest, pointer)
    place.out["properties"] = place.out.get("properties", {}) | properties
    place.out["additionalProperties"] = False


def _names_by_patterns(place: Place, allowed: list[str], pointer: str) -> None:
    if not allowed or None in [engine_pattern(place, each, pointer) for each in allowed]:
        return
    declared = place.schema.get("properties", {})
    rest = place.schema.get("additionalProperties", True)
    properties = place.out.get("properties", {})
    named = dict.fromkeys([*declared, *place.schema.get("required", ())])
    for name in named:
        if not all(is_found(each, name) for each in allowed):
            properties[name] = False
        elif name not in declared:
            properties[name] = place.rewriter.schema(rest, pointer)
    if properties:
        place.out["properties"] = properties
    others = _cell(allowed, named)
    translated = engine_pattern(place, others, pointer)
    if translated is not None and rest is not False and searching(others) is not None:
        place.out["patternProperties"] = {translated: place.rewriter.schema(rest, pointer)}
    place.out["additionalProperties"] = False


def _cell(inside: Sequence[str], names: Collection[str]) -> str:
    """A pattern of the texts in which all patterns are found, and that are none of some names."""
    if len(inside) == 1 and not names:
        return inside[0]
    found = [rf"(?=[\s\S]*(?:{each}))" for each in inside]
    missed = f"(?!(?:{'|'.join(map(escaped, names))})$)" if names else ""
    return f"^{missed}{''.join(found)}"


def unorder(schema: dict[str, Json], pointer: str) -> None:
    """Describe the keys of a rewritten schema by patterns, which the engine takes in any order.

    That none comes twice, and that none is missing, has to be watched. Raises NotEnforced.
    """
    schema.pop("required", None)
    properties = schema.pop("properties", {})
    patterns: dict[str, Json] = {}
    for name, inner in properties.items():
        spelt = "".join(rf"\x{{{ord(char):X}}}" for char in name)
        patterns[f"^(?:{spelt})$"] = inner
    if len(patterns) > _MAX_PATTERNS:
        reason = f"keys come in any order in objects of up to {_MAX_PATTERNS} properties"
        raise NotEnforced(f"{pointer or 'the schema'}: {reason}", pointer)
    if patterns:
        schema["patternProperties"] = patterns | schema.get("patternProperties", {})
        put_patterns_last(schema)


def escaped(name: str) -> str:
    """A pattern (ECMA 262) of this text alone."""
    return re.sub(r"[^a-zA-Z0-9_]", lambda char: rf"\u{{{ord(char[0]):x}}}", name)


# Keywords by which it can depend on the instance what is evaluated; below `not` nothing is.
_CONDITIONS = frozenset(
    ("anyOf", "oneOf", "if", "dependentSchemas", "dependencies", "$dynamicRef", "contains")
)
_INSTANCE_DECIDES = "what is evaluated depends on the instance; not enforced"
# The engine takes quadratic time, half a second for so many.
_MAX_PROPERTIES = 2000


def _properties(place: Place, value: Json, pointer: str) -> None:
    if len(value) > _MAX_PROPERTIES:
        raise TooComplex(f"{pointer}: more than {_MAX_PROPERTIES} properties of one object")
    for name in value:
        place.rewriter.string(name, pointer)
    ordering = place.schema.get("propertyOrdering", ())
    in_order = {name: value[name] for name in (*ordering, *value) if name in value}
    rewritten = place.map(in_order, pointer)
    # `propertyNames` and `unevaluatedProperties` may have been handled before.
    already = place.out.get("properties", {})
    place.out["properties"] = rewritten | {
        name: inner for name, inner in already.items() if name not in rewritten or inner is False
    }


def _rest(place: Place, value: Json, pointer: str) -> None:
    if "additionalProperties" not in place.out:
        place.out["additionalProperties"] = place.rewriter.schema(value, pointer)


def _required(place: Place, value: Json, pointer: str) -> None:
    for name in value:
        place.rewriter.string(name, pointer)
    place.out["required"] = list(dict.fromkeys(value))


def _min_properties(place: Place, value: Json, pointer: str) -> None:
    required = set(place.schema.get("required", ()))
    if value <= len(required):
        return
    # The engine counts a repeated key twice; a minimum of one is not affected.
    if value - len(required) > 1 or _has_optional(place):
        place.watch("minProperties", int(value), pointer)
    else:
        place.out["minProperties"] = int(value)


def _max_properties(place: Place, value: Json, pointer: str) -> None:
    if _has_optional(place):
        place.watch("maxProperties", int(value), pointer)
    else:
        # `propertyNames` may have left none already.
        place.out["maxProperties"] = min(int(value), place.out.get("maxProperties", int(value)))


def _has_optional(place: Place) -> bool:
    """Whether a declared property is optional, beside which the engine counts none."""
    declared = place.schema.get("properties", {}).keys() - place.schema.get("required", ())
    return bool(declared) or "propertyNames" in place.schema


def _unevaluated_properties(place: Place, value: Json, pointer: str) -> None:
    if value is True or "additionalProperties" in place.schema:
        return
    applied = _always_applied(place)
    # Allowed names are not evaluated, but are rewritten as properties, which would be.
    if applied is None or "propertyNames" in place.schema:
        place.rewriter.refuse(pointer, _INSTANCE_DECIDES)
        return
    if any(each.keys() & {"additionalProperties", "unevaluatedProperties"} for each in applied):
        return
    own = place.schema.get("properties", {})
    names = [name for each in applied for name in each.get("properties", {})]
    merged = {name: True for name in names if name not in own}
    place.out["properties"] = place.out.get("properties", {}) | merged
    patterns = [name for each in applied for name in each.get("patternProperties", {})]
    if patterns:
        own = place.schema.get("patternProperties", {})
        pattern_properties(place, dict.fromkeys(patterns, True) | own, pointer)
    place.out["additionalProperties"] = place.rewriter.schema(value, pointer)


def _always_applied(place: Place) -> list[dict[str, Json]] | None:
    """The other schemas that always apply; None: that may depend on the instance.

    Raises Malformed.
    """
    found: list[dict[str, Json]] = []
    seen: set[str] = set()
    to_do: list[Json] = [place.schema]
    while to_do:
        schema = to_do.pop(0)
        if isinstance(schema, bool):
            continue
        place.rewriter.check_keywords(schema, place.pointer)
        if schema.keys() & _CONDITIONS:
            return None
        found.append(schema)
        to_do += schema.get("allOf", ())
        if "$ref" in schema:
            target = place.rewriter.resolve(schema["$ref"], place.pointer)
            if target not in seen:
                seen.add(target)
                to_do.append(place.rewriter.raw(target))
    return found[1:]


def _prefix_items(place: Place, value: Json, pointer: str) -> None:
    # `unevaluatedItems` may have been handled before.
    already = place.out.get("prefixItems", [])
    place.out["prefixItems"] = place.list(value, pointer) + already[len(value) :]


def _items(place: Place, value: Json, pointer: str) -> None:
    if not isinstance(value, list):
        place.out["items"] = place.rewriter.schema(value, pointer)
    elif value:
        # Before 2020-12 a list meant what `prefixItems` means now.
        _prefix_items(place, value, pointer)


def _additional_items(place: Place, value: Json, pointer: str) -> None:
    rewritten = place.rewriter.schema(value, pointer)
    if isinstance(place.schema.get("items"), list):
        place.out["items"] = rewritten


def _unevaluated_items(place: Place, value: Json, pointer: str) -> None:
    rewritten = place.rewriter.schema(value, pointer)
    if value is True or _has_rest(place.schema):
        return
    applied = _always_applied(place)
    if applied is None:
        place.rewriter.refuse(pointer, _INSTANCE_DECIDES)
        return
    if any(_has_rest(each) or "unevaluatedItems" in each for each in applied):
        return
    num_evaluated = max(map(_num_first, applied), default=0)
    first = place.out.get("prefixItems", [True] * _num_first(place.schema))
    if first or num_evaluated:
        place.out["prefixItems"] = first + [True] * (num_evaluated - len(first))
    place.out["items"] = rewritten


def _has_rest(schema: dict[str, Json]) -> bool:
    """Whether a schema says what all items are that have no schema of their own."""
    items = schema.get("items")
    return isinstance(items, dict | bool) or (items is not None and "additionalItems" in schema)


def _num_first(schema: dict[str, Json]) -> int:
    """How many items have a schema of their own."""
    items = schema.get("items")
    return len(items if isinstance(items, list) else schema.get("prefixItems", []))


def _unique_items(place: Place, value: Json, pointer: str) -> None:
    if value and place.schema.get("maxItems", 2) > 1:
        place.watch("uniqueItems", value, pointer)


def _contains(place: Place, value: Json, pointer: str) -> None:
    like = place.rewriter.schema(value, pointer)
    least = int(place.schema.get("minContains", 1))
    most = place.schema.get("maxContains")
    if least == 0 and most is None:
        return
    counts = (least, None if most is None else int(most))
    place.watch("contains", [{"schema": value, "counts": counts, "like": like}], pointer)
    if least:
        place.also.append({"minItems": least})


HANDLERS: dict[str, Handler] = {
    "type": _type,
    **dict.fromkeys(("minLength", "maxLength", "minItems", "maxItems"), _count),
    **dict.fromkeys(("const", "enum"), _values),
    **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"), _bound),
    "multipleOf": _multiple_of,
    "pattern": _pattern,
    "format": _format,
    "patternProperties": pattern_properties,
    "propertyNames": _property_names,
    "properties": _properties,
    "additionalProperties": _rest,
    "required": _required,
    "minProperties": _min_properties,
    "maxProperties": _max_properties,
    "unevaluatedProperties": _unevaluated_properties,
    "prefixItems": _prefix_items,
    "items": _items,
    "additionalItems": _additional_items,
    "unevaluatedItems": _unevaluated_items,
    "uniqueItems": _unique_items,
    "contains": _contains,
}
