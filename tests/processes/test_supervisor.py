"""The time that the supervisor leaves its children; how often and how soon they start anew."""

import pytest

from processes.supervisor import ROUTER_SLACK_S, WINDOW_S, RestartLimit, example
from router import __main__ as router
from router.telemetry import tracing
from tests.processes.test_deployment import deployment


def test_the_router_may_take_its_time_to_end() -> None:
    needed_s = router._LAST_STEP_S + router._LAST_BYTES_S + tracing.CLOSE_TIMEOUT_S
    assert needed_s < ROUTER_SLACK_S


@pytest.mark.parametrize(
    ("secrets", "key"),
    [({}, ""), ({"API_KEY": "hush"}, ' -H "Authorization: Bearer $API_KEY"')],
    ids=["open", "with-a-key"],
)
def test_who_sees_the_server_start_gets_a_line_to_try(secrets: dict[str, str], key: str) -> None:
    said = example(deployment(port=81, secrets=secrets))
    assert "Tandem serves at http://127.0.0.1:81. Open it in a browser" in said
    assert f"curl -N http://127.0.0.1:81/generate_stream{key} -H 'Content-Type: app" in said
    assert "hush" not in said


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_who_lived_for_a_while_is_started_anew_at_once_each_time() -> None:
    clock = Clock()
    limit = RestartLimit(9, clock)
    for _ in range(5):
        limit.note_ready()
        clock.now_s += 60.0
        assert limit.next_delay_s() == 0.0


def test_who_does_not_come_to_life_is_started_anew_later_and_later() -> None:
    limit = RestartLimit(9, Clock())
    delays_s = [limit.next_delay_s() for _ in range(8)]
    assert delays_s == [0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]


def test_who_dies_as_soon_as_it_lives_has_lived_in_vain() -> None:
    clock = Clock()
    limit = RestartLimit(9, clock)
    for expected_s in (0.0, 1.0, 2.0):
        limit.note_ready()
        clock.now_s += 1.0
        assert limit.next_delay_s() == expected_s


def test_too_many_within_the_window_are_the_end_and_old_ones_are_forgiven() -> None:
    clock = Clock()
    limit = RestartLimit(2, clock)
    for _ in range(2):
        limit.note_ready()
        clock.now_s += 60.0
        assert limit.next_delay_s() == 0.0
    limit.note_ready()
    clock.now_s += 60.0
    assert limit.next_delay_s() is None
    clock.now_s += WINDOW_S
    assert limit.next_delay_s() == 0.0


def test_with_a_limit_of_zero_nothing_is_started_anew() -> None:
    assert RestartLimit(0).next_delay_s() is None


def test_what_ended_for_others_is_not_counted_but_begins_later_and_later() -> None:
    limit = RestartLimit(1, Clock())
    delays_s = [limit.next_delay_s(is_counted=False) for _ in range(4)]
    assert delays_s == [0.0, 1.0, 2.0, 4.0]
    assert limit.next_delay_s() == 8.0
    assert limit.next_delay_s() is None
    assert limit.next_delay_s(is_counted=False) is not None
