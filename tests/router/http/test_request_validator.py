"""Sampling as clients spell it, and what it means."""

import pytest

from router.http.openai.schema import normalize
from router.request.errors import InvalidRequest
from router.request.parameters import Limits, RawParams

LIMITS = Limits(max_input_len=100, max_total_len=200, vocab_size=50)


def test_nothing_given_means_sampling() -> None:
    assert normalize(RawParams(), LIMITS) == RawParams(do_sample=True)


def test_neutral_values_mean_absence() -> None:
    assert normalize(RawParams(top_p=1.0, top_k=-1), LIMITS) == RawParams(do_sample=True)
    assert normalize(RawParams(top_k=0), LIMITS) == RawParams(do_sample=True)


def test_temperature_0_means_the_most_probable_token_whatever_else_is_said() -> None:
    given = RawParams(temperature=0.0, top_p=0.5, top_k=3, min_p=0.1)

    assert normalize(given, LIMITS) == RawParams(do_sample=False)


def test_what_means_nothing_must_be_in_order_all_the_same() -> None:
    with pytest.raises(InvalidRequest, match="`top_p`"):
        normalize(RawParams(temperature=0.0, top_p=5.0), LIMITS)


@pytest.mark.parametrize(
    ("given", "fault"),
    [
        (RawParams(temperature=-1.0), "`temperature` must be at least 0. Given: -1.0"),
        (RawParams(top_p=1.5), "`top_p` must be between 0 and 1. Given: 1.5"),
        (RawParams(top_k=-2), "`top_k` must be at least -1"),
    ],
)
def test_what_is_outside_is_refused_by_the_clients_rule(given: RawParams, fault: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        normalize(given, LIMITS)

    assert str(refused.value).startswith(fault)


def test_a_top_p_of_0_keeps_the_most_probable_token() -> None:
    top_p = normalize(RawParams(top_p=0.0), LIMITS).top_p

    assert top_p is not None
    assert 0 < top_p < 1e-5


@pytest.mark.parametrize(
    ("given", "meant"), [(None, None), (7, 7), (-1, 2**64 - 1), (-(2**63), 2**63)]
)
def test_negative_seeds_are_the_upper_half(given: int | None, meant: int | None) -> None:
    assert normalize(RawParams(seed=given), LIMITS).seed == meant


def test_a_seed_below_all_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="`seed`"):
        normalize(RawParams(seed=-(2**63) - 1), LIMITS)
