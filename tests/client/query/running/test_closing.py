"""Runs that are closed before their programs end, whatever these catch."""

import asyncio
from collections.abc import AsyncGenerator

import pytest

from client.beams import BeamsAnswer, BeamsCall, BeamsReport
from client.errors import ServerFailed
from client.query import beam, run, run_all
from tests.client.query.running.failing import MOST, Failing, Known, Silent, names_of
from tests.client.query.running.tree_model import TreeModel

ASKED_AGAIN = {
    "a bare except": """
while known.again():
    try:
        "[X]"
        break
    except:
        known.tell("caught")
""",
    "an except of all": """
while known.again():
    try:
        "[X]"
        break
    except (KeyError, BaseException) as error:
        known.tell("caught")
""",
    "a group": """
while known.again():
    try:
        "[X]"
        break
    except* BaseException as error:
        known.tell("caught")
""",
    "suppress": """
import contextlib
while known.again():
    with contextlib.suppress(BaseException):
        "[X]"
        break
""",
    "a finally that goes on": """
for _ in range(200):
    known.again()
    is_filled = False
    try:
        "[X]"
        is_filled = True
        break
    finally:
        if not is_filled:
            continue
""",
    "a handler of cancellations": """
import asyncio
while known.again():
    try:
        "[X]"
        break
    except asyncio.CancelledError:
        pass
""",
    "a loop around a loop": """
while known.again():
    try:
        while known.again():
            try:
                "[X]"
                break
            except:
                known.tell("caught")
        break
    except:
        known.tell("caught")
""",
    "a hole in a finally": """
try:
    "[X]"
finally:
    while known.again():
        try:
            "[Y]"
            break
        except:
            known.tell("caught")
""",
    "a hole in a finally, suppressed": """
import contextlib
try:
    "[X]"
finally:
    while known.again():
        with contextlib.suppress(BaseException):
            "[Y]"
            break
""",
    "a hole in a handler of cancellations": """
import asyncio
try:
    "[X]"
except asyncio.CancelledError:
    while known.again():
        try:
            "[Y]"
            break
        except asyncio.CancelledError:
            pass
""",
    "a loop over what comes": """
async def numbers():
    while known.again():
        yield 1

async for _ in numbers():
    try:
        "[X]"
        break
    except:
        known.tell("caught")
""",
    "a nested query": """
while known.again():
    try:
        "[X: inner]"
        break
    except:
        known.tell("caught")
""",
}
# What calls raise that Python makes is Python's to catch; so this ends by its cancellation alone.
ANOTHER_QUERY = """
async def ask():
    while known.again():
        try:
            return await inner()
        except BaseException:
            known.tell("caught")

while known.again():
    try:
        await ask()
        "[X]"
        break
    except BaseException:
        known.tell("caught")
"""


each_program = pytest.mark.parametrize("program", ASKED_AGAIN.values(), ids=ASKED_AGAIN.keys())


@each_program
async def test_a_program_does_not_ask_again_where_the_model_fails(program: str) -> None:
    known, num_tasks = Known(), len(asyncio.all_tasks())

    with pytest.raises(ServerFailed, match="it broke"):
        await run(program, names_of(known), model=Failing())

    assert known.num_rounds <= 3
    assert known.told == []
    assert len(asyncio.all_tasks()) == num_tasks


@pytest.mark.parametrize(
    "program", [*ASKED_AGAIN.values(), ANOTHER_QUERY], ids=[*ASKED_AGAIN.keys(), "another query"]
)
async def test_a_program_does_not_ask_again_where_its_run_is_cancelled(program: str) -> None:
    known, model, num_tasks = Known(), Silent(), len(asyncio.all_tasks())
    running = asyncio.create_task(run(program, names_of(known), model=model))
    await model.is_asked.wait()

    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running

    assert known.num_rounds <= 3
    assert known.told == []
    assert len(asyncio.all_tasks()) == num_tasks


class Counted(TreeModel):
    """Notes at each search how many tasks there are."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.num_tasks: list[int] = []

    async def search(self, call: BeamsCall) -> AsyncGenerator[BeamsReport | BeamsAnswer, None]:
        self.num_tasks.append(len(asyncio.all_tasks()))
        async for part in super().search(call):
            yield part


def _in_each_of_some_branches(program: str) -> str:
    """The program behind a hole where beams fork, each of its holes one of few texts."""
    lines = program.replace('[X]"', '[X]" where X in ["a", "b"]').replace(
        '[Y]"', '[Y]" where Y in ["a", "b"]'
    )
    fork = '"[FORK]" where FORK in ["a", "b", "ab", "ba", "aab"]\n'
    return f'{fork}{lines}\n"-[LAST]" where LAST in ["a", "b", "ab"]'


@each_program
async def test_a_program_does_not_ask_again_where_a_search_drops_its_branch(
    program: str,
) -> None:
    known, model, num_tasks = Known(), Counted(3), len(asyncio.all_tasks())

    results = await run_all(
        _in_each_of_some_branches(program), names_of(known), model=model, decoder=beam(2)
    )

    assert len(results) == 2
    assert known.told == []
    assert max(model.num_tasks) < MOST
    assert len(asyncio.all_tasks()) == num_tasks
