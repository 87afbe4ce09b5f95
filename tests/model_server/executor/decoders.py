"""Small decoders of many families with their recipes, and sequences that live in blocks.

The sizes are such as the native forward serves; every parameter is random, since norms of one and
biases of zero would hide a forgotten one.
"""

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from transformers import AutoModelForCausalLM

from model_server.attention.reference import ReferenceAttention
from model_server.executor.adapters import product_shapes
from model_server.executor.dense_cpu import DenseCpu
from model_server.executor.dense_cuda import Capture, DenseCuda
from model_server.executor.device_weights import MakeMatrix, Partition, matrices_of, read_weights
from model_server.executor.executor import Executor
from model_server.executor.grouped import GroupedParameters, GroupedWeight
from model_server.executor.layer_ops import TorchLayerOps
from model_server.executor.torch_adapters import DeviceAdapters
from model_server.recipe.dense_torch import angles_of
from model_server.recipe.reader import read
from model_server.recipe.recipe import Recipe
from model_server.recipe.recording import native_logits
from model_server.recipe.small import parameters_of, randomise
from model_server.step import SequenceStep, StateStep, StepInputs
from proto.contract import KeptState
from tests.model_server.recipe.families import FAMILIES, config

CPU = torch.device("cpu")
NUM_BLOCKS = 400
NUM_STATES = 400
VOCAB_SIZE = 130


@dataclass(frozen=True, slots=True, eq=False)
class Decoder:
    """A model of transformers, and what an executor needs of it."""

    model: Any
    recipe: Recipe
    parameters: Mapping[str, Tensor]
    tables: tuple[tuple[Tensor, Tensor], ...]

    def native(self, token_ids: Tensor) -> Tensor:
        """[num_tokens, vocab_size] of one sequence, by transformers."""
        with torch.inference_mode():
            return native_logits(self.model, token_ids).float()

    def executor(
        self,
        dtype: torch.dtype,
        num_threads: int = 2,
        *,
        quantize: str | None = None,
        max_loras: int = 0,
        release: Callable[[str], None] = lambda name: None,
    ) -> DenseCpu:
        """An executor with a pool."""
        executor = DenseCpu(
            self.recipe,
            self.parameters,
            self.tables,
            dtype=dtype,
            num_threads=num_threads,
            quantize=quantize,
            max_loras=max_loras,
            release=release,
        )
        executor.allocate(NUM_BLOCKS + 1, NUM_STATES)
        return executor

    def on_device(
        self,
        dtype: torch.dtype,
        device: torch.device = CPU,
        *,
        partition: Partition | None = None,
        group: dist.ProcessGroup | None = None,
        new_capture: Callable[[], Capture] | None = None,
        make_matrix: MakeMatrix | None = None,
        has_adapters: bool = False,
    ) -> DenseCuda:
        """The executor for GPUs in plain torch, with a pool."""
        partition = partition or Partition()
        adapters = None
        if has_adapters:
            shapes = product_shapes(self.recipe, self.parameters, {})
            adapters = DeviceAdapters(
                self.recipe, shapes, self.tables, partition, device, TorchLayerOps(), 4, 16
            )
        weights = read_weights(
            self.recipe,
            self.parameters,
            self.tables,
            dtype=dtype,
            device=device,
            partition=partition,
            make_matrix=make_matrix or matrices_of(TorchLayerOps()),
        )
        executor = DenseCuda(
            weights,
            TorchLayerOps(),
            ReferenceAttention(),
            partition=partition,
            group=group,
            new_capture=new_capture,
            adapters=adapters,
        )
        executor.allocate(NUM_BLOCKS + 1, NUM_STATES)
        return executor


class ValuesInMoreBits(GroupedParameters):
    """A model's parameters with the values of attention in 6 bits and other layers in 4.

    Experts are in no groups.
    """

    has_groups = True
    device = CPU

    def __init__(self, own: Decoder) -> None:
        self._grouped = {}
        for name in own.recipe.products():
            bits = 6 if "v_proj" in name else 4
            if own.parameters[name].dim() == 2:
                self._grouped[name] = GroupedWeight.rounded(own.parameters[name], bits)
        self._plain = own.parameters

    def grouped(self, name: str) -> GroupedWeight | None:
        return self._grouped.get(name)

    def __getitem__(self, name: str) -> Tensor:
        weight = self.grouped(name)
        return self._plain[name] if weight is None else weight.dense()

    def release(self, name: str) -> None:
        pass

    def __iter__(self) -> Iterator[str]:
        return iter(self._plain)

    def __len__(self) -> int:
        return len(self._plain)


@cache
def decoder(family: str, **changes: Any) -> Decoder:
    """A family of tests/model_server/recipe, six layers deep and 256 wide unless changed."""
    kind, own = FAMILIES[family]
    settings = config(kind, **{"hidden_size": 256, **own, **changes})
    for name, value in list(vars(settings).items()):
        if "eps" in name.split("_") and isinstance(value, float):
            setattr(settings, name, 0.033)
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(
        settings, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    randomise(model, seed=0)
    recipe = read(model)
    randomise(model, seed=1)
    parameters = parameters_of(model)
    positions = torch.arange(settings.max_position_embeddings)
    tables = tuple(angles(positions) for angles in angles_of(recipe, model))
    return Decoder(model, recipe, parameters, tables)


def random_tokens(num_tokens: int, seed: int = 3) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, VOCAB_SIZE, (num_tokens,), generator=generator)


def distance(actual: Tensor, expected: Tensor) -> float:
    """Root mean square of the difference, over the spread of what is expected."""
    return float((actual - expected).square().mean().sqrt() / expected.std())


@dataclass(slots=True)
class Held:
    """One sequence in the pool of an executor."""

    token_ids: list[int]
    block_ids: list[int]
    computed_len: int = 0
    state_ids: tuple[int, int] | None = None  # of a model with states
    from_state: int | None = None
    kept: tuple[KeptState, ...] = ()
    adapter: int | None = None

    def next_step(self, num_tokens: int) -> SequenceStep:
        """The next tokens, with logits for all of them."""
        first = self.computed_len
        self.computed_len += num_tokens
        token_ids = self.token_ids[first : self.computed_len]
        state = None if self.state_ids is None else self._next_state(first)
        return SequenceStep(token_ids, first, self.block_ids, num_tokens, state, self.adapter)

    def _next_state(self, first: int) -> StateStep:
        assert self.state_ids is not None
        read, write = self.state_ids
        self.state_ids = (write, read)
        due = tuple(kept for kept in self.kept if first < kept.position <= self.computed_len)
        if self.from_state is not None:
            read = self.from_state
            self.from_state = None
        return StateStep(read if first else None, write, due)


@dataclass(slots=True)
class Pool:
    """Hands out the blocks of an executor's pool, in random order."""

    executor: Executor
    rng: random.Random = field(default_factory=lambda: random.Random(5))
    device: torch.device = CPU
    free: list[int] = field(default_factory=list)
    free_states: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.free = self.rng.sample(range(NUM_BLOCKS), NUM_BLOCKS)
        if self.executor.state_bytes:
            self.free_states = self.rng.sample(range(NUM_STATES), NUM_STATES)

    def sequence(self, token_ids: Sequence[int] | Tensor) -> Held:
        """A sequence of which nothing is computed."""
        token_ids = [int(token) for token in token_ids]
        block_ids = [self.free.pop() for _ in range(-(-len(token_ids) // 16))]
        state_ids = (self.free_states.pop(), self.free_states.pop()) if self.free_states else None
        return Held(token_ids, block_ids, state_ids=state_ids)

    def release(self, held: Held) -> None:
        """Others may have its blocks and states."""
        self.free += held.block_ids
        self.free_states += held.state_ids or ()

    def other(self, length: int, computed_len: int = 0) -> Held:
        """A batch mate of random tokens, of which so many are computed."""
        mate = self.sequence([self.rng.randrange(VOCAB_SIZE) for _ in range(length)])
        if computed_len:
            self.run([(mate, computed_len)])
        return mate

    def run(self, parts: Sequence[tuple[Held, int]]) -> tuple[Tensor, ...]:
        """One step: so many tokens of each sequence; their logits, sequence by sequence."""
        counts = [count for _, count in parts]
        inputs = StepInputs.build(
            [sequence.next_step(count) for sequence, count in parts],
            block_size=self.executor.block_size,
            scratch_block_id=NUM_BLOCKS,
            device=self.device,
            min_tokens=self.executor.min_step_tokens,
        )
        return self.executor.forward(inputs).split(counts)
