"""Types of queries and of holes: what type checkers see (`make types` holds it), and values."""

import asyncio
import json
import sys
from dataclasses import dataclass
from typing import Any, assert_type

import pytest

from client.query import (
    BadCondition,
    NotSatisfied,
    ProgramFailed,
    Result,
    State,
    query,
    run,
    sample,
)
from tests.client.query.running.models import ScriptedModel, in_turn, under_caret

MODEL = ScriptedModel(lambda prompt: ["7"])


@query(model=MODEL)
async def number(word: str, *, times: int = 1) -> int:  # type: ignore[empty-body]
    """
    "{word * times}[X: int]"
    return X
    """


@query(model=MODEL)
def shown(word: str) -> None:
    """
    "{word}[X]"
    """


async def test_a_call_and_its_result_have_the_type_that_the_function_declares() -> None:
    value = await number("a", times=2)
    result = await number.using(decoder=sample(2)).run("a")

    assert_type(value, int)
    assert_type(result, Result[int])
    assert (value, result.value) == (7, 7)


async def test_so_does_what_it_is_watched_for() -> None:
    async for part in number.watch("a", times=3):
        assert_type(part, State | Result[int])
    async for each in shown.watch("a"):
        assert_type(each, State | Result[None])

    assert isinstance(part, Result)
    assert (part.value, part.prompt) == (7, "aaa7")


def test_a_query_that_returns_nothing_gives_its_result() -> None:
    result = shown("a")

    assert_type(result, Result[None])
    assert result.prompt == "a7"


class Teller:
    """Its queries are methods."""

    def __init__(self, word: str) -> None:
        self.word = word

    @query(model=MODEL)
    async def number(self, times: int = 1) -> int:  # type: ignore[empty-body]
        """
        "{self.word * times}[X: int]"
        return X
        """

    @query(model=MODEL)
    def shown(self) -> None:
        """
        "{self.word}[X]"
        """


async def test_a_method_is_called_without_its_object() -> None:
    teller = Teller("a")

    value = await teller.number(times=2)
    result = await teller.number.run(3)

    assert_type(value, int)
    assert_type(result, Result[int])
    assert (value, result.prompt) == (7, "aaa7")


TREES = """
import dataclasses
from dataclasses import dataclass
from typing import ClassVar
from typing_extensions import TypedDict

@dataclass
class Tree:
    leaves: "list[Leaf]"
    mark: "Mark | None" = None
    names: "ClassVar[int]" = 3
    others: "dataclasses.InitVar[int]" = 4

@dataclass
class Leaf:
    size: "int"
    below: "Tree | None" = None

class Mark(TypedDict):
    colour: "Colour"

argmax
    "[T: Tree]"
    return T
"""


class Colour(str):
    """None of JSON's."""


def writing(value: object) -> ScriptedModel:
    return ScriptedModel(lambda prompt: [json.dumps(value)])


async def test_programs_side_by_side_mean_classes_of_their_own() -> None:
    models = [writing({"leaves": [], "mark": {"colour": colour}}) for colour in (1, "red")]
    modules = set(sys.modules)

    results = await asyncio.gather(
        run(TREES, {"Colour": int}, model=models[0]), run(TREES, {"Colour": str}, model=models[1])
    )

    assert [result.value.mark["colour"] for result in results] == [1, "red"]  # type: ignore[attr-defined]
    assert set(sys.modules) == modules


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ({}, "`Tree` is no type of a hole, and none of JSON: name 'Colour' is not defined"),
        ({"Colour": Colour}, "none of JSON: Unable to generate pydantic-core schema for <class '"),
    ],
)
async def test_a_type_that_is_none_is_told_at_the_hole(
    names: dict[str, object], message: str
) -> None:
    with pytest.raises(BadCondition) as caught:
        await run(TREES, names, model=ScriptedModel(list))

    assert message in caught.value.message
    assert under_caret(caught.value) == "Tree"


NODE = """
from dataclasses import dataclass
from typing import Literal, Optional
@dataclass
class Node:
    value: int
    next: "Optional[list['Node']]" = None
argmax
    "[HEAD: {}]"
    return HEAD
"""


@pytest.mark.parametrize(
    ("kind", "written", "shown"),
    [
        (
            "list['Node'] | None",
            [{"value": 1, "next": [{"value": 2}]}],
            "[Node(value=1, next=[Node(value=2, next=None)])]",
        ),
        ("tuple['Node', ...]", [{"value": 1}], "(Node(value=1, next=None),)"),
        ("list[Literal['Node']]", ["Node"], "['Node']"),
    ],
)
async def test_the_parts_of_a_holes_type_may_be_quoted(
    kind: str, written: object, shown: str
) -> None:
    result = await run(NODE.replace("{}", kind), model=writing(written))

    assert repr(result.value) == shown


async def test_a_quoted_part_may_be_a_class_of_the_function_around_a_query() -> None:
    @dataclass
    class Leaf:
        size: int

    @query(model=writing([{"size": 3}]))
    async def leaves() -> list[Leaf]:  # type: ignore[empty-body]
        """
        "[ALL: list['Leaf']]"
        return ALL
        """

    assert await leaves() == [Leaf(3)]


@dataclass
class Even:
    """Refuses odd numbers, as Python's own types refuse what they are not."""

    number: int

    def __post_init__(self) -> None:
        if self.number % 2:
            raise ValueError("odd")


@pytest.mark.parametrize(
    ("kind", "texts"),
    [
        (Even, ('{"number": 1}', '{"number": 2}')),
        (list[Even], ('[{"number": 1}]', '[{"number": 2}]')),
    ],
)
async def test_a_value_that_a_type_refuses_is_asked_for_again(
    kind: Any, texts: tuple[str, str]
) -> None:
    model = ScriptedModel(in_turn(*texts))

    result = await run('"[X: kind]"', {"kind": kind}, model=model, decoder=sample(1))

    assert result.prompt == texts[1]
    assert len(model.calls) == 2


async def test_one_that_would_come_again_is_told() -> None:
    text = '{"number": 1}'
    with pytest.raises(NotSatisfied, match="odd") as caught:
        await run('"[X: kind]"', {"kind": Even}, model=ScriptedModel(in_turn(text, text)))

    assert caught.value.last_value == text
    assert under_caret(caught.value) == "[X: kind]"


async def test_a_mistake_in_a_types_code_is_told_at_the_hole() -> None:
    @dataclass
    class Failing:
        number: int

        def __post_init__(self) -> None:
            raise KeyError("no")

    with pytest.raises(ProgramFailed, match=r"'\{\"number\": 1\}': KeyError: 'no'") as caught:
        await run('"[X: kind]"', {"kind": Failing}, model=ScriptedModel(in_turn('{"number": 1}')))

    assert isinstance(caught.value.__cause__, KeyError)
    assert under_caret(caught.value) == "[X: kind]"
