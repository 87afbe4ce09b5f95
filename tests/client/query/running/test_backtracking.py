"""Checks that fail: holes are asked again and gone back to, within a bound; none is missed."""

import asyncio
from itertools import count, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from client.query import BadProgram, NotSatisfied, Unsatisfiable, run
from client.query.program import Condition, Context
from tests.client.query.running.models import (
    Body,
    ScriptedModel,
    checked,
    hole,
    one_of,
    run_body,
    say,
)

ANIMALS = ["cow", "cat", "dog"]


def likes(**texts: list[str]) -> ScriptedModel:
    """Wishes by the label in front of the hole: `X:`."""
    return ScriptedModel(lambda prompt: texts[prompt.rsplit(":", 1)[0].rsplit(" ", 1)[-1]])


async def test_a_text_that_fails_a_check_is_refused_when_its_hole_is_asked_again() -> None:
    async def body(context: Context) -> None:
        say(context, "X:")
        await context.hole(hole("X", checked("X", lambda x: x == "dog")))

    model = likes(X=ANIMALS)

    result = await run_body(body, model)

    assert result["X"] == "dog"
    assert [row.hole for row in result.requests] == ["X", "X", "X"]
    assert result.prompt == "X:dog"


async def test_a_check_is_tried_so_often_and_not_more() -> None:
    async def body(context: Context) -> None:
        say(context, "X:")
        await context.hole(hole("X", checked("X", lambda x: x == "dog")))

    model = likes(X=ANIMALS)

    with pytest.raises(NotSatisfied) as caught:
        await run_body(body, model, tries=2)

    assert caught.value.last_value == "cat"
    assert "[X] is 'cat', the last of 2 texts that were tried (tries=2)" in str(caught.value)
    assert len(model.calls) == 2


async def test_a_hole_that_would_be_the_same_again_is_not_asked_again() -> None:
    model = ScriptedModel(lambda prompt: ["[1, 2]"])

    with pytest.raises(NotSatisfied, match=r"the one text .* the same again: a schema"):
        await run('"[X: list[int]]" where sum(X) > 5', model=model)

    assert len(model.calls) == 1


def twice_the_same(*conditions: Condition) -> Body:
    """X, then Y, which has to equal X and to keep the conditions."""

    async def body(context: Context) -> tuple[object, object]:
        is_same = checked("X Y", lambda x, y: x == y)
        say(context, "X:")
        x = await context.hole(hole("X", is_same))
        say(context, " Y:")
        y = await context.hole(hole("Y", is_same, *conditions))
        return x, y

    return body


async def test_a_forward_reference_that_fails_every_time_goes_back_to_its_hole() -> None:
    model = likes(X=ANIMALS, Y=["dog", "pig"])

    result = await run_body(twice_the_same(), model)

    assert result.value == ("dog", "dog")
    assert result.prompt == "X:dog Y:dog"
    # The server refuses the third Y: nothing is left of what the model would write.
    assert [row.hole for row in result.requests] == [*"XYYY", *"XYYY", *"XY"]


async def test_a_hole_that_is_seen_to_be_impossible_is_not_asked_for() -> None:
    model = likes(X=ANIMALS, Y=["dog", "pig"])

    result = await run_body(twice_the_same(one_of("Y", "dog", "pig")), model)

    assert result.prompt == "X:dog Y:dog"
    assert [row.hole for row in result.requests] == [*"XXX", "Y"]


async def test_going_back_is_bounded_too() -> None:
    async def body(context: Context) -> None:
        never = checked("X Y", lambda x, y: False)
        say(context, "X:")
        await context.hole(hole("X", never))
        say(context, " Y:")
        await context.hole(hole("Y", never))

    many = [str(number) for number in range(100)]
    model = likes(X=many, Y=many)

    with pytest.raises(NotSatisfied):
        await run_body(body, model, tries=3)

    assert len(model.calls) == 3 * 3 + 3


async def test_what_is_impossible_from_the_start_is_told_at_once() -> None:
    async def body(context: Context) -> None:
        say(context, "X:")
        await context.hole(hole("X", one_of("X", "a"), one_of("X", "b")))

    model = likes(X=["a"])

    with pytest.raises(Unsatisfiable):
        await run_body(body, model)

    assert model.calls == []


@pytest.mark.parametrize("goes_back", [False, True])
async def test_a_check_that_held_in_the_end_is_not_blamed_for_a_later_hole(goes_back: bool) -> None:
    later = checked("W Y", lambda w, y: True)

    async def body(context: Context) -> None:
        say(context, "W:")
        await context.hole(hole("W", *([later] if goes_back else [])))
        say(context, " X:")
        await context.hole(hole("X", checked("X", lambda x: x == "dog")))
        say(context, " Y:")
        await context.hole(hole("Y", one_of("Y", "a"), one_of("Y", "b")))

    with pytest.raises(NotSatisfied if goes_back else Unsatisfiable) as caught:
        await run_body(body, likes(W=["v", "w"], X=["cat", "dog"]))

    assert "none of the texts that `Y` could be" in caught.value.message
    assert "[X]" not in caught.value.message
    assert ("behind 2 other texts before it" in caught.value.message) == goes_back


async def test_the_body_does_not_see_what_was_gone_back_from() -> None:
    seen = []

    async def body(context: Context) -> None:
        say(context, "X:")
        seen.append(await context.hole(hole("X", checked("X", lambda x: x == "dog"))))

    await run_body(body, likes(X=ANIMALS))

    assert seen == ["dog"]


@pytest.mark.parametrize("num_before", [0, 1])
async def test_a_program_that_says_something_else_when_run_again_is_refused(
    num_before: int,
) -> None:
    numbers = count()

    async def body(context: Context) -> None:
        say(context, f"{next(numbers)} ")
        for _ in range(num_before):
            say(context, " W:")
            await context.hole(hole("W"))
        say(context, " X:")
        await context.hole(hole("X", checked("X Y", lambda x, y: x == "dog")))
        say(context, " Y:")
        await context.hole(hole("Y", checked("X Y", lambda x, y: x == "dog")))

    with pytest.raises(BadProgram, match="not pure: run again, its prompt in front of") as caught:
        await run_body(body, likes(W=["w"], X=ANIMALS, Y=["y"]), tries=2)

    assert ("[W]" if num_before else "[X]") in caught.value.message


NAMES = "XYZ"
Texts = tuple[str, ...]
Worlds = st.fixed_dictionaries({name: st.permutations("abc") for name in NAMES})
# Checks: the holes that they are about, and the texts of these that they let pass.
Checks = st.lists(
    st.sampled_from(["X", "Y", "XY", "XZ", "YZ", "XYZ"]).flatmap(
        lambda names: st.tuples(
            st.just(names), st.sets(st.tuples(*(st.sampled_from("abc") for _ in names)))
        )
    ),
    max_size=3,
)


def three_holes(checks: list[tuple[str, set[Texts]]]) -> Body:
    async def body(context: Context) -> Texts:
        made = []
        for name in NAMES:
            say(context, f" {name}:")
            own = [
                checked(" ".join(names), lambda *texts, passing=passing: texts in passing)
                for names, passing in checks
                if name in names
            ]
            made.append(await context.hole(hole(name, *own)))
        return tuple(made)

    return body


def first_of_all(wishes: dict[str, list[str]], checks: list[tuple[str, set[Texts]]]) -> object:
    """The first texts, by the model's preference hole after hole, that pass; None if none do."""
    for texts in product(*(wishes[name] for name in NAMES)):
        of = dict(zip(NAMES, texts, strict=True))
        if all(tuple(of[name] for name in names) in passing for names, passing in checks):
            return texts
    return None


@given(wishes=Worlds, checks=Checks)
def test_the_first_texts_that_pass_are_found_or_there_are_none(
    wishes: dict[str, list[str]], checks: list[tuple[str, set[Texts]]]
) -> None:
    model = ScriptedModel(lambda prompt: wishes[prompt[-2]])

    try:
        found = asyncio.run(run_body(three_holes(checks), model, tries=100)).value
    except (NotSatisfied, Unsatisfiable):
        found = None

    assert found == first_of_all(wishes, checks)
