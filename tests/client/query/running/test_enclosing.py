"""Queries that are decorated in functions, and the names that they see there."""

from types import FrameType, SimpleNamespace
from typing import cast

import pytest

from client.query import AsyncQuery, ProgramFailed, query
from client.query.reading.enclosing import LateNames
from tests.client.query.running.scripted_model import ScriptedModel

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


async def test_its_own_name_is_the_new_query_where_another_had_it() -> None:
    made = []
    for last in "ab":  # noqa: B007

        @query(model=MODEL)
        async def climb(n: int) -> object:
            """
            if n: "[X: climb(n - 1)]"
            else: X = last
            return f"{n}{X}"
            """

        made.append(climb)

    assert [await each(1) for each in made[1:]] == ["10b"]


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


async def test_a_docstring_whose_only_prompt_stands_behind_a_colon_is_a_program() -> None:
    @query(model=MODEL)
    async def asks(n: int) -> object:
        """
        if n: "{n}[X]"
        return n
        """

    assert (await asks.run(0)).prompt == ""
    assert (await asks.run(3)).prompt == "3."


def test_threads_may_ask_for_the_first_time_at_once() -> None:
    """The second one comes while the first one looks."""

    class Locals(dict[str, object]):
        is_first = True

        def __getitem__(self, name: str) -> object:
            if self.is_first:
                self.is_first = False
                late.look_up()
            return super().__getitem__(name)

    frame = cast(FrameType, SimpleNamespace(f_locals=Locals(climb=1, down=2)))
    late = LateNames(["climb", "down"], frame)
    late.look_up()

    assert [late.cells[name].cell_contents for name in ("climb", "down")] == [1, 2]
