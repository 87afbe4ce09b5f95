"""What masks cannot keep of a schema is judged where a value ends: a wrong one has no end.

{"properties": {"n": {"not": {"type": "integer"}}}}   ->  the schema of "n" is judged, as a whole
{"anyOf": [{"properties": {"n": {"not": ...}}}, ...]}  ->  that of the choice

The engine does not know which option of a choice holds, so what is given up in an option is judged
by the schema that has the choice.
"""

import json
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from types import MappingProxyType

import jsonschema

from constraints.errors import Malformed, NotEnforced
from constraints.regex.writing import is_searchable
from constraints.schema.grammar import WATCH, all_parts, inside
from constraints.schema.reading import KNOWN, READ_BESIDE, Json, References, at, is_annotation
from constraints.schema.rewriting import Rewritten
from constraints.schema.watched import JUDGED, mentions, watching_definitions

NEWEST = jsonschema.Draft202012Validator
# Masks enforce a keyword whatever draft a schema names, so its judge knows all, too.
KEYWORDS = MappingProxyType(
    {
        **jsonschema.Draft7Validator.VALIDATORS,
        **jsonschema.Draft201909Validator.VALIDATORS,
        **NEWEST.VALIDATORS,
    }
)
_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")


def validator_of(schema: Json) -> type[jsonschema.Validator]:
    """That of its draft: drafts differ in what stands beside a `$ref`, and in addresses."""
    return jsonschema.validators.validator_for(schema, default=NEWEST)


def unjudged(rewritten: Rewritten) -> str | None:
    """The pointer of what was given up and the judge does not know, or of a misspelt keyword."""
    document = rewritten.document
    known = READ_BESIDE | KEYWORDS.keys() | validator_of(document).VALIDATORS.keys()
    references = References(document)
    for pointer in rewritten.given_up:
        place, _, keyword = pointer.rpartition("/")
        if keyword not in known:
            return pointer
        if keyword in _REFERENCES:
            try:
                references.resolve(at(document, pointer), place)
            except (KeyError, Malformed, NotEnforced):
                return pointer
    # A judge whose patterns take unlimited time would keep a shard waiting. Beside
    # `unevaluatedProperties` the package searches for those of names by itself.
    text = json.dumps(document)
    is_by_package = "unevaluatedProperties" in text and "patternProperties" in text
    is_timely = not is_by_package and all(map(is_searchable, _patterns(document)))
    if rewritten.given_up and not is_timely:
        return next(iter(rewritten.given_up))
    for pointer in rewritten.not_enforced:
        word = pointer.rpartition("/")[2]
        if word not in KNOWN and not is_annotation(word):
            return pointer
    return None


def _patterns(value: Json) -> Iterator[str]:
    """All that a judge may search for, and what looks like it."""
    if isinstance(value, list):
        for each in value:
            yield from _patterns(each)
    elif isinstance(value, dict):
        if isinstance(value.get("pattern"), str):
            yield value["pattern"]
        if isinstance(value.get("patternProperties"), dict):
            yield from value["patternProperties"]
        yield from _patterns([*value.values()])


def judge_at_close(rewritten: Rewritten) -> tuple[str, ...]:
    """Mark the schemas that judge for what was given up; returns the pointers of that."""
    used = {id(part) for part in all_parts(rewritten.root, rewritten.definitions)}
    # Not those that stand for the opposite of what is written there, and the like.
    sources: defaultdict[str, list[dict[str, Json]]] = defaultdict(list)
    raws: dict[int, Json] = {}
    for part, pointer, raw in rewritten.sources:
        with suppress(KeyError):
            if id(part) in used and at(rewritten.document, pointer) is raw:
                sources[pointer].append(part)
                raws[id(part)] = raw
    if not isinstance(rewritten.root, dict) or "" not in sources:
        return ()

    def mark(part: dict[str, Json]) -> None:
        part.setdefault(WATCH, {})[JUDGED] = raws[id(part)]

    for keyword in rewritten.given_up:
        pointer = keyword.rpartition("/")[0]
        while pointer not in sources:
            pointer = pointer.rpartition("/")[0]
        for part in sources[pointer]:
            mark(part)
    choices = [
        found
        for each in (rewritten.root, *rewritten.definitions.values())
        for found in _choices(each, rewritten.root, raws)
    ]
    is_new = True
    while is_new:
        is_new = False
        watching = watching_definitions(rewritten.definitions, JUDGED)
        for owner, options in choices:
            is_marked = JUDGED in owner.get(WATCH, ())
            if not is_marked and any(mentions(each, watching, JUDGED) for each in options):
                mark(owner)
                is_new = True
    return tuple(rewritten.given_up)


def _choices(
    schema: Json, owner: dict[str, Json], raws: dict[int, Json]
) -> Iterator[tuple[dict[str, Json], list[Json]]]:
    """The options of each choice, with the innermost schema as written that has it."""
    if not isinstance(schema, dict):
        return
    if id(schema) in raws:
        owner = schema
    for key in ("anyOf", "oneOf"):
        if key in schema:
            yield owner, schema[key]
    if "patternProperties" in schema:
        rest = schema.get("additionalProperties", True)
        yield owner, [rest, *schema["patternProperties"].values()]
    for each in inside(schema):
        yield from _choices(each, owner, raws)
