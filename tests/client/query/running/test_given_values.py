"""Names that a text is given, or that are Python's, and that its own code binds anew."""

from typing import Any

import pytest

from client.query import ProgramFailed, query, run, run_all
from tests.client.query.running.scripted_model import ScriptedModel, in_turn


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
        ('"[X]" where len(X) < max(1, 2)\nmax = 5\n"{max}"', {}, "a5"),
        ('"{[max for max in [1, 2]]}{max(3, 4)}"', {}, "[1, 2]4"),
        ('def f():\n    global n\n    n += 1\nf()\n"{n}"', {"n": 1}, "2"),
        ('if n:\n    word = "new"\n"{word}"', {"n": 0, "word": "old"}, "old"),
        ("import math\nmath = math.floor(2.5)\n'{math}'", {"math": 3}, "2"),
    ],
)
async def test_a_variable_begins_with_what_it_has_outside(
    text: str, given: dict[str, Any], prompt: str
) -> None:
    result = await run(text, given, model=ScriptedModel(lambda prompt: ["aaa", "a"]))

    assert result.prompt == prompt


async def test_the_decoders_line_sees_the_same_values() -> None:
    text = 'n = n + 1\nsample(n=n)\n    "{n}"\n    n = 7'

    results = await run_all(text, {"n": 1}, model=ScriptedModel(in_turn()))

    assert [result.prompt for result in results] == ["2", "2"]


async def test_each_run_begins_with_them_anew() -> None:
    given = {"n": 1}
    text = 'n = n + 1\n"[X]" where X in ["a", "b"] and fits(X, Y)\n"[Y]" where Y in ["c"]\nreturn n'
    names = {**given, "fits": lambda x, y: x == "b"}

    result = await run(text, names, model=ScriptedModel(lambda prompt: ["a", "b", "c"]))

    assert result.value == 2
    assert given == {"n": 1}


@pytest.mark.parametrize(
    "text",
    ["x = limit\nlimit = 3", '"{limit}[X]"\nlimit = 3', '"[X]" where len(X) < limit\nlimit = 3'],
)
async def test_a_name_that_has_no_value_yet_is_told_so(text: str) -> None:
    with pytest.raises(ProgramFailed) as caught:
        await run(text, model=ScriptedModel(list))

    assert caught.value.message.endswith("; it gets its value only further down")


@pytest.mark.parametrize("text", ["q = 3\ndel q\n'{q}'", "if 0:\n    q = 3\n'{q}'"])
async def test_a_name_that_lost_its_value_is_not_guessed_to_be_meant_itself(text: str) -> None:
    with pytest.raises(ProgramFailed) as caught:
        await run(text, model=ScriptedModel(list))

    assert caught.value.message.endswith("is not associated with a value")


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
