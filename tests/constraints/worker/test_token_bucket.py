import pytest

from constraints.worker.token_bucket import TokenBucket


def test_what_was_spent_comes_back_at_its_rate() -> None:
    token_bucket = TokenBucket(rate=0.1, most=1.0)
    token_bucket.spend(0.0, 1.0)
    assert token_bucket.left_s(0.0) == 0.0
    assert token_bucket.left_s(1.0) == pytest.approx(0.1)


def test_a_debt_is_paid_back_first() -> None:
    token_bucket = TokenBucket(rate=0.1, most=1.0)
    token_bucket.spend(0.0, 1.5)
    assert token_bucket.left_s(4.0) == pytest.approx(-0.1)
    assert token_bucket.left_s(6.0) == pytest.approx(0.1)


def test_no_more_is_saved_than_the_most() -> None:
    token_bucket = TokenBucket(rate=0.1, most=1.0)
    assert token_bucket.left_s(0.0) == 1.0
    assert token_bucket.left_s(1000.0) == 1.0
