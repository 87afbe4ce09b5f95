"""Tasks that are ended, whatever they catch."""

import asyncio
import contextlib
import sysconfig
import time
import warnings
from collections.abc import Callable, Coroutine

import pytest

from client.errors import ServerFailed
from client.query import run
from client.query.running.cancellation import CancellationSwallowed, end
from tests.client.query.running.failing import Failing

PATIENCE_S = 0.05


async def for_ever() -> None:
    while True:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(60)


async def in_its_handler() -> None:
    while True:
        try:
            await asyncio.sleep(60)
        except:  # noqa: E722
            await asyncio.sleep(60)


async def whatever_comes() -> None:
    while True:
        with contextlib.suppress(BaseException):
            await asyncio.sleep(60)


_LIBRARY = """
import asyncio
async def retried():
    while True:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            pass
"""


async def _asks_a_library() -> None:
    """A package that swallows the error in no line of ours."""
    package: dict[str, Callable[[], Coroutine[object, object, None]]] = {}
    exec(compile(_LIBRARY, f"{sysconfig.get_path('purelib')}/retrying.py", "exec"), package)
    await package["retried"]()


async def _told_at_its_end(awaiting: Coroutine[object, object, None], told: list[str]) -> None:
    try:
        await awaiting
    finally:
        told.append("cleaned up")


@pytest.mark.parametrize("stubborn", [for_ever, in_its_handler, whatever_comes])
# Python tells of a coroutine that takes its very end for a failure; there is no more to be done.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
async def test_a_task_that_swallows_its_cancellation_is_broken_off(
    stubborn: Callable[[], Coroutine[object, object, None]],
) -> None:
    told: list[str] = []
    task = asyncio.create_task(_told_at_its_end(stubborn(), told))
    await asyncio.sleep(0)

    with pytest.warns(CancellationSwallowed, match=rf"> {stubborn.__name__} .*py:\d+\)$") as warned:
        await end(task, PATIENCE_S)

    # At the line that goes on, as an editor or a filter by module finds it.
    code = stubborn.__code__
    lines = [line for _, _, line in code.co_lines() if line is not None]
    assert warned[0].filename == __file__
    assert warned[0].lineno in lines
    assert task.done()
    assert told == ["cleaned up"]


async def test_a_library_that_swallows_is_told_of_where_it_is_asked() -> None:
    task = asyncio.create_task(_asks_a_library())
    await asyncio.sleep(0)

    with pytest.warns(CancellationSwallowed, match=r"stands in _asks_a_library \(") as warned:
        await end(task, PATIENCE_S)

    assert warned[0].filename == __file__
    assert task.done()


async def test_a_task_has_its_time_to_clean_up() -> None:
    told: list[str] = []

    async def slow() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(PATIENCE_S)

    task = asyncio.create_task(_told_at_its_end(slow(), told))
    await asyncio.sleep(0)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        await end(task, 100 * PATIENCE_S)

    assert task.cancelled()
    assert told == ["cleaned up"]


async def test_an_end_that_nobody_waits_for_is_made_at_once() -> None:
    told: list[str] = []
    task = asyncio.create_task(_told_at_its_end(for_ever(), told))
    await asyncio.sleep(0)
    ending = asyncio.create_task(end(task))
    await asyncio.sleep(0)

    ending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await ending

    assert told == ["cleaned up"]
    await asyncio.wait({task}, timeout=1)
    assert task.done()


async def _swallowing() -> str:
    try:
        await run('"[X]"', model=Failing())
    except ServerFailed:
        await for_ever()
    return ""


@pytest.mark.slow
def test_a_query_ends_whatever_its_helpers_swallow() -> None:
    async def asked() -> None:
        async with asyncio.timeout(0.5):
            await run('await helper()\n"[X]"', {"helper": _swallowing}, model=Failing())

    began_s = time.monotonic()
    with pytest.warns(CancellationSwallowed, match="for_ever"), pytest.raises(TimeoutError):
        asyncio.run(asked())

    assert time.monotonic() - began_s < 15
