from router.scheduler.queue import WaitingQueue
from router.scheduler.sequence import Entry
from tests.strategies import make_request


def entries(count: int) -> list[Entry]:
    return [Entry(order, make_request(), order) for order in range(count)]


def queue_of(waiting: list[Entry], max_passes: int = 16) -> WaitingQueue:
    queue = WaitingQueue(max_passes)
    for entry in waiting:
        queue.add(entry)
    return queue


def test_offers_come_in_order_of_arrival_whoever_returns() -> None:
    old, middle, young = entries(3)
    queue = queue_of([old, middle, young])
    for entry in queue.offers():
        queue.admit(entry)
    for entry in (young, old, middle):
        queue.add(entry)
    assert list(queue.offers()) == [old, middle, young]


def test_an_admitted_entry_passes_those_refused_before_it() -> None:
    first, second, third = entries(3)
    queue = queue_of([first, second, third])
    for entry in queue.offers():
        if entry is second:
            queue.admit(entry)
        else:
            queue.refuse(entry)
    assert [entry.num_passed for entry in (first, second, third)] == [1, 0, 0]
    assert list(queue) == [first, third]


def test_nobody_passes_an_entry_that_was_passed_often_enough() -> None:
    waiting = entries(6)
    queue = queue_of(waiting, max_passes=2)
    offered = []
    for _ in range(2):
        for entry in queue.offers():
            offered.append(entry.order)
            if entry is waiting[0]:
                queue.refuse(entry)
            else:
                queue.admit(entry)
    assert offered == [0, 1, 2, 0]
    assert waiting[0].num_passed == 2


def test_without_passes_it_is_first_come_first_served() -> None:
    waiting = entries(3)
    queue = queue_of(waiting, max_passes=0)
    offered = []
    for entry in queue.offers():
        offered.append(entry)
        queue.refuse(entry)
    assert offered == waiting[:1]


def test_a_cancelled_entry_is_not_offered() -> None:
    first, second = entries(2)
    queue = queue_of([first, second])
    queue.remove(first)
    assert list(queue.offers()) == [second]
    assert len(queue) == 1
