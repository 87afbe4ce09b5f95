"""Sequences of random queries, keys and values, and schedules that play them through a backend."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from model_server.attention.base import AttentionBackend, LayerGeometry, LayerOptions
from model_server.step import SequenceStep, StepInputs

CPU = torch.device("cpu")

# Steps of pairs: which stream, how many of its tokens.
Schedule = Sequence[Sequence[tuple[int, int]]]


@dataclass(frozen=True, slots=True, eq=False)
class Stream:
    """Everything that one sequence will ever ask, [length, heads, dim] each."""

    query: Tensor
    key: Tensor
    value: Tensor

    @property
    def length(self) -> int:
        return self.query.shape[0]


@dataclass(frozen=True, slots=True)
class Heads:
    """One layer's shape."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    value_dim: int

    @property
    def geometry(self) -> LayerGeometry:
        return LayerGeometry(self.num_kv_heads, self.head_dim, self.value_dim)


def stream(heads: Heads, length: int, dtype: torch.dtype, seed: int) -> Stream:
    """A sequence whose numbers depend on the seed alone; scores of a few units, as in a model."""
    generator = torch.Generator().manual_seed(seed)

    def rows(num_heads: int, dim: int) -> Tensor:
        return torch.randn(length, num_heads, dim, generator=generator).to(dtype)

    return Stream(
        rows(heads.num_heads, heads.head_dim),
        rows(heads.num_kv_heads, heads.head_dim),
        rows(heads.num_kv_heads, heads.value_dim),
    )


class Player:
    """Plays streams through one layer of a pool, with blocks handed out in random order.

    image: tokens of each stream that attend up to the last of them
    """

    def __init__(
        self,
        backend: AttentionBackend,
        heads: Heads,
        options: LayerOptions,
        dtype: torch.dtype,
        num_blocks: int = 64,
        seed: int = 0,
        image: range | None = None,
    ) -> None:
        self._backend = backend
        self._image = image
        self._options = options
        self._cache = backend.allocate(num_blocks + 1, heads.geometry, dtype, CPU)
        self._num_blocks = num_blocks
        self._free = list(range(num_blocks))
        random.Random(seed).shuffle(self._free)

    def play(self, streams: Sequence[Stream], steps: Schedule) -> list[Tensor]:
        """Answers each stream's output rows.

        The streams' blocks are free again afterwards, with whatever they hold.
        """
        done = [0] * len(streams)
        tables: list[list[int]] = [[] for _ in streams]
        outputs: list[list[Tensor]] = [[] for _ in streams]
        for step in steps:
            sequences = []
            for index, num_tokens in step:
                while len(tables[index]) * self._backend.block_size < done[index] + num_tokens:
                    tables[index].append(self._free.pop())
                sequences.append(SequenceStep([1] * num_tokens, done[index], tables[index]))
            rows = [slice(done[index], done[index] + count) for index, count in step]
            attended = self._attend([streams[index] for index, _ in step], rows, sequences)
            for (index, count), output in zip(step, attended, strict=True):
                outputs[index].append(output)
                done[index] += count
        for table in tables:
            self._free.extend(table)
        return [torch.cat(parts) for parts in outputs]

    def _attend(
        self, streams: list[Stream], rows: list[slice], sequences: list[SequenceStep]
    ) -> list[Tensor]:
        step = StepInputs.build(
            sequences,
            block_size=self._backend.block_size,
            scratch_block_id=self._num_blocks,
            device=CPU,
        )
        if self._image is not None:
            ends = torch.tensor(
                [
                    min(self._image.stop, own.stop) if place in self._image else place + 1
                    for own in rows
                    for place in range(own.start, own.stop)
                ]
            )
            step = replace(step, key_ends=ends.int())
        num_real = sum(len(s.token_ids) for s in sequences)
        num_padding = step.num_tokens - num_real

        def flattened(name: str) -> Tensor:
            parts = [getattr(s, name)[r] for s, r in zip(streams, rows, strict=True)]
            padding = parts[0][:1].expand(num_padding, -1, -1)
            # Heads before tokens in memory, as a transformers model hands them over.
            return torch.cat([*parts, padding]).transpose(0, 1).contiguous().transpose(0, 1)

        output = self._backend.attend(
            self._cache,
            flattened("query"),
            flattened("key"),
            flattened("value"),
            step,
            self._options,
        )
        assert output.is_contiguous()
        return list(output[:num_real].split([len(s.token_ids) for s in sequences]))


def whole(streams: Sequence[Stream]) -> Schedule:
    """One step that computes every stream from its first token to its last."""
    return [[(index, s.length) for index, s in enumerate(streams)]]


def mixed(streams: Sequence[Stream], seed: int, max_chunk_len: int = 24) -> Schedule:
    """Steps in which some streams compute a chunk, some decode a token and some wait."""
    rng = random.Random(seed)
    left = [s.length for s in streams]
    steps = []
    while any(left):
        step = []
        for index, remaining in enumerate(left):
            if remaining and rng.random() < 0.8:
                count = 1 if rng.random() < 0.5 else rng.randint(1, max_chunk_len)
                step.append((index, min(count, remaining)))
                left[index] -= min(count, remaining)
        if step:
            rng.shuffle(step)
            steps.append(step)
    return steps


def contiguous(s: Stream, options: LayerOptions) -> Tensor:
    """Attention without pages, one query at a time, straight from the formula in float64."""
    group = s.query.shape[1] // s.key.shape[1]
    rows = []
    for position in range(s.length):
        seen = slice(options.first_key(position), position + 1)
        keys = s.key[seen].double().repeat_interleave(group, dim=1)
        values = s.value[seen].double().repeat_interleave(group, dim=1)
        scores = (keys * s.query[position].double()).sum(-1) * options.scale  # [keys, heads]
        if options.softcap is not None:
            scores = options.softcap * torch.tanh(scores / options.softcap)
        weights = scores.exp()
        total = weights.sum(0)
        if options.sinks is not None:
            total = total + options.sinks.double().exp()
        rows.append(((weights / total)[..., None] * values).sum(0))
    return torch.stack(rows)


def tolerance(dtype: torch.dtype) -> float:
    """How far two correct ways may differ, for values of about one unit."""
    return {torch.float32: 4e-6, torch.float16: 4e-3, torch.bfloat16: 3e-2}[dtype]
