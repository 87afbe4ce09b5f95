from router.scheduler.queues import WaitingQueue
from router.scheduler.sequence import Sequence
from tests.strategies import make_request


def sequences(count: int) -> list[Sequence]:
    return [Sequence(order, make_request(), order) for order in range(count)]


def queue_of(waiting: list[Sequence], max_passes: int = 16) -> WaitingQueue:
    queue = WaitingQueue(max_passes)
    for sequence in waiting:
        queue.add(sequence)
    return queue


def test_offers_come_in_order_of_arrival_whoever_returns() -> None:
    old, middle, young = sequences(3)
    queue = queue_of([old, middle, young])
    for sequence in queue.offers():
        queue.admit(sequence)
    for sequence in (young, old, middle):
        queue.add(sequence)
    assert list(queue.offers()) == [old, middle, young]


def test_an_admitted_entry_passes_those_refused_before_it() -> None:
    first, second, third = sequences(3)
    queue = queue_of([first, second, third])
    for sequence in queue.offers():
        if sequence is second:
            queue.admit(sequence)
        else:
            queue.refuse(sequence)
    assert [sequence.num_passed for sequence in (first, second, third)] == [1, 0, 0]
    assert list(queue) == [first, third]


def test_nobody_passes_an_entry_that_was_passed_often_enough() -> None:
    waiting = sequences(6)
    queue = queue_of(waiting, max_passes=2)
    offered = []
    for _ in range(2):
        for sequence in queue.offers():
            offered.append(sequence.order)
            if sequence is waiting[0]:
                queue.refuse(sequence)
            else:
                queue.admit(sequence)
    assert offered == [0, 1, 2, 0]
    assert waiting[0].num_passed == 2


def test_without_passes_it_is_first_come_first_served() -> None:
    waiting = sequences(3)
    queue = queue_of(waiting, max_passes=0)
    offered = []
    for sequence in queue.offers():
        offered.append(sequence)
        queue.refuse(sequence)
    assert offered == waiting[:1]


def test_a_cancelled_entry_is_not_offered() -> None:
    first, second = sequences(2)
    queue = queue_of([first, second])
    queue.remove(first)
    assert list(queue.offers()) == [second]
    assert len(queue) == 1
