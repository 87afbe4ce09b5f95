"""Runs that are ended before their programs, whatever these catch, and what cleans up in them."""

import asyncio
import contextlib
import itertools
import time
import warnings
from collections.abc import Callable, Coroutine

import pytest

from client.errors import ServerFailed
from client.query import ProgramFailed, query, run
from client.query.running.traces import CLOSING_S, end
from tests.client.query.running.models import Failing, ScriptedModel, Silent, in_turn

PATIENCE_S = 0.05


async def for_ever() -> None:
    while True:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(60)


async def whatever_comes() -> None:
    while True:
        with contextlib.suppress(BaseException):
            await asyncio.sleep(60)


async def _told_at_its_end(awaiting: Coroutine[object, object, None], told: list[str]) -> None:
    try:
        await awaiting
    finally:
        told.append("cleaned up")


@pytest.mark.parametrize("stubborn", [for_ever, whatever_comes])
# Python tells of a coroutine that takes its very end for a failure; there is no more to be done.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
async def test_a_task_that_swallows_its_cancellation_is_broken_off(
    stubborn: Callable[[], Coroutine[object, object, None]],
) -> None:
    told: list[str] = []
    task = asyncio.create_task(_told_at_its_end(stubborn(), told))
    await asyncio.sleep(0)

    with pytest.warns(RuntimeWarning, match="something swallows CancelledError"):
        await end(task, PATIENCE_S)

    assert task.done()
    assert told == ["cleaned up"]


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


ASKED_AGAIN = {
    "a bare except": """
while next(rounds) < 99:
    try:
        "[X]"
        break
    except:
        pass
""",
    "a hole in a finally": """
try:
    "[X]"
finally:
    while next(rounds) < 99:
        try:
            "[Y]"
            break
        except:
            pass
""",
    "a nested query": """
while next(rounds) < 99:
    try:
        "[X: inner]"
        break
    except:
        pass
""",
}
# At the hole, cancelled there, again, broken off, woken.
MAX_ROUNDS = 5


@query
async def inner():  # type: ignore[no-untyped-def]
    """
    while True:
        try:
            "[X]"
            return X
        except Exception:
            raise
    """


each_program = pytest.mark.parametrize("program", ASKED_AGAIN.values(), ids=ASKED_AGAIN.keys())
broken_off = pytest.mark.filterwarnings(
    "ignore:a program goes on after its run was cancelled:RuntimeWarning",
    "ignore::pytest.PytestUnraisableExceptionWarning",
)


@each_program
@broken_off
async def test_a_program_does_not_ask_again_where_the_model_fails(program: str) -> None:
    rounds = itertools.count()
    began_s = time.monotonic()

    with pytest.raises(ServerFailed, match="it broke"):
        await run(program, {"rounds": rounds, "inner": inner}, model=Failing())

    assert next(rounds) <= MAX_ROUNDS
    assert time.monotonic() - began_s < CLOSING_S


@each_program
@broken_off
async def test_a_program_does_not_ask_again_where_its_run_is_cancelled(program: str) -> None:
    rounds, model = itertools.count(), Silent()
    names = {"rounds": rounds, "inner": inner}
    running = asyncio.create_task(run(program, names, model=model))
    await model.is_asked.wait()

    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running

    assert next(rounds) <= MAX_ROUNDS


async def test_what_cleans_up_comes_to_its_end() -> None:
    told: list[str] = []
    text = """
import asyncio

async def clean(number):
    for part in "ab":
        await asyncio.sleep(0)
        told.append(f"{part}{number}")

try:
    "[X]"
finally:
    for number in range(2):
        await clean(number)
        try:
            raise OSError
        except OSError:
            told.append("gone")
"""
    with pytest.raises(ServerFailed):
        await run(text, {"told": told}, model=Failing())

    assert told == ["a0", "b0", "gone", "a1", "b1", "gone"]


async def test_a_program_whose_own_task_is_cancelled_has_failed() -> None:
    text = "import asyncio\ntask = asyncio.create_task(asyncio.sleep(9))\ntask.cancel()\nawait task"

    with pytest.raises(ProgramFailed, match=r"<query>:4:1: .* was cancelled"):
        await run(text, model=ScriptedModel(in_turn("yes")))


async def test_a_program_that_exits_fails_alone() -> None:
    model = ScriptedModel(lambda prompt: ["yes"])
    texts = ['"[X]"', '"[X]"\nraise SystemExit(3)', '"[X]"']

    results = await asyncio.gather(
        *(run(text, model=model) for text in texts), return_exceptions=True
    )

    assert [isinstance(each, BaseException) for each in results] == [False, True, False]
    assert isinstance(results[1], ProgramFailed)
    assert str(results[1]).startswith("<query>:2:1: RuntimeError: the program asks for an exit")
