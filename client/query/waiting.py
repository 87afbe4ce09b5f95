"""The synchronous side: an event loop for as long as a call takes."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def wait_for(coroutine: Coroutine[Any, Any, T], instead: str) -> T:
    """The coroutine's result. `instead` is what to call where an event loop runs already."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(coroutine)
    coroutine.close()
    raise RuntimeError(f"an event loop runs here, which this call would block: use {instead}")
