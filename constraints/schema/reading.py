"""Parses JSON schemas, and resolves JSON Pointers into them.

The draft is that of `$schema`, or 2020-12 if there is none or an unknown one. Keywords that a draft
does not have are enforced all the same, since their author means them.
"""

import json
import math
import re
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, NoReturn

from constraints.errors import Malformed, TooComplex

# A schema, or any JSON value.
Json = Any

# The engine reads JSON no deeper than 128.
MAX_DEPTH = 100
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
            parse_float=_fraction,
            parse_constant=_no_constant,
        )
        json.dumps(value, ensure_ascii=False).encode()
    except json.JSONDecodeError as error:
        raise Malformed(f"the schema is not JSON: {error}", error.pos) from None
    except RecursionError:
        raise TooComplex(f"the schema is nested more than {MAX_DEPTH} deep") from None
    except UnicodeEncodeError:
        raise Malformed("a string of the schema has half of a surrogate pair") from None
    except ValueError as error:
        raise Malformed(f"the schema is not JSON: {error}") from None
    _check_depth(value, 0)
    return value


def shown(value: Json, max_len: int = 60) -> str:
    """A value as JSON, shortened for an error message."""
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= max_len else text[:max_len] + "..."


def hashable(value: Json) -> Hashable:
    """A key that is equal for values that are equal in JSON Schema."""
    match value:
        case dict():
            return frozenset((key, hashable(member)) for key, member in value.items())
        case list():
            return tuple(map(hashable, value))
        case bool():
            # Python's True is 1.
            return (bool, value)
    return value  # type: ignore[no-any-return]


def below(pointer: str, key: str | int) -> str:
    """The JSON Pointer of a member."""
    return f"{pointer}/{str(key).replace('~', '~0').replace('/', '~1')}"


def at(value: Json, pointer: str) -> Json:
    """The value at a JSON Pointer. Raises KeyError."""
    for escaped in pointer.split("/")[1:]:
        key = escaped.replace("~1", "/").replace("~0", "~")
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


def _fraction(text: str) -> float:
    if math.isinf(number := float(text)):
        raise ValueError(f"{text} is too large a number")
    return number


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")


def _check_depth(value: Json, depth: int) -> None:
    if depth > MAX_DEPTH:
        raise TooComplex(f"the schema is nested more than {MAX_DEPTH} deep")
    if isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            _check_depth(inner, depth + 1)


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
