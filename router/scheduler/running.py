"""The entries that the shards hold, and how their blocks come back when they leave.

It knows no budget and no queue.

    running  ------->  retiring  ------->  gone
    (the shard has     (out of the batch; steps in flight
     its row)           may still write its blocks)

An entry leaves because it ended, was preempted, or is spent: each of its tokens is known or being
drawn, so no later step concerns it. Of one whose draw may be late, only the answer tells that. Its
blocks are freed when the last step with it is answered, which is at once when none is in flight.
"""

from bisect import insort
from collections.abc import Iterable, Iterator

from router.scheduler.allocator import Allocator, BlockAllocation
from router.scheduler.sequence import Entry


def _order(entry: Entry) -> int:
    return entry.order


class RunningBatch:
    """Running and retiring entries. Only the `Scheduler` changes it."""

    def __init__(self, allocator: Allocator) -> None:
        self._allocator = allocator
        self._entries: list[Entry] = []
        self._retiring: dict[int, Entry] = {}
        # What the shards hold and must forget; a dict for its order.
        self._to_drop: dict[int, None] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Entry]:
        """Oldest first."""
        return iter(self._entries)

    @property
    def youngest(self) -> Entry:
        """The one to preempt. IndexError when nothing runs."""
        return self._entries[-1]

    @property
    def is_retiring(self) -> bool:
        """True while blocks are on their way back."""
        return bool(self._retiring)

    @property
    def has_drops(self) -> bool:
        """True while the shards hold requests that they must forget."""
        return bool(self._to_drop)

    @property
    def num_growing(self) -> int:
        """Entries that may need a further block."""
        return sum([entry.may_grow for entry in self._entries])

    @property
    def num_constrained(self) -> int:
        """Entries whose output is to satisfy a constraint."""
        return sum([entry.draws_runs for entry in self._entries])

    def has_left(self, request_id: int) -> bool:
        """False while anything of the request is here: a row in a shard or blocks."""
        return request_id not in self._to_drop and request_id not in self._retiring

    def add(self, entry: Entry) -> None:
        """An admitted entry takes its place by arrival."""
        insort(self._entries, entry, key=_order)

    def drop(self, entry: Entry) -> None:
        """Leaves the batch, and the shards are to be told unless it leaves them by itself."""
        if entry.request_id not in self._retiring:
            self._to_drop[entry.request_id] = None
            self.leave(entry)

    def leave(self, entry: Entry) -> None:
        """Leaves the batch, where the shards know it by themselves; nothing if it has left."""
        if entry.request_id in self._retiring:
            return
        self._entries.remove(entry)
        self._retire(entry)

    def retire_spent(self, entries: Iterable[Entry]) -> None:
        """Lets those of a step's entries go that later steps do not concern."""
        spent = [entry for entry in entries if entry.is_spent and not entry.awaits_run]
        if not spent:
            return
        gone = {entry.request_id for entry in spent}
        self._entries = [entry for entry in self._entries if entry.request_id not in gone]
        for entry in spent:
            self._retire(entry)

    def answered(self, entry: Entry, *, has_ended: bool) -> None:
        """A step with the entry was answered; `has_ended`: the shards forgot it by themselves."""
        if has_ended and self._to_drop:
            self._to_drop.pop(entry.request_id, None)
        if entry.num_steps_in_flight == 0 and entry.request_id in self._retiring:
            del self._retiring[entry.request_id]
            self._free(entry)

    def take_drops(self) -> tuple[int, ...]:
        """The requests that the next step drops; they are told now."""
        dropped_ids = tuple(self._to_drop)
        self._to_drop.clear()
        return dropped_ids

    def clear(self) -> None:
        """The shards lost everything: no entry runs, every allocation is void."""
        for entry in (*self._entries, *self._retiring.values()):
            entry.lose_steps()
        self._entries.clear()
        self._retiring.clear()
        self._to_drop.clear()
        self._allocator.clear()

    def check_invariants(self) -> None:
        """Raises AssertionError when blocks, entries and their order disagree."""
        orders = [entry.order for entry in self._entries]
        assert orders == sorted(set(orders)), "the running batch is out of order"
        for entry in self._entries:
            assert entry.request_id not in self._retiring, "an entry runs and retires"
            assert entry.request_id not in self._to_drop, "a running entry is to be dropped"
        for entry in self._retiring.values():
            assert entry.num_steps_in_flight > 0, "blocks are kept for no step"
        allocations: list[BlockAllocation] = []
        for entry in (*self._entries, *self._retiring.values()):
            assert entry.allocation is not None, f"request {entry.request_id} has no blocks"
            allocations.append(entry.allocation)
        self._allocator.check_invariants(allocations)

    def _retire(self, entry: Entry) -> None:
        if entry.num_steps_in_flight:
            self._retiring[entry.request_id] = entry
        else:
            self._free(entry)

    def _free(self, entry: Entry) -> None:
        assert entry.allocation is not None, f"request {entry.request_id} has no blocks"
        self._allocator.free(entry.allocation, forget=entry.is_suspect)
        entry.allocation = None
