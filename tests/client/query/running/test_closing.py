"""Runs that end before their programs do, whatever these catch."""

import asyncio
from collections.abc import AsyncGenerator

import pytest

from client import query
from client.beams import BeamsAnswer, BeamsReport, SearchCall
from client.errors import ServerFailed
from client.query import run, run_all
from client.query.errors import BadProgram, ProgramFailed
from client.words import Answer, GenerateCall
from tests.client.query.running.scripted_model import ScriptedModel, in_turn
from tests.client.query.running.tree_model import TreeModel

# Programs that ask for X again whenever it failed; so far a mistake is told, and no test hangs.
MOST = 99


class Failing(ScriptedModel):
    """Fails in the middle of a hole."""

    def __init__(self) -> None:
        super().__init__(in_turn())

    async def generate(self, call: GenerateCall) -> Answer:
        await asyncio.sleep(0)
        raise ServerFailed("it broke", "step_failed")


class Silent(ScriptedModel):
    """Never answers."""

    def __init__(self) -> None:
        super().__init__(in_turn())
        self.is_asked = asyncio.Event()

    async def generate(self, call: GenerateCall) -> Answer:
        self.is_asked.set()
        await asyncio.get_running_loop().create_future()
        raise AssertionError


class Known:
    """What a program sees. `told` are what its handlers and its ends say."""

    def __init__(self) -> None:
        self.num_rounds = 0
        self.told: list[str] = []

    def again(self) -> bool:
        self.num_rounds += 1
        return self.num_rounds < MOST

    def tell(self, what: str) -> None:
        self.told.append(what)


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


@query.query
async def inner():  # type: ignore[no-untyped-def]
    """
    while True:
        try:
            "[X]"
            return X
        except Exception:
            raise
    """


def _names(known: Known) -> dict[str, object]:
    return {"known": known, "inner": inner}


each_program = pytest.mark.parametrize("program", ASKED_AGAIN.values(), ids=ASKED_AGAIN.keys())


@each_program
async def test_a_program_does_not_ask_again_where_the_model_fails(program: str) -> None:
    known, num_tasks = Known(), len(asyncio.all_tasks())

    with pytest.raises(ServerFailed, match="it broke"):
        await run(program, _names(known), model=Failing())

    assert known.num_rounds <= 3
    assert known.told == []
    assert len(asyncio.all_tasks()) == num_tasks


@pytest.mark.parametrize(
    "program", [*ASKED_AGAIN.values(), ANOTHER_QUERY], ids=[*ASKED_AGAIN.keys(), "another query"]
)
async def test_a_program_does_not_ask_again_where_its_run_is_cancelled(program: str) -> None:
    known, model, num_tasks = Known(), Silent(), len(asyncio.all_tasks())
    running = asyncio.create_task(run(program, _names(known), model=model))
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

    async def search(self, call: SearchCall) -> AsyncGenerator[BeamsReport | BeamsAnswer, None]:
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
@pytest.mark.parametrize("decoder", [query.beam(2), query.best_k(2, budget=40)], ids=["beam", "k"])
async def test_a_program_does_not_ask_again_where_a_search_drops_its_branch(
    program: str, decoder: query.Decoding
) -> None:
    known, model, num_tasks = Known(), Counted(3), len(asyncio.all_tasks())

    results = await run_all(
        _in_each_of_some_branches(program), _names(known), model=model, decoder=decoder
    )

    assert len(results) == 2
    assert known.told == []
    assert max(model.num_tasks) < MOST
    assert len(asyncio.all_tasks()) == num_tasks


def test_a_synchronous_call_ends_with_its_model() -> None:
    known = Known()

    @query.query(model=Failing())
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


async def test_a_method_of_a_class_in_a_program_ends_with_its_run() -> None:
    known, model = Known(), Silent()
    text = """
class Asker:
    async def ask(self):
        while known.again():
            try:
                return await inner()
            except:
                known.tell("caught")
said = await Asker().ask()
"""
    running = asyncio.create_task(run(text, _names(known), model=model))
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
