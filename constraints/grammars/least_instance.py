"""Small instances of JSON schemas, guessed: a matcher says afterwards whether they are right.

It reads the keywords that make instances longer and leaves the others alone, so that a guess is
made in microseconds; where it has no guess, a search has to find what this could not.
"""

import json
import math
from collections.abc import Callable, Iterator
from typing import Any

from constraints.errors import ConstraintError
from constraints.grammars.least_text import MAX_PATTERN_LEN, least_text
from constraints.grammars.patterns import Concat, Pattern
from constraints.grammars.regex import searching

# A string of each format that every reading of the format allows.
FORMATS = {
    "date-time": "2000-01-01T00:00:00Z",
    "date": "2000-01-01",
    "time": "00:00:00Z",
    "duration": "P1D",
    "email": "a@b.cd",
    "hostname": "a",
    "ipv4": "0.0.0.0",
    "ipv6": "::",
    "uuid": "00000000-0000-0000-0000-000000000000",
    "uri": "a:b",
}
_MAX_DEPTH = 40
# Characters of a guess; places of the schema that are looked at, again and again where they are
# referred to from several others.
_MAX_LEN = 50_000
# What a string is filled with that has to be long: vocabularies have its words as tokens.
_FILLER = "the "
_MAX_STEPS = 2_000
# Reading so much of a pattern takes as long as a place of the schema.
_CHARS_A_STEP = 100

# A JSON value; what it is made of is looked at as it is met.
Json = Any


class Least:
    """Guesses for one schema. `separators`: as json.dumps has them."""

    def __init__(self, document: Json, separators: tuple[str, str]) -> None:
        self._document = document
        self._item, self._key = separators
        self._num_steps = 0
        self._patterns: dict[str, Pattern | None] = {}
        self._texts: dict[tuple[tuple[str, ...], int], str | None] = {}
        # Guesses of parts, which may stand where a search is stuck.
        self.parts: set[str] = set()

    def guess(self) -> str | None:
        """A small instance of the whole."""
        return self._of(self._document, ())

    def _of(self, schema: Json, within: tuple[int, ...]) -> str | None:
        self._num_steps += 1
        if schema is False or len(within) > _MAX_DEPTH or self._num_steps > _MAX_STEPS:
            return None
        if id(schema) in within:
            return None  # an instance that holds itself has no end
        if schema is True or schema == {}:
            return "0"
        if not isinstance(schema, dict):
            return None
        inner = (*within, id(schema))
        choices = [self._alone(flat, inner) for flat in self._flat(schema, len(within))]
        found = min((each for each in choices if each is not None), key=len, default=None)
        if found is not None and found[0] in '"{[' and len(found) > 2:
            self.parts.add(found)
        return found

    def _flat(self, schema: dict[str, Json], depth: int) -> Iterator[dict[str, Json]]:
        """The schema with one branch of each choice folded in; nothing that is exact."""
        self._num_steps += 1
        if depth > _MAX_DEPTH or self._num_steps > _MAX_STEPS:
            return
        rest = {key: value for key, value in schema.items() if key not in _FOLDED}
        branches: list[list[Json]] = []
        if "$ref" in schema:
            branches.append([self._referred(schema["$ref"])])
        # Choices before parts, which may hold choices themselves: each round leaves one less.
        branches += [schema[key] for key in ("anyOf", "oneOf") if isinstance(schema.get(key), list)]
        branches += [[part] for part in schema.get("allOf", [])]
        if not branches:
            yield rest
            return
        first, others = branches[0], branches[1:]
        for option in first[:32]:
            if not isinstance(option, dict):
                option = {} if option is True else {"enum": []}
            folded = _merged(rest, option)
            if others:
                parts = [each[0] if len(each) == 1 else {"anyOf": each} for each in others]
                folded["allOf"] = [*folded.get("allOf", []), *parts]
            if not any(key in folded for key in _FOLDED):
                yield folded
            elif option is not schema:
                yield from self._flat(folded, depth + 1)

    def _referred(self, pointer: Json) -> Json:
        found = self._document
        for part in str(pointer).removeprefix("#").split("/")[1:]:
            part = part.replace("~1", "/").replace("~0", "~")
            if not isinstance(found, dict) or part not in found:
                return False
            found = found[part]
        return found

    def _alone(self, schema: dict[str, Json], within: tuple[int, ...]) -> str | None:
        """Of a schema without choices."""
        if "const" in schema:
            return self._written(schema["const"])
        if "enum" in schema:
            return min(map(self._written, schema["enum"]), key=len, default=None)
        kinds = schema.get("type", _kinds_of(schema))
        kinds = _listed(kinds)
        makers: dict[str, Callable[[], str | None]] = {
            "null": lambda: "null",
            "boolean": lambda: "true",
            "integer": lambda: _number(schema),
            "number": lambda: _number(schema),
            "string": lambda: self._string(schema),
            "array": lambda: self._array(schema, within),
            "object": lambda: self._object(schema, within),
        }
        found = [makers[kind]() for kind in kinds if kind in makers]
        return min((each for each in found if each is not None), key=len, default=None)

    def _written(self, value: Json) -> str:
        return json.dumps(value, ensure_ascii=False, separators=(self._item, self._key))

    def _string(self, schema: dict[str, Json]) -> str | None:
        least_len = int(schema.get("minLength", 0))
        if least_len > _MAX_LEN:
            return None
        if "pattern" in schema:
            text = self._matching(tuple(_listed(schema["pattern"])), least_len)
        elif "format" in schema:
            text = FORMATS.get(schema["format"])
        else:
            text = (_FILLER * (least_len // len(_FILLER) + 1))[:least_len]
        return None if text is None else json.dumps(text, ensure_ascii=False)

    def _matching(self, patterns: tuple[str, ...], least_len: int) -> str | None:
        """A text with each of the patterns in it, one behind the other."""
        if (patterns, least_len) not in self._texts:
            # What is held on to an edge stands there.
            ordered = sorted(patterns, key=lambda each: (each[:1] != "^", each[-1:] == "$"))
            found = map(self._read, ordered)
            known = tuple(each for each in found if each is not None)
            is_whole = len(known) == len(patterns)
            text = least_text(Concat(known), least_len) if is_whole else None
            self._texts[patterns, least_len] = text
        return self._texts[patterns, least_len]

    def _read(self, pattern: str) -> Pattern | None:
        if pattern not in self._patterns:
            self._num_steps += len(pattern) // _CHARS_A_STEP
            try:
                is_short = len(pattern) <= MAX_PATTERN_LEN
                self._patterns[pattern] = searching(pattern) if is_short else None
            except ConstraintError:
                self._patterns[pattern] = None
        return self._patterns[pattern]

    def _array(self, schema: dict[str, Json], within: tuple[int, ...]) -> str | None:
        firsts = schema.get("prefixItems", [])
        least_len = int(schema.get("minItems", 0))
        items = [self._of(each, within) for each in firsts[:least_len]]
        if least_len > len(items):
            item = self._of(schema.get("items", True), within)
            if item is None or (len(item) + 1) * least_len > _MAX_LEN:
                return None
            items += [item] * (least_len - len(items))
        return self._joined("[", items, "]")

    def _object(self, schema: dict[str, Json], within: tuple[int, ...]) -> str | None:
        properties = schema.get("properties", {})
        required = list(dict.fromkeys(schema.get("required", [])))
        names = [name for name in properties if name in required]
        names += [name for name in required if name not in properties]
        spare = [name for name in properties if name not in required]
        while len(names) < int(schema.get("minProperties", 0)) and len(names) < _MAX_DEPTH:
            name = spare.pop(0) if spare else self._other_name(schema, 1 + len(names))
            if name is None:
                return None
            names.append(name)
        members = []
        for name in names:
            value = self._of(_described(schema, name), within)
            if value is None:
                return None
            members.append(self._written(name) + self._key + value)
        return self._joined("{", members, "}")

    def _other_name(self, schema: dict[str, Json], least_len: int) -> str | None:
        """A name that no property has; a longer one for each that was given before."""
        pattern = schema.get("propertyNames", {}).get("pattern")
        if pattern is None and schema.get("additionalProperties", True) is False:
            pattern = next(iter(schema.get("patternProperties", {})), None)
        return "a" * least_len if pattern is None else self._matching((pattern,), least_len)

    def _joined(self, opening: str, items: list[str] | list[str | None], end: str) -> str | None:
        known = [item for item in items if item is not None]
        if len(known) < len(items) or sum(map(len, known)) > _MAX_LEN:
            return None
        return opening + self._item.join(known) + end


def _described(schema: dict[str, Json], name: str) -> Json:
    """The schema of a property's value, or what may be: no client's pattern is matched here."""
    if name in schema.get("properties", {}):
        return schema["properties"][name]
    rest = schema.get("additionalProperties", True)
    return next(iter(schema.get("patternProperties", {}).values()), rest) if rest is False else rest


_FOLDED = ("$ref", "allOf", "anyOf", "oneOf")


def _merged(one: dict[str, Json], other: dict[str, Json]) -> dict[str, Json]:
    """Both schemas at once, roughly."""
    both = {**one, **other}
    for key, join in _JOINS.items():
        if key in one and key in other:
            both[key] = join(one[key], other[key])
    return both


def _listed(value: Json) -> list[Json]:
    return value if isinstance(value, list) else [value]


def _common_types(one: list[Json], other: list[Json]) -> list[Json]:
    """Whole numbers are numbers, too."""
    ours, theirs = (
        [*kinds, "integer"] if "number" in kinds and "integer" not in kinds else kinds
        for kinds in (one, other)
    )
    return [kind for kind in ours if kind in theirs]


def _both_patterns(one: Json, other: Json) -> Json:
    return list(dict.fromkeys((*_listed(one), *_listed(other))))


def _both_dicts(one: Json, other: Json) -> Json:
    return {**one, **other}


def _both_lists(one: Json, other: Json) -> Json:
    return [*one, *other]


_JOINS: dict[str, Callable[[Json, Json], Json]] = {
    "type": lambda one, other: _common_types(_listed(one), _listed(other)),
    "pattern": _both_patterns,
    **dict.fromkeys(("properties", "$defs"), _both_dicts),
    **dict.fromkeys(("required", "allOf"), _both_lists),
    **dict.fromkeys(("minimum", "minLength", "minItems", "minProperties"), max),
    **dict.fromkeys(("maximum", "maxLength", "maxItems"), min),
}


def _kinds_of(schema: dict[str, Json]) -> list[str]:
    """Kinds of value that a schema without a type speaks of; a number where of none."""
    told = {
        "object": ("properties", "required", "minProperties", "additionalProperties"),
        "array": ("items", "prefixItems", "minItems"),
        "string": ("minLength", "maxLength", "pattern", "format"),
    }
    kinds = [kind for kind, keys in told.items() if any(key in schema for key in keys)]
    return ["integer", *kinds] if len(kinds) != 1 else ["integer", kinds[0]]


def _number(schema: dict[str, Json]) -> str | None:
    """The whole number that is nearest to zero; None: there may be none."""
    step = schema.get("multipleOf", 1)
    step = int(step) if step == int(step) and step > 0 else 1
    low = schema.get("minimum", -math.inf)
    high = schema.get("maximum", math.inf)
    above = schema.get("exclusiveMinimum", -math.inf)
    below = schema.get("exclusiveMaximum", math.inf)
    first = max(
        math.ceil(low / step) if low > -math.inf else -math.inf,
        math.floor(above / step) + 1 if above > -math.inf else -math.inf,
    )
    last = min(
        math.floor(high / step) if high < math.inf else math.inf,
        math.ceil(below / step) - 1 if below < math.inf else math.inf,
    )
    if first > last:
        return None
    nearest = first if first > 0 else last if last < 0 else 0
    return str(int(nearest) * step)
