"""The executor of recipes on CUDA: ten launches a layer, and decode steps as CUDA graphs.

    a layer:  product, rotate and write, attention (two), product      all-reduce
              add and norm, product, activation, product, add and norm  all-reduce
    gated:    one more behind attention
    a state:  a delta rule in three launches, or a short convolution in one, in place of attention
    experts:  score, choose, group, two products, combine; three more for a shared one

Each rank computes its part of a layer; after the two products that give a layer's sums they are
added up over the ranks, and rank 0 alone gets the logits. The operations are kernels where Triton
can compile them, else torch.

Decode steps are launched as a whole, by one CUDA graph for each batch size of a few:

    a step of 5 sequences:  | 0 | 1 | 2 | 3 | 4 | padding |     the graph of 6

A graph replays the same launches over the same memory. So a step is copied to tensors that stay,
and filled up to the next batch size that has a graph: what is padding sees no key, and writes to
the scratch block. All graphs share one pool of memory, since one of them runs at a time. A step in
which there is something of an image has none.
"""

import logging
import math
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional as F

from model_server.attention.base import LayerCache, LayerGeometry, TokenMajorAttention
from model_server.attention.sdpa import GatherSdpaAttention
from model_server.attention.select import select_backend
from model_server.executor.adapters import product_shapes
from model_server.executor.device_weights import (
    DenseAttention,
    DenseDelta,
    DenseLayer,
    DenseMixer,
    DenseMlp,
    DenseWeights,
    Float8Matrix,
    Int4Matrix,
    Mixture,
    Partition,
    matrices_of,
    read_weights,
)
from model_server.executor.int4 import Int4Parameters
from model_server.executor.layer_ops import LayerOps, TorchLayerOps
from model_server.executor.torch_adapters import DeviceAdapters
from model_server.recipe.recipe import Attention, Recipe
from model_server.step import StateSlots, StepInputs

_log = logging.getLogger(__name__)

# Of the first layer's product, in /info; other matrices are in the model's dtype.
_FORMAT_NAMES: Mapping[type, str] = {Float8Matrix: "fp8", Int4Matrix: "int4"}


_SMALL_SIZES = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)


_PROGRESS_INTERVAL_S = 2.0


# A function that launches and returns a tensor -> one that does the same launches again, with the
# same tensor as its result.
Capture: TypeAlias = Callable[[Callable[[], Tensor]], Callable[[], Tensor]]


# Of a layer: its part of the blocks, or of all slots for states; see DenseDelta.state_shapes.
LayerMemory: TypeAlias = LayerCache | tuple[Tensor, ...]


def batch_sizes(max_batch_size: int) -> tuple[int, ...]:
    """The batch sizes that have a graph; larger batches than 512 have none."""
    sizes = [size for size in _SMALL_SIZES if size < max_batch_size]
    return (*sizes, min(max_batch_size, _SMALL_SIZES[-1]))


@dataclass(frozen=True, slots=True, eq=False)
class StaticStep:
    """The tensors that graphs read; the rows of a batch are their first ones."""

    token_ids: Tensor  # [max_batch_size] int64, and so on as in StepInputs
    positions: Tensor
    slot_mapping: Tensor
    block_tables: Tensor  # [max_batch_size, max_blocks] int32
    context_lens: Tensor
    cu_query_lens: Tensor  # [max_batch_size + 1] int32, rising by one
    rows: Tensor  # [max_batch_size] int64, rising by one
    state_slots: StateSlots
    adapters: Tensor  # [max_batch_size] int32, -1: none
    scratch_slot: int

    @classmethod
    def of(
        cls,
        max_batch_size: int,
        max_blocks: int,
        block_size: int,
        scratch_block_id: int,
        device: torch.device,
    ) -> "StaticStep":
        """Of padding alone."""
        long = partial(torch.full, (max_batch_size,), dtype=torch.int64, device=device)
        counts = torch.arange(max_batch_size + 1, dtype=torch.int64, device=device)
        cu_query_lens = counts.to(torch.int32)
        slot = scratch_block_id * block_size
        none = partial(torch.full, (max_batch_size,), -1, dtype=torch.int32, device=device)
        return cls(
            token_ids=long(fill_value=0),
            positions=long(fill_value=0),
            slot_mapping=long(fill_value=slot),
            block_tables=torch.full(
                (max_batch_size, max_blocks), scratch_block_id, dtype=torch.int32, device=device
            ),
            context_lens=torch.zeros(max_batch_size, dtype=torch.int32, device=device),
            cu_query_lens=cu_query_lens,
            rows=counts[:-1],
            state_slots=StateSlots(cu_query_lens, cu_query_lens[:-1], none(), none(), none()),
            adapters=none(),
            scratch_slot=slot,
        )

    def inputs(self, size: int, *, has_adapters: bool) -> StepInputs:
        """The first `size` sequences as a step. What the host knows of it is all padding."""
        rows = self.rows[:size]
        slots = self.state_slots
        return StepInputs(
            token_ids=self.token_ids[:size],
            positions=self.positions[:size],
            slot_mapping=self.slot_mapping[:size],
            query_lens=(1,) * size,
            context_lens=(0,) * size,
            block_tables=self.block_tables[:size],
            cu_query_lens=self.cu_query_lens[: size + 1],
            device_context_lens=self.context_lens[:size],
            logits_indices=rows,
            head_indices=rows,
            state_slots=StateSlots(
                slots.cu_query_lens[: size + 1],
                slots.sequences[:size],
                slots.reads[:size],
                slots.writes[:size],
                slots.kept[:size],
            ),
            device_adapters=self.adapters[:size] if has_adapters else None,
        )

    def fill(self, step: StepInputs, size: int) -> None:
        """Take over a step, and fill it up to `size` sequences."""
        num_seqs, num_blocks = step.block_tables.shape
        torch._foreach_copy_(
            [self.token_ids[:num_seqs], self.positions[:num_seqs], self.slot_mapping[:num_seqs]],
            [step.token_ids, step.positions, step.slot_mapping],
        )
        self.block_tables[:num_seqs, :num_blocks].copy_(step.block_tables)
        self.context_lens[:num_seqs].copy_(step.device_context_lens)
        if num_seqs < size:
            self.slot_mapping[num_seqs:size].fill_(self.scratch_slot)
            self.context_lens[num_seqs:size].zero_()
        if step.state_slots is not None:
            self._fill_states(step.state_slots, num_seqs, size)
        if step.device_adapters is not None:
            self.adapters[:num_seqs].copy_(step.device_adapters)
            self.adapters[num_seqs:size].fill_(-1)

    def _fill_states(self, slots: StateSlots, num_seqs: int, size: int) -> None:
        own = (self.state_slots.reads, self.state_slots.writes, self.state_slots.kept)
        torch._foreach_copy_(
            [each[:num_seqs] for each in own], [slots.reads, slots.writes, slots.kept]
        )
        if num_seqs < size:
            for each in own:
                each[num_seqs:size].fill_(-1)


class DecodeGraphs:
    """Replays decode steps of up to `max_batch_size` sequences, as `compute` computes them.

    has_adapters: there are graphs of steps with adapters, beside those of steps without
    """

    def __init__(
        self,
        compute: Callable[[StepInputs], Tensor],
        capture: Capture,
        *,
        device: torch.device,
        block_size: int,
        scratch_block_id: int,
        max_batch_size: int,
        max_total_len: int,
        has_adapters: bool = False,
    ) -> None:
        """Captures all graphs, the largest first: the others find their memory in its pool."""
        self.sizes = batch_sizes(max_batch_size)
        self._max_blocks = -(-max_total_len // block_size)
        self._static = StaticStep.of(
            self.sizes[-1], self._max_blocks, block_size, scratch_block_id, device
        )
        kinds = (False, True) if has_adapters else (False,)
        self._replays: dict[tuple[int, bool], Callable[[], Tensor]] = {}
        started_s = last_s = time.monotonic()
        for size, adapted in product(reversed(self.sizes), kinds):
            inputs = self._static.inputs(size, has_adapters=adapted)
            self._replays[size, adapted] = capture(partial(compute, inputs))
            if time.monotonic() - last_s > _PROGRESS_INTERVAL_S:
                last_s = time.monotonic()
                num_graphs = len(self.sizes) * len(kinds)
                _log.info("decode graphs: %d of %d", len(self._replays), num_graphs)
        _log.info(
            "captured decode graphs of up to %d sequences in %.1f s",
            self.sizes[-1],
            time.monotonic() - started_s,
        )

    def has(self, step: StepInputs) -> bool:
        """Whether there is a graph for a step: one token, of text, and one row of logits per
        sequence.
        """
        num_seqs, num_blocks = step.block_tables.shape
        return (
            num_seqs == step.num_tokens == len(step.logits_indices)
            and num_seqs <= self.sizes[-1]
            and num_blocks <= self._max_blocks
            and step.images is None
            and step.turns is None
        )

    @torch.inference_mode()
    def forward(self, step: StepInputs) -> Tensor:
        """The logits of a step that has a graph."""
        size = self.sizes[bisect_left(self.sizes, step.num_seqs)]
        self._static.fill(step, size)
        logits = self._replays[size, bool(step.adapters)]()
        return logits[: step.num_seqs].clone()  # the next step overwrites them


class CudaCapture:
    """Captures in CUDA graphs that share one pool. See Capture."""

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, run: Callable[[], Tensor]) -> Callable[[], Tensor]:
        # Kernels are compiled and libraries make their workspaces at the first run, and neither can
        # be captured.
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            run()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            output = run()

        def replay() -> Tensor:
            graph.replay()
            return output

        return replay


class DenseCuda:
    """See Executor. It runs on any device with operations that do.

    group:       of the ranks, on the device; None: there is one rank
    new_capture: of decode steps, for a pool that was made anew; None: each step is launched anew
    adapters:    beside `weights`; None: none may be loaded
    """

    # Products of cuBLAS may add up in another order in another batch.
    is_invariant = False
    min_step_tokens = 1
    threads = None
    keeps_states = True

    def __init__(
        self,
        weights: DenseWeights,
        ops: LayerOps,
        attention: TokenMajorAttention,
        *,
        partition: Partition | None = None,
        group: dist.ProcessGroup | None = None,
        new_capture: Callable[[], Capture] | None = None,
        adapters: DeviceAdapters | None = None,
    ) -> None:
        self._weights = weights if adapters is None else adapters.beside(weights)
        self.adapters = adapters
        self._ops = ops
        self._attention = attention
        self._partition = partition or Partition()
        self._group = group
        self._new_capture = new_capture
        self._graphs: DecodeGraphs | None = None
        self._caches: Sequence[LayerMemory] = ()
        self._axes: Sequence[Tensor] = ()
        self._num_states = 0
        self._dtype = weights.embedding.dtype
        self._device = weights.embedding.device
        self.block_size = attention.block_size
        self.state_bytes = sum(
            torch.float32.itemsize * math.prod(shape)
            for mixer in self._mixers()
            if not isinstance(mixer, DenseAttention)
            for shape in mixer.state_shapes
        )
        dtype_name = str(self._dtype).removeprefix("torch.")
        kind = type(weights.layers[0].mixer.output)
        format_name = _FORMAT_NAMES.get(kind, dtype_name)
        self.name = f"dense, {format_name}, {attention.name} attention"

    @property
    def bytes_per_block(self) -> int:
        """See Executor."""
        return sum(
            self._attention.bytes_per_block(mixer.geometry, self._dtype)
            for mixer in self._mixers()
            if isinstance(mixer, DenseAttention)
        )

    def _mixers(self) -> Iterator[DenseMixer]:
        return (layer.mixer for layer in self._weights.layers)

    def allocate(self, num_blocks: int, num_states: int = 0) -> None:
        """See Executor."""
        self.close()
        caches: list[LayerMemory] = []
        for mixer in self._mixers():
            if isinstance(mixer, DenseAttention):
                caches.append(
                    self._attention.allocate(num_blocks, mixer.geometry, self._dtype, self._device)
                )
            else:
                shapes = mixer.state_shapes
                caches.append(
                    tuple(torch.zeros(num_states, *each, device=self._device) for each in shapes)
                )
        self._caches = caches
        self._num_states = num_states

    def turn_by(self, axes: Sequence[npt.NDArray[np.int64]]) -> None:
        """By which of three rotary positions each angle of each table turns."""
        self._axes = [torch.from_numpy(each).to(self._device) for each in axes]

    def prepare(self, max_batch_size: int, max_total_len: int, scratch_block_id: int) -> None:
        """See Executor: captures decode steps."""
        self._graphs = None
        if self._new_capture is not None:
            self._graphs = DecodeGraphs(
                self.forward_eager,
                self._new_capture(),
                device=self._device,
                block_size=self.block_size,
                scratch_block_id=scratch_block_id,
                max_batch_size=max_batch_size,
                max_total_len=max_total_len,
                has_adapters=self.adapters is not None,
            )

    def close(self) -> None:
        """Free the pool. `allocate` begins anew."""
        self._graphs = None
        self._caches = ()

    def forward(self, inputs: StepInputs) -> Tensor:
        """See Executor. The logits are of the model's dtype; on ranks but the first, zeros.

        Raises InvalidStep for a state that is not of the pool.
        """
        if self.state_bytes:
            inputs.states_within(self._num_states)
        if self._graphs is not None and self._graphs.has(inputs):
            return self._graphs.forward(inputs)
        return self.forward_eager(inputs)

    @torch.inference_mode()
    def forward_eager(self, inputs: StepInputs) -> Tensor:
        """As `forward`, without graphs."""
        if self.adapters is not None:
            self.adapters.begin(inputs)
        weights = self._weights
        if inputs.turns is not None:
            weights = self._turned(inputs.turns)
            inputs = replace(inputs, positions=torch.arange(inputs.num_tokens, device=self._device))
        ops = self._ops
        residual = F.embedding(inputs.token_ids, weights.embedding)
        if weights.embed_scale != 1.0:
            residual = residual * weights.embed_scale
        images = inputs.images
        shown: Sequence[Tensor] = ()
        if images is not None:
            shown = images.rows.to(self._dtype).unbind()
            residual.index_copy_(0, images.places, shown[0])
        norms = [layer.attention_norm for layer in weights.layers[1:]]
        normed = ops.add_norm(residual, None, weights.layers[0].attention_norm)
        memories = zip(weights.layers, self._caches, (*norms, weights.final_norm), strict=True)
        for behind, (layer, cache, next_norm) in enumerate(memories, 1):
            attended = self._mix(layer.mixer, cache, normed, inputs)
            if layer.is_parallel:
                read = normed
                if layer.mlp_norm is not layer.attention_norm:
                    read = ops.add_norm(residual, None, layer.mlp_norm)
                self._add(layer, residual, attended)
            else:
                read = ops.add_norm(
                    residual,
                    attended,
                    layer.mlp_norm,
                    post_norm=layer.attention_post_norm,
                    scale=layer.residual_scale,
                )
            normed = ops.add_norm(
                residual,
                self._sum(self._feed_forward(layer.mlp, read)),
                next_norm,
                post_norm=layer.mlp_post_norm,
                scale=layer.residual_scale,
            )
            if images is not None and behind < len(shown):
                residual.index_add_(0, images.places, shown[behind])
                normed = ops.add_norm(residual, None, next_norm)
        return self._logits(normed.index_select(0, inputs.logits_indices))

    def _turned(self, turns: Tensor) -> DenseWeights:
        """The weights, with angles for each token of a step where they have them by position.

        turns: [3, num_tokens], as in StepInputs
        """
        turned = {}
        for (cos, sin), axes in zip(self._weights.tables, self._axes, strict=True):
            positions = turns[axes].T  # [num_tokens, n / 2]
            turned[id(cos)] = (cos.gather(0, positions), sin.gather(0, positions))
        layers = []
        for layer in self._weights.layers:
            mixer = layer.mixer
            if isinstance(mixer, DenseAttention) and mixer.heads.cos is not None:
                cos, sin = turned[id(mixer.heads.cos)]
                mixer = replace(mixer, heads=replace(mixer.heads, cos=cos, sin=sin))
            layers.append(replace(layer, mixer=mixer))
        return replace(self._weights, layers=tuple(layers))

    def _add(self, layer: DenseLayer, residual: Tensor, attended: Tensor) -> None:
        self._ops.add_norm(
            residual,
            attended,
            None,
            post_norm=layer.attention_post_norm,
            scale=layer.residual_scale,
        )

    def _mix(
        self,
        mixer: DenseMixer,
        cache: LayerMemory,
        normed: Tensor,
        inputs: StepInputs,
    ) -> Tensor:
        if isinstance(mixer, DenseAttention):
            assert isinstance(cache, LayerCache)
            inner = self._attend(mixer, cache, normed, inputs)
        else:
            assert not isinstance(cache, LayerCache)
            assert inputs.state_slots is not None
            rows = mixer.ins.multiply(normed)
            if isinstance(mixer, DenseDelta):
                windows, matrices = cache
                inner = self._ops.apply_rule(
                    rows, mixer.rule, windows, matrices, inputs.state_slots
                )
            else:
                (windows,) = cache
                inner = self._ops.convolve(rows, mixer.conv, windows, inputs.state_slots)
        return self._sum(mixer.output.multiply(inner))

    def _attend(
        self, mixer: DenseAttention, cache: LayerCache, normed: Tensor, inputs: StepInputs
    ) -> Tensor:
        rows = mixer.ins.multiply(normed)
        query = self._ops.rotate_and_write(
            rows,
            mixer.heads,
            inputs.positions,
            inputs.slot_mapping,
            cache.keys,
            cache.values,
        )
        attended = self._attention.read(cache, query, inputs, mixer.options).flatten(1)
        return self._ops.gate(attended, rows) if mixer.is_gated else attended

    def _feed_forward(self, mlp: DenseMlp | Mixture, x: Tensor) -> Tensor:
        """This rank's part."""
        if isinstance(mlp, Mixture):
            shared = None if mlp.shared is None else self._feed_forward(mlp.shared, x)
            return self._ops.mix(x, mlp.experts, self._ops.route(x, mlp.router), shared)
        inner = mlp.ins.multiply(x)
        return mlp.out.multiply(self._ops.activate(inner, mlp.layout, mlp.activation))

    def _sum(self, part: Tensor) -> Tensor:
        """Over the ranks."""
        if self._group is not None:
            dist.all_reduce(part, group=self._group)
        return part

    def _logits(self, rows: Tensor) -> Tensor:
        weights = self._weights
        logits = self._gathered(weights.head.multiply(rows))
        if weights.logit_scale != 1.0:
            logits = logits * weights.logit_scale
        if weights.softcap is not None:
            logits = torch.tanh(logits / weights.softcap) * weights.softcap
        return logits

    def _gathered(self, part: Tensor) -> Tensor:
        """The logits of the whole vocabulary on rank 0; others have no use for them."""
        vocab_size = self._weights.vocab_size
        if self._group is None:
            return part
        if self._partition.rank:
            dist.gather(part, dst=0, group=self._group)
            return part.new_zeros(len(part), vocab_size)
        parts = [torch.empty_like(part) for _ in range(self._partition.num_ranks)]
        dist.gather(part, parts, dst=0, group=self._group)
        return torch.cat(parts, 1)[:, :vocab_size]


def build_dense_cuda(
    recipe: Recipe,
    dtype: torch.dtype,
    device: torch.device,
    partition: Partition,
    group: dist.ProcessGroup | None,
    parameters: Mapping[str, Tensor],
    tables: Sequence[tuple[Tensor, Tensor]],
    *,
    quantize: str | None = None,
    max_loras: int = 0,
    max_lora_rank: int = 16,
    release: Callable[[str], None] = lambda name: None,
) -> DenseCuda:
    """The executor of this rank's part; for the arguments see read_weights and DenseCuda.

    quantize: "fp8", or None
    """
    geometries = [_geometry(attention, partition) for attention in recipe.attentions()]
    backend = select_backend("auto", device, dtype, geometries)
    ops: LayerOps = TorchLayerOps()
    attention: TokenMajorAttention = GatherSdpaAttention()
    new_capture: Callable[[], Capture] | None = None
    if backend.name == "triton":
        from model_server.executor.triton_layers import (  # noqa: PLC0415 - Triton is optional
            TritonLayerOps,
        )

        ops = TritonLayerOps()
        attention = backend  # type: ignore[assignment]
        # Collectives of gloo run on the host.
        if group is None or dist.get_backend(group) == "nccl":
            new_capture = CudaCapture
    int4 = parameters.int4 if isinstance(parameters, Int4Parameters) else {}
    adapters = None
    if max_loras:
        shapes = product_shapes(recipe, parameters, int4)
        adapters = DeviceAdapters(
            recipe, shapes, tables, partition, device, ops, max_loras, max_lora_rank
        )
    weights = read_weights(
        recipe,
        parameters,
        tables,
        dtype=dtype,
        device=device,
        partition=partition,
        make_matrix=matrices_of(ops, quantize),
        int4=int4,
        release=release,
    )
    return DenseCuda(
        weights,
        ops,
        attention,
        partition=partition,
        group=group,
        new_capture=new_capture,
        adapters=adapters,
    )


def _geometry(attention: Attention, partition: Partition) -> LayerGeometry:
    num_kv_heads = len(partition.kv_heads(attention.num_kv_heads))
    return LayerGeometry(num_kv_heads, attention.head_dim, attention.head_dim)
