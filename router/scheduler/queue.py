"""Who waits for admission, in order of arrival, and who may go first.

It knows no blocks and no budget: whether an entry fits is the scheduler's to say.

Entries are offered oldest first. One that does not fit yet may be passed by younger ones, but by
`max_passes` of them at most in its life: after that nobody behind it is offered. A preempted
entry returns to its place by arrival, which is before everything that came after it. One that is
held, since something is still made ready for it, is not offered: nobody passes it, and it is in
nobody's way.

Why nobody starves. Let E wait and not be held. Those older than E are finitely many. Of the
younger, at most `max_passes` pass E; once they have, only E and those before it are offered, so
running entries are no longer replaced by younger ones. Steps then compute at least one token for
good each: a decode's token outlives a preemption, and the oldest running entry is never preempted
for another one. (Run ahead, a step may go by while blocks are on their way back.) So at the latest
after as many such steps as the running entries have tokens left to compute, nothing runs, every
block is available, and the oldest waiting entry, which was measured against the whole pool when it
came, is admitted. That repeats for each one older than E, and then for E.
"""

from bisect import bisect_left, insort
from collections.abc import Iterator

from router.scheduler.sequence import Entry

# How many are looked at in one step: a bound on a step's cost, not on anybody's turn, since the
# oldest are looked at first. So it is also the most that one step admits; those behind have the
# next step.
_MAX_OFFERS = 64


def _order(entry: Entry) -> int:
    return entry.order


class WaitingQueue:
    """Entries in state WAITING. Only the `Scheduler` changes it."""

    def __init__(self, max_passes: int) -> None:
        self._max_passes = max_passes
        self._entries: list[Entry] = []
        # Those that something is still made ready for.
        self._held: dict[int, Entry] = {}
        self._refused: list[Entry] = []
        self._is_barred = False

    def __len__(self) -> int:
        return len(self._entries) + len(self._held)

    def __iter__(self) -> Iterator[Entry]:
        yield from self._entries
        yield from self._held.values()

    @property
    def has_offers(self) -> bool:
        """True while anyone waits who may be admitted."""
        return bool(self._entries)

    def add(self, entry: Entry) -> None:
        """Takes its place by arrival."""
        insort(self._entries, entry, key=_order)

    def hold(self, entry: Entry) -> None:
        """Waits, but is offered only once it is released."""
        self._held[entry.request_id] = entry

    def release(self, entry: Entry) -> None:
        """Takes its place by arrival, if it was held."""
        if self._held.pop(entry.request_id, None) is not None:
            self.add(entry)

    def remove(self, entry: Entry) -> None:
        """Raises ValueError if it does not wait."""
        if self._held.pop(entry.request_id, None) is None:
            self._entries.remove(entry)

    def place(self, entry: Entry) -> int:
        """1 for who is offered first; of one that is held, what its place would be."""
        return bisect_left(self._entries, entry.order, key=_order) + 1

    def offers(self) -> Iterator[Entry]:
        """Entries that may be admitted in this step, one by one.

        For each, before asking for the next, the caller calls `admit` or `refuse`, or stops.
        """
        self._refused = []
        self._is_barred = False
        for entry in self._entries[:_MAX_OFFERS]:
            if self._is_barred:
                return
            yield entry

    def admit(self, entry: Entry) -> None:
        """The offered entry leaves the queue, past those refused before it."""
        for older in self._refused:
            older.num_passed += 1
            self._is_barred |= older.num_passed >= self._max_passes
        self.remove(entry)

    def refuse(self, entry: Entry) -> None:
        """The offered entry does not fit yet."""
        self._refused.append(entry)
        self._is_barred |= entry.num_passed >= self._max_passes

    def check_invariants(self) -> None:
        """Raises AssertionError when the order or a count of passes is wrong."""
        orders = [entry.order for entry in self._entries]
        assert not set(orders) & {entry.order for entry in self._held.values()}
        assert orders == sorted(set(orders)), "the queue is out of order"
        assert all(entry.num_passed <= self._max_passes for entry in self._entries)
