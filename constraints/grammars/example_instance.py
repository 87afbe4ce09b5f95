"""Guesses small instances of JSON schemas; a matcher checks afterwards whether they are valid.

The input is the schema as rewritten for the engine, where conditions, dependencies, negations,
drafts and addresses are choices and plain references already; patterns are as written by the
client. Only keywords that make instances longer are considered, so a guess takes microseconds.
Where there is none, a search is needed.
"""

from collections.abc import Callable, Iterator
from heapq import nsmallest
from itertools import islice

from constraints.errors import ConstraintError
from constraints.grammars.example_merging import both_schemas, merged
from constraints.grammars.example_number import example_number
from constraints.grammars.example_string import ExampleStrings
from constraints.grammars.example_text import MAX_LEN
from constraints.grammars.example_values import fits, written
from constraints.grammars.schema.reading import Json
from constraints.grammars.schema.rewriting import Rewritten, rewrite

_MAX_DEPTH = 40
# The most choices that are combined at one place.
_MAX_CHOICES = 100
# The most places of the schema that are visited (a place counts for each reference to it); at one
# place, the most alternatives of one choice and of all choices together.
_MAX_STEPS = 2_000
_MAX_OPTIONS = 32
_MAX_WAYS = 48
# Longer guesses are not stored.
_MAX_PART_LEN = 8_000
# The most values of an enumeration that are checked against the other keywords.
_MAX_VALUES = 64
_CHOICES = ("anyOf", "oneOf")
_FOLDED = frozenset(("$ref", "allOf", *_CHOICES))


class ExampleInstances:
    """Guesses for one schema, as it was written or rewritten; in the latter, patterns have to be as
    the client wrote them. `separators`: as json.dumps has them."""

    def __init__(self, document: Json | Rewritten, separators: tuple[str, str]) -> None:
        self._item, self._key = separators
        self._definitions: dict[str, Json] = {}
        self._num_steps = 0
        # The rewritten schema, and the same with its definitions, for the parts given to `of`.
        self._root: Json = False
        self.document: Json = False
        self._rewrite(document)
        self._strings = ExampleStrings()
        # Guesses by id() of the schema, which is kept alive so that the id stays its own.
        self._known: dict[int, tuple[Json, str]] = {}
        # Guesses of parts, for searches from the middle of a text.
        self.parts: set[str] = set()

    def _rewrite(self, document: Json | Rewritten) -> None:
        try:
            found = (
                document
                if isinstance(document, Rewritten)
                else rewrite(document, lenient=True, translate=str)
            )
        except (ConstraintError, RecursionError):
            return  # the compiler refuses it with a better message
        self._root = found.root
        self._definitions = found.definitions
        self.document = {"allOf": [self._root], "$defs": self._definitions}

    def guess(self) -> str | None:
        """A small instance of the whole."""
        found = self._of(self._root, ())
        # Parts have a limit of steps of their own.
        self._num_steps = 0
        return found

    def of(self, part: Json) -> str | None:
        """A small instance of a part of `document`, or of it all."""
        return self.guess() if part is self.document else self._of(part, ())

    def _of(self, schema: Json, within: tuple[int, ...]) -> str | None:
        if id(schema) in self._known:
            return self._known[id(schema)][1]
        self._num_steps += 1
        if schema is False or len(within) > _MAX_DEPTH or self._num_steps > _MAX_STEPS:
            return None
        if id(schema) in within:
            return None  # an instance that contains itself is infinite
        if schema is True or schema == {}:
            return "0"
        inner = (*within, id(schema))
        ways = islice(self._flat({}, (schema,), 0, frozenset()), _MAX_WAYS)
        found = min(
            filter(None, (self._alone(flat, inner) for flat in ways)), key=len, default=None
        )
        if found is not None and len(found) <= _MAX_PART_LEN:
            self._known[id(schema)] = (schema, found)
            if found[0] in '"{[' and len(found) > 2:
                self.parts.add(found)
        return found

    def _flat(
        self, done: dict[str, Json], parts: tuple[Json, ...], depth: int, seen: frozenset[str]
    ) -> Iterator[dict[str, Json]]:
        """`done` and all parts merged to one schema, for each choice of alternatives; approximate.

        seen: references that were followed already
        """
        both: dict[str, Json] | None = done
        while parts and both is not None:
            self._num_steps += 1
            part = parts[0]
            parts = parts[1:]
            if self._num_steps > _MAX_STEPS or depth > _MAX_CHOICES or part is False:
                return
            options = _options(part)
            if options is not None:
                for option in options[:_MAX_OPTIONS]:
                    yield from self._flat(both, (option, *parts), depth + 1, seen)
                return
            if part is True or (part.get("$ref") in seen and len(part) == 1):
                continue
            if part.keys() == {"$ref"}:
                seen |= {part["$ref"]}
                parts = (self._definitions[part["$ref"].rpartition("/")[2]], *parts)
            elif part.keys() & _FOLDED:
                parts = (*_conjuncts(part), *parts)
            else:
                both = merged(both, part)
        if both is not None:
            yield both

    def _alone(self, schema: dict[str, Json], within: tuple[int, ...]) -> str | None:
        """An instance of a schema without choices."""
        if "const" in schema or "enum" in schema:
            values = [schema["const"]] if "const" in schema else schema["enum"]
            texts = ((self._written(value), value) for value in values)
            shortest = nsmallest(_MAX_VALUES, texts, key=_length)
            return next(
                (text for text, value in shortest if fits(value, schema, self._strings)), None
            )
        kinds = schema.get("type", _kinds_of(schema))
        makers: dict[str, Callable[[], str | None]] = {
            "null": lambda: "null",
            "boolean": lambda: "true",
            "integer": lambda: example_number(schema, is_whole=True),
            "number": lambda: example_number(schema, is_whole=False),
            "string": lambda: self._string(schema),
            "array": lambda: self._array(schema, within),
            "object": lambda: self._object(schema, within),
        }
        found = [makers[kind]() for kind in (kinds if isinstance(kinds, list) else [kinds])]
        return min((each for each in found if each is not None), key=len, default=None)

    def _written(self, value: Json) -> str:
        return written(value, self._item, self._key)

    def _string(self, schema: dict[str, Json]) -> str | None:
        text = self._strings.example(schema)
        return None if text is None else self._written(text)

    def _array(self, schema: dict[str, Json], within: tuple[int, ...]) -> str | None:
        firsts = schema.get("prefixItems", [])
        needed_len = schema.get("minItems", 0)
        if needed_len > schema.get("maxItems", needed_len):
            return None
        items = [self._of(each, within) for each in firsts[:needed_len]]
        if needed_len > len(items):
            item = self._of(schema.get("items", True), within)
            if item is None or (len(item) + 1) * needed_len > MAX_LEN:
                return None
            items += [item] * (needed_len - len(items))
        return self._joined("[", items, "]")

    def _object(self, schema: dict[str, Json], within: tuple[int, ...]) -> str | None:
        members: dict[str, str] = {}
        needed_len = max(schema.get("minProperties", 0), len(schema.get("required", ())))
        if needed_len > schema.get("maxProperties", needed_len):
            return None
        length = 0
        for name in schema.get("required", ()):
            value = self._of(self._described(schema, name), within)
            if value is None or length > MAX_LEN:
                return None
            members[name] = value
            length += len(value)
        for name in self._other_names(schema, set(members)):
            if len(members) >= needed_len:
                break
            value = self._of(self._described(schema, name), within)
            if value is not None:
                members[name] = value
        if len(members) < needed_len:
            return None
        # In the order of the engine: declared properties come first.
        declared = [name for name in schema.get("properties", ()) if name in members]
        names = dict.fromkeys((*declared, *members))
        texts = [self._written(name) + self._key + members[name] for name in names]
        return self._joined("{", texts, "}")

    def _other_names(self, schema: dict[str, Json], taken: set[str]) -> Iterator[str]:
        """Names that are not required: declared ones, then invented ones of growing length."""
        properties = schema.get("properties", {})
        yield from (name for name in properties if name not in taken)
        patterns = list(schema.get("patternProperties", ()))
        for length in range(1, _MAX_DEPTH):
            made = [self._strings.matching(pattern, length) for pattern in patterns]
            for name in ["a" * length, *made]:
                if name is not None and name not in properties and name not in taken:
                    taken.add(name)
                    yield name

    def _described(self, schema: dict[str, Json], name: str) -> Json:
        """The schema of a property's value."""
        properties = schema.get("properties", {})
        found = [properties[name]] if name in properties else []
        found += [
            inner
            for pattern, inner in schema.get("patternProperties", {}).items()
            if self._strings.has(pattern, name)
        ]
        if not found:
            return schema.get("additionalProperties", True)
        whole = found[0]
        for each in found[1:]:
            whole = both_schemas(whole, each)
        return whole

    def _joined(self, opening: str, items: list[str] | list[str | None], end: str) -> str | None:
        known = [item for item in items if item is not None]
        if len(known) < len(items) or sum(map(len, known)) > MAX_LEN:
            return None
        return opening + self._item.join(known) + end


def _length(text_and_value: tuple[str, Json]) -> int:
    return len(text_and_value[0])


def _options(schema: Json) -> list[Json] | None:
    """The options of a schema that is a choice and nothing else."""
    if schema is True:
        return None
    found: list[Json] | None = schema.get("anyOf", schema.get("oneOf"))
    return found if len(schema) == 1 else None


def _conjuncts(schema: dict[str, Json]) -> list[Json]:
    """Several schemas whose conjunction is this one, in the engine's order of keys."""
    plain = {key: value for key, value in schema.items() if key not in _FOLDED}
    pieces: list[Json] = []
    for key, value in schema.items():
        if key == "allOf":
            pieces += value
        elif key in _FOLDED:
            pieces.append({key: value})
        elif key == "properties":
            pieces.append(plain)
    return pieces if "properties" in plain or not plain else [*pieces, plain]


def _kinds_of(schema: dict[str, Json]) -> list[str]:
    """The types to which the keywords of a schema without `type` apply; number if none do."""
    keywords = {
        "object": ("properties", "required", "minProperties", "additionalProperties"),
        "array": ("items", "prefixItems", "minItems"),
        "string": ("minLength", "maxLength", "pattern", "format"),
    }
    kinds = [kind for kind, keys in keywords.items() if any(key in schema for key in keys)]
    return ["number", *kinds, "null"]
