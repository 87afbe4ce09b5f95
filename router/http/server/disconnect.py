"""The client's departure, noticed while its answer is being made."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.types import Receive

from router.request.errors import Cancelled

T = TypeVar("T")


async def until_disconnected(receive: Receive) -> None:
    """Returns when the client has left. The body must have been read."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def unless_disconnected(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """What `work` returns; cancels it and raises Cancelled as soon as the client leaves."""
    working = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(until_disconnected(request.receive))
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise Cancelled("the client left")
        return working.result()
    finally:
        await end(working, leaving)


async def end(*tasks: asyncio.Future[Any]) -> None:
    """Cancels what still runs and waits for its last word; results are for who holds the task."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
