"""Programs that bind a hole's variable anew: what its name then means in conditions."""

import pytest

from client.query import Unsatisfiable, run, run_all
from client.query.running.results import Result
from tests.client.query.running.scripted_model import ScriptedModel, behind
from tests.client.query.running.tree_model import TreeModel

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
        ('"{N}" in str(M)', 300),
        ("not M < N.bit_length() * 30", 300),
        ("N == 300 and N is not None and M > 5", 30),
    ],
)
async def test_a_later_condition_means_what_the_variable_holds(condition: str, number: int) -> None:
    text = f'"> [N: int]" where 1 <= N <= 3\nN = N * 100\n" [M: int]" where {condition}'

    result = await found(text, *NUMBERS)

    assert (result["N"], result["M"]) == (3, number)


@pytest.mark.parametrize(
    ("condition", "message"),
    [
        ("M > N and M < 200", r"`int\(M\) > 300` and `int\(M\) < 200`"),
        ("N < 5 and M > 5", "300 < 5"),
        ("f(N) and M > 5", "f"),
    ],
)
async def test_what_the_new_value_excludes_is_an_error(condition: str, message: str) -> None:
    text = f'"> [N: int]" where 1 <= N <= 3\nN = N * 100\n" [M: int]" where {condition}'

    with pytest.raises(Unsatisfiable, match=message) as caught:
        await run(text, {"f": lambda n: n < 5}, model=ScriptedModel(lambda prompt: NUMBERS))

    assert caught.value.place is not None
    assert caught.value.place.line == 3


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


async def test_a_variable_may_become_what_no_hole_could_be() -> None:
    text = """
"[A]"
A = A.split()
"[B]" where B in A and len(A) == 2 and A.index(B) == 1
"""
    assert (await found(text, "red blue", "red", "blue"))["B"] == "blue"


async def test_each_round_of_a_loop_has_its_own_value() -> None:
    text = """
"[N: int]"
for _ in range(3):
    " [M: int]" where M == N + 1
    N = M
return N
"""
    assert (await found(text, "3", "4", "5", "6")).value == 6


async def test_the_programs_own_where_speaks_of_what_filled_the_holes() -> None:
    text = '"[N: int]"\nN = 100\n" [M: int]"\nwhere 1 <= N <= 3 and M > N'

    assert (await found(text, *NUMBERS))["M"] == 30


async def test_what_a_prompt_said_of_its_own_hole_is_checked_on_what_filled_that() -> None:
    text = '"a[A]" where len(A) + len(B) == 5\nA = "xxxxx"\n" b[B]"'
    model = ScriptedModel(behind(a=["xx"], b=["", "yyy"]))

    assert (await run(text, model=model))["B"] == "yyy"


async def test_a_variable_with_the_same_value_is_still_its_hole() -> None:
    text = '"[A]"\nA = "".join(list(A))\n" [B]" where len(B) < len(tokens(A))'

    assert (await found(text, "xxx", "yy"))["B"] == "yy"


async def test_nothing_is_foreseen_of_a_variable_that_will_be_another() -> None:
    text = """
"a[A: int]" where A + M < 10
" n[N: int]" where N >= 5
N = 0
" m[M: int]" where M > N
"""
    model = ScriptedModel(behind(a=["8"], n=["5"], m=["3", "1"]))

    result = await run(text, model=model)

    assert (result["A"], result["M"]) == (8, 1)


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


@pytest.mark.parametrize(
    ("text", "wishes", "last"),
    [
        (
            'LOW = 3\n"a[A]" where B - LOW > 0\nLOW = 9\n"c[C]" where B - LOW > 0\n"b[B: int]"',
            ["4", "10"],
            10,
        ),
        (
            'for last in "xy":\n    opts = [*("abcdefghij" * 20), last]\n'
            '    "a[A]" where B not in opts\n"b[B]"',
            ["y", "z"],
            "z",
        ),
        (
            '"[N: int]"\nfor N in [1, 2, 3]:\n    "a[A]" where f(B, N)\n"b[B: int]"',
            ["2", "4"],
            4,
        ),
    ],
)
async def test_each_prompts_word_on_a_hole_to_come_is_kept_with_its_values(
    text: str, wishes: list[str], last: object
) -> None:
    result = await run(text, {"f": lambda b, n: b > n}, model=ScriptedModel(lambda prompt: wishes))

    assert result["B"] == last


@pytest.mark.parametrize("wish", ["3", "9"])
async def test_values_are_compared_as_python_compares_them(wish: str) -> None:
    text = '"[A: int]"\nA = "many" if A > 5 else A + 1\n"-[B]" where A != 3 and len(B) < 3'

    assert (await found(text, wish))["B"] == wish


async def test_what_is_bound_behind_the_last_prompt_takes_no_mask_from_an_earlier_hole() -> None:
    text = """
"a[A]" where len(A) < len(B)
" b[B]" where len(B) < len(C)
" c[C]" where len(C) < 5
C = C.strip()
"""
    model = ScriptedModel(behind(a=["xxxx", "xx"], b=["xxx"], c=["xxxx"]))

    result = await run(text, model=model)

    assert (result["A"], len(result.requests)) == ("xx", 3)
