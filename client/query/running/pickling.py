"""Pickling and copying of frozen dataclasses with read-only mappings.

Python cannot pickle such mappings, so they are converted to dicts and back.
"""

from collections.abc import Mapping
from dataclasses import fields
from types import MappingProxyType
from typing import Any


class Pickled:
    """A base class for frozen dataclasses with keyword arguments."""

    __slots__ = ()

    def __reduce__(self) -> tuple[Any, ...]:
        values = {field.name: getattr(self, field.name) for field in fields(self)}  # type: ignore[arg-type]
        frozen = {
            name: dict(value)
            for name, value in values.items()
            if isinstance(value, MappingProxyType)
        }
        return _made, (type(self), {**values, **frozen}, tuple(frozen))


def _made(kind: type[Any], values: Mapping[str, Any], frozen: tuple[str, ...]) -> object:
    return kind(**{**values, **{name: MappingProxyType(values[name]) for name in frozen}})
