"""Decoders by name, and what is refused of their options."""

import itertools

import pytest
from annotated_types import Le
from pydantic import BaseModel

from client.beams import MAX_PENALTY
from client.calls import MAX_VALUES
from client.query import BadProgram, argmax, run, run_all, sample
from client.query.place import Source
from client.query.program import DecoderClause
from client.query.running.decoders import OptionIgnored, clause_decoding, decoding
from client.query.running.independent_traces import IndependentTraces
from client.sampling import Sampling
from router.http.lmtp import score
from router.http.lmtp.frames import BeamsFields
from tests.client.query.running.programs import HERE
from tests.client.query.running.scripted_model import ScriptedModel, in_turn


def test_argmax_takes_the_most_probable_and_sample_draws() -> None:
    assert argmax().options.sampling == Sampling(temperature=0.0)
    assert sample(2).options.sampling == Sampling(temperature=1.0)
    assert sample(2, tries=4).decoder == IndependentTraces(num_traces=2, tries=4)


def test_options_reach_the_requests_sampling() -> None:
    options = sample(temperature=0.5, top_k=5, top_p=0.9, seed=3, max_tokens=9).options

    assert options.sampling == Sampling(temperature=0.5, top_k=5, top_p=0.9, seed=3)
    assert options.max_tokens == 9


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
        ("argmax", {"max_tokens": 10**30}, "max_tokens must be a whole number from 1 to"),
        ("sample", {"temperature": float("inf")}, "temperature must be a number from 0 on"),
        ("sample", {"temperature": float("nan")}, "temperature must be a number from 0 on"),
        ("sample", {"seed": 2**64}, "seed must be a whole number from 0 to"),
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


def test_a_clause_that_is_refused_points_into_the_program() -> None:
    clause = DecoderClause("sample", (0,), {}, HERE)

    with pytest.raises(BadProgram) as caught:
        clause_decoding(clause, Source("sample(0)", "a.query"))

    assert str(caught.value).splitlines() == [
        "a.query:1:1: n must be a whole number from 1 to 2147483648. Given: 0",
        "    sample(0)",
        "    ^",
    ]


def test_what_is_not_served_is_told_and_ignored() -> None:
    with pytest.warns(OptionIgnored, match="no_repeat_ngram_size"):
        assert decoding("sample", (), {"no_repeat_ngram_size": 3}).options == sample().options


def test_what_changes_no_result_is_passed_over() -> None:
    assert decoding("argmax", (), {"chunksize": 8}).options == argmax().options


async def test_a_decoder_that_is_not_there_is_refused_at_its_place() -> None:
    text = 'best_k(k=4)\n  "[X]"'

    with pytest.raises(BadProgram) as caught:
        await run(text, model=ScriptedModel(in_turn("yes")))

    assert str(caught.value).splitlines() == [
        "<query>:1:1: there is no decoder `best_k`; there are argmax, sample, beam; "
        "use `beam` for the most probable traces",
        "    best_k(k=4)",
        "    ^^^^^^^^^^^",
    ]


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


async def test_seeds_go_round() -> None:
    model = ScriptedModel(lambda prompt: ["yes"])

    await run_all('"[X]"', model=model, decoder=sample(2, seed=2**64 - 1))

    assert [call.sampling.seed for call in model.generate_calls] == [2**64 - 1, 0]
