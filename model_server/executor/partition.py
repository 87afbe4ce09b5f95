"""Which part of a model one of several tensor-parallel ranks holds (Shoeybi et al., 2019).

    heads:  | rank 0 | rank 1 | ...     queries by heads; a key head that fewer than all ranks could
    inner:  | rank 0 | rank 1 | ...     have alone is held by several, each with other query heads
    vocab:  | rank 0 | rank 1 | ...     the last part may be shorter

What a layer's two output products give is added up over the ranks.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from model_server.recipe.recipe import Layer, Mlp, Recipe


@dataclass(frozen=True, slots=True)
class Partition:
    """The part of `rank` among `num_ranks`. Raises ValueError for a rank that is not one."""

    rank: int = 0
    num_ranks: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.num_ranks:
            raise ValueError(f"rank {self.rank} is not in 0..{self.num_ranks - 1}")

    def part(self, count: int) -> range:
        """This rank's of `count` things, as many as every other's."""
        each = count // self.num_ranks
        return range(self.rank * each, (self.rank + 1) * each)

    def kv_heads(self, num_kv_heads: int) -> range:
        """This rank's key heads: one that others hold as well, where there are too few."""
        if num_kv_heads >= self.num_ranks:
            return self.part(num_kv_heads)
        head = self.rank * num_kv_heads // self.num_ranks
        return range(head, head + 1)

    def longest(self, count: int) -> range:
        """This rank's of `count` things; all but the last ranks have as many as each other."""
        each = -(-count // self.num_ranks)
        return range(min(count, self.rank * each), min(count, (self.rank + 1) * each))


def undivided_reason(recipe: Recipe, inner_lens: tuple[int, ...], num_ranks: int) -> str | None:
    """Why the recipe cannot be divided, or None when it can.

    inner_lens: of each layer's MLP, what its last product reads
    """
    if num_ranks == 1:
        return None
    for index, (layer, inner_len) in enumerate(zip(recipe.layers, inner_lens, strict=True)):
        for reason in _reasons(layer, inner_len, num_ranks):
            return f"layer {index}: {reason}"
    return None


def _reasons(layer: Layer, inner_len: int, num_ranks: int) -> Iterator[str]:
    attention = layer.attention
    num_heads, num_kv_heads = attention.num_heads, attention.num_kv_heads
    if num_heads % num_ranks:
        yield f"{num_heads} heads cannot be divided among {num_ranks} ranks"
    if num_kv_heads % num_ranks and num_ranks % num_kv_heads:
        yield (
            f"{num_kv_heads} key heads can neither be divided among {num_ranks} ranks, nor held"
            " by as many ranks each"
        )
    if isinstance(layer.mlp, Mlp) and inner_len % num_ranks:
        yield f"an MLP of {inner_len} numbers cannot be divided among {num_ranks} ranks"
    for head in (attention.query, attention.key):
        if head.norm is not None and head.norm.width != attention.head_dim:
            yield "a norm over all heads needs those of every rank"
