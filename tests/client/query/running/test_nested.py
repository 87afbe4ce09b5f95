"""Queries within queries: their own frames, and what stays of their prompts."""

import asyncio

import pytest

from client.query import NotSatisfied
from client.query.program import Context, Program, Subquery
from client.query.running.decoders import decoding
from client.query.running.execution import Job
from client.query.running.session import run_job, surroundings
from tests.client.query.running.programs import checked, hole, one_of, program, run_body, say
from tests.client.query.running.scripted_model import ScriptedModel, in_turn


async def step(context: Context, about: str = "it") -> None:
    say(context, f"(think of {about}: ")
    await context.hole(hole("T"))
    say(context, ")")


async def answer(context: Context, about: str = "it") -> object:
    say(context, f"(think of {about}: ")
    await context.hole(hole("T"))
    say(context, ")")
    return "42"


def nested(inner: Program, *arguments: object) -> Subquery:
    return Subquery(inner, arguments)


async def test_without_return_the_inner_text_stays() -> None:
    async def body(context: Context) -> None:
        say(context, "Q ")
        await context.hole(hole("X", kind=nested(program(step), "me")))
        say(context, " end")

    result = await run_body(body, ScriptedModel(in_turn("hm")))

    assert result.prompt == "Q (think of me: hm) end"
    assert result["X"] == "(think of me: hm)"


async def test_with_return_the_value_takes_the_inner_texts_place() -> None:
    async def body(context: Context) -> object:
        say(context, "Q ")
        value = await context.hole(hole("X", kind=nested(program(answer, returns=True))))
        say(context, " then ")
        await context.hole(hole("Y"))
        return value

    model = ScriptedModel(in_turn("hm", "so"))

    result = await run_body(body, model)

    assert model.prompts == ["Q (think of it: ", "Q 42 then "]
    assert result.prompt == "Q 42 then so"
    assert result.value == "42"
    assert result.variables == {"X": "42", "Y": "so"}


async def test_a_check_on_a_nested_value_asks_the_inner_hole_again() -> None:
    async def inner(context: Context) -> object:
        return await context.hole(hole("T"))

    async def body(context: Context) -> None:
        kind = nested(program(inner, returns=True))
        await context.hole(hole("X", checked("X", lambda x: x == "dog"), kind=kind))

    model = ScriptedModel(lambda prompt: ["cow", "dog"])

    result = await run_body(body, model)

    assert result["X"] == "dog"
    assert len(model.calls) == 2


async def test_an_earlier_inner_hole_is_asked_again_where_the_last_one_cannot_help() -> None:
    async def inner(context: Context) -> object:
        said = await context.hole(hole("T", one_of("T", "cow", "dog")))
        await context.hole(hole("U", one_of("U", "only")))
        return said

    async def body(context: Context) -> None:
        kind = nested(program(inner, returns=True))
        await context.hole(hole("X", checked("X", lambda x: x == "dog"), kind=kind))

    result = await run_body(body, ScriptedModel(lambda prompt: ["cow", "dog", "only"]))

    assert result["X"] == "dog"


async def test_a_hole_to_come_may_send_a_nested_query_back() -> None:
    async def inner(context: Context) -> object:
        return await context.hole(hole("T", one_of("T", "cow", "dog")))

    async def body(context: Context) -> None:
        differ = checked("X Y", lambda x, y: x != y)
        kind = nested(program(inner, returns=True))
        await context.hole(hole("X", differ, kind=kind))
        await context.hole(hole("Y", differ, one_of("Y", "cow")))

    result = await run_body(body, ScriptedModel(lambda prompt: ["cow", "dog"]))

    assert result.variables == {"X": "dog", "Y": "cow"}


async def test_a_check_on_a_value_that_no_hole_made_fails_at_once() -> None:
    async def constant(context: Context) -> object:
        return "cow"

    async def body(context: Context) -> None:
        kind = nested(program(constant, returns=True))
        await context.hole(hole("X", checked("X", lambda x: x == "dog"), kind=kind))

    with pytest.raises(NotSatisfied, match="'cow'"):
        await run_body(body, ScriptedModel(in_turn()))


async def test_a_query_called_in_python_has_a_prompt_of_its_own_and_is_booked_with_its_caller() -> (
    None
):
    async def call(word: str) -> object:
        within = surroundings()
        assert within is not None
        job = Job(program=program(answer), arguments=(word,))
        (result,) = await run_job(job, decoding("argmax", (), {}), within)
        return result["T"]

    async def body(context: Context) -> object:
        say(context, "Q ")
        made = await asyncio.gather(call("a"), call("b"))
        await context.hole(hole("X"))
        return made

    model = ScriptedModel(lambda prompt: [f"<{prompt}>"])

    result = await run_body(body, model)

    assert result.value == ["<(think of a: >", "<(think of b: >"]
    assert [(row.query, row.hole) for row in result.requests] == [
        ("answer", "T"),
        ("answer", "T"),
        ("body", "X"),
    ]
