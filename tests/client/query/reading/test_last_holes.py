"""Which holes are told to be the last of their program."""

import asyncio
from typing import Any

import pytest

from client.query.program import Hole
from client.query.reading.reader import read


class Told:
    """A Context that fills each hole with x and notes the holes that were called last."""

    def __init__(self) -> None:
        self.last: list[str] = []
        self.prompt = ""

    def say(self, text: str, place: object) -> None: ...

    def role(self, name: str, place: object) -> None: ...

    def caught(self) -> None: ...

    def on_loop(self, cleans_up: bool) -> None: ...

    async def hole(self, hole: Hole) -> Any:
        if hole.is_last:
            self.last.append(hole.name)
        return "x"


def last_of(text: str) -> list[str]:
    context = Told()

    async def run() -> None:
        await read(text).body(context)

    asyncio.run(run())
    return context.last


@pytest.mark.parametrize(
    ("program", "last"),
    [
        ('"[X]"', ["X"]),
        ('"Q: [X] and [Y]."', ["Y"]),
        ('"[X]"\nreturn X.upper()', ["X"]),
        ('"[X]"\nif X == "x":\n    "[Y]"\nelse:\n    "[Z]"', ["Y"]),
        ('"[X]"\nif X == "y":\n    "[Y]"\n"[Z]"', ["Z"]),
        ('for i in range(2):\n    "[X]"', []),
        ('"[X]"\nasync def later(): pass\nawait later()', []),
        ('try:\n    "[X]"\nfinally:\n    "[Y]"', []),
    ],
)
def test_a_hole_is_last_where_no_await_can_follow(program: str, last: list[str]) -> None:
    assert last_of(program) == last
