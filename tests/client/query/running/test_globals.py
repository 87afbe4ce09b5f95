"""Variables that the functions of a program share with it."""

import pytest

from client.query import BadProgram, beam, query, run, run_all
from tests.client.query.running.scripted_model import ScriptedModel, in_turn
from tests.client.query.running.tree_model import TreeModel

COUNTER = """
count = 0
def bump():
    global count
    count += 1
    return count
"""
shared = 0


async def test_a_function_may_change_a_variable_of_its_program() -> None:
    text = COUNTER + 'bump()\n"{bump()}"\nreturn count'

    assert (await run(text, model=ScriptedModel(in_turn()))).value == 2
    assert (await run(text, model=ScriptedModel(in_turn()))).value == 2


async def test_each_trace_has_its_own() -> None:
    text = COUNTER + 'for _ in range(3):\n    "[X]" where X in ["a", "b"]\n    bump()\nreturn count'

    results = await run_all(text, model=TreeModel(3), decoder=beam(3))

    assert [result.value for result in results] == [3, 3, 3]


async def test_a_decoder_may_call_such_a_function() -> None:
    text = COUNTER + 'sample(n=bump())\n    "{bump()}"\n    return count'

    assert [each.value for each in await run_all(text, model=ScriptedModel(in_turn()))] == [1]


async def test_a_class_may_change_a_variable_of_its_program_in_its_body_and_in_methods() -> None:
    text = """
count = 0
class Counter:
    global count
    count = 5
    def bump(self):
        global count
        count += 1
Counter().bump()
return count
"""
    assert (await run(text, model=ScriptedModel(in_turn()))).value == 6


async def test_functions_within_functions_mean_the_same_variable() -> None:
    text = """
found = []
def outer():
    global found
    found = ["outer"]
    def inner():
        global found
        found = [*found, "inner"]
    inner()
global found
outer()
return found
"""
    assert (await run(text, model=ScriptedModel(in_turn()))).value == ["outer", "inner"]


async def test_a_variable_of_a_function_between_is_in_the_way() -> None:
    text = """
n = 0
def outer():
    n = 5
    def inner():
        global n
        n += 1
    inner()
outer()
"""
    with pytest.raises(BadProgram, match="a function around this one has a n of its own") as caught:
        await run(text, model=ScriptedModel(in_turn()))

    assert caught.value.place is not None
    assert (caught.value.place.line, caught.value.place.column) == (6, 9)


async def test_in_a_query_that_is_a_function_it_is_pythons() -> None:
    @query(model=ScriptedModel(in_turn()))
    async def counted() -> int:
        global shared
        shared += 1
        return shared

    assert (await counted(), await counted()) == (1, 2)
    assert shared == 2
