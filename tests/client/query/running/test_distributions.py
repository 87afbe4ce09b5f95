"""Holes that are chosen from a support."""

import math
from enum import Enum
from typing import Literal

import pytest

from client.calls import ScoreCall
from client.query import AsyncQuery, BadCondition, BadProgram, Unsatisfiable, argmax, run
from client.query.execution import Choices
from client.query.program import Context
from client.query.reading.reader import read
from tests.client.query.running.programs import checked, hole, one_of, run_body, say
from tests.client.query.running.scripted_model import ScriptedModel, in_turn


async def pick(context: Context) -> None:
    say(context, "Why: ")
    await context.hole(hole("WHY"))
    say(context, " So: ")
    await context.hole(hole("X", support=("no", "yessss")))


def liked(prompt: str, value: str) -> float:
    return {"no": -1.0, "yessss": -1.5}[value]


async def test_a_distribution_is_one_request_behind_the_other_holes() -> None:
    model = ScriptedModel(in_turn("because"), liked)

    result = await run_body(pick, model)

    assert model.calls[1] == ScoreCall(prompt="Why: because So: ", values=("no", "yessss"))
    assert [row.kind for row in result.requests] == ["generate", "score"]


async def test_both_distributions_are_told_and_the_plain_one_decides() -> None:
    result = await run_body(pick, ScriptedModel(in_turn("because"), liked))

    choice = result.distributions["X"]
    assert math.exp(choice.plain["no"]) == pytest.approx(1 / (1 + math.exp(-0.5)))
    assert math.exp(choice.normalised["no"]) == pytest.approx(1 / (1 + math.exp(0.25)))
    assert result["X"] == "no"
    assert result.prompt == "Why: because So: no"


async def test_the_normalised_one_decides_where_asked_for() -> None:
    result = await run_body(pick, ScriptedModel(in_turn("because"), liked), normalised=True)

    assert result["X"] == "yessss"


@pytest.mark.parametrize(
    ("where", "max_len", "num_left"),
    [(" where len(tokens(Y)) <= len(tokens(X))", None, 2), ("", 5, 3)],
)
async def test_the_tokens_of_a_chosen_value_are_counted(
    where: str, max_len: int | None, num_left: int
) -> None:
    model = ScriptedModel(in_turn("a"), liked)
    decoder = argmax(max_len=max_len) if max_len else argmax()

    await run(
        f'"[X]" distribution X in ["no", "yessss"]\n"[Y]"{where}', model=model, decoder=decoder
    )

    (call,) = model.generate_calls
    assert call.max_tokens == num_left


@pytest.mark.parametrize(
    "program",
    [
        '"[X]" where len(tokens(X)) < 2 distribution X in ["no", "yes"]',
        '"[X: inner] [Y]" where len(tokens(Y)) == len(tokens(X))',
        '"[X: inner]" where len(tokens(X)) < 3',
    ],
)
async def test_tokens_that_nobody_counts_are_no_condition(program: str) -> None:
    inner = read('"[Z]"\nreturn Z', name="inner")
    nested = AsyncQuery[[], object, object](inner, Choices())

    with pytest.raises(BadCondition, match="count its words or characters") as caught:
        await run(program, {"inner": nested}, model=ScriptedModel(lambda _: ["a"], liked))

    assert caught.value.place is not None
    assert program[caught.value.place.column - 1 :].startswith("tokens(X)")


async def test_conditions_restrict_the_support() -> None:
    async def body(context: Context) -> None:
        await context.hole(hole("X", one_of("X", "yessss", "perhaps"), support=("no", "yessss")))

    model = ScriptedModel(in_turn(), liked)

    assert (await run_body(body, model)).distributions["X"].plain == {"yessss": 0.0}


async def test_a_support_of_which_nothing_is_allowed_is_impossible() -> None:
    async def body(context: Context) -> None:
        await context.hole(hole("X", one_of("X", "perhaps"), support=("no", "yessss")))

    with pytest.raises(Unsatisfiable, match="no value"):
        await run_body(body, ScriptedModel(in_turn(), liked))


async def test_a_value_that_a_later_hole_cannot_do_with_is_left_out_when_chosen_again() -> None:
    async def body(context: Context) -> None:
        fits = checked("X Y", lambda x, y: x == "yessss" and y == "y")
        await context.hole(hole("X", fits, support=("no", "yessss")))
        say(context, " Y:")
        await context.hole(hole("Y", fits, one_of("Y", "y", "n")))

    result = await run_body(body, ScriptedModel(lambda prompt: ["n", "y"], liked))

    assert result.prompt == "yessss Y:y"
    assert [(row.hole, row.kind) for row in result.requests] == [
        ("X", "score"),
        ("X", "score"),
        ("Y", "generate"),
    ]


async def test_a_type_says_what_the_chosen_text_means() -> None:
    async def body(context: Context) -> None:
        await context.hole(hole("X", kind=int, support=("3", "12")))

    model = ScriptedModel(in_turn(), lambda prompt, value: -float(value))

    assert (await run_body(body, model))["X"] == 3


@pytest.mark.parametrize(
    "program",
    [
        '"a [Y: inner]" distribution Y in ["no", "yes"]',
        'try: "a [Y: inner()]"\nexcept Exception: "b"\ndistribute Y over ["no", "yes"]',
    ],
)
async def test_a_nested_query_is_chosen_from_no_support(program: str) -> None:
    inner = read('"[Z]"\nreturn Z', name="inner")
    nested = AsyncQuery[[], object, object](inner, Choices())
    model = ScriptedModel(in_turn("a"), liked)

    with pytest.raises(BadProgram, match="over a hole that the model writes") as caught:
        await run(program, {"inner": nested}, model=model)

    assert caught.value.place is not None
    assert program.splitlines()[0][caught.value.place.column - 1 :].startswith("[Y: inner")
    assert "`inner`" in caught.value.message
    assert model.calls == []


@pytest.mark.parametrize(
    ("hole", "support", "scored"),
    [
        ('[X: int]" where X < 4', ["3", "12"], ("3",)),
        ('[X: Colour]" where X is Colour.RED', ["red", "blue"], ("red",)),
        ("[X: Literal[1, 'a']]\" where X != 1", ["1", "a"], ("a",)),
        # What is no value of the type cannot come.
        ('[X: int]"', ["a", "12"], ("12",)),
    ],
)
async def test_conditions_are_about_the_value_that_a_text_means(
    hole: str, support: list[str], scored: tuple[str, ...]
) -> None:
    model = ScriptedModel(in_turn())
    names = {"Colour": Enum("Colour", {"RED": "red", "BLUE": "blue"}), "Literal": Literal}

    await run(f'"{hole} distribution X in {support}', names, model=model)

    assert model.calls == [ScoreCall(prompt="", values=scored)]
