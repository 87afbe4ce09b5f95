"""Decoders by name, what is refused of their options, and holes chosen from a distribution."""

import itertools
import math
from enum import Enum
from typing import Literal

import pytest
from annotated_types import Le
from pydantic import BaseModel

from client.calls import MAX_PENALTY, MAX_VALUES, ScoreCall
from client.query import (
    AsyncQuery,
    BadCondition,
    BadProgram,
    Unsatisfiable,
    argmax,
    run,
    sample,
)
from client.query.api import RunOptions
from client.query.reading.reader import read
from client.query.running.backtracking import IndependentTraces
from client.query.running.decoders import decoding
from client.sampling import Sampling
from router.http.lmtp import score
from router.http.lmtp.frames import BeamsFields
from tests.client.query.running.models import ScriptedModel, in_turn


def test_argmax_takes_the_most_probable_and_sample_draws() -> None:
    assert argmax().options.sampling == Sampling(temperature=0.0)
    assert sample(2).options.sampling == Sampling(temperature=1.0)
    assert sample(2, tries=4).decoder == IndependentTraces(num_traces=2, tries=4)


@pytest.mark.parametrize(
    ("name", "options", "told"),
    [
        ("sample", {"n": 0}, "n must be a whole number from 1 to 2147483648. Given: 0"),
        ("sample", {"temperature": -1}, "temperature must be a number from 0 on. Given: -1"),
        ("sample", {"top_p": 0}, "top_p must be a number above 0, at most 1. Given: 0"),
        (
            "sample",
            {"seed": True},
            "seed must be a whole number from 0 to 18446744073709551615. Given: True",
        ),
        ("argmax", {"temperature": 0.5}, "`argmax` does not draw"),
        ("argmax", {"tries": 0}, "tries must be a whole number from 1 to"),
        ("sample", {"temperature": float("inf")}, "temperature must be a number from 0 on"),
        ("sample", {"seed": 2**64}, "seed must be a whole number from 0 to"),
        ("beam", {"stops": "cut"}, 'stops must be "exact"'),
        ("beam", {"early_stopping": "soon"}, 'early_stopping must be True, False or "never"'),
        ("beam", {"temperature": 0.5}, "does not draw"),
        ("beam", {"length_penalty": 33}, "length_penalty must be a number from -32 to 32"),
        ("argmax", {"stops": "both"}, 'stops must be "cut" or "exact". Given: \'both\''),
        ("argmax", {"colour": "red"}, "`argmax` has no option `colour`"),
        ("argmin", {}, "there is no decoder `argmin`"),
        ("best_k", {}, "there is no decoder `best_k`; there are argmax, sample, beam"),
    ],
)
def test_an_option_that_breaks_its_rule_is_refused(
    name: str, options: dict[str, object], told: str
) -> None:
    with pytest.raises(ValueError, match=told.replace("`", ".").replace("'", ".")):
        decoding(name, (), options)


def test_what_is_not_served_is_told_and_ignored() -> None:
    with pytest.warns(UserWarning, match="no_repeat_ngram_size"):
        assert decoding("sample", (), {"no_repeat_ngram_size": 3}).options == sample().options


def test_what_changes_no_result_is_passed_over() -> None:
    assert decoding("argmax", (), {"chunksize": 8}).options == argmax().options


async def test_more_values_than_servers_take_are_refused_where_they_stand() -> None:
    text = '"[X]" distribution X in map(str, itertools.count())'

    with pytest.raises(BadProgram, match=r"<query>:1:25: .* at most 4096 values"):
        await run(text, {"itertools": itertools}, model=ScriptedModel(in_turn("yes")))


def test_the_bounds_are_those_of_servers() -> None:
    assert _bound(BeamsFields, "length_penalty") == MAX_PENALTY
    assert score.MAX_VALUES == MAX_VALUES


def _bound(body: type[BaseModel], field: str) -> object:
    """The most that a field takes."""
    return next(each.le for each in body.model_fields[field].metadata if isinstance(each, Le))


PICK = '"Why: [WHY] So: [X]" distribution X in ["no", "yessss"]'


def liked(prompt: str, value: str) -> float:
    return {"no": -1.0, "yessss": -1.5}[value]


async def test_a_distribution_is_one_request_behind_the_other_holes() -> None:
    model = ScriptedModel(in_turn("because", "because"), liked)

    result = await run(PICK, model=model)

    assert model.calls[1] == ScoreCall(prompt="Why: because So: ", values=("no", "yessss"))
    assert [row.kind for row in result.requests] == ["generate", "score"]
    assert result.prompt == "Why: because So: no"
    # Both distributions are reported; the plain one decides, unless the other is asked for.
    choice = result.distributions["X"]
    assert math.exp(choice.plain["no"]) == pytest.approx(1 / (1 + math.exp(-0.5)))
    assert math.exp(choice.normalised["no"]) == pytest.approx(1 / (1 + math.exp(0.25)))
    assert (await run(PICK, model=model, decoder=argmax(normalised=True)))["X"] == "yessss"


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
        '"[X: inner]" where len(tokens(X)) < 3',
    ],
)
async def test_tokens_that_nobody_counts_are_no_condition(program: str) -> None:
    inner = read('"[Z]"\nreturn Z', name="inner")
    nested = AsyncQuery[[], object, object](inner, RunOptions())

    with pytest.raises(BadCondition, match="count its words or characters") as caught:
        await run(program, {"inner": nested}, model=ScriptedModel(lambda _: ["a"], liked))

    assert caught.value.place is not None
    assert program[caught.value.place.column - 1 :].startswith("tokens(X)")


async def test_a_support_of_which_nothing_is_allowed_is_impossible() -> None:
    text = '"[X]" where X in ["perhaps"] distribution X in ["no", "yessss"]'

    with pytest.raises(Unsatisfiable, match="no value"):
        await run(text, model=ScriptedModel(in_turn(), liked))


async def test_a_value_that_a_later_hole_cannot_do_with_is_left_out_when_chosen_again() -> None:
    text = """
"[X]" distribution X in ["no", "yessss"]
" Y:[Y]"
where fits(X, Y) and Y in ["y", "n"]
"""
    fits = {"fits": lambda x, y: x == "yessss" and y == "y"}
    result = await run(text, fits, model=ScriptedModel(lambda prompt: ["n", "y"], liked))

    assert result.prompt == "yessss Y:y"
    assert [(row.hole, row.kind) for row in result.requests] == [
        ("X", "score"),
        ("X", "score"),
        ("Y", "generate"),
    ]


async def test_a_nested_query_is_chosen_from_no_support() -> None:
    program = 'try: "a [Y: inner()]"\nexcept Exception: "b"\ndistribute Y over ["no", "yes"]'
    inner = read('"[Z]"\nreturn Z', name="inner")
    nested = AsyncQuery[[], object, object](inner, RunOptions())
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
