"""The time that the supervisor leaves its children to end."""

from processes.supervisor import ROUTER_SLACK_S
from router import __main__ as router
from router.telemetry import tracing


def test_the_router_may_take_its_time_to_end() -> None:
    needed_s = router._LAST_STEP_S + router._LAST_BYTES_S + tracing.CLOSE_TIMEOUT_S
    assert needed_s < ROUTER_SLACK_S
