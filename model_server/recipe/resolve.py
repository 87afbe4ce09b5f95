"""The recipe of the real model, from the one of the narrow model.

Names are those of the real model already. Widths and counts come from its parameters and from a
pass without data, on `meta`, in which every layer says how it attends; scalars from its config.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from model_server.recipe.recipe import (
    Attention,
    Delta,
    Groups,
    Head,
    Layer,
    Linear,
    Mamba2,
    Mixer,
    Mlp,
    Moe,
    Norm,
    Recipe,
    Rows,
    ShortConv,
    Unreadable,
)
from model_server.recipe.recording import (
    NUM_TOKENS,
    Attended,
    Convolved,
    Mixed,
    Ruled,
    Scanned,
    mixers_of,
    real,
)
from model_server.recipe.small import NUM_GROUPS, TOP_GROUPS, TOP_KS


def resolve(recipe: Recipe, small: Any, model: Any) -> Recipe:
    """The recipe of `model`, the real one on `meta`, given the one of its narrow model `small`.

    The meta model cannot be run afterwards. Raises Unreadable.
    """
    try:
        mixed = _mixed(model, recipe)
    except Unreadable:
        raise
    # The classes of other people fail in every way there is.
    except Exception as error:
        raise Unreadable(f"a pass without data failed: {type(error).__name__}: {error}") from error
    return _Resolver(small, model).recipe(recipe, mixed)


@torch.inference_mode()
def _mixed(model: Any, recipe: Recipe) -> Mapping[int, Mixed]:
    for layer in recipe.layers:
        if isinstance(layer.mlp, Moe):
            # Which experts run depends on data, and how layers attend does not depend on experts.
            model.get_submodule(layer.mlp.module).forward = _unchanged
    for rotary in recipe.rotary:
        # So do frequencies that grow with a sequence.
        module = model.get_submodule(rotary.module)
        if "dynamic" in str(getattr(module, "rope_type", "")):
            module.rope_type = "default"
    token_ids = torch.zeros(NUM_TOKENS, dtype=torch.int64, device="meta")
    return mixers_of(model, token_ids)[0]


def _unchanged(hidden_states: Tensor, *_: object, **__: object) -> Tensor:
    return hidden_states


class _Resolver:
    def __init__(self, small: Any, model: Any) -> None:
        self._small = small.config.get_text_config()
        self._config = model.config.get_text_config()
        self._shapes = {
            name: parameter.shape
            for name, parameter in model.named_parameters(remove_duplicate=False)
        }

    def recipe(self, recipe: Recipe, mixed: Mapping[int, Mixed]) -> Recipe:
        if len(mixed) != len(recipe.layers):
            raise Unreadable("a narrow model has other kinds of layers")
        in_order = (mixed[index] for index in sorted(mixed))
        layers = tuple(map(self._layer, recipe.layers, in_order))
        softcap = recipe.softcap
        return replace(
            recipe,
            embed_scale=self._scalar(recipe.embed_scale, "the scale of its embeddings"),
            layers=layers,
            final_norm=self._norm(recipe.final_norm),
            head=self._whole(recipe.head),
            logit_scale=self._scalar(recipe.logit_scale, "the scale of its logits"),
            softcap=None if softcap is None else self._scalar(softcap, "the cap of its logits"),
        )

    def _layer(self, layer: Layer, mixed: Mixed) -> Layer:
        return Layer(
            attention_norm=self._norm(layer.attention_norm),
            mixer=self._mixer(layer.mixer, mixed),
            attention_post_norm=self._norm(layer.attention_post_norm),
            mlp_norm=self._norm(layer.mlp_norm),
            mlp=self._feed_forward(layer.mlp),
            mlp_post_norm=self._norm(layer.mlp_post_norm),
            parallel=layer.parallel,
            residual_scale=self._scalar(layer.residual_scale, "the scale of its residuals"),
        )

    def _mixer(self, mixer: Mixer, mixed: Mixed) -> Mixer:
        if isinstance(mixer, Attention) and isinstance(mixed, Attended):
            return self._attention(mixer, mixed)
        if isinstance(mixer, Delta) and isinstance(mixed, Ruled):
            return self._delta(mixer, mixed)
        if isinstance(mixer, Mamba2) and isinstance(mixed, Scanned):
            return self._mamba2(mixer, mixed)
        if isinstance(mixer, ShortConv) and isinstance(mixed, Convolved):
            return self._short_conv(mixer, mixed)
        raise Unreadable("a narrow model has other kinds of layers")

    def _delta(self, delta: Delta, ruled: Ruled) -> Delta:
        num_keys = ruled.key.shape[1]
        num_values = ruled.value.shape[1]
        blocks = {delta.num_key_heads: ruled.num_key_heads, delta.num_heads: ruled.num_heads}
        query, key, value, gate, beta, alpha = _slices(
            (delta.query, delta.key, delta.value, delta.gate, delta.beta, delta.alpha),
            (num_keys, num_keys, num_values, num_values, ruled.num_heads, ruled.num_heads),
            blocks,
        )
        value_dim = num_values // ruled.num_heads
        return replace(
            delta,
            query=query,
            key=key,
            value=value,
            gate=gate,
            beta=beta,
            alpha=alpha,
            conv=replace(delta.conv, num_taps=ruled.convolved.weight.shape[-1]),
            norm=replace(delta.norm, width=value_dim, eps=self._eps(delta.norm)),
            num_key_heads=ruled.num_key_heads,
            num_heads=ruled.num_heads,
            key_dim=num_keys // ruled.num_key_heads,
            value_dim=value_dim,
            output=self._whole(delta.output),
        )

    def _mamba2(self, mamba: Mamba2, scanned: Scanned) -> Mamba2:
        inner_len = scanned.value.shape[1]
        b_len = scanned.b.shape[1]
        gate, value, b, c, dt = _slices(
            (mamba.gate, mamba.value, mamba.b, mamba.c, mamba.dt),
            (inner_len, inner_len, b_len, b_len, scanned.num_heads),
            {},
        )
        is_of_all = mamba.norm.width == mamba.num_heads * mamba.head_dim
        if is_of_all and mamba.num_groups == 1 < scanned.num_groups:
            raise Unreadable("its groups do not show in a narrow model")
        width = inner_len if is_of_all else inner_len // scanned.num_groups
        return replace(
            mamba,
            gate=gate,
            value=value,
            b=b,
            c=c,
            dt=dt,
            conv=replace(mamba.conv, num_taps=scanned.convolved.weight.shape[-1]),
            dt_limits=scanned.dt_limits,
            norm=replace(mamba.norm, width=width, eps=self._eps(mamba.norm)),
            num_groups=scanned.num_groups,
            num_heads=scanned.num_heads,
            head_dim=inner_len // scanned.num_heads,
            state_size=b_len // scanned.num_groups,
            output=self._whole(mamba.output),
        )

    def _short_conv(self, short: ShortConv, convolved: Convolved) -> ShortConv:
        channels, num_taps = convolved.weight.shape
        linears = (short.gate_in, short.value, short.gate_out)
        gate_in, value, gate_out = _slices(linears, (channels,) * 3, {})
        return ShortConv(
            gate_in=gate_in,
            value=value,
            gate_out=gate_out,
            conv=replace(short.conv, num_taps=num_taps),
            output=self._whole(short.output),
        )

    def _attention(self, attention: Attention, attended: Attended) -> Attention:
        num_queries = attended.num_heads * attended.head_dim
        num_keys = attended.num_kv_heads * attended.head_dim
        linears = [attention.query.linear, attention.key.linear, attention.value]
        counts = [num_queries, num_keys, num_keys]
        if attention.gate is not None:
            linears.append(attention.gate)
            is_of_heads = attention.gate.rows.count == attention.num_heads
            counts.append(attended.num_heads if is_of_heads else num_queries)
        blocks = {
            attention.num_heads: attended.num_heads,
            attention.num_kv_heads: attended.num_kv_heads,
        }
        query, key, value, *gates = _slices(linears, counts, blocks)
        for name in ("window_len", "chunk_len", "softcap", "sinks"):
            if (getattr(attention, name) is None) != (getattr(attended, name) is None):
                raise Unreadable(f"its {name} does not show in a narrow model")
        small_dim = attention.head_dim
        return Attention(
            query=self._head(attention.query, query, small_dim, attended.head_dim),
            key=self._head(attention.key, key, small_dim, attended.head_dim),
            value=value,
            output=self._whole(attention.output),
            num_heads=attended.num_heads,
            num_kv_heads=attended.num_kv_heads,
            head_dim=attended.head_dim,
            scale=attended.scale,
            window_len=attended.window_len,
            chunk_len=attended.chunk_len,
            softcap=attended.softcap,
            sinks=attention.sinks,
            gate=gates[0] if gates else None,
        )

    def _head(self, head: Head, linear: Linear, small_dim: int, head_dim: int) -> Head:
        norm = head.norm
        if norm is not None:
            width = head_dim if norm.width == small_dim else linear.rows.count
            weights = self._each(norm.weights)
            biases = self._each(norm.biases)
            eps = self._eps(norm)
            norm = replace(norm, width=width, eps=eps, weights=weights, biases=biases)
        return replace(head, linear=linear, norm=norm)

    def _each(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """Names of parameters that each head has one of, for as many heads as there are."""
        if len(names) < 2:
            return names
        before, _, after = names[0].rpartition(".0.")
        return tuple(n for n in self._shapes if n.startswith(before + ".") and n.endswith(after))

    def _norm(self, norm: Norm | None) -> Norm | None:
        """Of whole rows of the residual stream."""
        if norm is None:
            return None
        return replace(norm, width=self._config.hidden_size, eps=self._eps(norm))

    def _eps(self, norm: Norm) -> float:
        return self._scalar(norm.eps, "the epsilon of a norm")

    def _feed_forward(self, mlp: Mlp | Moe | None) -> Mlp | Moe | None:
        if mlp is None:
            return None
        return self._moe(mlp) if isinstance(mlp, Moe) else self._mlp(mlp)

    def _mlp(self, mlp: Mlp) -> Mlp:
        return replace(mlp, ins=tuple(map(self._whole, mlp.ins)), out=self._whole(mlp.out))

    def _moe(self, moe: Moe) -> Moe:
        return replace(
            moe,
            router=self._whole(moe.router),
            num_experts=self._shapes[moe.gate_up][0],
            top_k=self._count(TOP_KS, moe.top_k, "how many experts a token has"),
            shared=None if moe.shared is None else self._mlp(moe.shared),
            shared_gate=None if moe.shared_gate is None else self._whole(moe.shared_gate),
            groups=None if moe.groups is None else self._groups(moe.groups),
            scale=self._scalar(moe.scale, "the scale of its experts"),
        )

    def _groups(self, groups: Groups) -> Groups:
        return Groups(
            self._count((NUM_GROUPS,), groups.num_groups, "how many groups of experts there are"),
            self._count((TOP_GROUPS,), groups.top_k, "how many groups a token chooses among"),
            groups.num_best,
        )

    def _count(self, names: tuple[str, ...], small: int, what: str) -> int:
        """The number of these names that is `small` in the narrow model."""
        counts = {
            getattr(self._config, name)
            for name in names
            if getattr(self._small, name, None) == small
        }
        if len(counts) != 1:
            raise Unreadable(f"{what} is not clear")
        return int(counts.pop())

    def _whole(self, linear: Linear) -> Linear:
        num_rows = self._shapes[linear.weight][1 if linear.transposed else 0]
        return replace(linear, rows=Rows(0, 1, num_rows, num_rows))

    def _scalar(self, value: float, what: str) -> float:
        return real(value, self._small, self._config, what)


def _slices(
    linears: Sequence[Linear], counts: Sequence[int], block_counts: Mapping[int, int]
) -> list[Linear]:
    """Linear layers with the rows that they have in the real model, `counts` of them.

    Those of one weight lie side by side, as in the narrow model: once, or in every head, or in
    every group of heads that share a key.

    block_counts: how many heads and groups the narrow model has -> how many the real one has
    """
    found: list[Linear] = []
    for linear, count in zip(linears, counts, strict=True):
        beside = [
            (other.rows, each)
            for other, each in zip(linears, counts, strict=True)
            if other.weight == linear.weight
        ]
        if any(rows.blocks not in (1, *block_counts) for rows, _ in beside):
            raise Unreadable("how its queries, keys and values share a weight is not known")
        blocks = block_counts[linear.rows.blocks] if linear.rows.blocks > 1 else 1
        start = sum(each for rows, each in beside if rows.start < linear.rows.start) // blocks
        used = count // blocks
        stride = sum(each for _, each in beside) // blocks if blocks > 1 else used
        found.append(replace(linear, rows=Rows(start, blocks, stride, used)))
    return found
