"""What is watched in the instances of a schema, since the engine does not remember what it read.

{"properties": {"tags": {"type": "array", "uniqueItems": true}}}
->  0: {"properties": {"tags": 1}}    1: {"differ": true}

A rule that is meant for one option of a choice alone depends on the instance, and is refused; but
not where the other options have no value of its type, as in {"anyOf": [SET, {"type": "null"}]}.
`constraints.grammars.watching` follows outputs by it.
"""

import json
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from math import ceil, floor
from typing import Any, NamedTuple, TypeAlias

from constraints.definition_graph import closure
from constraints.errors import TooComplex
from constraints.schema.grammar import (
    WATCH,
    all_parts,
    conjuncts,
    mentioned,
    parts,
    types_of,
    values_of,
)
from constraints.schema.reading import Json


class Wanted(NamedTuple):
    """How many items of an array are instances of a schema, which is JSON."""

    schema: str
    least: int
    most: int | None


@dataclass(frozen=True, slots=True)
class Watch:
    """What is watched at one place of an instance; below it, by the numbers of other places.

    differ:         whether the items of an array differ
    values:         the texts of all that its items may be, where they are few
    wanted:         items that it contains
    longest:        the most items of an array that contains some; None: any number
    least:          the fewest keys of an object
    most:           the most keys of an object; None: any number
    names:          all keys that it may have, in their order, where they are listed
    required:       the keys that it has to have, where there is a most or they are unordered
    unordered:      keys come in any order, and none twice
    properties:     the places of members
    rest:           that of all other members
    prefix:         the places of the first items
    items:          that of all other items
    judged:         what a value has to be an instance of, in JSON
    """

    differ: bool = False
    values: tuple[str, ...] = ()
    wanted: tuple[Wanted, ...] = ()
    longest: int | None = None
    least: int = 0
    most: int | None = None
    names: tuple[str, ...] = ()
    required: tuple[str, ...] = ()
    unordered: bool = False
    properties: dict[str, int | None] = field(default_factory=dict)
    rest: int | None = None
    prefix: tuple[int | None, ...] = ()
    items: int | None = None
    judged: tuple[str, ...] = ()

    @property
    def is_watched(self) -> bool:
        """Whether something is watched at this place itself."""
        counts_keys = self.least > 0 or self.most is not None
        return self.reads_items or counts_keys or self.unordered

    @property
    def reads_items(self) -> bool:
        """Whether an array's items are looked at as a whole."""
        return self.differ or bool(self.wanted)

    def only(self, names: Iterable[str]) -> "Watch":
        """These of its fields."""
        return Watch(**{name: getattr(self, name) for name in names})

    def member(self, key: str) -> int | None:
        """The place of a member."""
        return self.properties.get(key, self.rest)

    def item(self, index: int) -> int | None:
        """The place of an item."""
        return self.prefix[index] if index < len(self.prefix) else self.items


# What of a place concerns an array, and what an object.
OF_ARRAYS = ("differ", "values", "wanted", "longest", "prefix", "items")
OF_OBJECTS = ("least", "most", "names", "required", "unordered", "properties", "rest")


@dataclass(frozen=True, slots=True)
class Watched:
    """All that is watched under a schema.

    document:         the schema, as JSON, where its parts are needed
    checked_at_close: pointers of what is judged where a value ends
    """

    places: tuple[Watch, ...]
    document: str
    checked_at_close: tuple[str, ...] = ()

    def written(self) -> str:
        """As text; "" where nothing is watched."""
        return json.dumps(asdict(self)) if self.places else ""


def read(text: str) -> Watched:
    """What `Watched.written` wrote."""
    found = json.loads(text)
    places = tuple(map(_place, found["places"]))
    return Watched(places, found["document"], tuple(found["checked_at_close"]))


def _place(fields: dict[str, Any]) -> Watch:
    values: dict[str, Any] = {
        key: tuple(each) if isinstance(each, list) else each for key, each in fields.items()
    }
    return Watch(**{**values, "wanted": tuple(Wanted(*each) for each in fields["wanted"])})


_CONTAINERS = frozenset(("array", "object"))
# Marks a schema, as it is written, whose instances are judged where they end.
JUDGED = "judged"
# What a schema applies to for certain that is not an option of a choice.
_ALL = _CONTAINERS | {"scalar"}
_NO_OBJECTS = ("null", "boolean", "number", "string", "array")
_OF_OBJECTS = frozenset(("properties", "required", "additionalProperties", "patternProperties"))
_UNCERTAIN: frozenset[str] = frozenset()
_MAX_PLACES = 2_000
_MAX_DEPTH = 20
_LISTED: dict[str, list[Json]] = {"boolean": [False, True], "null": [None]}
# The most values of which all may be in an array.
_FEW = 256
# A schema, and the types of the instances to which it applies for certain.
_Said: TypeAlias = tuple[Json, frozenset[str]]
# A schema, and whether it applies for certain to the instances at hand.
_Certain: TypeAlias = tuple[Json, bool]


def watches_of(
    root: Json, definitions: dict[str, Json], refuse: Callable[[Json, str], None]
) -> tuple[Watch, ...]:
    """What is watched; nothing at all: (). `refuse` is told a schema and its keyword."""
    finding = _Finding(definitions, refuse)
    finding.place([(root, _ALL)])
    return tuple(finding.found)


class _Finding:
    """The places that were found so far. A place is described by all schemas that apply there."""

    def __init__(self, definitions: dict[str, Json], refuse: Callable[[Json, str], None]) -> None:
        self.found: list[Watch] = []
        self._definitions = definitions
        self._refuse = refuse
        self._numbers: dict[frozenset[tuple[int, frozenset[str]]], int] = {}
        self._watching = watching_definitions(definitions)
        self._is_watching: dict[int, bool] = {}

    def place(self, said: Iterable[_Said]) -> int | None:
        """The number of the place that these schemas describe; None: nothing is watched there."""
        flat = list(self._flat(said))
        if not any(self._watches(schema) for schema, _ in flat):
            return None
        key = frozenset((id(schema), certain) for schema, certain in flat)
        if key in self._numbers:
            return self._numbers[key]
        number = self._numbers[key] = len(self.found)
        if number >= _MAX_PLACES:
            raise TooComplex(f"more than {_MAX_PLACES} places of the schema are watched")
        self.found.append(Watch())
        arrays = [(schema, "array" in certain) for schema, certain in flat]
        objects = [(schema, "object" in certain) for schema, certain in flat]
        wanted = [each for some in self._of_keyword("contains", arrays) for each in some]
        longest = [
            each["maxItems"] for each, is_certain in arrays if is_certain and "maxItems" in each
        ]
        least = self._of_keyword("minProperties", objects)
        most = self._of_keyword("maxProperties", objects)
        unordered = any("required" in schema.get(WATCH, ()) for schema, _ in objects)
        self._of_keyword("required", objects)
        keys = _keys(objects) if least or most or unordered else {}
        if unordered and "names" in keys:
            most.append(len(keys["names"]))
        self.found[number] = Watch(
            differ=bool(self._of_keyword("uniqueItems", arrays)),
            values=next(filter(None, self._values(arrays)), ()),
            wanted=tuple(Wanted(json.dumps(each["schema"]), *each["counts"]) for each in wanted),
            longest=min(longest, default=None) if wanted else None,
            least=max(least, default=0),
            most=min(most, default=None),
            **keys,
            unordered=unordered,
            properties=dict(self._members(objects)),
            rest=self._others(objects),
            prefix=tuple(self._first_items(arrays)),
            items=self._items(arrays),
            judged=tuple(
                json.dumps(schema[WATCH][JUDGED])
                for schema, certain in flat
                if JUDGED in schema.get(WATCH, ()) and certain == _ALL
            ),
        )
        return number

    def _flat(self, said: Iterable[_Said]) -> Iterator[_Said]:
        """All schemas that may apply, through references and choices."""
        todo = deque(said)
        seen = set()
        while todo:
            schema, certain = todo.popleft()
            if not isinstance(schema, dict) or (id(schema), certain) in seen:
                continue
            seen.add((id(schema), certain))
            yield schema, certain
            todo += [(each, certain) for each in conjuncts(schema, self._definitions)]
            for key in ("anyOf", "oneOf"):
                options = schema.get(key, ())
                types = [self._types(option, 0) for option in options]
                for index, option in enumerate(options):
                    others = frozenset().union(*types[:index], *types[index + 1 :])
                    others |= {"scalar"} if len(options) > 1 else set()
                    todo.append((option, certain - others))

    def _types(self, schema: Json, depth: int) -> frozenset[str]:
        """The arrays and objects among the types that a schema allows."""
        if not isinstance(schema, dict) or depth > _MAX_DEPTH:
            return _CONTAINERS if schema is not False else _UNCERTAIN
        types = types_of(schema) & _CONTAINERS
        for each in conjuncts(schema, self._definitions):
            types &= self._types(each, depth + 1)
        for key in ("anyOf", "oneOf"):
            if key in schema:
                options = [self._types(each, depth + 1) for each in schema[key]]
                types &= frozenset().union(*options)
        return types

    def _watches(self, schema: Json) -> bool:
        """Whether something is watched at the schema's instances or below."""
        if id(schema) not in self._is_watching:
            self._is_watching[id(schema)] = mentions(schema, self._watching)
        return self._is_watching[id(schema)]

    def _of_keyword(self, keyword: str, schemas: list[_Certain]) -> list[Json]:
        """The keyword's values, of schemas that apply for certain; others are refused."""
        found = []
        for schema, is_certain in schemas:
            if keyword in schema.get(WATCH, ()):
                value = schema[WATCH][keyword]
                if is_certain:
                    found.append(value)
                elif value != []:
                    self._refuse(schema, keyword)
        return found

    def _members(self, objects: list[_Certain]) -> Iterator[tuple[str, int | None]]:
        for name in {name: 0 for schema, _ in objects for name in schema.get("properties", ())}:
            number = self.place(
                _said(inside, is_certain)
                for schema, is_certain in objects
                for inside in _of_member(schema, name)
            )
            yield name, number

    def _others(self, objects: list[_Certain]) -> int | None:
        return self.place(
            _said(inside, is_certain)
            for schema, is_certain in objects
            for inside in _of_others(schema)
        )

    def _first_items(self, arrays: list[_Certain]) -> Iterator[int | None]:
        lengths = [len(schema.get("prefixItems", ())) for schema, _ in arrays]
        for index in range(max(lengths, default=0)):
            yield self._items(arrays, index)

    def _items(self, arrays: list[_Certain], index: int | None = None) -> int | None:
        found = []
        for schema, is_certain in arrays:
            first = schema.get("prefixItems", ())
            is_first = index is not None and index < len(first)
            item = first[index] if is_first else schema.get("items", True)
            found.append(_said((item, True), is_certain))
        return self.place(found)

    def _values(self, arrays: list[_Certain]) -> Iterator[tuple[str, ...]]:
        """What the items may be, where that is listed and the same for all."""
        has_first = any("prefixItems" in schema for schema, _ in arrays)
        for schema, is_certain in () if has_first else arrays:
            if is_certain:
                yield _texts(schema.get("items", True), self._definitions) or ()


def bound(root: Json, definitions: dict[str, Json]) -> None:
    """Tell the engine what follows from what is watched, in place.

    Arrays whose items differ have no more of them than there are values, and objects no more keys
    than there are names.
    """
    for part in [each for each in all_parts(root, definitions) if WATCH in each]:
        if "uniqueItems" in part[WATCH] and "prefixItems" not in part:
            texts = _texts(part.get("items", True), definitions)
            if texts is not None:
                most = len({*texts} - {"-0"})
                part["maxItems"] = min(most, part.get("maxItems", most))
        names = _keys([(part, True)]).get("names", part)
        if names is not part and len(names) < part[WATCH].get("minProperties", 0):
            part["allOf"] = [*part.get("allOf", ()), {"type": [*_NO_OBJECTS]}]


def _keys(objects: list[_Certain]) -> dict[str, tuple[str, ...]]:
    """The keys that an object has to have, and all of them where one schema lists these."""
    all_required = [schema.get("required", ()) for schema, is_certain in objects if is_certain]
    required = tuple(dict.fromkeys(name for names in all_required for name in names))
    saying = [schema for schema, _ in objects if schema.keys() & _OF_OBJECTS]
    if len(saying) != 1 or "patternProperties" in saying[0]:
        return {"required": required}
    if saying[0].get("additionalProperties", True) is not False:
        return {"required": required}
    properties = saying[0].get("properties", {})
    names = tuple(name for name, inner in properties.items() if inner is not False)
    return {"names": names, "required": required}


def _texts(schema: Json, definitions: dict[str, Json], depth: int = 0) -> tuple[str, ...] | None:
    """All instances as JSON, of a schema that has few and each in a known spelling; or None."""
    if not isinstance(schema, dict) or depth > _MAX_DEPTH:
        return None
    said = set(schema)
    if said == {"$ref"}:
        return _texts(conjuncts(schema, definitions)[0], definitions, depth + 1)
    if said == {"anyOf"}:
        options = [_texts(each, definitions, depth + 1) for each in schema["anyOf"]]
        return tuple(text for each in options for text in each or ()) if all(options) else None
    listed = values_of(schema)
    if said == {"type"}:
        listed = _LISTED.get(str(schema["type"]))
    elif said == {"type", "minimum", "maximum"} and schema["type"] == "integer":
        low = ceil(schema["minimum"])
        listed = [*range(low, min(floor(schema["maximum"]), low + _FEW) + 1)]
    elif said - {"type"} not in ({"enum"}, {"const"}):
        return None
    if listed is None or len(listed) > _FEW or not all(map(_has_known_spelling, listed)):
        return None
    texts = [json.dumps(value, ensure_ascii=False) for value in listed]
    return (*texts, *(["-0"] if "0" in texts else []))


def _has_known_spelling(value: Json) -> bool:
    if isinstance(value, str):
        return value.isprintable() and not {'"', "\\"} & set(value)
    return value is None or isinstance(value, int)


def _said(inside: tuple[Json, bool], is_certain: bool) -> _Said:
    return inside[0], _ALL if inside[1] and is_certain else _UNCERTAIN


def _of_member(schema: Json, name: str) -> Iterator[tuple[Json, bool]]:
    """The schemas of a member that some schema declares, and whether they apply for certain."""
    patterns = schema.get("patternProperties", {})
    if name in schema.get("properties", {}):
        yield schema["properties"][name], True
    elif "additionalProperties" in schema:
        yield schema["additionalProperties"], not patterns
    for each in patterns.values():
        yield each, False


def _of_others(schema: Json) -> Iterator[tuple[Json, bool]]:
    """The same of a member that no schema declares."""
    patterns = schema.get("patternProperties", {})
    rest = schema.get("additionalProperties", True)
    yield rest, not patterns
    for each in patterns.values():
        yield each, rest is False and len(patterns) == 1


def watching_definitions(definitions: dict[str, Json], keyword: str = "") -> set[str]:
    """The definitions in which something is watched, or in one that they refer to."""
    return closure(
        {name: mentioned(schema) for name, schema in definitions.items()},
        lambda name, found: mentions(definitions[name], found, keyword),
    )


def mentions(schema: Json, watching: set[str], keyword: str = "") -> bool:
    """Whether something is watched, or a keyword, in a schema or in one of some definitions."""
    return any(
        (WATCH in part and (not keyword or keyword in part[WATCH]))
        or part.get("$ref", "").rpartition("/")[2] in watching
        for part in parts(schema)
    )
