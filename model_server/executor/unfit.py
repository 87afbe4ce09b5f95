"""What recipes the dense executors do not serve, and why not."""

from collections.abc import Iterator

import torch

from model_server.executor.device_weights import undivided_reason
from model_server.executor.weights import ELEMENT_NAMES
from model_server.recipe.recipe import Attention, Head, Layer, Mlp, Norm, Recipe

_VECTOR_LEN = 16


def unfit_reason(recipe: Recipe, dtype: torch.dtype, quantize: str | None = None) -> str | None:
    """Why DenseCpu cannot compute this recipe in `dtype`, or None when it can."""
    return next(_reasons(recipe, dtype, quantize), None)


def _reasons(recipe: Recipe, dtype: torch.dtype, quantize: str | None) -> Iterator[str]:
    if dtype not in ELEMENT_NAMES:
        yield f"it computes in float32 and bfloat16, not in {dtype}"
    if quantize not in (None, "int8"):
        yield f"it quantizes weights to int8, not to {quantize}"
    for index, layer in enumerate(recipe.layers):
        for reason in (*_attention_reasons(layer.attention), *_norm_reasons(layer)):
            yield f"layer {index}: {reason}"


def unfit_reason_on_cuda(
    recipe: Recipe, inner_lens: tuple[int, ...], num_ranks: int, quantize: str | None = None
) -> str | None:
    """Why DenseCuda cannot compute this recipe on so many ranks, or None when it can.

    inner_lens: of each layer's MLP, what its last product reads
    """
    reason = next(_cuda_reasons(recipe, quantize), None)
    if reason is None and quantize is not None:
        reason = next(_float8_reasons(recipe, inner_lens, num_ranks), None)
    return reason or undivided_reason(recipe, inner_lens, num_ranks)


def _cuda_reasons(recipe: Recipe, quantize: str | None) -> Iterator[str]:
    if quantize not in (None, "fp8"):
        yield f"weights are quantized to fp8 on CUDA, not to {quantize}"
    for index, layer in enumerate(recipe.layers):
        if not isinstance(layer.mlp, Mlp):
            yield f"layer {index}: its MLP has experts, which are computed on a CPU alone"
        for reason in (*_attention_reasons(layer.attention), *_norm_reasons(layer)):
            yield f"layer {index}: {reason}"


def _float8_reasons(recipe: Recipe, inner_lens: tuple[int, ...], num_ranks: int) -> Iterator[str]:
    for index, (layer, inner_len) in enumerate(zip(recipe.layers, inner_lens, strict=True)):
        for width in (layer.attention.output.rows.count, inner_len // num_ranks):
            if width % _VECTOR_LEN:
                yield f"layer {index}: a product of {width} numbers is none in fp8"


def _attention_reasons(attention: Attention) -> Iterator[str]:
    head_dim, query, key = attention.head_dim, attention.query, attention.key
    if head_dim % _VECTOR_LEN:
        yield f"head_dim {head_dim} is not a multiple of {_VECTOR_LEN}"
    if attention.num_heads % attention.num_kv_heads:
        yield f"{attention.num_kv_heads} key heads do not divide {attention.num_heads} heads"
    if attention.value.rows.count != attention.num_kv_heads * head_dim:
        yield "values are not as wide as keys"
    if query.rope != key.rope:
        yield "queries and keys are rotated in different ways"
    if query.norm and key.norm and query.norm_after_rope != key.norm_after_rope:
        yield "queries are normalised before they are rotated, keys after, or the other way round"
    yield from _head_norm_reasons(query, head_dim)
    yield from _head_norm_reasons(key, head_dim)


def _head_norm_reasons(head: Head, head_dim: int) -> Iterator[str]:
    if head.norm is None or head.norm.width == head_dim:
        return
    if head.norm.width != head.linear.rows.count:
        yield f"a norm of {head.norm.width} numbers is neither of a head nor of all heads"
    elif head.norm_after_rope:
        yield "all heads together are normalised after they are rotated"


def _norm_reasons(layer: Layer) -> Iterator[str]:
    hidden_size = layer.attention.output.rows.count
    norms: tuple[Norm | None, ...] = (
        *(layer.attention_norm, layer.attention_post_norm),
        *(layer.mlp_norm, layer.mlp_post_norm),
    )
    for norm in norms:
        if norm is not None and norm.width != hidden_size:
            yield f"a norm of {norm.width} numbers is not of a row of {hidden_size}"
