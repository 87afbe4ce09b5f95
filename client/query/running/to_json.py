"""Converts results to JSON, for files and for `launcher query --json`."""

import json
import re
from collections.abc import Mapping
from dataclasses import fields, is_dataclass

# Characters that JSON allows unescaped, but that some readers treat as line ends or cannot encode.
_ESCAPED = re.compile("[\x85\u2028\u2029\ud800-\udfff]")


def plain(value: object) -> object:
    """The value as dicts, lists, strings and numbers; other objects as their `str`."""
    if is_dataclass(value) and not isinstance(value, type):
        return fields_of(value)
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in value]
    if value is None or isinstance(value, str | int | float | bool):
        return value
    return str(value)


def json_line(value: object) -> str:
    """JSON on one line for every reader, encodable in UTF-8."""
    text = json.dumps(value, ensure_ascii=False)
    return _ESCAPED.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def fields_of(value: object) -> dict[str, object]:
    """A dataclass's fields by name."""
    assert is_dataclass(value)
    return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
