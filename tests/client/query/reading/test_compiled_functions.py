"""Names that a program sees: of the function around it, of its own functions, and given ones."""

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest

from client.query import AsyncQuery, BadProgram, ProgramFailed, beam, query, run, run_all
from tests.client.query.running.models import ScriptedModel, TreeModel, in_turn

MODEL = ScriptedModel(lambda prompt: ["."])


async def test_a_query_asks_itself_and_others_that_come_after_it() -> None:
    def pair() -> AsyncQuery[[int], object, object]:
        @query(model=MODEL)
        async def down(n: int) -> object:
            """
            "down{n}"
            if n: "[X: up(n - 1)]"
            else: "[X]"
            return f"{n}{X}"
            """

        @query(model=MODEL)
        async def up(n: int) -> object:
            """
            "up{n}[X: down(n)]"
            return f"{n}{X}"
            """

        return down

    assert await pair()(2) == "21100."


async def test_a_name_that_is_bound_too_late_is_none() -> None:
    def made(is_bound: bool) -> AsyncQuery[[], object, object]:
        @query(model=MODEL)
        async def asks() -> object:
            """
            "[X: later]"
            """

        if is_bound:
            later = int  # noqa: F841
        return asks

    with pytest.raises(ProgramFailed, match="'later'"):
        await made(False)()


def test_a_query_keeps_no_variables_that_it_does_not_use() -> None:
    class Large:
        """As a model's weights are."""

    def made() -> tuple[AsyncQuery[[], object, object], Callable[[], object]]:
        large, small = Large(), "a"  # noqa: F841

        @query(model=MODEL)
        async def asks() -> object:
            """
            "{small}[X]"
            return X
            """

        return asks, weakref.ref(large)

    asks, held = made()
    gc.collect()

    assert held() is None
    assert asks.run_sync().prompt == "a."


COUNTER = """
count = 0
def bump():
    nonlocal count
    count += 1
    return count
"""


async def test_a_function_may_change_a_variable_of_its_program() -> None:
    text = COUNTER + 'bump()\n"{bump()}"\nreturn count'

    assert (await run(text, model=ScriptedModel(in_turn()))).value == 2
    assert (await run(text, model=ScriptedModel(in_turn()))).value == 2


async def test_each_trace_has_its_own() -> None:
    text = COUNTER + 'for _ in range(3):\n    "[X]" where X in ["a", "b"]\n    bump()\nreturn count'

    results = await run_all(text, model=TreeModel(3), decoder=beam(3))

    assert [result.value for result in results] == [3, 3, 3]


async def test_a_text_has_no_global_variables() -> None:
    text = """
n = 0
def outer():
    global n
    n += 1
outer()
"""
    with pytest.raises(BadProgram, match="those of one run; write `nonlocal n`") as caught:
        await run(text, model=ScriptedModel(in_turn()))

    assert caught.value.place is not None
    assert (caught.value.place.line, caught.value.place.column) == (4, 5)


@pytest.mark.parametrize(
    ("text", "given", "prompt"),
    [
        (
            'options = options.split(",")\n"{options[0]}: [X]" where X in options',
            {"options": "a,bb"},
            "a: a",
        ),
        ('n = n + 1\n"{n}[X]" where len(X) < n', {"n": 1}, "2a"),
        ('n += 1\n"{n}"', {"n": 1}, "2"),
        ('"{n}[X]" where len(X) < n\nn = 5\n"{n}"', {"n": 2}, "2a5"),
        ('for i in range(2):\n    "{n}"\n    n = n * 2', {"n": 3}, "36"),
        ('for i in range(2):\n    "{PREV}>[PREV];"', {"PREV": "x"}, "x>aaa;aaa>aaa;"),
        ('"{[max for max in [1, 2]]}{max(3, 4)}"', {}, "[1, 2]4"),
        ('if n:\n    word = "new"\n"{word}"', {"n": 0, "word": "old"}, "old"),
        ("import math\nmath = math.floor(2.5)\n'{math}'", {"math": 3}, "2"),
    ],
)
async def test_a_variable_begins_with_what_it_has_outside(
    text: str, given: dict[str, Any], prompt: str
) -> None:
    result = await run(text, given, model=ScriptedModel(lambda prompt: ["aaa", "a"]))

    assert result.prompt == prompt


@pytest.mark.parametrize(
    "text",
    ["x = limit\nlimit = 3", '"{limit}[X]"\nlimit = 3', '"[X]" where len(X) < limit\nlimit = 3'],
)
async def test_a_name_that_has_no_value_yet_is_told_so(text: str) -> None:
    with pytest.raises(ProgramFailed) as caught:
        await run(text, model=ScriptedModel(list))

    assert "where it is not associated with a value" in caught.value.message


async def test_a_function_keeps_pythons_rule() -> None:
    @query(model=ScriptedModel(in_turn()))
    async def counted() -> None:
        """
        GIVEN = GIVEN + 1
        "{GIVEN}"
        """

    with pytest.raises(ProgramFailed, match="cannot access local variable 'GIVEN'"):
        await counted()


GIVEN = 1
