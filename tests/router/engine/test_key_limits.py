"""What the limits of a key admit, and the slots that a key may have beside others."""

import pytest

from router.engine.admission import Admission, KeyLimits, KeySlots
from router.request.errors import InvalidRequest, Overloaded, RateLimited
from router.request.request import NO_KEY, ApiKey

HOG, LIGHT, HEAVY = ApiKey("hog"), ApiKey("light"), ApiKey("heavy", weight=3.0)


def admits(limits: KeyLimits, key: ApiKey, num_wanted: int = 1) -> bool:
    try:
        limits.check(key, 0, num_wanted, 0.0)
    except RateLimited:
        return False
    return True


def test_a_key_without_limits_is_admitted() -> None:
    assert admits(KeyLimits(), NO_KEY, 1000)


def test_so_many_requests_at_once_and_no_more() -> None:
    key, limits = ApiKey("a", max_concurrent_requests=2), KeyLimits()
    limits.check(key, 1, 1, 0.0)

    with pytest.raises(RateLimited, match="2 requests of this key are waiting or running"):
        limits.check(key, 2, 1, 0.0)
    with pytest.raises(InvalidRequest, match="needs 3 sequences at once; its key may have 2"):
        limits.check(key, 0, 3, 0.0)


def test_requests_of_a_minute_come_back_with_time() -> None:
    key, limits = ApiKey("a", requests_per_minute=6), KeyLimits()
    for _ in range(6):
        limits.check(key, 0, 1, 0.0)
        limits.spend(key, 0.0, requests=1)

    with pytest.raises(RateLimited) as refused:
        limits.check(key, 0, 1, 0.0)
    assert refused.value.retry_after_s == pytest.approx(10.0)
    limits.check(key, 0, 1, 10.0)


def test_tokens_are_overdrawn_and_paid_back() -> None:
    key, limits = ApiKey("a", tokens_per_minute=60), KeyLimits()
    limits.check(key, 0, 1, 0.0)
    limits.spend(key, 0.0, tokens=90)

    with pytest.raises(RateLimited, match="has had its 60 tokens per minute") as refused:
        limits.check(key, 0, 1, 0.0)
    assert refused.value.retry_after_s == pytest.approx(31.0)
    limits.check(key, 0, 1, 31.0)


def test_nothing_is_saved_up_beyond_a_minute() -> None:
    key, limits = ApiKey("a", tokens_per_minute=60), KeyLimits()
    limits.check(key, 0, 1, 0.0)
    limits.spend(key, 1000.0, tokens=60)

    with pytest.raises(RateLimited):
        limits.check(key, 0, 1, 1000.0)


def test_a_limit_that_was_changed_begins_anew() -> None:
    limits, old, new = (
        KeyLimits(),
        ApiKey("a", tokens_per_minute=60),
        ApiKey("a", tokens_per_minute=61),
    )
    limits.spend(old, 0.0, tokens=600)

    assert not admits(limits, old)
    assert admits(limits, new)


@pytest.mark.parametrize(
    ("key", "taken", "expected"),
    [
        (HOG, [], KeySlots(0, 8)),
        (HOG, [HOG] * 8, KeySlots(8, 8)),
        (LIGHT, [HOG] * 8, KeySlots(0, 4)),
        (HOG, [HOG] * 8 + [LIGHT], KeySlots(8, 4)),
        (HEAVY, [HOG] * 8, KeySlots(0, 6)),
        (LIGHT, [ApiKey(str(number)) for number in range(20)], KeySlots(0, 1)),
    ],
)
def test_slots_are_parted_by_weight(key: ApiKey, taken: list[ApiKey], expected: KeySlots) -> None:
    assert KeySlots.of(key, taken, 8) == expected


def test_a_key_that_fills_the_server_does_not_keep_the_others_out() -> None:
    admission, taken = Admission(8, restart_s=1.0), [HOG] * 8

    for _ in range(4):
        admission.admit(0.0, len(taken), 1, LIGHT, KeySlots.of(LIGHT, taken, 8))
        taken.append(LIGHT)

    for key in (LIGHT, HOG):
        with pytest.raises(Overloaded):
            admission.admit(0.0, len(taken), 1, key, KeySlots.of(key, taken, 8))
