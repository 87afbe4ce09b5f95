"""Limits on computing."""

import pytest

from constraints.guiding.time_limit import TimeLimit


def test_a_limit_begins_anew_once_at_half_its_length(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([0.0, 0.9, 5.0, 5.0, 5.4, 5.6, 5.6])
    monkeypatch.setattr("constraints.guiding.time_limit.thread_time", lambda: next(times))
    limit = TimeLimit(1.0)
    assert [limit.is_over() for _ in range(5)] == [False, False, False, True, True]
