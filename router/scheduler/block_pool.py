"""The numbers of the KV cache's blocks: which are free, and how many hold each of the others.

It knows neither tokens nor requests nor how large a block is.
"""


class BlockPool:
    """Free list and reference counts of the blocks 0 .. num_blocks - 1.

    A block is free when nobody refers to it. Only the `Allocator` changes a pool.
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
