"""Fields that a body may not have, or not with this value: refused, never silently ignored."""

from collections.abc import Mapping
from typing import Any

from pydantic import ConfigDict

from router.errors import InvalidRequest
from router.http.body import Schema


class WatchedSchema(Schema):
    """A body that knows what it was given beyond its fields."""

    model_config = ConfigDict(extra="allow")


def refuse_unserved(body: WatchedSchema, harmless: Mapping[str, tuple[Any, ...]]) -> None:
    """Raises InvalidRequest for unknown fields, and for the fields of `harmless` with a value that
    is not among the named ones. Nulls are always harmless, within objects too."""
    for field in body.model_extra or {}:
        name = field[:60]
        raise InvalidRequest(f"`{name}` is not a parameter of this route", name)
    for field, values in harmless.items():
        value = getattr(body, field)
        if isinstance(value, dict):
            value = {key: part for key, part in value.items() if part is not None}
        if value is not None and value not in values:
            raise InvalidRequest(f"`{field}` is not served yet; {_advice(values)}", field)


def _advice(values: tuple[Any, ...]) -> str:
    shown = [f"`{value}`" for value in values if isinstance(value, str)]
    return f"leave it out, or say {' or '.join(shown)}" if shown else "leave it out"
