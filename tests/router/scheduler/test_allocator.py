from itertools import takewhile

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from router.scheduler.allocator import Allocator, BlockAllocation, Shortage
from router.scheduler.states import StateSlots
from tests.hypothesis_profiles import more_examples
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


def test_prefixes_are_shared_by_those_of_one_salt_alone() -> None:
    allocator = Allocator(8, 2)
    first = allocator.allocate((1, 2, 3), salt=b"a")
    assert isinstance(first, BlockAllocation)
    allocator.commit(first, (1, 2))
    cached_lens = [allocator.cached_len((1, 2, 3), 2, salt) for salt in (b"a", b"b", b"")]
    assert cached_lens == [2, 0, 0]
    second = allocate(allocator, (1, 2, 3))
    allocator.commit(second, (1, 2))
    allocator.check_invariants([first, second])
    # What it was told is what it gets.
    for salt, cached_len in ((b"a", 2), (b"b", 0), (b"", 2)):
        found = allocator.allocate((1, 2, 3), salt=salt)
        assert isinstance(found, BlockAllocation)
        assert found.cached_len == cached_len
        allocator.free(found)


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
    allocator.clear()
    assert (allocator.num_available, allocator.num_cached) == (2, 0)
    allocator.check_invariants([])


def test_a_hit_is_made_of_whole_blocks_and_no_longer_than_allowed() -> None:
    allocator = Allocator(8, 2)
    compute(allocator, (1, 2, 3, 4, 0))
    assert allocator.cached_len((1, 2, 3, 4, 5), 5) == 4
    assert allocator.cached_len((1, 2, 3, 4), 3) == 2
    assert allocator.cached_len((1, 2, 3, 9), 4) == 2
    assert allocator.cached_len((3, 4), 2) == 0


def test_equal_tokens_behind_other_tokens_are_another_block() -> None:
    allocator = Allocator(8, 2)
    compute(allocator, (1, 1, 5, 5))
    other = compute(allocator, (2, 2, 5, 5))
    assert allocate(allocator, (2, 2, 5, 5, 0)).block_ids[:2] == other.block_ids


def test_the_end_of_a_prefix_is_evicted_before_its_beginning() -> None:
    allocator = Allocator(3, 1)
    old = compute(allocator, (1, 2))
    new = compute(allocator, (1, 3))
    allocator.free(new)
    allocator.free(old)
    assert allocator.num_cached == 3
    lens = []
    for token_id in (7, 8, 9):
        allocate(allocator, (token_id,))
        lens.append((allocator.cached_len((1, 2), 2), allocator.cached_len((1, 3), 2)))
    assert lens == [(2, 1), (1, 1), (0, 0)]


def test_use_makes_recent() -> None:
    allocator = Allocator(3, 1)
    for tokens in ((1,), (2,)):
        allocator.free(compute(allocator, tokens))
    allocator.free(allocate(allocator, (1, 0)))
    allocate(allocator, (8, 9))
    assert (allocator.cached_len((1,), 1), allocator.cached_len((2,), 1)) == (1, 0)


def test_forgetting_takes_what_continues_the_path_and_spares_what_is_in_use() -> None:
    allocator = Allocator(8, 1)
    suspect = compute(allocator, (1, 2))
    allocator.free(compute(allocator, (1, 2, 3)))
    in_use = compute(allocator, (1,))
    allocator.free(suspect, forget=True)
    assert allocator.cached_len((1, 2, 3), 3) == 1
    assert (allocator.num_cached, allocator.num_used) == (0, 2)
    allocator.check_invariants([in_use])


def with_states(num_blocks: int, block_size: int, num_states: int) -> Allocator:
    return Allocator(num_blocks, block_size, states=StateSlots(num_states))


def keep(allocator: Allocator, tokens: Tokens, *positions: int) -> BlockAllocation:
    """An allocation all of whose tokens were computed, with states kept at these positions."""
    allocation = allocate(allocator, tokens)
    assert allocator.states is not None
    assert allocation.states is not None
    allocator.states.plan(allocation.states, positions, num_spared=0)
    allocator.commit(allocation, tokens[allocation.committed_len :])
    allocator.check_invariants([allocation])
    return allocation


def test_a_hit_ends_at_a_kept_state_and_keys_behind_it_are_computed_anew() -> None:
    allocator = with_states(16, 2, num_states=6)
    first = keep(allocator, (1, 2, 3, 4, 5, 6, 7), 4)
    assert allocator.cached_len((1, 2, 3, 4, 5, 6, 7), 6) == 4
    second = allocate(allocator, (1, 2, 3, 4, 5, 6, 7))
    assert (second.cached_len, second.found_len) == (4, 6)
    assert second.block_ids[:2] == first.block_ids[:2]
    assert not set(second.block_ids[2:]) & set(first.block_ids)
    allocator.commit(second, (5, 6))
    allocator.check_invariants([first, second])


def test_where_no_state_is_kept_nothing_is_found() -> None:
    allocator = with_states(16, 2, num_states=6)
    keep(allocator, (1, 2, 3, 4, 5))
    second = allocate(allocator, (1, 2, 3, 4, 5))
    assert (second.cached_len, second.found_len) == (0, 4)


def test_a_state_goes_with_its_block_and_not_with_those_behind() -> None:
    allocator = with_states(4, 1, num_states=5)
    allocator.free(keep(allocator, (1, 2, 3), 2))
    allocator.free(allocate(allocator, (9, 9)))
    assert allocator.cached_len((1, 2, 3), 3) == 2
    other = allocate(allocator, (9, 9, 9))
    assert allocator.cached_len((1, 2, 3), 3) == 0
    assert allocator.states is not None
    assert (allocator.states.num_kept, allocator.states.num_available) == (0, 3)
    allocator.check_invariants([other])


def test_a_sequence_that_is_not_to_be_trusted_leaves_no_state_behind() -> None:
    allocator = with_states(8, 1, num_states=5)
    allocator.free(keep(allocator, (1, 2, 3), 1, 3), forget=True)
    assert allocator.states is not None
    assert (allocator.states.num_kept, allocator.states.num_available) == (0, 5)


def test_without_slots_an_allocation_is_refused_and_changes_nothing() -> None:
    allocator = with_states(8, 1, num_states=3)
    live = keep(allocator, (1, 2), 1)
    assert allocator.allocate((5, 6)) == Shortage(0)
    assert (allocator.num_used, allocator.cached_len((1, 2), 1)) == (2, 1)
    allocator.check_invariants([live])


@pytest.mark.parametrize(
    ("num_blocks", "block_size", "fault"), [(0, 1, "num_blocks is 0"), (1, 0, "block_size is 0")]
)
def test_a_pool_without_room_is_refused(num_blocks: int, block_size: int, fault: str) -> None:
    with pytest.raises(ValueError, match=fault):
        Allocator(num_blocks, block_size)


class AllocatorMachine(RuleBasedStateMachine):
    """Sequences that come, grow, compute and go, in a pool that is always too small.

    The model is a plain dict of all cached prefixes, and a list of those that nobody uses.
    """

    @initialize(
        num_blocks=st.integers(4, 16),
        size=st.integers(1, 4),
        caching=st.sampled_from([True, True, True, False]),
    )
    def begin(self, num_blocks: int, size: int, caching: bool) -> None:
        self.allocator = Allocator(num_blocks, size, prefix_caching=caching)
        self.num_blocks = num_blocks
        self.size = size
        self.caching = caching
        self.live: list[tuple[BlockAllocation, Tokens]] = []
        # The block of each cached prefix.
        self.cached: dict[Tokens, int] = {}
        # Least recently used first.
        self.unused: list[Tokens] = []
        # What each block holds, by those who computed it.
        self.content: dict[int, Tokens] = {}

    def prefixes(self, tokens: Tokens) -> list[Tokens]:
        """Those of whole blocks, the shortest first; none where nothing is cached."""
        stops = range(self.size, len(tokens) + 1, self.size) if self.caching else ()
        return [tokens[:stop] for stop in stops]

    def is_used(self, prefix: Tokens) -> bool:
        return any(
            tokens[: allocation.committed_len][: len(prefix)] == prefix
            for allocation, tokens in self.live
        )

    def evict(self) -> None:
        """Prefixes that are no longer found were the least recently used ones."""
        gone = [p for p in self.cached if self.allocator.cached_len(p, len(p)) < len(p)]
        assert sorted(gone) == sorted(self.unused[: len(gone)])
        del self.unused[: len(gone)]
        for prefix in gone:
            del self.cached[prefix]

    @rule(tokens=token_ids(max_len=20), most=st.sampled_from([None, None, None, None, 0, 3, 8]))
    def allocate(self, tokens: Tokens, most: int | None) -> None:
        before = self.snapshot()
        most_len = len(tokens) - 1 if most is None else min(most, len(tokens) - 1)
        hit = list(takewhile(self.cached.__contains__, self.prefixes(tokens[:most_len])))
        num_needed = -(-len(tokens) // self.size) - sum(prefix not in self.unused for prefix in hit)
        num_missing = num_needed - self.allocator.num_available
        allocation = self.allocator.allocate(tokens, max_cached_len=most)
        if isinstance(allocation, Shortage):
            assert self.snapshot() == before
            assert allocation.num_blocks == num_missing > 0
            return
        assert num_missing <= 0
        assert allocation.cached_len == len(hit) * self.size
        assert allocation.block_ids[: len(hit)] == [self.cached[prefix] for prefix in hit]
        assert all(self.content[self.cached[prefix]] == prefix for prefix in hit)
        private_ids = set(allocation.block_ids[len(hit) :])
        for other, _ in self.live:
            assert not private_ids & set(other.block_ids), "a private block is shared"
        self.live.append((allocation, tokens))
        self.unused = [prefix for prefix in self.unused if prefix not in hit]
        self.evict()

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
        self.evict()

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def compute(self, data: st.DataObject) -> None:
        allocation, tokens = data.draw(st.sampled_from(self.live))
        committed_len = allocation.committed_len
        computed_len = data.draw(st.integers(committed_len, len(tokens)))
        for stop in range(committed_len + self.size, computed_len + 1, self.size):
            block_id = allocation.block_ids[stop // self.size - 1]
            self.content[block_id] = tokens[:stop]
            if self.caching and not self.is_used(tokens[:stop]):
                self.cached[tokens[:stop]] = block_id
                self.unused = [prefix for prefix in self.unused if prefix != tokens[:stop]]
        self.allocator.commit(allocation, tokens[committed_len:computed_len])

    @precondition(lambda self: self.live)
    @rule(data=st.data(), forget=st.sampled_from([False, False, True]))
    def free(self, data: st.DataObject, forget: bool) -> None:
        gone = data.draw(st.sampled_from(self.live))
        self.live.remove(gone)
        allocation, tokens = gone
        path = self.prefixes(tokens[: allocation.committed_len])
        left = [prefix for prefix in path if not self.is_used(prefix)]
        self.unused += reversed(left)
        self.allocator.free(allocation, forget=forget)
        if forget and left:
            for prefix in [p for p in self.cached if p[: len(left[0])] == left[0]]:
                del self.cached[prefix]
                self.unused.remove(prefix)

    @invariant()
    def nothing_is_lost(self) -> None:
        self.allocator.check_invariants([allocation for allocation, _ in self.live])
        kept = {block for allocation, _ in self.live for block in allocation.block_ids}
        assert len(kept) <= self.allocator.num_used <= self.num_blocks
        if not self.live:
            assert self.allocator.num_used == 0

    @invariant()
    def what_was_committed_is_found(self) -> None:
        assert self.allocator.num_cached == len(self.unused)
        assert {p for p in self.cached if not self.is_used(p)} == set(self.unused)
        for prefix in self.cached:
            assert self.allocator.cached_len(prefix, len(prefix)) == len(prefix)

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
TestAllocator.settings = more_examples(2)
