"""Random steps over a paged pool whose free blocks are poisoned, and what attention has to give."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from model_server.attention.base import LayerCache, LayerGeometry, LayerOptions, TokenMajorLayout
from model_server.attention.reference import ReferenceAttention
from model_server.step import SequenceStep, StateSlots, StateStep, StepInputs
from proto.contract import KeptState

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
BLOCK_SIZE = 16


@dataclass(frozen=True, slots=True)
class Heads:
    """The shape of a layer."""

    num_heads: int = 8
    num_kv_heads: int = 2
    head_dim: int = 64
    value_dim: int | None = None

    @property
    def geometry(self) -> LayerGeometry:
        """Of its cache."""
        return LayerGeometry(self.num_kv_heads, self.head_dim, self.value_dim or self.head_dim)


@dataclass(frozen=True, slots=True, eq=False)
class PagedStep:
    """A step whose keys and values are in the pool."""

    query: Tensor
    cache: LayerCache
    inputs: StepInputs

    def expected(self, options: LayerOptions) -> Tensor:
        """By the reference, which multiplies what it does not see by zero: poison is no number."""
        keys = self.cache.keys.nan_to_num(0.0)
        values = self.cache.values.nan_to_num(0.0)
        cache = replace(self.cache, keys=keys, values=values)
        return ReferenceAttention(BLOCK_SIZE).read(cache, self.query, self.inputs, options)


def paged_step(
    lens: Sequence[tuple[int, int]],
    heads: Heads,
    options: LayerOptions,
    *,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
    num_more_blocks: int = 0,
) -> PagedStep:
    """Sequences of so many queries after so many cached tokens, the same for the same seed.

    Blocks that no query sees are not the sequence's any more: its table names poisoned ones there.
    num_more_blocks: by how much the table is wider than it must be
    """
    rng = random.Random(seed)
    num_blocks = [-(-(cached + query) // BLOCK_SIZE) for query, cached in lens]
    total = sum(num_blocks) + 8
    free = rng.sample(range(total), total)
    poisoned = free[-1]
    cache = TokenMajorLayout(BLOCK_SIZE).allocate(total + 1, heads.geometry, dtype, DEVICE)
    cache.keys.fill_(float("nan"))
    cache.values.fill_(float("nan"))
    steps = []
    queries = []
    for index, ((query_len, cached_len), needed) in enumerate(zip(lens, num_blocks, strict=True)):
        generator = torch.Generator().manual_seed(1000 * seed + index)
        owned = [free.pop(0) for _ in range(needed)]
        first_seen = options.first_key(cached_len) // BLOCK_SIZE
        table = [poisoned if place < first_seen else block for place, block in enumerate(owned)]
        for pool in (cache.keys, cache.values):
            numbers = torch.randn(cached_len + query_len, *pool.shape[2:], generator=generator)
            for token in range(cached_len + query_len):
                block, offset = divmod(token, BLOCK_SIZE)
                if block >= first_seen:
                    pool[owned[block], offset] = numbers[token].to(pool)
        queries.append(torch.randn(query_len, heads.num_heads, heads.head_dim, generator=generator))
        steps.append(SequenceStep((1,) * query_len, cached_len, table))
    inputs = StepInputs.build(steps, block_size=BLOCK_SIZE, scratch_block_id=total, device=DEVICE)
    return PagedStep(torch.cat(queries).to(DEVICE, dtype), cache, _widened(inputs, num_more_blocks))


def _widened(inputs: StepInputs, num_blocks: int) -> StepInputs:
    if not num_blocks:
        return inputs
    tables = torch.nn.functional.pad(inputs.block_tables, (0, num_blocks), value=1 << 20)
    return replace(inputs, block_tables=tables)


def state_slots(
    lens: Sequence[int],
    reads: Sequence[int | None],
    writes: Sequence[int],
    kept: Mapping[int, int] | None = None,
    num_drafts: int = 0,
) -> StateSlots:
    """Of sequences of so many tokens, which may go on from a slot.

    kept: slots to be written behind tokens of the first sequence
    """
    steps = []
    for index, (length, read, write) in enumerate(zip(lens, reads, writes, strict=True)):
        due = kept or {} if index == 0 else {}
        states = tuple(KeptState(token + 1, slot) for token, slot in due.items())
        state = StateStep(read, write, states, num_drafts)
        steps.append(SequenceStep((0,) * length, 0, (0,) * length, state=state))
    inputs = StepInputs.build(steps, block_size=BLOCK_SIZE, scratch_block_id=1, device=DEVICE)
    assert inputs.state_slots is not None
    return inputs.state_slots
