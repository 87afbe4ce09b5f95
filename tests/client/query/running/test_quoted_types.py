"""Types in quotation marks, in classes that a program defines, and `from __future__`."""

import asyncio
import json
import sys
from dataclasses import dataclass

import pytest

from client.query import BadCondition, BadProgram, QueryError, query, run
from tests.client.query.running.scripted_model import ScriptedModel

TREES = """
import dataclasses
from dataclasses import dataclass
from typing import ClassVar, TypedDict

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
UNQUOTED = TREES.replace('"[T: Tree]"', "PROMPT").replace('"', "").replace("PROMPT", '"[T: Tree]"')
FUTURE = "from __future__ import annotations\n"


class Colour(str):
    """None of JSON's."""


def writing(value: object) -> ScriptedModel:
    return ScriptedModel(lambda prompt: [json.dumps(value)])


async def test_a_class_of_a_program_may_speak_of_itself() -> None:
    text = """
from dataclasses import dataclass
@dataclass
class Node:
    value: int
    next: "Node | None" = None
argmax
    "[HEAD: Node]"
    return HEAD.next.next.value
"""
    result = await run(
        text, model=writing({"value": 1, "next": {"value": 2, "next": {"value": 3}}})
    )

    assert result.value == 3


@pytest.mark.parametrize("text", [TREES, FUTURE + UNQUOTED])
async def test_it_may_speak_of_other_classes_and_of_names_that_the_program_is_given(
    text: str,
) -> None:
    model = writing({"leaves": [{"size": 1, "below": {"leaves": []}}], "mark": {"colour": 7}})

    result = await run(text, {"Colour": int}, model=model)

    shown = "Tree(leaves=[Leaf(size=1, below=Tree(leaves=[], mark=None))], mark={'colour': 7})"
    assert repr(result.value) == shown


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
        ({}, "the types of `Mark` cannot be found: name 'Colour' is not defined"),
        ({"Colour": Colour}, "`Colour` is no type that JSON has"),
    ],
)
async def test_a_type_that_is_none_is_told_at_the_hole(
    names: dict[str, object], message: str
) -> None:
    with pytest.raises(BadCondition) as caught:
        await run(TREES, names, model=ScriptedModel(list))

    assert message in caught.value.message
    assert _marked(caught.value) == "[T: Tree]"


@pytest.mark.parametrize("begin", ["", "# Letters.\n\n", "from __future__ import division\n"])
async def test_a_program_may_begin_with_what_python_will_do(begin: str) -> None:
    text = begin + FUTURE + "def f(x: Nowhere): return x\n" + '"[X: int]{f(3)}" where X > 3'

    result = await run(text, model=ScriptedModel(lambda prompt: ["3", "7"]))

    assert (result["X"], result.prompt) == (7, "73")


@pytest.mark.parametrize(
    ("text", "message", "marked"),
    [
        ('"[X]"\n' + FUTURE, "must occur at the beginning", "f"),
        ('from __future__ import braces\n"[X]"', "future feature braces is not defined", "braces"),
    ],
)
async def test_what_python_will_not_do_so_is_told(text: str, message: str, marked: str) -> None:
    with pytest.raises(BadProgram, match=message) as caught:
        await run(text, model=ScriptedModel(list))

    assert _marked(caught.value) == marked


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
        ("list['Node']", [{"value": 1}], "[Node(value=1, next=None)]"),
        ("Optional['Node']", {"value": 1}, "Node(value=1, next=None)"),
        (
            "list['Node'] | None",
            [{"value": 1, "next": [{"value": 2}]}],
            "[Node(value=1, next=[Node(value=2, next=None)])]",
        ),
        ("dict[str, 'list[Node]']", {"a": [{"value": 1}]}, "{'a': [Node(value=1, next=None)]}"),
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


async def test_a_quoted_part_that_nobody_knows_is_told_at_the_type() -> None:
    with pytest.raises(BadCondition, match=r"types of `list\['Nod'\]` cannot be found") as caught:
        await run(NODE.replace("{}", "list['Nod']"), model=ScriptedModel(list))

    assert _marked(caught.value) == "list['Nod']"


def _marked(error: QueryError) -> str:
    assert error.place is not None
    assert error.source is not None
    line = error.source.text.split("\n")[error.place.line - 1]
    return line[error.place.column - 1 : error.place.end_column - 1]


@pytest.mark.parametrize(
    ("future", "left_out"), [(FUTURE, "NotRequired[int]"), ("", '"NotRequired[int]"')]
)
async def test_what_a_quoted_key_need_not_have_is_left_out(future: str, left_out: str) -> None:
    text = f"""{future}
from typing import NotRequired, TypedDict
class Pair(TypedDict):
    a: int
    b: {left_out}
argmax
    "[P: Pair]"
    return P
"""
    assert (await run(text, model=writing({"a": 1}))).value == {"a": 1}


async def test_a_hole_of_nothing_is_null() -> None:
    model = ScriptedModel(lambda prompt: ["null"])
    result = await run('"[X: None]."', model=model)

    assert (result["X"], result.prompt) == (None, "null.")
