"""A Context that writes down what a program asks of it, and answers holes from a list."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from client.query.conditions.kinds import HoleKind
from client.query.conditions.terms import written
from client.query.errors import Place
from client.query.program import Hole, Program


class Recorder:
    """Owner of the record of one run.

    An entry is the text that was said, `{:role}`, or a hole as it would be written: `[X: int]`,
    with ` where ...` behind it for each of its conditions, and ` over ...` for a distribution.
    """

    def __init__(self, answers: Mapping[str, Sequence[object]]) -> None:
        self._answers = {name: list(values) for name, values in answers.items()}
        self.record: list[str] = []
        self.holes: list[Hole] = []

    def say(self, text: str) -> None:
        self.record.append(text)

    def role(self, name: str, place: Place) -> None:
        self.record.append(f"{{:{name}}}")

    async def hole(self, hole: Hole) -> Any:
        self.record.append(_shown(hole))
        self.holes.append(hole)
        left = self._answers.get(hole.name)
        if not left:
            return "a"
        return left.pop(0) if len(left) > 1 else left[0]


def _shown(hole: Hole) -> str:
    decorators = "".join(f"@{_name(each.function)} " for each in hole.decorators)
    kind = "" if hole.kind is None else f": {_name(hole.kind)}"
    conditions = "".join(f" where {written(condition())}" for condition in hole.conditions)
    support = "" if hole.support is None else f" over {', '.join(hole.support)}"
    return f"[{decorators}{hole.name}{kind}]{conditions}{support}"


def _name(value: object) -> str:
    if isinstance(value, str | dict):
        return repr(value)
    if isinstance(value, HoleKind):
        return repr(value.schema) if value.name == "JSON" else value.name.removeprefix("a ")
    return getattr(value, "__name__", type(value).__name__)


def ran(
    program: Program,
    *arguments: object,
    answers: Mapping[str, Sequence[object]] | None = None,
    **keywords: object,
) -> tuple[list[str], object]:
    """What a program asks for and what it returns."""
    recorder = Recorder(answers or {})
    returned = asyncio.run(_awaited(program, recorder, arguments, keywords))
    return recorder.record, returned


def holes_of(program: Program, *arguments: object) -> list[Hole]:
    """The holes that a program asks for, as they are handed over."""
    recorder = Recorder({})
    asyncio.run(_awaited(program, recorder, arguments, {}))
    return recorder.holes


async def _awaited(
    program: Program,
    recorder: Recorder,
    arguments: tuple[object, ...],
    keywords: Mapping[str, object],
) -> object:
    return await program.body(recorder, *arguments, **keywords)
