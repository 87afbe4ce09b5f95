"""Which blocks hold the KV of which token prefixes: a radix tree whose digits are whole blocks.

It knows neither requests nor the pool: block numbers are labels that it hands back when they
leave the tree.

    (no node)                             a node is one full block of token ids;
     +-- "The sky is b"   block 7         the path to it spells the whole prefix, on which
     |    +-- "lue and the" block 2       the KV of its block depends
     |    +-- "lack at nig" block 9
     +-- "Once upon a t"  block 4

Whoever uses a path locks all of it, from the root, so a node is locked at least as often as each
of its children. What is not locked may be evicted: least recently unlocked first. A path is
unlocked from its end, so that in that order a child always comes before its parent and the oldest
node is always a leaf.
"""

from collections import OrderedDict
from collections.abc import Iterator


class Node:
    """One full block in the tree. Only its `PrefixCache` changes it."""

    __slots__ = ("block_id", "children", "key", "num_locks", "parent")

    def __init__(self, parent: "Node | None", key: tuple[int, ...], block_id: int) -> None:
        self.parent = parent
        self.key = key
        self.block_id = block_id
        self.children: dict[tuple[int, ...], Node] = {}
        self.num_locks = 0


class PrefixCache:
    """Radix tree over blocks of `block_size` token ids. Only the `Allocator` changes it."""

    def __init__(self, block_size: int) -> None:
        """Raises ValueError unless a block holds at least one token."""
        if block_size < 1:
            raise ValueError(f"block_size is {block_size}; a block holds at least 1 token")
        self._block_size = block_size
        self._first: dict[tuple[int, ...], Node] = {}
        self._unlocked: OrderedDict[Node, None] = OrderedDict()

    @property
    def num_evictable(self) -> int:
        """Blocks in the tree that nobody uses; every one of them can be evicted."""
        return len(self._unlocked)

    def match(self, token_ids: tuple[int, ...], max_len: int) -> list[Node]:
        """The longest path that spells a prefix of the first `max_len` ids. Changes nothing."""
        path: list[Node] = []
        siblings = self._first
        for stop in range(self._block_size, max_len + 1, self._block_size):
            node = siblings.get(token_ids[stop - self._block_size : stop])
            if node is None:
                break
            path.append(node)
            siblings = node.children
        return path

    def lock(self, path: list[Node]) -> None:
        """Keeps the nodes of a path from the root from being evicted, once more."""
        for node in path:
            if node.num_locks == 0:
                del self._unlocked[node]
            node.num_locks += 1

    def unlock(self, path: list[Node]) -> None:
        """Takes one lock back from each node of a path from the root."""
        for node in reversed(path):
            node.num_locks -= 1
            if node.num_locks == 0:
                self._unlocked[node] = None

    def insert(
        self, parent: Node | None, key: tuple[int, ...], block_id: int
    ) -> tuple[Node, int | None]:
        """The node of `key` below `parent`, locked once more, and the block that it gave up.

        `parent` is locked by the caller; None: `key` begins the prefix. A node that is not there
        yet is made, of `block_id`. One that is there and in use keeps its block, and `block_id`
        is a duplicate that stays its owner's. One that nobody uses takes `block_id` and gives up
        the block it had, so that a duplicate costs memory only while two need it.
        """
        siblings = self._first if parent is None else parent.children
        node = siblings.get(key)
        if node is None:
            node = siblings[key] = Node(parent, key, block_id)
            node.num_locks = 1
            return node, None
        given_up = None
        if node.num_locks == 0:
            del self._unlocked[node]
            given_up, node.block_id = node.block_id, block_id
        node.num_locks += 1
        return node, given_up

    def evict(self) -> int:
        """Removes the least recently used node; its block. KeyError if every node is in use."""
        node, _ = self._unlocked.popitem(last=False)
        self._detach(node)
        return node.block_id

    def forget(self, path: list[Node]) -> list[int]:
        """Removes what nobody uses of a path and of all that continues it; the blocks removed."""
        top = next((node for node in path if node.num_locks == 0), None)
        if top is None:
            return []
        block_ids: list[int] = []
        # A node's descendants are locked at most as often as itself: here, not at all.
        for node in [top, *_descendants(top)]:
            del self._unlocked[node]
            block_ids.append(node.block_id)
        self._detach(top)
        return block_ids

    def nodes(self) -> Iterator[Node]:
        """All nodes, parents before children."""
        for node in self._first.values():
            yield node
            yield from _descendants(node)

    def check_invariants(self) -> None:
        """Raises AssertionError when the tree contradicts itself."""
        nodes = list(self.nodes())
        block_ids = {node.block_id for node in nodes}
        assert len(block_ids) == len(nodes), "a block is in the tree twice"
        assert {node for node in nodes if node.num_locks == 0} == self._unlocked.keys()
        ages = {node: age for age, node in enumerate(self._unlocked)}
        for node in nodes:
            assert len(node.key) == self._block_size, "a node is not one block"
            if node.parent is None:
                continue
            assert node.num_locks <= node.parent.num_locks, "a path was not locked from its root"
            if node.parent in ages:
                assert ages[node] < ages[node.parent], "a parent would be evicted before its child"

    def _detach(self, node: Node) -> None:
        siblings = self._first if node.parent is None else node.parent.children
        del siblings[node.key]


def _descendants(node: Node) -> Iterator[Node]:
    pending = list(node.children.values())
    while pending:
        below = pending.pop()
        yield below
        pending.extend(below.children.values())
