"""Slots that groups of streams keep: how their ends count for the times that others are told."""

import pytest
from prometheus_client import CollectorRegistry

from router.engine.admission import Admission
from router.engine.progress import Progress
from router.engine.slots import Slots
from router.engine.stream_groups import StreamGroups
from router.telemetry.metrics import Metrics
from router.telemetry.step_observer import StepObserver
from router.telemetry.tracing import NO_TRACES
from tests.router.rig import asking

NUM_SLOTS = 8


class BoundSocket:
    """Slots on a clock of their own, before which nobody has streams."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.admission = Admission(NUM_SLOTS, retry_s=1.0)
        metrics = Metrics(CollectorRegistry(), max_input_len=64, max_total_len=128)
        observer = StepObserver(metrics, 16, NO_TRACES)
        groups = StreamGroups(lambda requests, texts: [])
        self.slots = Slots(
            self.admission, Progress(4.0, 2.0), observer, (), groups, lambda: self.now_s
        )

    def rate_behind(self, widths: list[int], *, is_good: bool) -> float:
        """Slots that come free per second, as reckoned when groups so wide end after a second."""
        groups = [self.slots.open_group(asking(), width, lambda: None) for width in widths]
        self.now_s += 1.0
        for group in groups:
            self.slots.close_group(group, is_good=is_good)
        assert self.slots.num_taken == 0
        return self.admission.drain_rate(self.now_s)


@pytest.mark.parametrize("widths", [[8], [4, 4], [7, 1]])
def test_a_wide_groups_end_counts_for_each_of_its_slots(widths: list[int]) -> None:
    # The last of many ends leave a server that has little to do, and say nothing of it.
    one_by_one = BoundSocket().rate_behind([1] * NUM_SLOTS, is_good=True)
    assert BoundSocket().rate_behind(widths, is_good=True) >= one_by_one > 4


def test_a_group_that_fails_says_nothing_of_how_fast_slots_come_free() -> None:
    assert BoundSocket().rate_behind([8], is_good=False) < 4


def test_a_group_is_closed_once() -> None:
    door = BoundSocket()
    group = door.slots.open_group(asking(), 8, lambda: None)
    door.now_s = 1.0
    door.slots.close_group(group, is_good=True)
    rate = door.admission.drain_rate(1.0)
    door.slots.close_group(group, is_good=True)
    assert door.admission.drain_rate(1.0) == rate
