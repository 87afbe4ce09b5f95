"""Programs whose conditions join several holes: what is asked of each, and when it is refused."""

import pytest

from client.query import F, NotSatisfied, Unsatisfiable, run
from tests.client.query.running.scripted_model import ScriptedModel, behind


async def asked(text: str, **wishes: list[str]) -> list[object]:
    """The constraints that a program sends, hole by hole."""
    model = ScriptedModel(behind(**wishes))
    await run(text, model=model)
    return [call.constraint and call.constraint.value for call in model.generate_calls]


async def test_lengths_that_sum_up_are_found_in_one_request_for_each_hole() -> None:
    sent = await asked('"a[A] b[B]" where len(A) + len(B) == 5', a=["xxxxxxx", "xx"], b=["yyy"])

    assert sent == ["len(A) <= 5".replace("A", "X"), "len(X) == 3"]


async def test_what_is_said_of_a_hole_alone_counts_before_it_comes() -> None:
    text = '"a[A] "\n"b[B: int]"\nwhere len(A) < B and 2 < B < 6'

    assert (await asked(text, a=["xxxxxxx", "xx"], b=["5"]))[0] == "len(X) < 5"


async def test_a_word_of_an_earlier_hole_is_one_of_its_words() -> None:
    text = '"a[A] b[B]" where len(words(A)) == 2 and B in words(A)'

    assert await asked(text, a=["x y"], b=["z", "y"]) == ["len(words(X)) == 2", ["x", "y"]]


async def test_one_of_numbers_and_texts_may_be_compared_with_either_later() -> None:
    text = '"a[A: [1, \'y\']] "\n"b[B]" where A == 1 or B == "z"'

    assert await asked(text, a=["y"], b=["x", "z"]) == [["1", "y"], ["z"]]


@pytest.mark.parametrize(
    ("text", "first"),
    [
        ('"a[A] b[B]" where {}\ndistribute B over ["xxxx", "xxx"]', "len(X) <= 2 and len(X) >= 1"),
        (
            '"a[A]"\n" b[B]" distribution B in ["xxxx", "xxx"]\nwhere {}',
            "len(X) <= 2 and len(X) >= 1",
        ),
        # Python's own values may not be there yet, and another prompt may choose from others.
        ('v = ["xxxx"]\n"a[A] b[B]" where {}\ndistribute B over v', "len(X) <= 5"),
        ('"a[A]"\n" b[B]" distribution B in ["xxx"]\nif not B: "[B]"\nwhere {}', "len(X) <= 5"),
    ],
)
async def test_the_values_that_a_hole_is_chosen_from_count_before_it_comes(
    text: str, first: str
) -> None:
    sent = await asked(text.format("len(A) + len(B) == 5"), a=["xx", "x"])

    assert sent[0] == first


@pytest.mark.parametrize(
    "text",
    [
        '"[A]"\nif A != "none": "[B]" distribution B in ["small", "medium"]\n'
        "where len(A) + len(B) < 9",
        '"[A]"\nif A == "none": return A\n"[B]" distribution B in ["none1"]\nwhere len(A) > len(B)',
        '"[A]"\nfor each in [] if A == "none" else [A]: "[B]"\nwhere len(A) > len(B)\n'
        'distribute B over ["none1"]',
        '"[A]" where A in ["none", "x"]\nif A != "none": "[B]" distribution B in ["none1"]\n'
        "where len(A) > len(B)",
    ],
)
async def test_the_values_of_a_hole_that_may_not_come_bound_no_other(text: str) -> None:
    model = ScriptedModel(lambda prompt: ["none"])

    assert (await run(text, model=model))["A"] == "none"


async def test_the_values_of_a_hole_behind_a_branch_count_before_it_comes() -> None:
    text = (
        '"a[A]"\nif A == "x": "!"\n" b[B]" distribution B in ["xxxx"]\nwhere len(A) + len(B) == 5'
    )

    assert (await asked(text, a=["xx", "x"]))[0] == "len(X) == 1"


async def test_what_a_variable_says_of_it_counts_when_it_comes() -> None:
    text = '"a[A] "\nn = 4\n"b[B]"\nwhere len(A) < len(B) and len(B) < n'

    assert await asked(text, a=["xx"], b=["yyy"]) == [None, "len(X) > 2 and len(X) < 4"]


async def test_a_prompts_condition_counts_where_its_holes_stand_once() -> None:
    once = '"a[A] " where len(A) < len(B)\n"b[B]" where len(B) < 4'
    twice = f'{once}\n" c[B]"'

    assert (await asked(once, a=["x"], b=["yyy"]))[0] == "len(X) < 3"
    assert (await asked(twice, a=["x"], b=["yyy"], c=["y"]))[0] is None


async def test_a_value_that_a_decorator_changes_is_not_bounded_before() -> None:
    """The condition is about the changed value, which may be shorter than what is written."""
    text = '"a[@str.strip A] b[B]" where len(A) + len(B) == 5'

    assert await asked(text, a=["  xx  "], b=["yyy"]) == [None, "len(X) == 3"]


async def test_what_no_texts_satisfy_together_is_told_before_any_request() -> None:
    model = ScriptedModel(lambda prompt: ["x"])
    with pytest.raises(Unsatisfiable) as caught:
        await run('"[A]"\n"[B]"\nwhere len(A) + len(B) == 5 and len(A) > 5', model=model)

    assert "no text of `A` satisfies what is said of it and `B`" in caught.value.message
    assert caught.value.place is not None
    assert caught.value.place.line == 3
    assert model.calls == []


async def test_what_is_only_known_later_is_given_up_after_few_requests() -> None:
    """At most `tries` for a hole, and as many times back."""
    model = ScriptedModel(lambda prompt: [f"{'x' * count}." for count in range(99)])
    with pytest.raises(NotSatisfied):
        await run(
            'argmax(tries=3)\n "[A] [B]"\nwhere len(A) > 2 and A.title() == B and len(B) < 2',
            model=model,
        )

    assert len(model.calls) <= 3 * 4


@pytest.mark.parametrize(
    ("condition", "broken"),
    [
        ('len(A) > 1 and B in ["q"]', "len(A) > 1"),
        ('A == "bb" and B in ["q"]', "A == 'bb'"),
        ("0 < len(A) < 1 < len(B)", "len(A) < 1"),
        ("A.isupper()", "A.isupper()"),
        ("len(A) < 2 and not A", "not A"),
    ],
)
async def test_what_a_later_prompt_says_of_an_earlier_hole_is_held_against_that(
    condition: str, broken: str
) -> None:
    model = ScriptedModel(behind(a=["x", "bb"], b=["q"]))
    with pytest.raises(Unsatisfiable) as caught:
        await run(f'"a[A]"\n" b[B]" where {condition}', model=model)

    assert caught.value.message == f"`{broken}` does not hold: [A] is 'x'"
    assert caught.value.place is not None
    assert caught.value.place.line == 2
    assert len(model.calls) == 1


async def test_what_a_later_prompt_says_of_an_earlier_hole_may_hold() -> None:
    text = '"a[A]"\n" b[B] c[C]" where len(A) == 1 and A.islower() and len(B) < 2'

    assert await asked(text, a=["x"], b=["q"], c=["r"]) == [None, "len(X) < 2", None]


async def test_what_a_prompt_says_of_holes_to_come_alone_is_kept_for_these() -> None:
    text = '"a[A]"\n" b[B]" where C in ["y", A] and len(B) < 3\n" c[C]"'
    sent = await asked(text, a=["x"], b=["q"], c=["z", "x"])

    assert sent == [None, "len(X) < 3", ["y", "x"]]


async def test_what_stands_behind_a_nested_query_is_held_before_it_asks() -> None:
    text = '"a[A]"\n" b[B: f]" where {}'
    model = ScriptedModel(behind(a=["x"], b=["q"]))
    for condition, message in (("len(A) > 1", r"\[A\] is 'x'"), ("1 > 2", "`False` does not hold")):
        with pytest.raises(Unsatisfiable, match=message):
            await run(text.format(condition), {"f": F("[X]")}, model=model)

    assert len(model.calls) == 2
