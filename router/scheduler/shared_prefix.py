"""Whether a sequence waits for another one to compute what both begin with.

Of several that begin alike, like the values of a distribution behind one prompt, the first computes
the shared beginning and the others wait until they find it in the cache.
"""

from collections.abc import Iterable

from router.scheduler.allocator import Allocator
from router.scheduler.sequence import Sequence, SequenceState

# So many shared blocks at least are worth a step's wait. They must be half of what is left to
# compute, too: then waiting never takes much longer than computing.
_MIN_BLOCKS = 4


def awaits_prefix(sequence: Sequence, computing: Iterable[Sequence], allocator: Allocator) -> bool:
    """Whether one of these computes now most of what this one would have to."""
    block_size = allocator.block_size
    if not allocator.shares_prefixes or sequence.max_cached_len < _MIN_BLOCKS * block_size:
        return False
    shared_len = max((_shared_len(sequence, other, block_size) for other in computing), default=0)
    if shared_len < _MIN_BLOCKS * block_size:
        return False
    salt = sequence.request.cache_salt
    cached_len = allocator.cached_len(sequence.token_ids(), sequence.max_cached_len, salt)
    spared_len = shared_len - cached_len
    return spared_len >= max(_MIN_BLOCKS * block_size, (sequence.known_len - cached_len) / 2)


def _shared_len(sequence: Sequence, other: Sequence, block_size: int) -> int:
    """Tokens of the blocks that both begin with, if `other` computes some of its blocks now."""
    soon_len = _soon_len(other) // block_size * block_size
    if other.allocation is None or soon_len <= other.allocation.committed_len:
        return 0
    if other.request.cache_salt != sequence.request.cache_salt:
        return 0
    most = min(sequence.max_cached_len, soon_len) // block_size * block_size
    if sequence.token_ids(0, block_size) != other.token_ids(0, block_size):
        return 0
    ours, theirs = sequence.token_ids(0, most), other.token_ids(0, most)
    if ours == theirs:
        return most
    pairs = enumerate(zip(ours, theirs, strict=False))
    num_equal = next((index for index, (one, two) in pairs if one != two), len(theirs))
    return num_equal // block_size * block_size


def _soon_len(sequence: Sequence) -> int:
    """Tokens that are computed once steps in flight and, of a prompt, the next ones are."""
    return (
        sequence.known_len if sequence.state is SequenceState.PREFILLING else sequence.scheduled_len
    )
