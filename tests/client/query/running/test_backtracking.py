"""Checks that fail: holes are asked again and gone back to, within a bound; none is missed."""

import asyncio
from itertools import count, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from client.query import BadProgram, NotSatisfied, Unsatisfiable, run
from tests.client.query.running.models import ScriptedModel

ANIMALS = ["cow", "cat", "dog"]


def likes(**texts: list[str]) -> ScriptedModel:
    """Wishes by the label in front of the hole: `X:`."""
    return ScriptedModel(lambda prompt: texts[prompt.rsplit(":", 1)[0].rsplit(" ", 1)[-1]])


def holes(model: ScriptedModel) -> list[str]:
    """The labels of the holes that were asked for, in order."""
    return [prompt.rsplit(":", 1)[0][-1] for prompt in model.prompts]


async def test_a_text_that_fails_a_check_is_refused_when_its_hole_is_asked_again() -> None:
    text = '"X:[X]" where ok(X)\nseen.append(X)'
    model, seen = likes(X=ANIMALS), list[object]()

    result = await run(text, {"ok": "dog".__eq__, "seen": seen}, model=model)

    assert (result["X"], result.prompt) == ("dog", "X:dog")
    assert [row.hole for row in result.requests] == ["X", "X", "X"]
    assert seen == ["dog"]


async def test_a_check_is_tried_so_often_and_not_more() -> None:
    model = likes(X=ANIMALS)

    with pytest.raises(NotSatisfied) as caught:
        await run('argmax(tries=2)\n "X:[X]" where ok(X)', {"ok": "dog".__eq__}, model=model)

    assert caught.value.last_value == "cat"
    assert "[X] is 'cat', the last of 2 texts that were tried (tries=2)" in str(caught.value)
    assert len(model.calls) == 2


async def test_a_hole_that_would_be_the_same_again_is_not_asked_again() -> None:
    model = ScriptedModel(lambda prompt: ["[1, 2]"])

    with pytest.raises(NotSatisfied, match=r"the one text .* the same again: a schema"):
        await run('"[X: list[int]]" where sum(X) > 5', model=model)

    assert len(model.calls) == 1


async def test_a_forward_reference_that_fails_every_time_goes_back_to_its_hole() -> None:
    model = likes(X=ANIMALS, Y=["dog", "pig"])
    result = await run('"X:[X] Y:[Y]" where same(X, Y)', {"same": str.__eq__}, model=model)

    assert result.prompt == "X:dog Y:dog"
    # The server refuses the third Y: nothing is left of what the model would write.
    assert holes(model) == [*"XYYY", *"XYYY", *"XY"]


async def test_a_hole_that_is_seen_to_be_impossible_is_not_asked_for() -> None:
    model = likes(X=ANIMALS, Y=["dog", "pig"])
    result = await run('"X:[X] Y:[Y]" where X == Y and Y in ["dog", "pig"]', model=model)

    assert result.prompt == "X:dog Y:dog"
    assert holes(model) == [*"XXX", "Y"]


async def test_going_back_is_bounded_too() -> None:
    many = [str(number) for number in range(100)]
    model = likes(X=many, Y=many)

    with pytest.raises(NotSatisfied):
        await run(
            'argmax(tries=3)\n "X:[X] Y:[Y]" where never(X, Y)',
            {"never": lambda x, y: False},
            model=model,
        )

    assert len(model.calls) == 3 * 3 + 3


@pytest.mark.parametrize("goes_back", [False, True])
async def test_a_check_that_held_in_the_end_is_not_blamed_for_a_later_hole(goes_back: bool) -> None:
    text = '"W:[W] X:[X] Y:[Y]" where ok(X) and Y in ["a"] and Y in ["b"]'
    text += " and any(W, Y)" if goes_back else ""
    names = {"ok": "dog".__eq__, "any": lambda w, y: True}

    with pytest.raises(NotSatisfied if goes_back else Unsatisfiable) as caught:
        await run(text, names, model=likes(W=["v", "w"], X=["cat", "dog"]))

    assert "none of the texts that `Y` could be" in caught.value.message
    assert "[X]" not in caught.value.message
    assert ("behind 2 other texts before it" in caught.value.message) == goes_back


@pytest.mark.parametrize("before", ["", " W:[W]"])
async def test_a_program_that_says_something_else_when_run_again_is_refused(before: str) -> None:
    numbers = count()
    text = f'argmax(tries=2)\n "{{number()}}{before} X:[X] Y:[Y]" where ok(X, Y)'
    names = {"number": lambda: next(numbers), "ok": lambda x, y: x == "dog"}

    with pytest.raises(BadProgram, match="not pure: run again, its prompt in front of") as caught:
        await run(text, names, model=likes(W=["w"], X=ANIMALS, Y=["y"]))

    assert ("[W]" if before else "[X]") in caught.value.message


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
    parts = [f"ok({number}, {', '.join(names)})" for number, (names, _) in enumerate(checks)]
    text = 'argmax(tries=100)\n " X:[X] Y:[Y] Z:[Z]"\n return X, Y, Z'
    text += "\nwhere " + " and ".join(parts) if parts else ""
    names = {"ok": lambda number, *texts: texts in checks[number][1]}

    try:
        found = asyncio.run(run(text, names, model=model)).value
    except (NotSatisfied, Unsatisfiable):
        found = None

    assert found == first_of_all(wishes, checks)
