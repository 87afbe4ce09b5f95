"""How wide and how deep a client's JSON may be. It knows no field.

Lists and objects are what costs: a megabyte of brackets takes a parser ten times as long as a
megabyte of numbers, and whoever looks at them afterwards too, while every stream of the server
waits. So they are counted first, in the bytes.
"""

from collections.abc import Mapping
from itertools import accumulate
from typing import Any

from router.http.errors import HttpError

MAX_DEPTH = 64
MAX_CONTAINERS = 1 << 16
_MAX_QUOTED_LEN = 60
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))


def check_width(body: bytes) -> None:
    """Raise HttpError for JSON with more than MAX_CONTAINERS lists and objects, unparsed."""
    # Brackets in strings are counted too, until there are so many that it matters.
    if _num_openings(body) <= MAX_CONTAINERS:
        return
    num_containers = _num_openings(_brackets(body))
    if num_containers > MAX_CONTAINERS:
        message = f"JSON must have at most {MAX_CONTAINERS} lists and objects. Given:"
        raise HttpError(400, "validation", f"{message} {num_containers}")


def check_depth(body: bytes, value: Mapping[str, Any]) -> None:
    """Raise HttpError for a value that is nested too deep; `body` is its text."""
    if _num_openings(body) <= MAX_DEPTH or _depth(_brackets(body)) <= MAX_DEPTH:
        return
    for key, child in value.items():
        if _is_deeper(child, MAX_DEPTH - 1):
            told = key if len(key) <= _MAX_QUOTED_LEN else key[:_MAX_QUOTED_LEN] + "..."
            message = f"`{told}` is nested more than {MAX_DEPTH} levels deep"
            raise HttpError(400, "validation", message, field=key)


def _num_openings(text: bytes) -> int:
    return text.count(b"[") + text.count(b"{")


def _brackets(body: bytes) -> bytes:
    """Those that are no part of a string, in their order."""
    plain = body.replace(rb"\\", b"").replace(rb"\"", b"")
    return b"".join(plain.split(b'"')[::2]).translate(None, _NO_BRACKETS)


def _depth(brackets: bytes) -> int:
    return max(accumulate(1 if bracket in b"[{" else -1 for bracket in brackets))


def _is_deeper(value: Any, max_depth: int) -> bool:
    level = [value] if isinstance(value, (dict, list)) else []
    for _ in range(max_depth):
        level = [
            child
            for parent in level
            for child in (parent.values() if isinstance(parent, dict) else parent)
            if isinstance(child, (dict, list))
        ]
    return bool(level)
