"""Allocates the KV blocks of sequences from a pool, and shares computed prefixes among them.

It knows token ids and blocks, but no requests, steps or policy.

    tokens:  | cached_len: hit | computed and full: committed | partly full, or not computed yet |
    blocks:  | the tree's, shared | the tree's, or a duplicate of one of the tree's | private     |
             |<----------- path: nodes that the allocation locks ---->|

A block of the pool is free, or held by the tree, or by allocations, or by both. `num_available`
counts what an allocation could get: the free ones and those that the tree alone holds, for these
are evicted when they are needed, least recently used first.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from router.scheduler.prefix_cache import Node, PrefixCache


class BlockPool:
    """Free list and reference counts of the blocks 0 .. num_blocks - 1; no tokens, no requests.

    A block with no references is free. Only the `Allocator` changes a pool.
    """

    def __init__(self, num_blocks: int) -> None:
        """Raises ValueError unless there is at least one block."""
        if num_blocks < 1:
            raise ValueError(f"num_blocks is {num_blocks}; a pool has at least 1 block")
        self._num_references = [0] * num_blocks
        # A stack: what was freed last is handed out first, while it may still be in a CPU's cache.
        self._free_ids = list(range(num_blocks - 1, -1, -1))

    @property
    def num_blocks(self) -> int:
        """All blocks, free or not."""
        return len(self._num_references)

    @property
    def num_free(self) -> int:
        """Blocks that nobody refers to."""
        return len(self._free_ids)

    def num_references(self, block_id: int) -> int:
        """How many refer to the block; 0: it is free."""
        return self._num_references[block_id]

    def take(self, num_blocks: int) -> list[int] | None:
        """Free blocks, each with one reference; None, and nothing changed, if there are too few."""
        num_left = len(self._free_ids) - num_blocks
        if num_left < 0:
            return None
        block_ids = self._free_ids[num_left:]
        del self._free_ids[num_left:]
        block_ids.reverse()
        for block_id in block_ids:
            self._num_references[block_id] = 1
        return block_ids

    def share(self, block_id: int) -> None:
        """One more refers to a block in use. Raises ValueError if the block is free."""
        if self._num_references[block_id] < 1:
            raise ValueError(f"block {block_id} is free; only a block in use can be shared")
        self._num_references[block_id] += 1

    def release(self, block_id: int) -> None:
        """One fewer refers to the block; the last one frees it. ValueError if it is free."""
        if self._num_references[block_id] < 1:
            raise ValueError(f"block {block_id} is free; it cannot be released again")
        self._num_references[block_id] -= 1
        if self._num_references[block_id] == 0:
            self._free_ids.append(block_id)

    def check_invariants(self) -> None:
        """Free and referenced blocks are all blocks, none twice. Raises AssertionError."""
        free_ids = set(self._free_ids)
        assert len(free_ids) == len(self._free_ids), "a block is in the free list twice"
        for block_id, num_references in enumerate(self._num_references):
            assert num_references >= 0, f"block {block_id} has {num_references} references"
            assert (num_references == 0) == (block_id in free_ids), f"block {block_id} is lost"


@dataclass(slots=True, eq=False)
class BlockAllocation:
    """The blocks of one sequence, in the order of positions. Only its `Allocator` changes it.

    `cached_len` tokens were found in the cache; the first `committed_len` are whole blocks,
    computed, whose tokens the allocator knows; there is room for `capacity`.
    """

    block_ids: list[int]
    cached_len: int
    committed_len: int
    capacity: int
    path: list[Node] = field(repr=False)


@dataclass(frozen=True, slots=True)
class Shortage:
    """An allocation that was refused: so many blocks are missing."""

    num_blocks: int


class Allocator:
    """Allocates, extends and frees the blocks of sequences, and shares computed prefixes.

    Every method does all that it says or, when blocks are missing, changes nothing.
    `prefix_caching` False: nothing is ever shared.
    """

    def __init__(self, num_blocks: int, block_size: int, prefix_caching: bool = True) -> None:
        """Raises ValueError unless there is at least one block of at least one token."""
        self.block_size = block_size
        self.num_blocks = num_blocks
        self._prefix_caching = prefix_caching
        self._pool = BlockPool(num_blocks)
        self._cache = PrefixCache(block_size)
        self._num_gains = 0

    @property
    def num_available(self) -> int:
        """Blocks that an allocation could get now."""
        return self._pool.num_free + self._cache.num_evictable

    @property
    def num_used(self) -> int:
        """Blocks that are kept by a live allocation."""
        return self.num_blocks - self.num_available

    @property
    def num_cached(self) -> int:
        """Blocks that only the prefix cache keeps."""
        return self._cache.num_evictable

    @property
    def num_gains(self) -> int:
        """Rises by at least one whenever the shortage of any refused allocation shrinks by one.

        So an allocation refused with a shortage of n cannot succeed before this rose by n.
        """
        return self._num_gains

    @property
    def shares_prefixes(self) -> bool:
        """What one sequence computed, others may read."""
        return self._prefix_caching

    def cached_len(self, token_ids: tuple[int, ...], max_len: int) -> int:
        """Of the first `max_len` tokens, those that an allocation would find in the cache now."""
        if not self._prefix_caching:
            return 0
        return len(self._cache.match(token_ids, max_len)) * self.block_size

    def num_blocks_of(self, num_tokens: int) -> int:
        """Blocks that so many tokens fill, the last one perhaps in part."""
        return -(-num_tokens // self.block_size)

    def allocate(
        self,
        token_ids: tuple[int, ...],
        *,
        max_cached_len: int | None = None,
        num_spare: int = 0,
    ) -> BlockAllocation | Shortage:
        """Blocks for `token_ids`, the longest cached prefix among them.

        At least one token is left to compute, since a step must have a chunk to sample from.
        `num_spare` blocks must stay available. Of the cache at most `max_cached_len` tokens are
        taken, as many as there are without it.
        """
        most = len(token_ids) - 1
        if max_cached_len is not None:
            most = min(most, max_cached_len)
        path: list[Node] = []
        if self._prefix_caching:
            path = self._cache.match(token_ids, most)
        num_new = self.num_blocks_of(len(token_ids)) - len(path)
        # Blocks of the hit that nobody uses count as available until they are locked.
        num_woken = sum(node.num_locks == 0 for node in path)
        num_missing = num_new + num_woken + num_spare - self.num_available
        if num_missing > 0:
            return Shortage(num_missing)
        self._cache.lock(path)
        for node in path:
            self._pool.share(node.block_id)
        block_ids = [node.block_id for node in path] + self._take(num_new)
        cached_len = len(path) * self.block_size
        capacity = len(block_ids) * self.block_size
        return BlockAllocation(block_ids, cached_len, cached_len, capacity, path)

    def extend(self, allocation: BlockAllocation, num_tokens: int) -> tuple[int, ...] | None:
        """Makes room for `num_tokens` in all: the blocks appended, perhaps none; None: too few."""
        num_new = self.num_blocks_of(num_tokens) - len(allocation.block_ids)
        if num_new <= 0:
            return ()
        if num_new > self.num_available:
            return None
        block_ids = self._take(num_new)
        allocation.block_ids += block_ids
        allocation.capacity += num_new * self.block_size
        return tuple(block_ids)

    def commit(self, allocation: BlockAllocation, token_ids: tuple[int, ...]) -> None:
        """Makes computed blocks shareable: the whole ones of `token_ids`.

        These are the tokens that follow the first `committed_len`; their KV is in the blocks and
        no step in flight writes it any more.
        """
        size = self.block_size
        for stop in range(size, len(token_ids) + 1, size):
            if self._prefix_caching:
                self._commit_block(allocation, token_ids[stop - size : stop])
            allocation.committed_len += size

    def free(self, allocation: BlockAllocation, *, forget: bool = False) -> None:
        """Gives everything back; what was committed stays cached.

        `forget` drops it from the cache as well, save what others use: for a sequence whose KV is
        not to be trusted. The allocation must not be used again.
        """
        self._cache.unlock(allocation.path)
        for block_id in allocation.block_ids:
            self._pool.release(block_id)
        self._num_gains += len(allocation.path) + len(allocation.block_ids)
        if forget:
            for block_id in self._cache.forget(allocation.path):
                self._pool.release(block_id)
        allocation.path, allocation.block_ids, allocation.capacity = [], [], 0

    def clear(self) -> None:
        """Frees all blocks and forgets all prefixes; every allocation becomes void."""
        self._pool = BlockPool(self.num_blocks)
        self._cache = PrefixCache(self.block_size)
        self._num_gains += self.num_blocks

    def check_invariants(self, allocations: Iterable[BlockAllocation]) -> None:
        """Pool, tree and all live allocations agree. Raises AssertionError."""
        self._pool.check_invariants()
        self._cache.check_invariants()
        num_references = [0] * self.num_blocks
        num_locks: dict[Node, int] = {}
        in_tree = {node.block_id for node in self._cache.nodes()}
        for block_id in in_tree:
            num_references[block_id] += 1
        for allocation in allocations:
            assert len(set(allocation.block_ids)) == len(allocation.block_ids)
            assert allocation.capacity == len(allocation.block_ids) * self.block_size
            assert allocation.committed_len <= allocation.capacity
            if self._prefix_caching:
                assert len(allocation.path) * self.block_size == allocation.committed_len
            for block_id in allocation.block_ids:
                num_references[block_id] += 1
            for index, node in enumerate(allocation.path):
                num_locks[node] = num_locks.get(node, 0) + 1
                if allocation.block_ids[index] != node.block_id:
                    assert allocation.block_ids[index] not in in_tree, "a duplicate is shared"
            for block_id in allocation.block_ids[len(allocation.path) :]:
                assert block_id not in in_tree, f"block {block_id} is shared before it is full"
        for block_id, count in enumerate(num_references):
            assert self._pool.num_references(block_id) == count, f"block {block_id} is miscounted"
        for node in self._cache.nodes():
            assert node.num_locks == num_locks.get(node, 0), f"block {node.block_id}: stray lock"

    def _commit_block(self, allocation: BlockAllocation, key: tuple[int, ...]) -> None:
        path = allocation.path
        block_id = allocation.block_ids[len(path)]
        node, given_up = self._cache.insert(path[-1] if path else None, key, block_id)
        path.append(node)
        self._num_gains += 1
        if node.block_id == block_id:
            self._pool.share(block_id)
        if given_up is not None:
            self._pool.release(given_up)

    def _take(self, num_blocks: int) -> list[int]:
        while self._pool.num_free < num_blocks:
            self._pool.release(self._cache.evict())
        block_ids = self._pool.take(num_blocks)
        assert block_ids is not None, "the pool was short of what it had counted"
        return block_ids
