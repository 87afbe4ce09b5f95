"""A KV cache without tensors, which notices every misuse of a block.

A slot holds the digest of the prefix that was computed into it, so what is wrong with a block (too
few, unknown, overwritten, a cached prefix that is another one) is found at the next step that
attends to it.
"""

from dataclasses import dataclass, field

from proto import generate_pb2 as pb


@dataclass
class Row:
    """What the shard remembers of a request."""

    request: pb.Request
    token_ids: list[int]
    block_ids: list[int]
    computed_len: int
    # It drew a token since it came; before that it has to be told how much to compute.
    decodes: bool = False
    # digests[i] stands for token_ids[:i + 1].
    digests: list[int] = field(default_factory=list)

    @property
    def num_made(self) -> int:
        return len(self.token_ids) - self.request.prompt_len

    def digest(self, position: int) -> int:
        while len(self.digests) <= position:
            # Keys and values of an adapter are no other's.
            before = self.digests[-1] if self.digests else self.request.adapter_id
            self.digests.append(hash((before, self.token_ids[len(self.digests)])))
        return self.digests[position]


class Violation(Exception):
    """The router misused a block or a batch."""


class SimulatedKv:
    """Owner of what each slot holds."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._digests: dict[int, int] = {}

    def clear(self) -> None:
        """Forgets all."""
        self._digests.clear()

    def touch(self, row: Row, start: int, stop: int) -> None:
        """Checks what the chunk attends to and writes what it computes."""
        name = f"request {row.request.id}"
        if stop > len(row.token_ids):
            raise Violation(f"{name}: computes up to {stop} of {len(row.token_ids)} tokens")
        if len(row.block_ids) * self.block_size < stop:
            raise Violation(f"{name}: {len(row.block_ids)} blocks for {stop} tokens")
        if len(set(row.block_ids)) < len(row.block_ids):
            raise Violation(f"{name}: a block stands twice in {row.block_ids}")
        if any(block_id >= self.num_blocks for block_id in row.block_ids):
            raise Violation(f"{name}: a block beyond {self.num_blocks} in {row.block_ids}")
        for position in range(stop):
            block_id = row.block_ids[position // self.block_size]
            slot = block_id * self.block_size + position % self.block_size
            if position >= start:
                self._digests[slot] = row.digest(position)
            elif self._digests.get(slot) != row.digest(position):
                raise Violation(f"{name}: block {block_id} lost position {position}")
