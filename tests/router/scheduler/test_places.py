"""The place of a waiting request in the queue."""

from router.scheduler.allocator import Allocator
from router.scheduler.scheduler import Scheduler, SchedulerLimits
from tests.router.rig import asking


def scheduler() -> Scheduler:
    return Scheduler(SchedulerLimits(max_step_tokens=16, max_batch_size=1), Allocator(16, 4, True))


def test_places_count_from_the_next_one_and_end_with_the_first_step() -> None:
    waiting = scheduler()
    for request_id in (1, 2, 3):
        waiting.add(request_id, asking("abcd"), 0.0)
    assert [waiting.place(request_id) for request_id in (1, 2, 3)] == [1, 2, 3]

    waiting.schedule(0.0)
    assert [waiting.place(request_id) for request_id in (1, 2, 3)] == [None, 1, 2]

    waiting.finish(2)
    assert [waiting.place(request_id) for request_id in (2, 3, 99)] == [None, 1, None]


def test_a_held_sequence_has_the_place_that_it_would_have() -> None:
    waiting = scheduler()
    waiting.add(1, asking("abcd"), 0.0)
    waiting.add(2, asking("efgh"), 0.0, is_ready=False)
    waiting.add(3, asking("ijkl"), 0.0)

    assert [waiting.place(request_id) for request_id in (1, 2, 3)] == [1, 2, 2]
