"""Small instances of a schema and of all its parts, as hints for searches.

A small instance of the whole omits optional parts: items, properties that are not required, longer
branches of a choice. An output may begin any of these, so each of them gets an example of its own.
"""

from collections import deque
from collections.abc import Iterator

from constraints.grammars.example_instance import ExampleInstances
from constraints.grammars.schema.reading import Json
from constraints.grammars.schema.rewriting import Rewritten
from constraints.guiding.completion import TimeLimit

# A few hundred places take a millisecond or two; the limit is for schemas made to take long.
MAX_TIME_S = 0.1
# The most places of a schema that are visited.
_MAX_PLACES = 400
_WITH_SCHEMA = ("items", "additionalProperties", "unevaluatedProperties", "then", "else")
_WITH_LIST = ("anyOf", "oneOf", "allOf", "prefixItems", "items")
_WITH_NAMES = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")


class Instances:
    """Example instances of one document. `whole`: a small instance of all of it, if found."""

    def __init__(self, document: Json | Rewritten, separators: tuple[str, str]) -> None:
        self._examples = ExampleInstances(document, separators)
        self.whole = self._examples.guess()

    def parts(self, limit: TimeLimit) -> list[str]:
        """Small instances of parts, the shortest first."""
        found = self._examples.parts
        for part in _parts(self._examples.document):
            if limit.is_over():
                break
            guess = self._examples.of(part)
            if guess is not None:
                found.add(guess)
        return sorted(found - {self.whole}, key=lambda text: (len(text), text))


def _parts(document: Json) -> Iterator[Json]:
    """The subschemas, and variants of them with optional parts."""
    todo = deque([document])
    num_places = 0
    while todo and num_places < _MAX_PLACES:
        schema = todo.popleft()
        num_places += 1
        if not isinstance(schema, dict):
            continue
        if num_places > 1:
            yield schema
        for key in ("anyOf", "oneOf"):
            options = schema.get(key)
            if isinstance(options, list) and len(schema) > 1:
                yield from ({**schema, key: [option]} for option in options)
        yield from _with_optional(schema)
        todo.extend(_below(schema))


def _with_optional(schema: dict[str, Json]) -> Iterator[Json]:
    """Variants of the schema, each with one optional property required."""
    properties = schema.get("properties")
    required = schema.get("required", [])
    if isinstance(properties, dict) and isinstance(required, list):
        for name in properties:
            if name not in required:
                yield {**schema, "required": [*required, name]}


def _below(schema: dict[str, Json]) -> Iterator[Json]:
    for key in _WITH_NAMES:
        if isinstance(schema.get(key), dict):
            yield from schema[key].values()
    for key in _WITH_LIST:
        if isinstance(schema.get(key), list):
            yield from schema[key]
    for key in _WITH_SCHEMA:
        if isinstance(schema.get(key), dict):
            yield schema[key]
