"""Signs in front of holes: `-X` is a step of arithmetic, and part of the mask as any other."""

from datetime import timedelta

import pytest

from client.query import BadCondition, ProgramFailed, run
from tests.client.query.running.scripted_model import ScriptedModel, behind


@pytest.mark.parametrize(
    ("condition", "asked"),
    [
        ("-len(X) > -3", "len(X) < 3"),
        ("+len(X) < 3", "len(X) < 3"),
        ("-(len(X) - 4) >= n", "len(X) <= 2"),
        ("-2 * -len(X) < 6", "len(X) < 3"),
        ("len(X) - -n < 5", "len(X) < 3"),
    ],
)
async def test_a_sign_is_part_of_the_one_request(condition: str, asked: str) -> None:
    model = ScriptedModel(lambda prompt: ["aaaaa", "aa"])
    await run(f'"[X]" where {condition}', {"n": 2}, model=model)

    (call,) = model.generate_calls
    assert call.constraint is not None
    assert call.constraint.value == asked


@pytest.mark.parametrize("condition", ["-X == -3", "-X > -4 and X > 2", "3 == +X", "-X in [-3]"])
async def test_the_value_of_a_number_may_have_a_sign(condition: str) -> None:
    model = ScriptedModel(lambda prompt: ["7", "-3", "3"])
    result = await run(f'"[X: int]" where {condition}', model=model)

    assert (result["X"], len(result.requests)) == (3, 1)


async def test_two_holes_may_be_opposites() -> None:
    model = ScriptedModel(behind(a=["7", "150"], b=["-7", "150", "-150"]))
    text = '"a [X: int] b [Y: int]" where X == -Y and 100 < X < 200 and -200 < Y < 200'
    result = await run(text, model=model)

    assert result.prompt == "a 150 b -150"
    assert len(result.requests) == 2


async def test_a_hole_to_come_may_have_a_sign() -> None:
    model = ScriptedModel(behind(a=["xxxx", "xx"], b=["3"]))
    await run('"a [A] "\n"b [B: int]"\nwhere len(A) < B and -B > -4', model=model)

    constraint = model.generate_calls[0].constraint
    assert constraint is not None
    assert constraint.value == "len(X) < 3"


@pytest.mark.parametrize(
    ("condition", "pieces"), [("-words(X)", "words"), ("-tokens(X) < 3", "tokens")]
)
async def test_pieces_have_no_sign(condition: str, pieces: str) -> None:
    model = ScriptedModel(lambda prompt: ["a"])
    with pytest.raises(BadCondition, match=rf"^<query>:1:13: {pieces}\(X\) can only be counted"):
        await run(f'"[X]" where {condition}', model=model)

    assert model.calls == []


async def test_what_is_no_number_has_pythons_signs() -> None:
    def seconds(text: str) -> timedelta:
        return timedelta(seconds=int(text))

    text = '"[@seconds X]" where X in ["3"]\n"[Y]" where len(Y) < 2 and -X < zero'
    names = {"seconds": seconds, "zero": timedelta()}
    model = ScriptedModel(lambda prompt: ["3"])

    assert (await run(text.replace(' where X in ["3"]', ""), names, model=model))["Y"] == "3"
    with pytest.raises(ProgramFailed, match=r"`-X` raised TypeError: bad operand .* 'str'"):
        await run('"[X]" where -X < 3', model=model)
