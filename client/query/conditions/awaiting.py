"""Calls of async functions, which conditions cannot await: as values they would all be true."""

import inspect

from client.query.errors import BadCondition
from client.query.place import Place


def refuse_awaitable(value: object, place: Place | None, shown: str | None = None) -> None:
    """Raise BadCondition for one; `shown` is what the program says there."""
    if not inspect.isawaitable(value):
        return
    if inspect.iscoroutine(value):
        value.close()  # no warning that it was never awaited
    what = "this" if shown is None else f"`{shown}`"
    raise BadCondition(
        f"{what} is a call of an async function, which conditions cannot await: use a plain one",
        place,
    )
