"""The waiting sequences in order of arrival, and which of them may be admitted first.

It knows no blocks and no budget: the planner decides whether a sequence fits.

Entries are offered oldest first. One that does not fit yet may be passed by younger ones, but by
`max_passes` of them at most in its life: after that nobody behind it is offered. A preempted
sequence returns to its place by arrival, which is before everything that came after it. One that is
held, since its constraint is still being compiled, is not offered: none passes it, and it blocks
none.

Why none starves. Let E wait and not be held. Those older than E are finitely many. Of the younger,
at most `max_passes` pass E; once they have, only E and those before it are offered, so running
sequences are no longer replaced by younger ones. Steps then compute at least one token for good
each: a decode's token outlives a preemption, and the oldest running sequence is never preempted for
another one. (Run ahead, a step may pass while blocks wait to be freed.) So at the latest after as
many such steps as the running sequences have tokens left to compute, nothing runs, every block is
available, and the oldest waiting sequence, which was measured against the whole pool when it came,
is admitted. That repeats for each one older than E, and then for E.
"""

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator

from router.scheduler.allocator import Allocator
from router.scheduler.sequence import Sequence, SequenceState

# How many are offered in one step: a bound on a step's cost, not on a sequence's turn, since the
# oldest are offered first. So it is also the most that one step admits; the others have the next.
_MAX_OFFERS = 64


def _order(sequence: Sequence) -> int:
    return sequence.order


class WaitingQueue:
    """Entries in state WAITING. Only the `Scheduler` changes it."""

    def __init__(self, max_passes: int) -> None:
        self._max_passes = max_passes
        self._sequences: list[Sequence] = []
        # Their constraints are still being compiled.
        self._held: dict[int, Sequence] = {}
        self._refused: list[Sequence] = []
        self._is_barred = False

    def __len__(self) -> int:
        return len(self._sequences) + len(self._held)

    def __iter__(self) -> Iterator[Sequence]:
        yield from self._sequences
        yield from self._held.values()

    @property
    def has_offers(self) -> bool:
        """True while one waits that may be admitted."""
        return bool(self._sequences)

    def add(self, sequence: Sequence) -> None:
        """Inserts in order of arrival."""
        insort(self._sequences, sequence, key=_order)

    def hold(self, sequence: Sequence) -> None:
        """Waits, but is offered only once it is released."""
        self._held[sequence.request_id] = sequence

    def release(self, sequence: Sequence) -> None:
        """Inserts in order of arrival, if it was held."""
        if self._held.pop(sequence.request_id, None) is not None:
            self.add(sequence)

    def remove(self, sequence: Sequence) -> None:
        """Raises ValueError if it does not wait."""
        if self._held.pop(sequence.request_id, None) is None:
            self._sequences.remove(sequence)

    def place(self, sequence: Sequence) -> int:
        """1 for the one that is offered first; of a held one, what its place would be."""
        return bisect_left(self._sequences, sequence.order, key=_order) + 1

    def offers(self) -> Iterator[Sequence]:
        """Entries that may be admitted in this step, one by one.

        For each, before asking for the next, the caller calls `admit` or `refuse`, or stops.
        """
        self._refused = []
        self._is_barred = False
        for sequence in self._sequences[:_MAX_OFFERS]:
            if self._is_barred:
                return
            yield sequence

    def admit(self, sequence: Sequence) -> None:
        """The offered sequence leaves the queue, past those refused before it."""
        for older in self._refused:
            older.num_passed += 1
            self._is_barred |= older.num_passed >= self._max_passes
        self.remove(sequence)

    def refuse(self, sequence: Sequence) -> None:
        """The offered sequence does not fit yet."""
        self._refused.append(sequence)
        self._is_barred |= sequence.num_passed >= self._max_passes

    def check_invariants(self) -> None:
        """Raises AssertionError when the order or a count of passes is wrong."""
        orders = [sequence.order for sequence in self._sequences]
        assert not set(orders) & {sequence.order for sequence in self._held.values()}
        assert orders == sorted(set(orders)), "the queue is out of order"
        assert all(sequence.num_passed <= self._max_passes for sequence in self._sequences)


# So many shared blocks at least are worth a step's wait. They must be half of what is left to
# compute, too: then waiting never takes much longer than computing.
_MIN_BLOCKS = 4


def awaits_prefix(sequence: Sequence, running: Iterable[Sequence], allocator: Allocator) -> bool:
    """Whether a running sequence computes now most of what this one would have to."""
    block_size = allocator.block_size
    if not allocator.shares_prefixes or sequence.max_cached_len < _MIN_BLOCKS * block_size:
        return False
    shared_len = max((_shared_len(sequence, other, block_size) for other in running), default=0)
    if shared_len < _MIN_BLOCKS * block_size:
        return False
    cached_len = allocator.cached_len(sequence.token_ids(), sequence.max_cached_len)
    spared_len = shared_len - cached_len
    return spared_len >= max(_MIN_BLOCKS * block_size, (sequence.known_len - cached_len) / 2)


def _shared_len(sequence: Sequence, other: Sequence, block_size: int) -> int:
    """Tokens of the blocks that both begin with, if `other` computes some of its blocks now."""
    soon_len = _soon_len(other) // block_size * block_size
    if other.allocation is None or soon_len <= other.allocation.committed_len:
        return 0
    most = min(sequence.max_cached_len, soon_len) // block_size * block_size
    if sequence.token_ids(0, block_size) != other.token_ids(0, block_size):
        return 0
    ours, theirs = sequence.token_ids(0, most), other.token_ids(0, most)
    if ours == theirs:
        return most
    stops = range(block_size, most + 1, block_size)
    return next(
        stop - block_size
        for stop in stops
        if ours[stop - block_size : stop] != theirs[stop - block_size : stop]
    )


def _soon_len(sequence: Sequence) -> int:
    """Tokens that are computed once steps in flight and, of a prompt, the next ones are."""
    return (
        sequence.known_len if sequence.state is SequenceState.PREFILLING else sequence.scheduled_len
    )
