"""The operations of a layer by Triton kernels: see LayerOps. It imports the kernels' package."""

from dataclasses import replace

from torch import Tensor

from model_server.executor.int4_weight import Int4Weight
from model_server.executor.layer_ops import HeadLayout, NormWeights, normalised
from model_server.kernels.activations import activated
from model_server.kernels.int4_matmul import multiply
from model_server.kernels.launch import Launch, launch
from model_server.kernels.norms import add_and_norm
from model_server.kernels.quantize import quantize_rows
from model_server.kernels.rotary import rotate_heads
from model_server.recipe.recipe import Activation


class TritonLayerOps:
    """See LayerOps. `launch` runs the kernels."""

    def __init__(self, launch: Launch = launch) -> None:
        self._launch = launch

    def add_norm(
        self,
        residual: Tensor,
        x: Tensor | None,
        norm: NormWeights | None,
        *,
        post_norm: NormWeights | None = None,
        scale: float = 1.0,
    ) -> Tensor:
        """See LayerOps.add_norm."""
        if x is None and norm is None:
            return residual
        output = residual if norm is None else residual.new_empty(residual.shape)
        add_and_norm(
            residual, x, norm, output, post_norm=post_norm, scale=scale, launch=self._launch
        )
        return output

    def rotate_and_write(
        self,
        qkv: Tensor,
        heads: HeadLayout,
        positions: Tensor,
        slots: Tensor,
        keys: Tensor,
        values: Tensor,
    ) -> Tensor:
        """See LayerOps.rotate_and_write. Norms over all heads are torch's, before the kernel."""
        query_len, key_len = heads.num_heads * heads.head_dim, heads.num_kv_heads * heads.head_dim
        queries, new_keys, _ = qkv.split((query_len, key_len, key_len), 1)
        query_norm = self._left(heads.query_norm, queries, heads)
        key_norm = self._left(heads.key_norm, new_keys, heads)
        heads = replace(heads, query_norm=query_norm, key_norm=key_norm)
        return rotate_heads(qkv, heads, positions, slots, keys, values, self._launch)

    def activate(self, inner: Tensor, layout: str, activation: Activation) -> Tensor:
        """See LayerOps.activate."""
        return activated(inner, layout, activation, self._launch)

    def quantize(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """See LayerOps.quantize."""
        return quantize_rows(x, self._launch)

    def multiply_int4(self, x: Tensor, weight: Int4Weight, bias: Tensor | None) -> Tensor:
        """See LayerOps.multiply_int4."""
        return multiply(x, weight, bias, self._launch)

    def _left(
        self, norm: NormWeights | None, part: Tensor, heads: HeadLayout
    ) -> NormWeights | None:
        """What is left to the kernel of a norm: one over all heads is applied here, in place.

        Raises ValueError where that would have to come after the rope.
        """
        if norm is None or norm.width == heads.head_dim:
            return norm
        if heads.norms_after_rope:
            raise ValueError(f"a norm of {norm.width} numbers, over all heads, after the rope")
        part.copy_(normalised(part, norm))
        return None
