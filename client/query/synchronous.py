"""Synchronous calls: each runs an event loop of its own."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from client.query.tracebacks import TrimmedTracebacks

T = TypeVar("T")


def wait_for(coroutine: Coroutine[Any, Any, T], instead: str) -> T:
    """The coroutine's result. `instead`: what to call if an event loop is running."""
    if _a_loop_runs():
        coroutine.close()
        raise RuntimeError(f"an event loop runs here, which this call would block: use {instead}")
    with TrimmedTracebacks():
        return asyncio.run(coroutine)


def _a_loop_runs() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
