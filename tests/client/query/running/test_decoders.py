"""Decoders by name, and what is refused of their options."""

import pytest

from client.query.decoders import argmax, sample
from client.query.errors import BadProgram
from client.query.place import Source
from client.query.program import DecoderClause
from client.query.running.decoders import OptionIgnored, clause_decoding, decoding
from client.query.running.sampling import SideBySide
from client.words import Sampling
from tests.client.query.running.programs import HERE


def test_argmax_takes_the_most_probable_and_sample_draws() -> None:
    assert argmax().options.sampling == Sampling(temperature=0.0)
    assert sample(2).options.sampling == Sampling(temperature=1.0)
    assert sample(2, tries=4).decoder == SideBySide(num_traces=2, tries=4)


def test_options_reach_the_requests_sampling() -> None:
    options = sample(temperature=0.5, top_k=5, top_p=0.9, seed=3, max_tokens=9).options

    assert options.sampling == Sampling(temperature=0.5, top_k=5, top_p=0.9, seed=3)
    assert options.max_tokens == 9


@pytest.mark.parametrize(
    ("name", "options", "told"),
    [
        ("sample", {"n": 0}, "n must be a whole number from 1 on. Given: 0"),
        ("sample", {"temperature": -1}, "temperature must be a number from 0 on. Given: -1"),
        ("sample", {"top_p": 0}, "top_p must be a number above 0, at most 1. Given: 0"),
        ("sample", {"seed": True}, "seed must be a whole number from 0 on. Given: True"),
        ("argmax", {"temperature": 0.5}, "`argmax` does not draw"),
        ("argmax", {"tries": 0}, "tries must be a whole number from 1 on"),
        ("argmax", {"stops": "both"}, 'stops must be "cut" or "exact". Given: \'both\''),
        ("argmax", {"colour": "red"}, "`argmax` has no option `colour`"),
        ("argmin", {}, "there is no decoder `argmin`"),
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
        "a.query:1:1: n must be a whole number from 1 on. Given: 0",
        "    sample(0)",
        "    ^",
    ]


def test_what_is_not_served_is_told_and_ignored() -> None:
    with pytest.warns(OptionIgnored, match="no_repeat_ngram_size"):
        assert decoding("sample", (), {"no_repeat_ngram_size": 3}).options == sample().options


def test_what_changes_no_result_is_passed_over() -> None:
    assert decoding("argmax", (), {"chunksize": 8}).options == argmax().options
