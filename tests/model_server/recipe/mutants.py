"""Wrong recipes, each changed in one place; of a layer, the first that can be so changed.

Left out is what computes the same: norms exchanged that are one, and the epsilon of a norm that is
a constant of its class, too small to be felt. That one is read from the norm alone.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from model_server.recipe.recipe import (
    Attention,
    Head,
    Layer,
    Linear,
    Mlp,
    Moe,
    Norm,
    Recipe,
    Rows,
)

Mutants = Iterator[tuple[str, Any]]

_OTHER_ACTIVATION = {
    "silu": "gelu",
    "gelu": "gelu_tanh",
    "gelu_tanh": "gelu",
    "relu2": "relu",
    "clamped_swiglu": "silu",
}
_OTHER_LAYOUT = {"gate_up": "gate_up_pairs", "gate_up_pairs": "gate_up"}
_PLACES = ("attention_norm", "attention_post_norm", "mlp_norm", "mlp_post_norm")


def mutants(recipe: Recipe) -> Mutants:
    seen: set[str] = set()
    for index, layer in enumerate(recipe.layers):
        for name, changed in _layers(layer, recipe):
            if name not in seen:
                seen.add(name)
                layers = (*recipe.layers[:index], changed, *recipe.layers[index + 1 :])
                yield name, replace(recipe, layers=layers)
    for name, norm in _norms(recipe.final_norm):
        yield f"final norm {name}", replace(recipe, final_norm=norm)
    first, second, *rest = recipe.layers
    yield "two layers exchanged", replace(recipe, layers=(second, first, *rest))
    yield "a layer dropped", replace(recipe, layers=recipe.layers[1:])
    yield "embed scale +0.1%", replace(recipe, embed_scale=recipe.embed_scale * 1.001)
    yield "logit scale +0.1%", replace(recipe, logit_scale=recipe.logit_scale * 1.001)
    if recipe.embed_scale != 1:
        yield "embed scale dropped", replace(recipe, embed_scale=1.0)
    if recipe.softcap is not None:
        yield "final softcap dropped", replace(recipe, softcap=None)
        yield "final softcap +10%", replace(recipe, softcap=recipe.softcap * 1.1)
    if recipe.head.weight != recipe.embedding:
        tied = replace(recipe.head, weight=recipe.embedding, bias=None)
        yield "head tied", replace(recipe, head=tied)
    if recipe.head.bias is not None:
        yield "head bias dropped", replace(recipe, head=replace(recipe.head, bias=None))


def _layers(layer: Layer, recipe: Recipe) -> Mutants:
    for name, attention in _attentions(layer.attention, recipe):
        yield name, replace(layer, attention=attention)
    for name, mlp in _mlps(layer.mlp):
        yield f"mlp {name}", replace(layer, mlp=mlp)
    for place in _PLACES:
        for name, norm in _norms(getattr(layer, place)):
            yield f"{place} {name}", replace(layer, **{place: norm})
    for first, second in (_PLACES[:2], _PLACES[2:], _PLACES[::2], _PLACES[1:3]):
        if getattr(layer, first) != getattr(layer, second):
            swapped = {first: getattr(layer, second), second: getattr(layer, first)}
            yield f"{first} and {second} exchanged", replace(layer, **swapped)
    yield "parallel flipped", replace(layer, parallel=not layer.parallel)
    yield "residual scale +0.1%", replace(layer, residual_scale=layer.residual_scale * 1.001)


def _attentions(attention: Attention, recipe: Recipe) -> Mutants:
    for side in ("query", "key"):
        for name, head in _heads(getattr(attention, side), recipe):
            yield f"{side} {name}", replace(attention, **{side: head})
    for name, head in _heads(attention.query, recipe):
        if name.startswith("rope"):
            key = replace(attention.key, rope=head.rope)
            yield f"query and key {name}", replace(attention, query=head, key=key)
    for side in ("value", "output"):
        for name, linear in _linears(getattr(attention, side)):
            yield f"{side} {name}", replace(attention, **{side: linear})
    if attention.key.linear.rows.count == attention.value.rows.count:
        yield "key as value", replace(attention, value=attention.key.linear)
    yield from _reaches(attention)


def _reaches(attention: Attention) -> Mutants:
    yield "scale +1%", replace(attention, scale=attention.scale * 1.01)
    if attention.window_len is None:
        yield "window added", replace(attention, window_len=16)
    else:
        for window_len in (attention.window_len - 1, attention.window_len + 1, None):
            yield f"window {window_len}", replace(attention, window_len=window_len)
    yield "chunk added", replace(attention, chunk_len=16)
    if attention.softcap is not None:
        yield "softcap dropped", replace(attention, softcap=None)
        yield "softcap +10%", replace(attention, softcap=attention.softcap * 1.1)
    if attention.sinks is not None:
        yield "sinks dropped", replace(attention, sinks=None)


def _heads(head: Head, recipe: Recipe) -> Mutants:
    for name, linear in _linears(head.linear):
        yield name, replace(head, linear=linear)
    for name, norm in _norms(head.norm):
        yield f"norm {name}", replace(head, norm=norm)
    if head.rope is None:
        return
    other: Any = "interleaved" if head.rope.pairing == "half" else "half"
    yield "rope pairing", replace(head, rope=replace(head.rope, pairing=other))
    yield "rope dropped", replace(head, rope=None)
    if len(recipe.rotary) > 1:
        yield "rope source", replace(head, rope=replace(head.rope, source=1 - head.rope.source))
    if head.norm is not None:
        yield "norm beyond rope", replace(head, norm_after_rope=not head.norm_after_rope)


def _linears(linear: Linear) -> Mutants:
    if linear.bias is not None:
        yield "bias dropped", replace(linear, bias=None)
    rows = linear.rows
    if rows.blocks > 1 or rows.start:
        yield "rows from 0", replace(linear, rows=Rows(0, 1, rows.count, rows.count))


def _norms(norm: Norm | None) -> Mutants:
    if norm is None:
        return
    yield "dropped", None
    yield "kind flipped", replace(norm, kind="layer" if norm.kind == "rms" else "rms")
    if norm.eps > 1e-3:  # what is a constant of a class is too small to be felt
        yield "eps x10", replace(norm, eps=norm.eps * 10)
    if norm.weights:
        yield "plus one flipped", replace(norm, plus_one=not norm.plus_one)
        yield "weight dropped", replace(norm, weights=(), biases=(), plus_one=False)
    if norm.biases:
        yield "bias dropped", replace(norm, biases=())
    if len(norm.weights) == 1:
        yield "width halved", replace(norm, width=norm.width // 2)


def _mlps(mlp: Mlp | Moe) -> Mutants:
    yield "activation", replace(mlp, activation=_OTHER_ACTIVATION[mlp.activation])  # type: ignore[arg-type]
    if mlp.layout in _OTHER_LAYOUT:
        yield "layout", replace(mlp, layout=_OTHER_LAYOUT[mlp.layout])  # type: ignore[arg-type]
    if isinstance(mlp, Moe):
        yield from _mixtures(mlp)
        return
    if len(mlp.ins) == 2:
        yield "gate and up exchanged", replace(mlp, ins=mlp.ins[::-1])
    for index, linear in enumerate(mlp.ins):
        for name, changed in _linears(linear):
            ins = (*mlp.ins[:index], changed, *mlp.ins[index + 1 :])
            yield f"in {index} {name}", replace(mlp, ins=ins)
    for name, changed in _linears(mlp.out):
        yield f"out {name}", replace(mlp, out=changed)


def _mixtures(moe: Moe) -> Mutants:
    scoring: Any = "softmax" if moe.scoring == "softmax_normed" else "softmax_normed"
    yield "scoring", replace(moe, scoring=scoring)
    for top_k in (moe.top_k - 1, moe.top_k + 1):
        yield f"top {top_k}", replace(moe, top_k=top_k)
    for name in ("gate_up_bias", "down_bias", "shared", "shared_gate"):
        if getattr(moe, name) is not None:
            without: Any = {name: None}
            yield f"{name} dropped", replace(moe, **without)
    for name, router in _linears(moe.router):
        yield f"router {name}", replace(moe, router=router)
    if moe.shared is not None:
        for name, shared in _mlps(moe.shared):
            yield f"shared {name}", replace(moe, shared=shared)
