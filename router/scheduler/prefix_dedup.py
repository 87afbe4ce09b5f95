"""Work that a running entry does already, for one that waits and would have to do the same.

    running:  | committed: in the cache | computed soon .......... |
    waiting:  | the same tokens ................... | its own ...... |
                                        ^ cached_len ^ shared_len

The values of a distribution come at once behind one prompt, and so do several draws. Admitted
together they would all compute the prompt. So the first one does, and the others wait until they
find its blocks in the cache.

Nobody waits in vain: the running entry computes its part with the next steps, whoever else runs,
and when it leaves, for whatever reason, it is no longer waited for.
"""

from collections.abc import Iterable

from router.scheduler.allocator import Allocator
from router.scheduler.sequence import Entry, EntryState

# So many shared blocks at least are worth a step's wait. They must be half of what is left to
# compute, too: then waiting never takes much longer than computing.
_MIN_BLOCKS = 4


def awaits_prefix(entry: Entry, running: Iterable[Entry], allocator: Allocator) -> bool:
    """Whether a running entry computes now most of what this one would have to."""
    block_size = allocator.block_size
    if not allocator.shares_prefixes or entry.max_cached_len < _MIN_BLOCKS * block_size:
        return False
    shared_len = max((_shared_len(entry, other, block_size) for other in running), default=0)
    if shared_len < _MIN_BLOCKS * block_size:
        return False
    cached_len = allocator.cached_len(entry.token_ids(), entry.max_cached_len)
    spared_len = shared_len - cached_len
    return spared_len >= max(_MIN_BLOCKS * block_size, (entry.known_len - cached_len) / 2)


def _shared_len(entry: Entry, other: Entry, block_size: int) -> int:
    """Tokens of the blocks that both begin with, if `other` computes some of its blocks now."""
    soon_len = _soon_len(other) // block_size * block_size
    if other.allocation is None or soon_len <= other.allocation.committed_len:
        return 0
    most = min(entry.max_cached_len, soon_len) // block_size * block_size
    if entry.token_ids(0, block_size) != other.token_ids(0, block_size):
        return 0
    ours, theirs = entry.token_ids(0, most), other.token_ids(0, most)
    if ours == theirs:
        return most
    stops = range(block_size, most + 1, block_size)
    return next(
        stop - block_size
        for stop in stops
        if ours[stop - block_size : stop] != theirs[stop - block_size : stop]
    )


def _soon_len(entry: Entry) -> int:
    """Tokens that are computed once steps in flight and, of a prompt, the next ones are."""
    return entry.known_len if entry.state is EntryState.PREFILLING else entry.scheduled_len
