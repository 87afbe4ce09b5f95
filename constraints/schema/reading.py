"""Parses JSON schemas, and resolves JSON Pointers into them.

The draft is that of `$schema`, or 2020-12 if there is none or an unknown one. Keywords that a draft
does not have are enforced all the same, since their author means them.
"""

import json
import math
import re
from dataclasses import dataclass
from functools import reduce
from typing import Any, NoReturn

from constraints.errors import Malformed, TooComplex

# A schema, or any JSON value.
Json = Any

# The engine reads JSON no deeper than 128.
MAX_DEPTH = 100
_MAX_SHOWN_LEN = 60
# Python's limit is little higher.
_MAX_INT_LEN = 4000
# Of an item, as RFC 6901 has it: without zeros in front.
_INDEX = re.compile(r"0|[1-9][0-9]*")


def read(text: str) -> Json:
    """The value of a JSON text. Raises Malformed with a position, TooComplex."""
    try:
        value = json.loads(
            text,
            object_pairs_hook=no_key_twice,
            parse_int=_integer,
            parse_constant=_no_constant,
        )
    except json.JSONDecodeError as error:
        raise Malformed(f"the schema is not JSON: {error}", error.pos) from None
    except RecursionError:
        raise TooComplex(f"the schema is nested more than {MAX_DEPTH} deep") from None
    except ValueError as error:
        raise Malformed(f"the schema is not JSON: {error}") from None
    check(value)
    return value


def check(value: Json) -> None:
    """Check depth, numbers and surrogates. Raises Malformed with a pointer, TooComplex."""
    _check(value, ())


def shown(value: Json) -> str:
    """A value as JSON, shortened for an error message."""
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _MAX_SHOWN_LEN else text[:_MAX_SHOWN_LEN] + "..."


def equal_key(value: Json) -> str:
    """A key that is equal for values that are equal in JSON Schema."""
    if isinstance(value, str):
        return f'"{value}'
    return json.dumps(_plain(value), sort_keys=True)


def _plain(value: Json) -> Json:
    match value:
        case float() if value.is_integer():
            return int(value)
        case list():
            return [_plain(item) for item in value]
        case dict():
            return {key: _plain(member) for key, member in value.items()}
    return value


def below(pointer: str, key: str | int) -> str:
    """The JSON Pointer of a member."""
    return f"{pointer}/{str(key).replace('~', '~0').replace('/', '~1')}"


def keys_below(pointer: str, place: str) -> tuple[str, ...]:
    """The keys that lead from a JSON Pointer to a place below it; none where it is elsewhere."""
    if not place.startswith(f"{pointer}/"):
        return ()
    escaped = place[len(pointer) + 1 :].split("/")
    return tuple(key.replace("~1", "/").replace("~0", "~") for key in escaped)


def at(value: Json, pointer: str) -> Json:
    """The value at a JSON Pointer. Raises KeyError."""
    for key in keys_below("", pointer):
        if isinstance(value, dict):
            value = value[key]
        elif isinstance(value, list) and _INDEX.fullmatch(key) and int(key) < len(value):
            value = value[int(key)]
        else:
            raise KeyError(pointer)
    return value


def no_key_twice(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    """An object of its members, for `json.loads`. Raises ValueError."""
    members = dict(pairs)
    if len(members) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"the key {twice!r} stands twice in one object")
    return members


def _integer(text: str) -> int:
    if len(text) > _MAX_INT_LEN:
        raise ValueError(f"an integer of {len(text)} digits is too large")
    return int(text)


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")


def _check(value: Json, place: tuple[str | int, ...]) -> None:
    """Refuse what the engine's parser cannot read, while its place is known."""
    if len(place) > MAX_DEPTH:
        raise TooComplex(f"the schema is nested more than {MAX_DEPTH} deep")
    match value:
        case dict():
            for key, member in value.items():
                _check(key, (*place, key))
                _check(member, (*place, key))
        case list():
            for index, member in enumerate(value):
                _check(member, (*place, index))
        case str():
            if not value.isascii() and any("\ud800" <= char <= "\udfff" for char in value):
                raise _bad("{} has half of a surrogate pair", place)
        case float():
            if not math.isfinite(value):
                raise _bad("{}: the number is too large", place)


def _bad(message: str, place: tuple[str | int, ...]) -> Malformed:
    pointer = reduce(below, place, "")
    return Malformed(message.format(pointer or "the schema"), pointer=pointer)


@dataclass(frozen=True, slots=True)
class Draft:
    """One draft.

    ref_is_alone:  keywords beside a `$ref` are ignored, an address among them
    address:       the keyword that gives a schema its address
    """

    ref_is_alone: bool = False
    address: str = "$id"

    def read(self, schema: dict[str, Json]) -> dict[str, Json]:
        """A schema without the keywords that this draft ignores beside a `$ref`."""
        if self.ref_is_alone and "$ref" in schema:
            return {"$ref": schema["$ref"]}
        return schema


def draft_of(schema: Json) -> Draft:
    """The draft that a schema names, or the newest."""
    named = schema.get("$schema") if isinstance(schema, dict) else None
    return _OLD.get(named.removesuffix("#"), _NEWEST) if isinstance(named, str) else _NEWEST


_NEWEST = Draft()
_OLD = {
    f"http://json-schema.org/draft-0{number}/schema": Draft(True, "id" if number < 6 else "$id")
    for number in (3, 4, 6, 7)
}
