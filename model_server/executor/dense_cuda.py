"""The executor of dense recipes on CUDA: ten launches a layer, and decode steps as CUDA graphs.

    a layer:  product, rotate and write, attention (two), product      all-reduce
              add and norm, product, activation, product, add and norm  all-reduce

Each rank computes its part of a layer; after the two products that give a layer's sums they are
added up over the ranks, and rank 0 alone gets the logits.
"""

from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional as F

from model_server.attention.base import LayerCache, TokenMajorAttention
from model_server.executor.decode_graphs import Capture, DecodeGraphs
from model_server.executor.device_weights import DenseLayer, DenseWeights
from model_server.executor.layer_ops import LayerOps
from model_server.executor.matrix import PlainMatrix
from model_server.executor.partition import Partition
from model_server.step import StepInputs


class DenseCuda:
    """See Executor. It runs on any device with operations that do.

    group:       of the ranks, on the device; None: there is one rank
    new_capture: of decode steps, for a pool that was made anew; None: each step is launched anew
    """

    # Products of cuBLAS may add up in another order in another batch.
    is_invariant = False
    min_step_tokens = 1
    threads = None

    def __init__(
        self,
        weights: DenseWeights,
        ops: LayerOps,
        attention: TokenMajorAttention,
        *,
        partition: Partition | None = None,
        group: dist.ProcessGroup | None = None,
        new_capture: Callable[[], Capture] | None = None,
    ) -> None:
        self._weights = weights
        self._ops = ops
        self._attention = attention
        self._partition = partition or Partition()
        self._group = group
        self._new_capture = new_capture
        self._graphs: DecodeGraphs | None = None
        self._caches: Sequence[LayerCache] = ()
        self._dtype = weights.embedding.dtype
        self._device = weights.embedding.device
        self.block_size = attention.block_size
        is_plain = isinstance(weights.layers[0].qkv, PlainMatrix)
        format_name = str(self._dtype).removeprefix("torch.") if is_plain else "fp8"
        self.name = f"dense, {format_name}, {attention.name} attention"

    @property
    def bytes_per_block(self) -> int:
        """See Executor."""
        return sum(
            self._attention.bytes_per_block(layer.geometry, self._dtype)
            for layer in self._weights.layers
        )

    def allocate(self, num_blocks: int) -> None:
        """See Executor."""
        self.close()
        self._caches = [
            self._attention.allocate(num_blocks, layer.geometry, self._dtype, self._device)
            for layer in self._weights.layers
        ]

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
            )

    def close(self) -> None:
        """Free the pool. `allocate` begins anew."""
        self._graphs, self._caches = None, ()

    def forward(self, inputs: StepInputs) -> Tensor:
        """See Executor. The logits are of the model's dtype; on ranks but the first, zeros."""
        if self._graphs is not None and self._graphs.has(inputs):
            return self._graphs.forward(inputs)
        return self.forward_eager(inputs)

    @torch.inference_mode()
    def forward_eager(self, inputs: StepInputs) -> Tensor:
        """As `forward`, without graphs."""
        weights, ops = self._weights, self._ops
        residual = F.embedding(inputs.token_ids, weights.embedding)
        if weights.embed_scale != 1.0:
            residual = residual * weights.embed_scale
        norms = [layer.attention_norm for layer in weights.layers[1:]]
        normed = ops.add_norm(residual, None, weights.layers[0].attention_norm)
        for layer, cache, next_norm in zip(
            weights.layers, self._caches, (*norms, weights.final_norm), strict=True
        ):
            attended = self._attend(layer, cache, normed, inputs)
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
                self._feed_forward(layer, read),
                next_norm,
                post_norm=layer.mlp_post_norm,
                scale=layer.residual_scale,
            )
        return self._logits(normed.index_select(0, inputs.logits_indices))

    def _add(self, layer: DenseLayer, residual: Tensor, attended: Tensor) -> None:
        self._ops.add_norm(
            residual,
            attended,
            None,
            post_norm=layer.attention_post_norm,
            scale=layer.residual_scale,
        )

    def _attend(
        self, layer: DenseLayer, cache: LayerCache, normed: Tensor, inputs: StepInputs
    ) -> Tensor:
        query = self._ops.rotate_and_write(
            layer.qkv.multiply(normed),
            layer.heads,
            inputs.positions,
            inputs.slot_mapping,
            cache.keys,
            cache.values,
        )
        attended = self._attention.read(cache, query, inputs, layer.attention)
        return self._sum(layer.output.multiply(attended.flatten(1)))

    def _feed_forward(self, layer: DenseLayer, x: Tensor) -> Tensor:
        inner = layer.ins.multiply(x)
        activated = self._ops.activate(inner, layer.layout, layer.activation)
        return self._sum(layer.out.multiply(activated))

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
