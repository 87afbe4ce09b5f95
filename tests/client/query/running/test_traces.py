"""What is asked of each hole where conditions join several, or speak of variables bound anew."""

import pytest

from client.query import (
    BadProgram,
    F,
    Unsatisfiable,
    run,
    run_all,
)
from client.query.running.results import Result
from tests.client.query.running.models import ScriptedModel, TreeModel, behind


async def asked(text: str, **wishes: list[str]) -> list[object]:
    """The constraints that a program sends, hole by hole."""
    model = ScriptedModel(behind(**wishes))
    await run(text, model=model)
    return [call.constraint and call.constraint.value for call in model.generate_calls]


async def test_lengths_that_sum_up_are_kept_at_the_last_hole_and_the_run_may_go_back() -> None:
    sent = await asked('"a[A] b[B]" where len(B) == 5 - len(A)', a=["xxxxxxx", "xx"], b=["yyy"])

    assert sent == [None, 'X != "xxxxxxx"', "len(X) == 3"]


async def test_what_a_variable_says_of_it_counts_when_it_comes() -> None:
    text = '"a[A] "\nn = 4\n"b[B]"\nwhere len(A) < len(B) and len(B) < n'

    assert await asked(text, a=["xx"], b=["yyy"]) == [None, "len(X) > 2 and len(X) < 4"]


async def test_a_value_that_a_decorator_changes_is_not_bounded_before() -> None:
    """The condition is about the changed value, which may be shorter than what is written."""
    text = '"a[@str.strip A] b[B]" where len(B) == 5 - len(A)'

    assert await asked(text, a=["  xx  "], b=["yyy"]) == [None, "len(X) == 3"]


@pytest.mark.parametrize(
    ("where", "others"), [("len(A) > 1 and B != ''", "A"), ("A + C == '' and B", "A, C")]
)
async def test_a_prompts_condition_that_names_none_of_its_holes_is_refused(
    where: str, others: str
) -> None:
    model = ScriptedModel(list)
    with pytest.raises(BadProgram, match=f"a condition of {others} alone, behind a prompt"):
        await run(f'"a[A]"\n" b[B]" where {where}\n"[C]"', model=model)


async def test_a_chain_of_a_prompts_hole_and_an_earlier_one_is_held_whole() -> None:
    text = '"a[A]"\n" b[B]" where 1 < len(A) < len(B)'

    assert await asked(text, a=["xy"], b=["pqr"]) == [None, "len(X) > 2"]
    with pytest.raises(Unsatisfiable):
        await asked(text, a=["x"], b=["pqr"])


async def test_what_stands_behind_a_nested_query_is_held_before_it_asks() -> None:
    model = ScriptedModel(list)
    with pytest.raises(Unsatisfiable, match="`False` does not hold"):
        await run('" b[B: f]" where 1 > 2', {"f": F("[X]")}, model=model)

    assert model.calls == []


NUMBERS = ["3", "30", "300", "301", "350"]


async def found(text: str, *wishes: str) -> Result[object]:
    return await run(text, model=ScriptedModel(lambda prompt: wishes))


@pytest.mark.parametrize(
    ("condition", "number"),
    [
        ("M > N", 301),
        ("N < M < 350", 301),
        ("M == N + 1", 301),
        ("M in [N, 5] or M == 350", 300),
        ("M > int(N)", 301),
        ("M > float(N) + 1", 350),
        ("str(N) in [str(M)]", 300),
        ("len(str(M)) == len(str(N))", 300),
        ('f"{N}" in str(M)', 300),
        ("not M < N.bit_length() * 30", 300),
        ("N == 300 and N is not None and M > 5", 30),
    ],
)
async def test_a_later_condition_means_what_the_variable_holds(condition: str, number: int) -> None:
    text = f'"> [N: int]" where 1 <= N <= 3\nN = N * 100\n" [M: int]" where {condition}'

    result = await found(text, *NUMBERS)

    assert (result["N"], result["M"]) == (3, number)


@pytest.mark.parametrize(
    "binding",
    [
        "N += 97",
        "for N in [100]: pass",
        "def f():\n  nonlocal N\n  N = 100\nf()",
        '"{(N := 100)}"',
        "import math as N\nN = N.floor(100.5)",
    ],
)
async def test_whatever_binds_the_variable_counts(binding: str) -> None:
    result = await found(f'"[N: int]"\n{binding}\n" [M: int]" where M > N', "3", "30", "101")

    assert (result["N"], result["M"]) == (3, 101)


async def test_a_text_that_was_stripped_is_the_stripped_one() -> None:
    text = """
"[A: [' blue']]"
A = A.strip()
"[B]" where B in ["red", "blue", "green"] and B != A
return A, B
"""
    assert (await found(text, " blue", "blue", "green")).value == ("blue", "green")


async def test_the_programs_own_where_speaks_of_what_filled_the_holes() -> None:
    text = '"[N: int]"\nN = 100\n" [M: int]"\nwhere 1 <= N <= 3 and M > N'

    assert (await found(text, *NUMBERS))["M"] == 30


async def test_what_a_prompt_said_of_its_own_hole_is_checked_on_what_filled_that() -> None:
    text = '"a[A]" where len(B) == 5 - len(A)\nA = "xxxxx"\n" b[B]"'
    model = ScriptedModel(behind(a=["xx"], b=["", "yyy"]))

    assert (await run(text, model=model))["B"] == "yyy"


async def test_a_step_back_and_every_beam_have_values_of_their_own() -> None:
    back = """
"a[A: int]" where A * 10 != C and A in [1, 2]
B = A
A = A * 10
" b[D: int]" where D > A
" c[C: int]" where C in [10]
return B, A, D
"""
    beams = """
beam(n=2, max_tokens=2)
    "[X]" where X in ["a", "b"]
    X = "b" if X == "a" else "a"
    "-[Y]" where Y == X
"""
    model = ScriptedModel(behind(a=["1", "2"], b=["11", "21"], c=["10"]))

    assert (await run(back, model=model)).value == (2, 20, 21)
    assert {each.prompt for each in await run_all(beams, model=TreeModel(1))} == {"a-b", "b-a"}
