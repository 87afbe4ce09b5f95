"""Frozen words as JSON's types, for files and for `launcher query --json`."""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass


def plain(value: object) -> object:
    """The value as dicts, lists, strings and numbers; what is none of these as its `str`."""
    if is_dataclass(value) and not isinstance(value, type):
        return fields_of(value)
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in value]
    if value is None or isinstance(value, str | int | float | bool):
        return value
    return str(value)


def fields_of(value: object) -> dict[str, object]:
    """A dataclass's fields by name."""
    assert is_dataclass(value)
    return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
