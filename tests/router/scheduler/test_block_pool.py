import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from router.scheduler.block_pool import BlockPool


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
