"""Lets a waiting sequence wait for a prefix that a running one computes already.

    running:  | committed: in the cache | computed soon .......... |
    waiting:  | the same tokens ................... | its own ...... |
                                        ^ cached_len ^ shared_len

The values of a distribution come at once behind one prompt, and so do several samples. Admitted
together they would all compute the prompt. So the first one does, and the others wait until they
find its blocks in the cache.

None waits in vain: the running sequence computes its part with the next steps, whoever else runs,
and when it leaves, for whatever reason, it is no longer waited for.
"""

from collections.abc import Iterable

from router.scheduler.allocator import Allocator
from router.scheduler.sequence import Sequence, SequenceState

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
