import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from router.scheduler.allocator import Allocator, BlockAllocation, BlockPool, Shortage
from tests.strategies import token_ids

Tokens = tuple[int, ...]


def allocate(allocator: Allocator, tokens: Tokens) -> BlockAllocation:
    allocation = allocator.allocate(tokens)
    assert isinstance(allocation, BlockAllocation)
    return allocation


def compute(allocator: Allocator, tokens: Tokens) -> BlockAllocation:
    """An allocation all of whose tokens were computed."""
    allocation = allocate(allocator, tokens)
    allocator.commit(allocation, tokens[allocation.committed_len :])
    return allocation


def test_blocks_cover_the_tokens_and_no_more() -> None:
    allocation = allocate(Allocator(4, 2), (1, 2, 3))
    assert allocation.block_ids == [0, 1]
    assert (allocation.capacity, allocation.cached_len) == (4, 0)


def test_a_computed_prefix_is_shared_while_its_owner_lives() -> None:
    allocator = Allocator(4, 2)
    first = compute(allocator, (1, 2, 3, 4))
    second = allocate(allocator, (1, 2, 3, 4, 5))
    assert second.block_ids == [*first.block_ids, 2]
    assert second.cached_len == 4
    allocator.check_invariants([first, second])


def test_a_computed_prefix_is_found_after_its_owner_is_gone() -> None:
    allocator = Allocator(4, 2)
    allocator.free(compute(allocator, (1, 2, 3)))
    assert (allocator.num_cached, allocator.num_used) == (1, 0)
    assert allocate(allocator, (1, 2, 3)).cached_len == 2


def test_a_hit_leaves_a_token_to_compute() -> None:
    allocator = Allocator(4, 2)
    allocator.free(compute(allocator, (1, 2, 3, 4)))
    assert allocate(allocator, (1, 2, 3, 4)).cached_len == 2


def test_blocks_that_are_not_computed_are_not_shared() -> None:
    allocator = Allocator(4, 2)
    allocate(allocator, (1, 2, 3))
    assert allocate(allocator, (1, 2, 3)).cached_len == 0


def test_a_request_that_does_not_read_the_cache_still_fills_it() -> None:
    allocator = Allocator(6, 2)
    compute(allocator, (1, 2, 3))
    blind = allocator.allocate((1, 2, 3), max_cached_len=0)
    assert isinstance(blind, BlockAllocation)
    assert blind.cached_len == 0
    allocator.commit(blind, (1, 2))
    assert allocate(allocator, (1, 2, 9)).cached_len == 2


def test_without_prefix_caching_nothing_is_shared() -> None:
    allocator = Allocator(4, 2, prefix_caching=False)
    first = compute(allocator, (1, 2, 3))
    assert allocate(allocator, (1, 2, 3)).cached_len == 0
    assert first.committed_len == 2
    allocator.free(first)
    assert allocator.num_cached == 0


def test_a_duplicate_stays_its_owners_while_the_first_is_in_use() -> None:
    allocator = Allocator(4, 2)
    twins = [allocate(allocator, (1, 2)), allocate(allocator, (1, 2))]
    for twin in twins:
        allocator.commit(twin, (1, 2))
    allocator.check_invariants(twins)
    assert twins[0].block_ids != twins[1].block_ids
    assert allocate(allocator, (1, 2, 3)).block_ids[0] == twins[0].block_ids[0]


def test_a_duplicate_costs_nothing_once_its_twin_is_gone() -> None:
    allocator = Allocator(2, 2)
    allocator.free(compute(allocator, (1, 2)))
    again = compute(allocator, (1, 2))
    assert again.cached_len == 0
    assert (allocator.num_used, allocator.num_cached) == (1, 0)
    assert allocator.extend(again, 4) is not None
    allocator.check_invariants([again])


def test_cached_blocks_are_evicted_when_they_are_needed_oldest_first() -> None:
    allocator = Allocator(3, 1)
    for tokens in ((1,), (2,), (3,)):
        allocator.free(compute(allocator, tokens))
    compute(allocator, (4,))
    assert allocate(allocator, (2, 0)).cached_len == 1
    assert allocator.num_available == 0


def test_a_refused_allocation_changes_nothing_and_says_how_much_is_missing() -> None:
    allocator = Allocator(4, 1)
    allocator.free(compute(allocator, (1, 2)))
    held = allocate(allocator, (5, 6))
    assert allocator.allocate((1, 2, 3, 4)) == Shortage(2)
    assert (allocator.num_available, allocator.num_cached) == (2, 2)
    allocator.check_invariants([held])
    assert allocate(allocator, (1, 9)).cached_len == 1


def test_gains_rise_when_a_refused_prefix_is_computed_by_another() -> None:
    allocator = Allocator(4, 1)
    other = allocate(allocator, (1, 2, 3))
    assert allocator.allocate((1, 2, 3, 4)) == Shortage(3)
    num_gains = allocator.num_gains
    allocator.commit(other, (1, 2, 3))
    assert allocator.num_gains >= num_gains + 3
    assert allocate(allocator, (1, 2, 3, 4)).cached_len == 3


def test_spare_blocks_stay_available() -> None:
    allocator = Allocator(4, 1)
    assert allocator.allocate((1, 2, 3), num_spare=2) == Shortage(1)
    assert isinstance(allocator.allocate((1, 2), num_spare=2), BlockAllocation)


def test_extending_appends_what_is_missing_or_changes_nothing() -> None:
    allocator = Allocator(3, 2)
    allocation = allocate(allocator, (1,))
    assert allocator.extend(allocation, 2) == ()
    assert allocator.extend(allocation, 3) == (1,)
    assert allocator.extend(allocation, 9) is None
    assert (allocation.block_ids, allocation.capacity) == ([0, 1], 4)


def test_a_sequence_that_is_not_to_be_trusted_leaves_nothing_in_the_cache() -> None:
    allocator = Allocator(4, 1)
    allocator.free(compute(allocator, (1, 2)))
    suspect = compute(allocator, (1, 2, 3))
    allocator.free(suspect, forget=True)
    assert (allocator.num_cached, allocator.num_used) == (0, 0)
    assert allocate(allocator, (1, 2, 3)).cached_len == 0


def test_clearing_frees_all_and_forgets_all() -> None:
    allocator = Allocator(2, 1)
    compute(allocator, (1, 2))
    num_gains = allocator.num_gains
    allocator.clear()
    assert (allocator.num_available, allocator.num_cached) == (2, 0)
    assert allocator.num_gains >= num_gains + 2
    allocator.check_invariants([])


class AllocatorMachine(RuleBasedStateMachine):
    """Sequences that come, grow, compute and go, in a pool that is always too small."""

    @initialize(
        num_blocks=st.integers(4, 16),
        size=st.integers(1, 4),
        caching=st.sampled_from([True, False]),
    )
    def begin(self, num_blocks: int, size: int, caching: bool) -> None:
        self.allocator = Allocator(num_blocks, size, prefix_caching=caching)
        self.num_blocks, self.size, self.caching = num_blocks, size, caching
        self.live: list[tuple[BlockAllocation, Tokens]] = []
        # What each block holds, by those who computed it.
        self.content: dict[int, Tokens] = {}
        # Refused before: tokens -> (num_gains then, shortage then).
        self.refused: dict[Tokens, tuple[int, int]] = {}

    @rule(tokens=token_ids(max_len=20), most=st.sampled_from([None, None, None, None, 0, 3, 8]))
    def allocate(self, tokens: Tokens, most: int | None) -> None:
        before = self.snapshot()
        allocation = self.allocator.allocate(tokens, max_cached_len=most)
        if isinstance(allocation, Shortage):
            assert self.snapshot() == before
            if most is None:
                self.refused[tokens] = (self.allocator.num_gains, allocation.num_blocks)
            return
        assert allocation.cached_len % self.size == 0
        assert allocation.cached_len < len(tokens)
        assert most is None or allocation.cached_len <= most
        for index in range(allocation.cached_len // self.size):
            held = self.content[allocation.block_ids[index]]
            assert held == tokens[: (index + 1) * self.size], "a block of another prefix"
        private_ids = set(allocation.block_ids[allocation.cached_len // self.size :])
        for other, _ in self.live:
            assert not private_ids & set(other.block_ids), "a private block is shared"
        self.live.append((allocation, tokens))

    @precondition(lambda self: self.live)
    @rule(data=st.data(), count=st.integers(1, 6))
    def extend(self, data: st.DataObject, count: int) -> None:
        index = data.draw(st.integers(0, len(self.live) - 1))
        allocation, tokens = self.live[index]
        before = self.snapshot()
        appended = self.allocator.extend(allocation, len(tokens) + count)
        if appended is None:
            assert self.snapshot() == before
            return
        for other, _ in self.live:
            assert other is allocation or not set(appended) & set(other.block_ids)
        more = data.draw(token_ids(count, count))
        self.live[index] = (allocation, tokens + more)

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def compute(self, data: st.DataObject) -> None:
        allocation, tokens = data.draw(st.sampled_from(self.live))
        computed_len = data.draw(st.integers(allocation.committed_len, len(tokens)))
        for stop in range(allocation.committed_len + self.size, computed_len + 1, self.size):
            self.content[allocation.block_ids[stop // self.size - 1]] = tokens[:stop]
        self.allocator.commit(allocation, tokens[allocation.committed_len : computed_len])

    @precondition(lambda self: self.live)
    @rule(data=st.data(), forget=st.sampled_from([False, False, True]))
    def free(self, data: st.DataObject, forget: bool) -> None:
        gone = data.draw(st.sampled_from(self.live))
        self.live.remove(gone)
        self.allocator.free(gone[0], forget=forget)

    @invariant()
    def nothing_is_lost(self) -> None:
        self.allocator.check_invariants([allocation for allocation, _ in self.live])
        kept = {block for allocation, _ in self.live for block in allocation.block_ids}
        assert len(kept) <= self.allocator.num_used <= self.num_blocks
        if not self.live:
            assert self.allocator.num_used == 0

    @invariant()
    def a_shortage_shrinks_no_faster_than_gains_rise(self) -> None:
        for tokens, (num_gains, shortage) in self.refused.items():
            if self.allocator.num_gains < num_gains + shortage:
                # Refused for certain, so that this question changes nothing.
                assert isinstance(self.allocator.allocate(tokens), Shortage)

    def snapshot(self) -> tuple[int, int, list[list[int]]]:
        blocks = [list(allocation.block_ids) for allocation, _ in self.live]
        return self.allocator.num_available, self.allocator.num_cached, blocks

    def teardown(self) -> None:
        if hasattr(self, "allocator"):
            for allocation, _ in self.live:
                self.allocator.free(allocation)
            self.allocator.check_invariants([])
            assert self.allocator.num_available == self.num_blocks


TestAllocator = AllocatorMachine.TestCase
TestAllocator.settings = settings(max_examples=150, deadline=None)


def test_a_new_pool_hands_out_every_block_once() -> None:
    pool = BlockPool(3)
    assert pool.take(3) == [0, 1, 2]
    assert pool.num_free == 0


def test_taking_nothing_takes_nothing() -> None:
    pool = BlockPool(2)
    assert pool.take(0) == []
    assert pool.num_free == 2


def test_taking_too_many_changes_nothing() -> None:
    pool = BlockPool(2)
    assert pool.take(3) is None
    assert pool.num_free == 2
    assert pool.take(2) == [0, 1]


def test_a_shared_block_is_free_when_its_last_holder_releases_it() -> None:
    pool = BlockPool(1)
    pool.take(1)
    pool.share(0)
    pool.release(0)
    assert (pool.num_free, pool.num_references(0)) == (0, 1)
    pool.release(0)
    assert (pool.num_free, pool.num_references(0)) == (1, 0)


def test_a_free_block_is_neither_released_nor_shared() -> None:
    pool = BlockPool(1)
    with pytest.raises(ValueError, match="block 0 is free"):
        pool.release(0)
    with pytest.raises(ValueError, match="block 0 is free"):
        pool.share(0)
    pool.check_invariants()


def test_a_pool_without_blocks_is_refused() -> None:
    with pytest.raises(ValueError, match="num_blocks is 0"):
        BlockPool(0)


class PoolMachine(RuleBasedStateMachine):
    """The pool against a plain list of holders."""

    @initialize(num_blocks=st.integers(1, 6))
    def begin(self, num_blocks: int) -> None:
        self.pool = BlockPool(num_blocks)
        self.held: list[int] = []

    @rule(count=st.integers(0, 7))
    def take(self, count: int) -> None:
        num_free = self.pool.num_free
        block_ids = self.pool.take(count)
        if count > num_free:
            assert block_ids is None
            return
        assert block_ids is not None
        assert len(set(block_ids)) == count
        assert not set(block_ids) & set(self.held), "a block in use was handed out"
        self.held += block_ids

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def share(self, data: st.DataObject) -> None:
        block_id = data.draw(st.sampled_from(self.held))
        self.pool.share(block_id)
        self.held.append(block_id)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        block_id = data.draw(st.sampled_from(self.held))
        self.pool.release(block_id)
        self.held.remove(block_id)

    @invariant()
    def free_and_held_blocks_are_all_blocks(self) -> None:
        self.pool.check_invariants()
        assert self.pool.num_free + len(set(self.held)) == self.pool.num_blocks
        for block_id in range(self.pool.num_blocks):
            assert self.pool.num_references(block_id) == self.held.count(block_id)


TestPool = PoolMachine.TestCase
TestPool.settings = settings(max_examples=60, deadline=None)
