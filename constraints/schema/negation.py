"""Keywords that combine schemas, and the schema of everything that another one refuses.

not {"type": "null"}                    ->  every other type
not {"enum": ["a", "b"]}                ->  other types, or strings by a pattern that avoids both
not {"required": ["x"]}                 ->  an object without "x"
not {"properties": {"kind": S}}         ->  an object that has "kind", and there not S

So `not`, `if` and dependencies, which the engine lacks, are rewritten as alternatives, where the
negation can be expressed.
"""

from collections.abc import Iterable, Sequence
from itertools import groupby, pairwise

from constraints.errors import Malformed, NotEnforced
from constraints.regex.writing import opposite, searching
from constraints.schema.grammar import OVERLAPPING, Pairs
from constraints.schema.handlers import escaped
from constraints.schema.reading import Json, below, is_annotation, is_number
from constraints.schema.rewriting import Handler, Place, Rewriter

# "integer" is a part of "number", so neither has a complement among the types alone.
_DISTINCT = ("null", "boolean", "string", "array", "object")
_MAX_REFERENCES = 20
_COUNTS = frozenset(("minContains", "maxContains"))
_OF_REST = frozenset(("additionalProperties", "items", "additionalItems"))

# Of what is beyond a bound the type, its own bound, and how far that is.
_BEYOND = {
    "minimum": ("number", "exclusiveMaximum", 0),
    "maximum": ("number", "exclusiveMinimum", 0),
    "exclusiveMinimum": ("number", "maximum", 0),
    "exclusiveMaximum": ("number", "minimum", 0),
    "minLength": ("string", "maxLength", -1),
    "maxLength": ("string", "minLength", 1),
    "minItems": ("array", "maxItems", -1),
    "maxItems": ("array", "minItems", 1),
    "minProperties": ("object", "maxProperties", -1),
    "maxProperties": ("object", "minProperties", 1),
}
# The most references that one negation follows.
_MAX_FOLLOWED = 200


class NoNegation(Exception):
    """The negation cannot be expressed; the message names the keyword that prevents it."""


class _Negation:
    """Schemas of exactly what raw schemas refuse. `pointer`: where these stand."""

    def __init__(self, rewriter: Rewriter, pointer: str) -> None:
        self._rewriter = rewriter
        self._pointer = pointer
        self._num_followed = 0

    def of(self, schema: Json, depth: int = 0) -> Json:
        """Raises NoNegation, Malformed."""
        if isinstance(schema, bool):
            return not schema
        if depth > _MAX_REFERENCES:
            raise NoNegation("$ref")
        self._rewriter.check_keywords(schema, self._pointer)
        refusals: list[Json] = []
        for keyword, value in self._rewriter.draft.read(schema).items():
            is_said = not is_annotation(keyword) and not (keyword in _OF_REST and value is True)
            if is_said and not (keyword in _COUNTS and "contains" not in schema):
                refusals.append(self._of_keyword(keyword, schema, depth + 1))
        return _either(refusals)

    def _of_keyword(self, keyword: str, schema: dict[str, Json], depth: int) -> Json:
        value = schema[keyword]
        match keyword:
            case "type":
                return _not_types(value)
            case "const" | "enum":
                return _not_values([value] if keyword == "const" else value)
            case "pattern":
                found = opposite(value)
                try:
                    searching(found)
                except (Malformed, NotEnforced):
                    raise NoNegation("pattern") from None
                return {"type": "string", "pattern": found}
            case "required":
                return _either({"type": "object", "properties": {name: False}} for name in value)
            case "properties":
                return _either(
                    {"type": "object", "required": [name], "properties": {name: refused}}
                    for name, inner in value.items()
                    if (refused := self.of(inner, depth)) is not False
                )
            case "contains" if not schema.keys() & _COUNTS:
                return {"type": "array", "items": self.of(value, depth)}
            case "anyOf":
                parts = [self.of(inner, depth) for inner in value]
                return False if False in parts else {"allOf": parts}
            case "allOf":
                return _either(self.of(inner, depth) for inner in value)
            case "not":
                return value
            case "$ref":
                self._num_followed += 1
                if self._num_followed > _MAX_FOLLOWED:
                    raise NoNegation("$ref")
                target = self._rewriter.resolve(value, self._pointer)
                return self.of(self._rewriter.raw(target), depth)
        if keyword not in _BEYOND:
            raise NoNegation(keyword)
        kind, beyond, step = _BEYOND[keyword]
        if step and value + step < 0:
            return False
        return {"type": kind, beyond: int(value) + step if step else value}


def _not_types(value: Json) -> Json:
    """The other types."""
    named = set(value if isinstance(value, list) else [value])
    others = [name for name in _DISTINCT if name not in named]
    if "integer" in named and "number" not in named:
        # What is no integer may be a number that no schema tells from one.
        raise NoNegation("type")
    if "number" not in named:
        others.append("number")
    return {"type": others} if others else False


def _not_values(values: Sequence[Json]) -> Json:
    """Everything except some values, each a null, a boolean, a number or a string."""
    if any(isinstance(value, dict | list) for value in values):
        raise NoNegation("enum")
    strings = sorted({value for value in values if isinstance(value, str)})
    numbers = sorted({value for value in values if is_number(value)})
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
        options.append({"type": "string", "pattern": f"^(?:{_besides(strings)})$"})
    else:
        untouched.append("string")
    if numbers:
        for low, high in pairwise((None, *numbers, None)):
            ends = {"exclusiveMinimum": low, "exclusiveMaximum": high}
            said = {key: end for key, end in ends.items() if end is not None}
            options.append({"type": "number", **said})
    else:
        untouched.append("number")
    return _either([{"type": untouched}, *options])


def _besides(strings: Sequence[str]) -> str:
    """A pattern (ECMA 262) of all strings but these, which are sorted.

    By first characters: one that no string has, or a shared one and another rest.
    """
    options = [] if "" in strings else [""]
    firsts = []
    for first, group in groupby((each for each in strings if each), key=lambda each: each[0]):
        firsts.append(first)
        rests = [each[1:] for each in group]
        options.append(f"{escaped(first)}(?:{_besides(rests)})")
    others = f"[^{''.join(map(escaped, firsts))}]" if firsts else r"[\s\S]"
    options.append(rf"{others}[\s\S]*")
    return "|".join(options)


def _either(schemas: Iterable[Json]) -> Json:
    options = [each for each in schemas if each is not False]
    if not options or True in options:
        return bool(options)
    return options[0] if len(options) == 1 else {"anyOf": options}


def _negated(place: Place, value: Json, pointer: str) -> Json:
    """The negation of a raw schema; None if it was refused."""
    try:
        return _Negation(place.rewriter, pointer).of(value)
    except NoNegation as reason:
        place.rewriter.refuse(pointer, f"the opposite of {str(reason)!r} cannot be enforced")
        return None


# Each doubles the alternatives that the engine multiplies out.
_MAX_DEPENDENCIES = 6


def _reference(place: Place, value: Json, pointer: str) -> None:
    try:
        target = place.rewriter.resolve(value, place.pointer)
    except NotEnforced as error:
        place.rewriter.refuse(pointer, str(error))
    else:
        place.out["$ref"] = f"#/$defs/{place.rewriter.definition(target)}"


def _options(place: Place, value: Json, pointer: str) -> None:
    place.out[pointer.rpartition("/")[2]] = place.list(value, pointer)


def _one_of(place: Place, value: Json, pointer: str) -> None:
    """As it is, for later; or each option without what is one of the others as well."""
    options = place.list(value, pointer)
    pairs = place.rewriter.overlaps.get(pointer)
    if pairs is None:
        place.out["oneOf"] = options
        return
    try:
        alone = [_alone(place, value, index, pairs, pointer) for index in range(len(value))]
    except NoNegation:
        place.rewriter.refuse(pointer, OVERLAPPING)
    else:
        options = [
            {"allOf": [option, *without]} for option, without in zip(options, alone, strict=True)
        ]
    place.also.append({"anyOf": options})


def _alone(place: Place, value: Json, index: int, pairs: Pairs, pointer: str) -> list[Json]:
    """What an option has to be, too, so that none of the others holds. Raises NoNegation."""
    at_option = below(pointer, index)
    others = [other for other in range(len(value)) if {(index, other), (other, index)} & pairs]
    return [
        place.rewriter.schema(_Negation(place.rewriter, at_option).of(value[other]), at_option)
        for other in others
    ]


def _not(place: Place, value: Json, pointer: str) -> None:
    negated = _negated(place, value, pointer)
    if negated is not None:
        place.more(negated, pointer)


def _if(place: Place, value: Json, pointer: str) -> None:
    then = place.schema.get("then", True)
    otherwise = place.schema.get("else", True)
    if then is True and otherwise is True:
        return
    negated = _negated(place, value, pointer)
    if negated is not None:
        met = {"allOf": [value, then]}
        unmet = {"allOf": [negated, otherwise]}
        place.more({"anyOf": [met, unmet]}, pointer)


def _dependencies(place: Place, value: Json, pointer: str) -> None:
    if len(value) > _MAX_DEPENDENCIES:
        place.rewriter.refuse(
            pointer, f"more than {_MAX_DEPENDENCIES} dependencies of one object are not enforced"
        )
        return
    for name, needed in value.items():
        if isinstance(needed, list):
            met: Json = {"required": [name, *needed]}
        else:
            met = {"allOf": [{"required": [name]}, needed]}
        without = {"properties": {name: False}}
        place.more({"anyOf": [without, met]}, below(pointer, name))


LOGIC_HANDLERS: dict[str, Handler] = {
    "$ref": _reference,
    **dict.fromkeys(("allOf", "anyOf"), _options),
    "oneOf": _one_of,
    "not": _not,
    "if": _if,
    **dict.fromkeys(("dependencies", "dependentRequired", "dependentSchemas"), _dependencies),
}
