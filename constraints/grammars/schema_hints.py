"""Small instances of a schema and of each of its parts, wherever an output may come to them.

The least instance of the whole does not meet what may be left out: items, properties that are not
required, the longer branches of a choice. An output that begins one of these has to be completed as
well, so that each of them gets a guess of its own.
"""

from collections import deque
from collections.abc import Iterator

from constraints.grammars.example_instance import ExampleInstances
from constraints.grammars.schema.reading import Json
from constraints.grammars.schema.rewriting import Rewritten
from constraints.guiding.time_limit import TimeLimit

# Looking at a few hundred places takes a millisecond or two; this is for schemas that are made to
# take long.
MAX_TIME_S = 0.1
# Places of a schema that are looked at.
_MAX_PLACES = 400
_WITH_SCHEMA = ("items", "additionalProperties", "unevaluatedProperties", "then", "else")
_WITH_LIST = ("anyOf", "oneOf", "allOf", "prefixItems", "items")
_WITH_NAMES = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")


class Instances:
    """Guesses for one document: `whole` is a small instance of it all, if there is one."""

    def __init__(self, document: Json | Rewritten, separators: tuple[str, str]) -> None:
        self._least = ExampleInstances(document, separators)
        self.whole = self._least.guess()

    def parts(self, limit: TimeLimit) -> list[str]:
        """Small instances of parts, the shortest first."""
        found = self._least.parts
        for part in _parts(self._least.document):
            if limit.is_over():
                break
            guess = self._least.of(part)
            if guess is not None:
                found.add(guess)
        return sorted(found - {self.whole}, key=lambda text: (len(text), text))


def _parts(document: Json) -> Iterator[Json]:
    """The places below the whole, and what a place may be asked for beyond its least instance."""
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
    """The schema with each of its properties required that may be left out."""
    properties, required = schema.get("properties"), schema.get("required", [])
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
