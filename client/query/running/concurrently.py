"""Runs coroutines concurrently; the first failure cancels the others."""

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any, TypeVar

T = TypeVar("T")


async def gather_or_cancel(parts: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """All results in order. If one fails, the others are cancelled and its error is raised."""
    tasks = [asyncio.ensure_future(part) for part in parts]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
