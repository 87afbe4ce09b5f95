from router.scheduler.fair_shares import FairShares
from router.scheduler.queues import WaitingQueue
from router.scheduler.sequence import Sequence
from tests.strategies import make_request


def sequences(count: int) -> list[Sequence]:
    return [Sequence(order, make_request(), order) for order in range(count)]


def queue_of(waiting: list[Sequence]) -> WaitingQueue:
    queue = WaitingQueue(FairShares())
    for sequence in waiting:
        queue.add(sequence)
    return queue


def test_offers_come_in_order_of_arrival_whoever_returns() -> None:
    old, middle, young = sequences(3)
    queue = queue_of([young, old, middle])
    assert queue.offers() == [old, middle, young]
    queue.remove(old)
    assert queue.offers() == [middle, young]
    queue.add(old)
    assert queue.offers() == [old, middle, young]


def test_a_held_entry_is_offered_once_it_is_released() -> None:
    old, young = sequences(2)
    queue = queue_of([young])
    queue.hold(old)
    assert (queue.offers(), len(queue), set(queue)) == ([young], 2, {old, young})
    queue.release(old)
    assert queue.offers() == [old, young]


def test_a_cancelled_entry_is_not_offered() -> None:
    first, second, held = sequences(3)
    queue = queue_of([first, second])
    queue.hold(held)
    queue.remove(first)
    queue.remove(held)
    assert queue.offers() == [second]
    assert len(queue) == 1
