"""How bodies of runs end: what cleans up, what their own tasks and exits mean."""

import asyncio

import pytest

from client.errors import ServerFailed
from client.query import BadProgram, ProgramFailed, query, run
from tests.client.query.running.failing import MOST, Failing, Known, Silent, names_of
from tests.client.query.running.scripted_model import ScriptedModel, in_turn


def test_a_synchronous_call_ends_with_its_model() -> None:
    known = Known()

    @query(model=Failing())
    def greedy(known):  # type: ignore[no-untyped-def]
        """
        while known.again():
            try:
                "[X]"
                return X
            except:
                known.tell("caught")
        """

    with pytest.raises(ServerFailed, match="it broke"):
        greedy(known)

    assert (known.num_rounds, known.told) == (1, [])


METHOD = """
class Asker:
    async def ask(self):
        while known.again():
            try:
                return await inner()
            except:
                known.tell("caught")
said = await Asker().ask()
"""
DECORATED = """
def again(function):
    async def call():
        while known.again():
            try:
                return await function()
            except:
                known.tell("caught")
    return call
said = await again(inner)()
"""


@pytest.mark.parametrize("text", [METHOD, DECORATED], ids=["method", "decorated"])
async def test_what_a_program_defines_ends_with_its_run(text: str) -> None:
    known, model = Known(), Silent()
    running = asyncio.create_task(run(text, names_of(known), model=model))
    await model.is_asked.wait()

    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running

    assert (known.num_rounds, known.told) == (1, [])


async def test_what_cleans_up_comes_to_its_end() -> None:
    known = Known()
    text = """
import asyncio

async def clean(number):
    for part in "ab":
        await asyncio.sleep(0)
        known.tell(f"{part}{number}")

try:
    "[X]"
finally:
    for number in range(2):
        await clean(number)
        try:
            raise OSError
        except OSError:
            known.tell("gone")
"""
    with pytest.raises(ServerFailed):
        await run(text, {"known": known}, model=Failing())

    assert known.told == ["a0", "b0", "gone", "a1", "b1", "gone"]


async def test_handlers_and_loops_do_in_open_runs_what_they_say() -> None:
    text = """
import asyncio
told = []
for number in range(3):
    try:
        asyncio.current_task().cancel() if number == 1 else None
        await asyncio.sleep(0)
    except:
        asyncio.current_task().uncancel()
        told.append(number)
    else:
        "[X]"
return told
"""
    model = ScriptedModel(in_turn("a", "b"))

    result = await run(text, model=model)

    assert (result.value, result.prompt) == ([1], "ab")


async def test_a_program_that_stops_waiting_again_and_again_is_told_once() -> None:
    known = Known()
    text = """
import asyncio
while known.again():
    try:
        async with asyncio.timeout(0):
            "[X]"
            break
    except Exception:
        pass
"""
    with pytest.raises(BadProgram, match=r"stopped waiting for \[X\]"):
        await run(text, {"known": known}, model=ScriptedModel(in_turn("yes")))

    assert known.num_rounds < MOST


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
