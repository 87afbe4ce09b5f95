"""Allocates the KV blocks of sequences from a pool, and shares computed prefixes among them.

Of a model with states it has their slots, too, which come and go with the blocks.

It knows token ids and blocks, but no requests, steps or policy.

    tokens:  | cached_len: hit | computed and full: committed | partly full, or not computed yet |
    blocks:  | cached, shared  | cached, or a duplicate       | private                          |
             |<------- path: cached blocks that are in use ->|

A block is free, or private to an allocation, or cached. A cached block is found by its key: the
prefix behind which it comes, and its own token ids.

    no tokens                                  a prefix is a number, given by its last block
     +-- "The sky is b"   prefix 1, block 7    block 7: key (0, "The sky is b")
     |    +-- "lue and the" prefix 2, block 2  block 2: key (1, "lue and the")
     |    +-- "lack at nig" prefix 4, block 9
     +-- "Once upon a t"  prefix 3, block 4

There is such a tree for each salt, so that nobody finds blocks of another salt by guessing what a
prompt begins with; the salt stands for "no tokens".

Whoever uses a path uses all of it, from the first block, so a block has at least as many users as
those that continue it. One without users may be evicted: least recently used first. A path is left
from its end, so that in that order a block always comes before the one that it continues.

A sequence of a model with states can begin only where a state is kept. So it uses of the path that
spells its tokens what ends in such a prefix, and computes the keys behind that anew, in its own
blocks. A state goes with the block at whose end it stands, and may go before.
"""

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TypeAlias

from router.scheduler.states import SequenceStates, StateSlots

# The salt, or the prefix behind which a block comes, and its token ids.
Key: TypeAlias = tuple[int | bytes, tuple[int, ...]]


class CachedBlock:
    """A block that others find by its key. Only the `Allocator` changes it."""

    __slots__ = ("block_id", "key", "num_users", "prefix_id")

    def __init__(self, block_id: int, key: Key, prefix_id: int) -> None:
        self.block_id = block_id
        self.key = key
        self.prefix_id = prefix_id
        self.num_users = 0


@dataclass(slots=True, eq=False)
class BlockAllocation:
    """The blocks of one sequence, in the order of positions. Only its `Allocator` changes it.

    `cached_len` tokens were found in the cache; the first `committed_len` are whole blocks,
    computed, whose tokens the allocator knows; there is room for `capacity`. It shares with those
    of the same `salt` alone. `states`: its slots, of a model with states; without kept states
    `found_len` tokens would have been found.
    """

    block_ids: list[int]
    cached_len: int
    committed_len: int
    capacity: int
    path: list[CachedBlock] = field(repr=False)
    salt: bytes = field(default=b"", repr=False)
    states: SequenceStates | None = None
    found_len: int = 0

    def private_ids(self) -> list[int]:
        """The blocks that nobody else can find: those behind the path, and duplicates on it."""
        num_shared = len(self.path)
        duplicates = [
            block_id
            for block_id, cached in zip(self.block_ids, self.path, strict=False)
            if block_id != cached.block_id
        ]
        return duplicates + self.block_ids[num_shared:]


@dataclass(frozen=True, slots=True)
class Shortage:
    """An allocation that was refused: so many blocks are missing; 0: slots for states are."""

    num_blocks: int


class Allocator:
    """Allocates, extends and frees the blocks of sequences, and shares computed prefixes.

    Every method does all that it says or, when blocks are missing, changes nothing.
    `prefix_caching` False: nothing is ever shared. `states`: the slots of a model with states.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        prefix_caching: bool = True,
        states: StateSlots | None = None,
    ) -> None:
        """Raises ValueError unless there is at least one block of at least one token."""
        for name, value in (("num_blocks", num_blocks), ("block_size", block_size)):
            if value < 1:
                raise ValueError(f"{name} is {value}; it must be at least 1")
        self.block_size = block_size
        self.num_blocks = num_blocks
        self.states = states
        self._prefix_caching = prefix_caching
        self._num_prefixes = 0
        # A stack: what was freed last is handed out first, while it may still be in a CPU's cache.
        self._free_ids = list(range(num_blocks - 1, -1, -1))
        # A prefix comes before those that continue it.
        self._cached: dict[Key, CachedBlock] = {}
        # Those without users, least recently used first.
        self._evictable: OrderedDict[CachedBlock, None] = OrderedDict()

    @property
    def num_available(self) -> int:
        """Blocks that an allocation could get now: the free ones, and those to be evicted."""
        return len(self._free_ids) + len(self._evictable)

    @property
    def num_used(self) -> int:
        """Blocks that are kept by a live allocation."""
        return self.num_blocks - self.num_available

    @property
    def num_cached(self) -> int:
        """Blocks that only the prefix cache keeps."""
        return len(self._evictable)

    @property
    def shares_prefixes(self) -> bool:
        """What one sequence computed, others may read."""
        return self._prefix_caching

    def cached_len(self, token_ids: tuple[int, ...], max_len: int, salt: bytes = b"") -> int:
        """Of the first `max_len` tokens, those that an allocation would find in the cache now."""
        path = self._match(token_ids, max_len, salt)
        return len(self._up_to_state(path)) * self.block_size

    def num_blocks_of(self, num_tokens: int) -> int:
        """Blocks that so many tokens fill, the last one perhaps in part."""
        return -(-num_tokens // self.block_size)

    def allocate(
        self,
        token_ids: tuple[int, ...],
        *,
        max_cached_len: int | None = None,
        num_spare: int = 0,
        salt: bytes = b"",
    ) -> BlockAllocation | Shortage:
        """Blocks for `token_ids`, the longest cached prefix among them.

        At least one token is left to compute, since a step must have a chunk to sample from.
        `num_spare` blocks must stay available. Of the cache at most `max_cached_len` tokens are
        taken, as many as there are without it.
        """
        most = len(token_ids) - 1
        if max_cached_len is not None:
            most = min(most, max_cached_len)
        path = self._match(token_ids, most, salt)
        found_len = len(path) * self.block_size
        if self.states is not None:
            path = self._up_to_state(path)
            if path and not self.states.has_room(path[-1].prefix_id):
                # It takes the slot of the state, rather than wait for another.
                path = []
            if not path and not self.states.has_room(None):
                return Shortage(0)
        num_new = self.num_blocks_of(len(token_ids)) - len(path)
        # Blocks of the hit that nobody uses count as available until they are used.
        unused = [cached for cached in path if cached.num_users == 0]
        num_missing = num_new + len(unused) + num_spare - self.num_available
        if num_missing > 0:
            return Shortage(num_missing)
        for cached in unused:
            del self._evictable[cached]
        for cached in path:
            cached.num_users += 1
        block_ids = [cached.block_id for cached in path] + self._take(num_new)
        cached_len = len(path) * self.block_size
        capacity = len(block_ids) * self.block_size
        states = None
        if self.states is not None:
            states = self.states.begin(path[-1].prefix_id if path else None)
        return BlockAllocation(
            block_ids, cached_len, cached_len, capacity, path, salt, states, found_len
        )

    def has_room(self, allocation: BlockAllocation, num_tokens: int) -> bool:
        """Whether `extend` would make room for so many."""
        return self.num_blocks_of(num_tokens) - len(allocation.block_ids) <= self.num_available

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
            allocation.committed_len += size
            if self._prefix_caching:
                self._cache_next(allocation, token_ids[stop - size : stop])

    def let_go_of_state(self, allocation: BlockAllocation) -> None:
        """The kept state with which it began was read, and may be evicted."""
        if self.states is not None and allocation.states is not None:
            self.states.was_read(allocation.states)

    def free(self, allocation: BlockAllocation, *, forget: bool = False) -> None:
        """Gives everything back; what was committed stays cached.

        `forget` drops it from the cache as well, save what others use: for a sequence whose KV is
        not to be trusted. The allocation must not be used again.
        """
        path = allocation.path
        if self.states is not None and allocation.states is not None:
            self.states.leave(allocation.states)
            allocation.states = None
        self._free_ids += allocation.private_ids()
        for cached in reversed(path):
            cached.num_users -= 1
            if cached.num_users == 0:
                self._evictable[cached] = None
        if forget:
            self._forget(path)
        allocation.path = []
        allocation.block_ids = []
        allocation.capacity = 0

    def clear(self) -> None:
        """Frees all blocks and forgets all prefixes; every allocation becomes void."""
        self._free_ids = list(range(self.num_blocks - 1, -1, -1))
        self._cached.clear()
        self._evictable.clear()
        if self.states is not None:
            self.states.clear()

    def check_invariants(self, allocations: Iterable[BlockAllocation]) -> None:
        """Pool, cache and all live allocations agree. Raises AssertionError."""
        allocations = list(allocations)
        if self.states is not None:
            self.states.check_invariants(
                allocation.states for allocation in allocations if allocation.states is not None
            )
        places = self._free_ids + [cached.block_id for cached in self._cached.values()]
        num_users = dict.fromkeys(self._cached.values(), 0)
        for allocation in allocations:
            places += allocation.private_ids()
            assert allocation.capacity == len(allocation.block_ids) * self.block_size
            assert allocation.committed_len <= allocation.capacity
            if self._prefix_caching:
                assert len(allocation.path) * self.block_size == allocation.committed_len
            for cached in allocation.path:
                num_users[cached] += 1
        assert sorted(places) == list(range(self.num_blocks)), "a block is lost, or in two places"
        assert {cached for cached, count in num_users.items() if not count} == set(self._evictable)
        by_prefix = {cached.prefix_id: cached for cached in self._cached.values()}
        if self.states is not None:
            assert by_prefix.keys() >= self.states.kept_ids, "a state is kept of what is forgotten"
        ages = {cached: age for age, cached in enumerate(self._evictable)}
        for key, cached in self._cached.items():
            assert cached.key == key, f"block {cached.block_id} is found by another key"
            assert cached.num_users == num_users[cached], f"block {cached.block_id}: stray user"
            before = by_prefix.get(key[0]) if isinstance(key[0], int) else None
            assert before is not None or isinstance(key[0], bytes), "it continues what is forgotten"
            if before is not None:
                assert cached.num_users <= before.num_users, "a path was not used from its start"
                assert before not in ages or ages[cached] < ages[before], "evicted too late"

    def _match(self, token_ids: tuple[int, ...], max_len: int, salt: bytes) -> list[CachedBlock]:
        """The longest cached path that spells a beginning of the first `max_len` ids."""
        path: list[CachedBlock] = []
        prefix_id: int | bytes = salt
        size = self.block_size
        for stop in range(size, max_len + 1, size):
            cached = self._cached.get((prefix_id, token_ids[stop - size : stop]))
            if cached is None:
                break
            path.append(cached)
            prefix_id = cached.prefix_id
        return path

    def _up_to_state(self, path: list[CachedBlock]) -> list[CachedBlock]:
        """What a sequence can use of a path: of a model with states, what ends in a kept one."""
        if self.states is None:
            return path
        num_usable = len(path)
        while num_usable and not self.states.keeps(path[num_usable - 1].prefix_id):
            num_usable -= 1
        return path[:num_usable]

    def _cache_next(self, allocation: BlockAllocation, token_ids: tuple[int, ...]) -> None:
        """Appends the next block to the allocation's path.

        Where the prefix is cached and in use, the allocation's own block is a duplicate, and stays
        private. Where nobody uses it, the own block takes the place of the cached one, so that a
        duplicate costs memory only while two need it.
        """
        path = allocation.path
        block_id = allocation.block_ids[len(path)]
        key: Key = (path[-1].prefix_id if path else allocation.salt, token_ids)
        cached = self._cached.get(key)
        if cached is None:
            self._num_prefixes += 1
            cached = self._cached[key] = CachedBlock(block_id, key, self._num_prefixes)
        elif cached.num_users == 0:
            del self._evictable[cached]
            self._free_ids.append(cached.block_id)
            cached.block_id = block_id
        cached.num_users += 1
        path.append(cached)
        if self.states is not None and allocation.states is not None:
            self.states.keep(allocation.states, allocation.committed_len, cached.prefix_id)

    def _take(self, num_blocks: int) -> list[int]:
        """So many blocks, of those that are available."""
        while len(self._free_ids) < num_blocks:
            evicted, _ = self._evictable.popitem(last=False)
            self._drop(evicted)
        first = len(self._free_ids) - num_blocks
        block_ids = self._free_ids[first:]
        del self._free_ids[first:]
        block_ids.reverse()
        return block_ids

    def _forget(self, path: list[CachedBlock]) -> None:
        """Frees what nobody uses of a path, and of all that continues it."""
        top = next((cached for cached in path if cached.num_users == 0), None)
        gone: set[int | bytes] = set()
        for cached in list(self._cached.values()):
            # What continues an unused block is unused, too.
            if cached is top or cached.key[0] in gone:
                gone.add(cached.prefix_id)
                del self._evictable[cached]
                self._drop(cached)

    def _drop(self, cached: CachedBlock) -> None:
        """Frees a cached block that nobody uses."""
        del self._cached[cached.key]
        self._free_ids.append(cached.block_id)
        if self.states is not None:
            self.states.forget(cached.prefix_id)
