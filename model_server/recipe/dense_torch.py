"""The oracle: a recipe in plain torch, on whole sequences or on from where one stood. Short rather
than fast: a delta rule is applied token by token.

It runs small models of the reader's and real checkpoints alike: weights may be stored in bfloat16
while it computes in float32, and no more than a piece of one is converted at a time.

Its pieces (norms, linear layers, rotations, MLPs, experts) take and give [num_tokens, width] and
compute in their input's dtype. Cosines and sines come from the rotary modules of the transformers
model: frequencies come in a dozen kinds (linear, yarn, longrope, ...), and the modules that make
them are part of the model anyway. An executor asks them once, for a table of all positions.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional as F

from model_server.recipe.recipe import (
    Attention,
    Conv,
    Delta,
    Groups,
    Head,
    Layer,
    Linear,
    Mamba2,
    Mlp,
    Moe,
    Norm,
    Recipe,
    Rotary,
    ShortConv,
)

# positions [num_tokens] int64 -> cos and sin [num_tokens, n / 2] float32, each angle once
Angles: TypeAlias = Callable[[Tensor], tuple[Tensor, Tensor]]


def angles_of(recipe: Recipe, model: Any) -> tuple[Angles, ...]:
    """One per entry of `recipe.rotary`; `model` is the recipe's, with weights."""
    return tuple(_angles(rotary, model) for rotary in recipe.rotary)


def _angles(rotary: Rotary, model: Any) -> Angles:
    module = model.get_submodule(rotary.module)

    def angles(positions: Tensor) -> tuple[Tensor, Tensor]:
        like = torch.empty(1, dtype=torch.float32, device=positions.device)
        cos, sin = module(like, positions[None], *rotary.arguments)
        return each_once(cos[0], rotary.layout), each_once(sin[0], rotary.layout)

    return angles


def each_once(table: Tensor, layout: str) -> Tensor:
    """[..., n / 2] of a module's table [..., n], or of one that has each angle once already."""
    if layout == "cat":
        return table[..., : table.shape[-1] // 2]
    return table[..., ::2] if layout == "repeat" else table


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "relu": F.relu,
    "relu2": lambda x: F.relu(x).square(),
}


CLAMPED = "clamped_swiglu"  # no product activation(gate) * up


_MAX_ROWS = 16384  # of a weight that is converted at once


def normalise(norm: Norm, x: Tensor, weights: Mapping[str, Tensor]) -> Tensor:
    """The weight is as long as the numbers that are normalised together, or as the whole row."""
    groups = x.unflatten(-1, (-1, norm.width))
    if norm.kind == "layer":
        groups = groups - groups.mean(-1, keepdim=True)
    groups = groups * torch.rsqrt(groups.square().mean(-1, keepdim=True) + norm.eps)
    if norm.weights:
        weight = _concatenated(norm.weights, weights, x.dtype).unflatten(-1, (-1, norm.width))
        groups = groups * (weight + 1 if norm.plus_one else weight)
    if norm.biases:
        groups = groups + _concatenated(norm.biases, weights, x.dtype).unflatten(
            -1, (-1, norm.width)
        )
    return groups.flatten(-2)


def _concatenated(
    names: tuple[str, ...], weights: Mapping[str, Tensor], dtype: torch.dtype
) -> Tensor:
    return torch.cat([weights[name].flatten().to(dtype) for name in names])


def multiply(linear: Linear, x: Tensor, weights: Mapping[str, Tensor]) -> Tensor:
    """[num_tokens, linear.rows.count]"""
    weight = weights[linear.weight]
    weight = weight.T if linear.transposed else weight
    bias = None if linear.bias is None else weights[linear.bias].to(x.dtype)
    if linear.rows.count != weight.shape[0]:
        rows = linear.rows.indices()
        weight = weight[rows]
        bias = None if bias is None else bias[rows]
    product = torch.cat([F.linear(x, part.to(x.dtype)) for part in weight.split(_MAX_ROWS)], -1)
    return product if bias is None else product + bias


def rotate(x: Tensor, cos: Tensor, sin: Tensor, pairing: str) -> Tensor:
    """x [num_tokens, heads, dim], cos and sin [num_tokens, n / 2]; what lies beyond n stays."""
    turned, rest = x.split((2 * cos.shape[-1], x.shape[-1] - 2 * cos.shape[-1]), -1)
    cos = cos.to(x.dtype).unsqueeze(-2)
    sin = sin.to(x.dtype).unsqueeze(-2)
    if pairing == "half":
        first, second = turned.chunk(2, -1)
        turned = torch.cat((first * cos - second * sin, second * cos + first * sin), -1)
    else:
        first = turned[..., ::2]
        second = turned[..., 1::2]
        pairs = (first * cos - second * sin, second * cos + first * sin)
        turned = torch.stack(pairs, -1).flatten(-2)
    return torch.cat((turned, rest), -1)


def activate(layout: str, activation: str, inner: Tensor) -> Tensor:
    """What an MLP's last layer reads; half as wide as `inner` unless the layout is plain."""
    if layout == "plain":
        return ACTIVATIONS[activation](inner)
    is_paired = layout == "gate_up_pairs"
    gate, up = (inner[..., ::2], inner[..., 1::2]) if is_paired else inner.chunk(2, -1)
    if activation == CLAMPED:
        gate = gate.clamp(max=7.0)
        up = up.clamp(-7.0, 7.0)
        return (up + 1) * (gate * torch.sigmoid(gate * 1.702))
    return ACTIVATIONS[activation](gate) * up


def feed_forward(
    mlp: Mlp | Moe, x: Tensor, weights: Mapping[str, Tensor], chosen: Tensor | None = None
) -> Tensor:
    """chosen: see `choose`"""
    if isinstance(mlp, Moe):
        return _mixture(mlp, x, weights, chosen)
    inner = torch.cat([multiply(linear, x, weights) for linear in mlp.ins], -1)
    return multiply(mlp.out, activate(mlp.layout, mlp.activation, inner), weights)


def route(
    moe: Moe, x: Tensor, weights: Mapping[str, Tensor], chosen: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Each token's experts and their weights, [num_tokens, top_k] both."""
    correction = None if moe.correction is None else weights[moe.correction].to(x)
    return choose(moe, multiply(moe.router, x, weights), correction, chosen)


def choose(
    moe: Moe, logits: Tensor, correction: Tensor | None, chosen: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """As `route`, of what the router gives, [num_tokens, num_experts].

    chosen: experts that are taken in place of the best
    """
    scores = logits.sigmoid() if moe.scoring.startswith("sigmoid") else logits.softmax(-1)
    if chosen is None:
        rank = scores if correction is None else scores + correction.flatten()
        if moe.groups is not None:
            rank = _in_best_groups(moe.groups, rank)
        chosen = rank.topk(moe.top_k, -1).indices
    shares = scores.gather(-1, chosen)
    if moe.scoring.endswith("normed"):
        shares = shares / shares.sum(-1, keepdim=True)
    return chosen, shares * moe.scale


def _in_best_groups(groups: Groups, rank: Tensor) -> Tensor:
    """`rank` [num_tokens, num_experts], minus infinity where a group is not chosen."""
    grouped = rank.unflatten(-1, (groups.num_groups, -1))
    best = grouped.topk(groups.num_best, -1).values.sum(-1).topk(groups.top_k, -1).indices
    is_best = torch.zeros(grouped.shape[:-1], dtype=torch.bool, device=rank.device)
    is_best = is_best.scatter(-1, best, True)
    return grouped.masked_fill(~is_best[..., None], -torch.inf).flatten(-2)


def _mixture(moe: Moe, x: Tensor, weights: Mapping[str, Tensor], chosen: Tensor | None) -> Tensor:
    experts, scores = route(moe, x, weights, chosen)
    output = torch.zeros_like(x)
    gate_up = weights[moe.gate_up]  # once: to ask for it may be to compute it
    down = weights[moe.down]
    for expert in experts.unique().tolist():
        rows, slots = torch.where(experts == expert)
        inner = _expert(gate_up, moe.gate_up_bias, moe.transposed, expert, x[rows], weights)
        inner = activate(moe.layout, moe.activation, inner)
        inner = _expert(down, moe.down_bias, moe.transposed, expert, inner, weights)
        output.index_add_(0, rows, inner * scores[rows, slots, None])
    if moe.shared is None:
        return output
    shared = feed_forward(moe.shared, x, weights)
    if moe.shared_gate is not None:
        shared = torch.sigmoid(multiply(moe.shared_gate, x, weights)) * shared
    return output + shared


def _expert(
    of_all: Tensor,
    bias: str | None,
    transposed: bool,
    expert: int,
    x: Tensor,
    weights: Mapping[str, Tensor],
) -> Tensor:
    weight = of_all[expert].to(x.dtype)
    x = x @ weight if transposed else F.linear(x, weight)
    return x if bias is None else x + weights[bias][expert].to(x.dtype)


def convolve(
    conv: Conv, x: Tensor, window: Tensor, weights: Mapping[str, Tensor]
) -> tuple[Tensor, Tensor]:
    """x [num_tokens, channels] of one sequence behind its window: what comes out, the next window.

    window: [num_taps - 1, channels], the rows before x
    """
    weight = weights[conv.weight][:, 0].to(x.dtype)
    behind = torch.cat((window, x))
    num_tokens = x.shape[0]
    output = torch.zeros_like(x)
    for tap in range(conv.num_taps):
        output = output + behind[tap : tap + num_tokens] * weight[:, tap]
    if conv.bias is not None:
        output = output + weights[conv.bias].to(x.dtype)
    return output, behind[num_tokens:]


def log_decay(alpha: Tensor, a_log: Tensor, dt_bias: Tensor) -> Tensor:
    """Of a delta rule: the logarithm of what a head keeps."""
    return -a_log.to(alpha.dtype).exp() * F.softplus(alpha + dt_bias.to(alpha.dtype))


def gated(
    norm: Norm, x: Tensor, gate: Tensor, weights: Mapping[str, Tensor], *, gate_first: bool = False
) -> Tensor:
    """What the last product of a delta rule or of a selective state space reads."""
    if gate_first:
        return normalise(norm, x * F.silu(gate), weights)
    return normalise(norm, x, weights) * F.silu(gate)


def time_steps(dt: Tensor, dt_bias: Tensor, limits: tuple[float, float]) -> Tensor:
    """Of a selective state space: how far a token moves each head."""
    return F.softplus(dt + dt_bias.to(dt.dtype)).clamp(*limits)


def scan(
    v: Tensor, b: Tensor, c: Tensor, dt: Tensor, a_log: Tensor, skip: Tensor, matrices: Tensor
) -> tuple[Tensor, Tensor]:
    """A selective state space on one sequence: answers as v, the next matrices.

    v:           [num_tokens, num_heads, head_dim]; b, c: [num_tokens, num_heads, state_size]
    dt:          [num_tokens, num_heads]; a_log, skip: [num_heads]
    matrices:    [num_heads, head_dim, state_size]
    """
    kept = (-a_log.to(dt.dtype).exp() * dt).exp()
    written = v * dt[:, :, None]
    answers = torch.empty_like(v)
    for token in range(v.shape[0]):
        matrices = matrices * kept[token][:, None, None]
        matrices = matrices + written[token][:, :, None] * b[token][:, None, :]
        answers[token] = torch.einsum("hs,hds->hd", c[token], matrices)
    return answers + v * skip.to(v.dtype)[:, None], matrices


def apply_rule(
    q: Tensor, k: Tensor, v: Tensor, decay: Tensor, beta: Tensor, matrices: Tensor
) -> tuple[Tensor, Tensor]:
    """A delta rule on one sequence: answers [num_tokens, num_heads, value_dim], the next matrices.

    q, k:        [num_tokens, num_heads, key_dim]; v: [num_tokens, num_heads, value_dim]
    decay, beta: [num_tokens, num_heads]; decay is a logarithm
    matrices:    [num_heads, key_dim, value_dim]
    """
    answers = torch.empty_like(v)
    for token in range(v.shape[0]):
        matrices = matrices * decay[token].exp()[:, None, None]
        missing = v[token] - torch.einsum("hk,hkv->hv", k[token], matrices)
        written = missing * beta[token][:, None]
        matrices = matrices + k[token][:, :, None] * written[:, None, :]
        answers[token] = torch.einsum("hk,hkv->hv", q[token], matrices)
    return answers, matrices


def unit(x: Tensor) -> Tensor:
    """Of a delta rule: queries and keys of length one, nearly."""
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-6)


def of_key_heads(x: Tensor, num_heads: int) -> Tensor:
    """[num_tokens, num_heads, dim] of a delta rule's queries or keys, or of a selective state
    space's b or c: neighbours share one.
    """
    return x.repeat_interleave(num_heads // x.shape[1], 1)


def gate_heads(answer: Tensor, gate: Tensor) -> Tensor:
    """What attention gives times its gate, one number for each of its own or for each head."""
    heads = answer.unflatten(-1, (gate.shape[-1], -1))
    return (heads * torch.sigmoid(gate).unsqueeze(-1)).flatten(-2)


class Memory:
    """What the layers of a recipe know of one sequence's tokens; DenseTorch goes on from it.

    position: of the next token
    """

    def __init__(self, position: int = 0) -> None:
        self.position = position
        # Of a layer that attends its keys and values, [num_tokens, num_kv_heads, head_dim]; of one
        # with a delta rule or a scan its window and matrices: see recipe.Delta, recipe.Mamba2.
        # Of a short convolution its window alone.
        self.layers: dict[int, tuple[Tensor, ...]] = {}


class DenseTorch:
    """Computes logits in `dtype`. `weights` are the parameters that the recipe names.

    chosen: of the last call, the experts of the tokens by layer, [num_tokens, top_k]
    """

    def __init__(
        self,
        recipe: Recipe,
        weights: Mapping[str, Tensor],
        rotary: Sequence[Angles],
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self._recipe = recipe
        self._weights = weights
        self._rotary = rotary
        self._dtype = dtype
        self.chosen: dict[int, Tensor] = {}

    @torch.inference_mode()
    def logits(
        self,
        token_ids: Tensor,
        lens: Sequence[int],
        memories: Sequence[Memory] | None = None,
        chosen: Mapping[int, Tensor] | None = None,
    ) -> Tensor:
        """[num_tokens, vocab_size] of ragged sequences.

        token_ids: [num_tokens] int64, one sequence after the other
        lens:      tokens of each; their sum is num_tokens
        memories:  of each, from which it goes on; they are brought up to its last token
        chosen:    experts of the tokens by layer, [num_tokens, top_k], in place of the best
        """
        recipe = self._recipe
        memories = [Memory() for _ in lens] if memories is None else memories
        chosen = {} if chosen is None else chosen
        positions = torch.cat(
            [
                torch.arange(memory.position, memory.position + each, device=token_ids.device)
                for each, memory in zip(lens, memories, strict=True)
            ]
        )
        x = F.embedding(token_ids, self._weights[recipe.embedding]).to(self._dtype)
        x = x * recipe.embed_scale
        angles = [each(positions) for each in self._rotary]
        for index, layer in enumerate(recipe.layers):
            x = self._layer(index, layer, x, angles, lens, memories, chosen.get(index))
        x = self._norm(recipe.final_norm, x)
        logits = multiply(recipe.head, x, self._weights) * recipe.logit_scale
        if recipe.softcap is not None:
            logits = torch.tanh(logits / recipe.softcap) * recipe.softcap
        for each, memory in zip(lens, memories, strict=True):
            memory.position += each
        return logits

    def _layer(
        self,
        index: int,
        layer: Layer,
        x: Tensor,
        angles: Sequence[tuple[Tensor, Tensor]],
        lens: Sequence[int],
        memories: Sequence[Memory],
        chosen: Tensor | None,
    ) -> Tensor:
        source = self._norm(layer.attention_norm, x)
        if isinstance(layer.mixer, Delta):
            a = self._delta(index, layer.mixer, source, lens, memories)
        elif isinstance(layer.mixer, Mamba2):
            a = self._mamba2(index, layer.mixer, source, lens, memories)
        elif isinstance(layer.mixer, ShortConv):
            a = self._short_conv(index, layer.mixer, source, lens, memories)
        else:
            a = self._attention(index, layer.mixer, source, angles, lens, memories)
        y = x + self._norm(layer.attention_post_norm, a) * layer.residual_scale
        if layer.mlp is None:
            return y
        read = self._norm(layer.mlp_norm, x if layer.parallel else y)
        if isinstance(layer.mlp, Moe):
            if chosen is None:
                chosen, _ = route(layer.mlp, read, self._weights)
            self.chosen[index] = chosen
        m = feed_forward(layer.mlp, read, self._weights, chosen)
        return y + self._norm(layer.mlp_post_norm, m) * layer.residual_scale

    def _delta(
        self,
        index: int,
        delta: Delta,
        x: Tensor,
        lens: Sequence[int],
        memories: Sequence[Memory],
    ) -> Tensor:
        wide = torch.promote_types(x.dtype, torch.float32)
        raw = [multiply(each, x, self._weights) for each in (delta.query, delta.key, delta.value)]
        widths = [each.shape[1] for each in raw]
        decay = log_decay(
            multiply(delta.alpha, x, self._weights).to(wide),
            self._weights[delta.a_log],
            self._weights[delta.dt_bias],
        )
        beta = delta.beta_scale * multiply(delta.beta, x, self._weights).to(wide).sigmoid()
        answers = []
        sequences = (part.split(list(lens)) for part in (torch.cat(raw, -1), decay, beta))
        for raw_of, decay_of, beta_of, memory in zip(*sequences, memories, strict=True):
            shape = (delta.num_heads, delta.key_dim, delta.value_dim)
            nothing = self._nothing(delta.conv, raw_of, shape)
            window, matrices = memory.layers.get(index, nothing)
            mixed, window = convolve(delta.conv, raw_of, window, self._weights)
            q, k, v = F.silu(mixed).to(wide).split(widths, -1)
            q = unit(q.unflatten(-1, (-1, delta.key_dim))) * delta.key_dim**-0.5
            k = unit(k.unflatten(-1, (-1, delta.key_dim)))
            answer, matrices = apply_rule(
                of_key_heads(q, delta.num_heads),
                of_key_heads(k, delta.num_heads),
                v.unflatten(-1, (-1, delta.value_dim)),
                decay_of,
                beta_of,
                matrices,
            )
            memory.layers[index] = (window, matrices)
            answers.append(answer.flatten(1))
        answer = torch.cat(answers).to(x.dtype)
        inner = gated(delta.norm, answer, multiply(delta.gate, x, self._weights), self._weights)
        return multiply(delta.output, inner, self._weights)

    def _short_conv(
        self,
        index: int,
        short: ShortConv,
        x: Tensor,
        lens: Sequence[int],
        memories: Sequence[Memory],
    ) -> Tensor:
        raw = multiply(short.gate_in, x, self._weights) * multiply(short.value, x, self._weights)
        answers = []
        for raw_of, memory in zip(raw.split(list(lens)), memories, strict=True):
            no_window = (raw.new_zeros(short.conv.num_taps - 1, raw.shape[1]),)
            (window,) = memory.layers.get(index, no_window)
            answer, window = convolve(short.conv, raw_of, window, self._weights)
            memory.layers[index] = (window,)
            answers.append(answer)
        inner = multiply(short.gate_out, x, self._weights) * torch.cat(answers)
        return multiply(short.output, inner, self._weights)

    def _mamba2(
        self,
        index: int,
        mamba: Mamba2,
        x: Tensor,
        lens: Sequence[int],
        memories: Sequence[Memory],
    ) -> Tensor:
        wide = torch.promote_types(x.dtype, torch.float32)
        raw = [multiply(each, x, self._weights) for each in (mamba.value, mamba.b, mamba.c)]
        widths = [each.shape[1] for each in raw]
        dt = time_steps(
            multiply(mamba.dt, x, self._weights).to(wide),
            self._weights[mamba.dt_bias],
            mamba.dt_limits,
        )
        answers = []
        sequences = (part.split(list(lens)) for part in (torch.cat(raw, -1), dt))
        for raw_of, dt_of, memory in zip(*sequences, memories, strict=True):
            shape = (mamba.num_heads, mamba.head_dim, mamba.state_size)
            nothing = self._nothing(mamba.conv, raw_of, shape)
            window, matrices = memory.layers.get(index, nothing)
            mixed, window = convolve(mamba.conv, raw_of, window, self._weights)
            v, b, c = F.silu(mixed).to(wide).split(widths, -1)
            answer, matrices = scan(
                v.unflatten(-1, (mamba.num_heads, -1)),
                of_key_heads(b.unflatten(-1, (mamba.num_groups, -1)), mamba.num_heads),
                of_key_heads(c.unflatten(-1, (mamba.num_groups, -1)), mamba.num_heads),
                dt_of,
                self._weights[mamba.a_log],
                self._weights[mamba.skip],
                matrices,
            )
            memory.layers[index] = (window, matrices)
            answers.append(answer.flatten(1))
        answer = torch.cat(answers).to(x.dtype)
        gate = multiply(mamba.gate, x, self._weights)
        inner = gated(mamba.norm, answer, gate, self._weights, gate_first=mamba.gate_first)
        return multiply(mamba.output, inner, self._weights)

    def _nothing(
        self, conv: Conv, raw: Tensor, shape: tuple[int, int, int]
    ) -> tuple[Tensor, Tensor]:
        """The window and the matrices of a sequence before its first token."""
        window = raw.new_zeros(conv.num_taps - 1, raw.shape[1])
        return window, raw.new_zeros(shape, dtype=torch.promote_types(raw.dtype, torch.float32))

    def _attention(
        self,
        index: int,
        attention: Attention,
        x: Tensor,
        angles: Sequence[tuple[Tensor, Tensor]],
        lens: Sequence[int],
        memories: Sequence[Memory],
    ) -> Tensor:
        q = self._head(attention.query, attention.head_dim, x, angles)
        k = self._head(attention.key, attention.head_dim, x, angles)
        v = multiply(attention.value, x, self._weights).unflatten(-1, (attention.num_kv_heads, -1))
        answers = []
        sequences = (part.split(list(lens)) for part in (q, k, v))
        for queries, keys, values, memory in zip(*sequences, memories, strict=True):
            if index in memory.layers:
                before, values_before = memory.layers[index]
                keys = torch.cat((before, keys))
                values = torch.cat((values_before, values))
            memory.layers[index] = (keys, values)
            answers.append(self._attend(attention, queries, keys, values))
        answer = torch.cat(answers)
        if attention.gate is not None:
            answer = gate_heads(answer, multiply(attention.gate, x, self._weights))
        return multiply(attention.output, answer, self._weights)

    def _attend(self, attention: Attention, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """One sequence's last tokens [num_tokens, num_heads * dim].

        q: [num_tokens, num_heads, dim]; k, v: of all its tokens, [.., num_kv_heads, dim]
        """
        num_shared = attention.num_heads // attention.num_kv_heads
        q = q.transpose(0, 1)
        k = k.repeat_interleave(num_shared, 1).transpose(0, 1)
        v = v.repeat_interleave(num_shared, 1).transpose(0, 1)
        scores = q @ k.transpose(1, 2) * attention.scale
        if attention.softcap is not None:
            scores = torch.tanh(scores / attention.softcap) * attention.softcap
        hidden = _hidden(attention, q.shape[1], k.shape[1], q.device)
        scores = scores.masked_fill(hidden, -torch.inf)
        if attention.sinks is not None:
            sinks = self._weights[attention.sinks].to(scores)[:, None, None]
            scores = torch.cat((scores, sinks.expand(-1, q.shape[1], 1)), -1)
        shares = scores.softmax(-1)[..., : k.shape[1]]
        return (shares @ v).transpose(0, 1).flatten(1)

    def _head(
        self, head: Head, head_dim: int, x: Tensor, angles: Sequence[tuple[Tensor, Tensor]]
    ) -> Tensor:
        """[num_tokens, heads, head_dim]"""
        x = multiply(head.linear, x, self._weights)
        if not head.norm_after_rope:
            x = self._norm(head.norm, x)
        x = x.unflatten(-1, (-1, head_dim))
        if head.rope is not None:
            x = rotate(x, *angles[head.rope.source], head.rope.pairing)
        if head.norm_after_rope:
            x = self._norm(head.norm, x.flatten(1)).unflatten(-1, (-1, head_dim))
        return x

    def _norm(self, norm: Norm | None, x: Tensor) -> Tensor:
        return x if norm is None else normalise(norm, x, self._weights)


def _hidden(attention: Attention, num_queries: int, num_keys: int, device: torch.device) -> Tensor:
    """[num_queries, num_keys]: where one of the last queries (row) does not see a key (column)."""
    keys = torch.arange(num_keys, device=device)
    queries = keys[num_keys - num_queries :, None]
    hidden = keys > queries
    if attention.window_len is not None:
        hidden |= queries - keys >= attention.window_len
    if attention.chunk_len is not None:
        hidden |= keys < queries // attention.chunk_len * attention.chunk_len
    return hidden
