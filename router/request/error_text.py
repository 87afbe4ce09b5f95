"""What a client gave, as the text of an error shows it: short enough for a line.

Each error names the field, the rule and the value, in this order.
"""

from typing import Any

import orjson

from router.request.errors import InvalidRequest

_MAX_LEN = 60


class WrongPart(ValueError):
    """A part of a field breaks the field's rule; `given` is what stands in its place."""

    def __init__(self, rule: str, given: Any) -> None:
        super().__init__(rule)
        self.given = given


def wrong(field: str, rule: str, given: Any) -> InvalidRequest:
    """The error for a field that breaks its rule ("must be ...")."""
    return InvalidRequest(f"`{field}` {rule}. Given: {quoted(given)}", field)


def quoted(value: Any) -> str:
    """The value as JSON, cut to what a line can hold."""
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return f"a list of {len(value)}"
    if isinstance(value, int):
        # Also what is beyond the writer's 64 bits.
        return cut(str(value).lower())
    return cut(orjson.dumps(cut(value) if isinstance(value, str) else value).decode())


def cut(text: str) -> str:
    """As much of it as a line can hold."""
    return text if len(text) <= _MAX_LEN else text[:_MAX_LEN] + "..."
