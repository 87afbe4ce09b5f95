"""Fields that a body may not have, or not with this value: refused, never silently ignored."""

from collections.abc import Mapping
from typing import Any

import orjson
from pydantic import ConfigDict

from router.errors import InvalidRequest, Unserved
from router.http.body import Schema

# The values that say what is so anyway; for an object, those of each of its keys.
Harmless = tuple[Any, ...] | Mapping[str, tuple[Any, ...]]


class WatchedSchema(Schema):
    """A body that knows what it was given beyond its fields."""

    model_config = ConfigDict(extra="allow")


def refuse_unserved(body: WatchedSchema, harmless: Mapping[str, Harmless]) -> None:
    """Raises InvalidRequest for unknown fields, and Unserved for the fields of `harmless` with any
    value but the harmless ones; null is always one of them."""
    for field in body.model_extra or {}:
        name = field[:60]
        raise InvalidRequest(f"`{name}` is not a parameter of this route", name)
    for field, values in harmless.items():
        value = getattr(body, field)
        if isinstance(values, Mapping):
            _check_object(field, value, values)
        else:
            _check_value(field, value, values)


def _check_object(field: str, value: Any, values: Mapping[str, tuple[Any, ...]]) -> None:
    if value is not None and not isinstance(value, dict):
        raise InvalidRequest(f"`{field}` must be an object", field)
    for key, inner in (value or {}).items():
        _check_value(f"{field}.{key[:60]}", inner, values.get(key, ()))


def _check_value(field: str, value: Any, values: tuple[Any, ...]) -> None:
    if value is None or value in values:
        return
    shown = " or ".join(f"`{orjson.dumps(allowed).decode()}`" for allowed in values)
    advice = f"leave it out or say {shown}" if shown else "leave it out"
    raise Unserved(f"`{field}` is not served yet; {advice}", field)
