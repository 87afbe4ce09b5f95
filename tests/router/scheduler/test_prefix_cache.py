import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from router.scheduler.prefix_cache import Node, PrefixCache
from tests.strategies import token_ids

Tokens = tuple[int, ...]


def insert(cache: PrefixCache, tokens: Tokens, block_ids: list[int], size: int = 2) -> list[Node]:
    """A locked path of whole blocks."""
    path: list[Node] = []
    for index, block_id in enumerate(block_ids):
        key = tokens[index * size : (index + 1) * size]
        node, _ = cache.insert(path[-1] if path else None, key, block_id)
        path.append(node)
    return path


def blocks(path: list[Node]) -> list[int]:
    return [node.block_id for node in path]


def test_a_match_is_made_of_whole_blocks_and_no_longer_than_allowed() -> None:
    cache = PrefixCache(2)
    insert(cache, (1, 2, 3, 4), [7, 8])
    assert blocks(cache.match((1, 2, 3, 4, 5), max_len=5)) == [7, 8]
    assert blocks(cache.match((1, 2, 3, 4), max_len=3)) == [7]
    assert blocks(cache.match((1, 2, 3, 9), max_len=4)) == [7]
    assert blocks(cache.match((3, 4), max_len=2)) == []


def test_the_same_block_after_another_prefix_is_another_node() -> None:
    cache = PrefixCache(2)
    insert(cache, (1, 1, 5, 5), [0, 1])
    insert(cache, (2, 2, 5, 5), [2, 3])
    assert blocks(cache.match((2, 2, 5, 5), max_len=4)) == [2, 3]


def test_a_node_in_use_keeps_its_block_when_a_duplicate_comes() -> None:
    cache = PrefixCache(1)
    insert(cache, (1,), [4], size=1)
    node, given_up = cache.insert(None, (1,), 9)
    assert (node.block_id, node.num_locks, given_up) == (4, 2, None)


def test_a_node_that_nobody_uses_takes_the_duplicate_and_gives_up_its_block() -> None:
    cache = PrefixCache(1)
    cache.unlock(insert(cache, (1,), [4], size=1))
    node, given_up = cache.insert(None, (1,), 9)
    assert (node.block_id, node.num_locks, given_up) == (9, 1, 4)
    assert cache.num_evictable == 0


def test_the_least_recently_used_goes_first_and_children_before_parents() -> None:
    cache = PrefixCache(1)
    old = insert(cache, (1, 2), [10, 11], size=1)
    new = insert(cache, (1, 3), [10, 12], size=1)
    cache.unlock(new)
    cache.unlock(old)
    assert cache.num_evictable == 3
    assert [cache.evict() for _ in range(3)] == [12, 11, 10]
    assert cache.match((1, 2), max_len=2) == []


def test_use_makes_recent() -> None:
    cache = PrefixCache(1)
    cache.unlock(insert(cache, (1,), [0], size=1))
    cache.unlock(insert(cache, (2,), [1], size=1))
    hit = cache.match((1,), max_len=1)
    cache.lock(hit)
    cache.unlock(hit)
    assert cache.evict() == 1


def test_a_locked_path_is_never_evicted() -> None:
    cache = PrefixCache(1)
    insert(cache, (1, 2), [0, 1], size=1)
    assert cache.num_evictable == 0
    with pytest.raises(KeyError):
        cache.evict()


def test_forgetting_takes_what_continues_the_path_and_spares_what_is_in_use() -> None:
    cache = PrefixCache(1)
    path = insert(cache, (1, 2), [0, 1], size=1)
    cache.unlock(insert(cache, (1, 2, 3), [0, 1, 2], size=1))
    in_use = insert(cache, (1,), [0], size=1)
    cache.unlock(path)
    assert sorted(cache.forget(path)) == [1, 2]
    assert cache.match((1, 2, 3), max_len=3) == in_use
    assert cache.forget(in_use) == []
    cache.check_invariants()


def test_a_block_without_tokens_is_refused() -> None:
    with pytest.raises(ValueError, match="block_size is 0"):
        PrefixCache(0)


class CacheMachine(RuleBasedStateMachine):
    """The tree against a plain dict of all cached block-aligned prefixes."""

    @initialize(size=st.integers(1, 3))
    def begin(self, size: int) -> None:
        self.size = size
        self.cache = PrefixCache(size)
        self.block_of: dict[Tokens, int] = {}
        self.users: list[tuple[Tokens, list[Node]]] = []
        self.num_blocks = 0

    def prefixes(self, tokens: Tokens) -> list[Tokens]:
        return [tokens[:stop] for stop in range(self.size, len(tokens) + 1, self.size)]

    def is_used(self, prefix: Tokens) -> bool:
        return any(used[: len(prefix)] == prefix for used, _ in self.users)

    @rule(tokens=token_ids())
    def insert_new(self, tokens: Tokens) -> None:
        """A sequence computes all of its blocks and commits them."""
        path: list[Node] = []
        for prefix in self.prefixes(tokens):
            block_id = self.num_blocks
            self.num_blocks += 1
            used, held = self.is_used(prefix), self.block_of.get(prefix)
            parent = path[-1] if path else None
            node, given_up = self.cache.insert(parent, prefix[-self.size :], block_id)
            path.append(node)
            if held is not None and used:
                assert (node.block_id, given_up) == (held, None)
            else:
                assert (node.block_id, given_up) == (block_id, held)
                self.block_of[prefix] = block_id
        if path:
            self.users.append((self.prefixes(tokens)[-1], path))

    @rule(tokens=token_ids(), shorter=st.integers(0, 3))
    def use(self, tokens: Tokens, shorter: int) -> None:
        max_len = max(0, len(tokens) - shorter)
        expected = []
        for prefix in self.prefixes(tokens[:max_len]):
            if prefix not in self.block_of:
                break
            expected.append(self.block_of[prefix])
        path = self.cache.match(tokens, max_len)
        assert blocks(path) == expected
        self.cache.lock(path)
        if path:
            self.users.append((tokens[: len(path) * self.size], path))

    @precondition(lambda self: self.users)
    @rule(data=st.data(), forgets=st.sampled_from([False, False, True]))
    def leave(self, data: st.DataObject, forgets: bool) -> None:
        user = data.draw(st.sampled_from(self.users))
        self.users.remove(user)
        tokens, path = user
        self.cache.unlock(path)
        if not forgets:
            return
        top = next((p for p in self.prefixes(tokens) if not self.is_used(p)), None)
        gone = [p for p in self.block_of if top is not None and p[: len(top)] == top]
        assert sorted(self.cache.forget(path)) == sorted(self.block_of.pop(p) for p in gone)

    @precondition(lambda self: self.cache.num_evictable)
    @rule()
    def evict(self) -> None:
        block_id = self.cache.evict()
        prefix = next(p for p, held in self.block_of.items() if held == block_id)
        assert not self.is_used(prefix)
        del self.block_of[prefix]
        assert not any(p[: len(prefix)] == prefix for p in self.block_of), "a parent went first"

    @invariant()
    def agrees(self) -> None:
        self.cache.check_invariants()
        assert {node.block_id for node in self.cache.nodes()} == set(self.block_of.values())
        assert self.cache.num_evictable == sum(not self.is_used(p) for p in self.block_of)


TestCache = CacheMachine.TestCase
TestCache.settings = settings(max_examples=120, deadline=None)
