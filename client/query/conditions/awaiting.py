"""Refuses coroutines in conditions: they cannot be awaited, and as values are always true."""

import inspect

from client.query.errors import BadCondition
from client.query.place import Place


def refuse_awaitable(value: object, place: Place | None, shown: str | None = None) -> None:
    """Raise BadCondition for an awaitable; `shown`: its source text."""
    if not inspect.isawaitable(value):
        return
    if inspect.iscoroutine(value):
        value.close()  # no warning that it was never awaited
    what = "this" if shown is None else f"`{shown}`"
    raise BadCondition(
        f"{what} is a call of an async function, which conditions cannot await: use a plain one",
        place,
    )
