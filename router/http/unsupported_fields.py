"""Fields that a body may not have, or not with this value: refused, never silently ignored."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, ClassVar

import orjson
from pydantic import ConfigDict, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from router.http.body import Schema
from router.request.error_text import quoted, wrong
from router.request.errors import InvalidRequest, Unsupported

# The values that say what is so anyway; for an object, those of each of its keys.
Harmless = tuple[Any, ...] | Mapping[str, tuple[Any, ...]]


class WatchedSchema(Schema):
    """A body that takes no field but its own, and of those in `unserved` the harmless values alone.

    Null is always harmless. The fields themselves are declared as `Any`.
    """

    model_config = ConfigDict(extra="allow")

    unserved: ClassVar[Mapping[str, Harmless]] = MappingProxyType({})

    def refuse_unserved(self) -> None:
        """Raises InvalidRequest for a field that is not known, Unsupported for one not served."""
        for field in self.model_extra or {}:
            name = field[:60]
            raise InvalidRequest(f"`{name}` is not a parameter of this route", name)
        for field, values in self.unserved.items():
            value = getattr(self, field)
            if isinstance(values, Mapping):
                _check_object(field, value, values)
            else:
                _check_value(field, value, values)

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        """As pydantic has it, but that what is refused is no part of it."""
        schema = handler.resolve_ref_schema(handler(core_schema))
        schema["additionalProperties"] = False
        for field, values in cls.unserved.items():
            schema["properties"][field] = _documented(values)
        return schema


def _check_object(field: str, value: Any, values: Mapping[str, tuple[Any, ...]]) -> None:
    if value is not None and not isinstance(value, dict):
        raise wrong(field, "must be an object", value)
    for key, inner in (value or {}).items():
        _check_value(f"{field}.{key[:60]}", inner, values.get(key, ()))


def _check_value(field: str, value: Any, values: tuple[Any, ...]) -> None:
    if value is None or value in values:
        return
    if not values:
        raise Unsupported(f"`{field}` is not served yet; leave it out", field)
    shown = " or ".join(f"`{orjson.dumps(allowed).decode()}`" for allowed in values)
    rule = f"is not served yet; leave it out or say {shown}"
    raise Unsupported(f"`{field}` {rule}. Given: {quoted(value)}", field)


def _documented(values: Harmless) -> dict[str, Any]:
    if isinstance(values, tuple):
        return {"enum": [None, *values]}
    return {
        "type": ["object", "null"],
        "properties": {key: {"enum": [None, *inner]} for key, inner in values.items()},
        "additionalProperties": {"type": "null"},
    }
