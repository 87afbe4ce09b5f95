"""A dense decoder's weights on a device: this rank's part, merged where one product serves several.

What a recipe leaves open is settled here, by the order of rows: interleaved ropes become halves of
a head, paired gates a gate and an up, merged and transposed layers rows like all others.

Of several tensor-parallel ranks (Shoeybi et al., 2019) each holds a part:

    heads:  | rank 0 | rank 1 | ...     queries by heads; a key head that fewer than all ranks could
    inner:  | rank 0 | rank 1 | ...     have alone is held by several, each with other query heads
    states: | rank 0 | rank 1 | ...     by key heads of a delta rule, channels of a convolution
    vocab:  | rank 0 | rank 1 | ...     the last part may be shorter

What a layer's two output products give is added up over the ranks.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional as F

from model_server.attention.base import LayerGeometry, LayerOptions
from model_server.executor.int4 import Int4Weight, stacked
from model_server.executor.layer_ops import (
    Convolution,
    DeltaRule,
    Experts,
    HeadLayout,
    LayerOps,
    NormWeights,
    Router,
    quantized,
)
from model_server.recipe.recipe import (
    Activation,
    Attention,
    Conv,
    Delta,
    Head,
    Layer,
    Linear,
    Mamba2,
    Mixer,
    Mlp,
    Moe,
    Norm,
    Recipe,
    ShortConv,
)


@dataclass(frozen=True, slots=True)
class Partition:
    """The part of `rank` among `num_ranks`. Raises ValueError for a rank that is not one."""

    rank: int = 0
    num_ranks: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.num_ranks:
            raise ValueError(f"rank {self.rank} is not in 0..{self.num_ranks - 1}")

    def part(self, count: int) -> range:
        """This rank's of `count` things, as many as every other's."""
        each = count // self.num_ranks
        return range(self.rank * each, (self.rank + 1) * each)

    def kv_heads(self, num_kv_heads: int) -> range:
        """This rank's key heads: one that others hold as well, where there are too few."""
        if num_kv_heads >= self.num_ranks:
            return self.part(num_kv_heads)
        head = self.rank * num_kv_heads // self.num_ranks
        return range(head, head + 1)

    def longest(self, count: int) -> range:
        """This rank's of `count` things; all but the last ranks have as many as each other."""
        each = -(-count // self.num_ranks)
        return range(min(count, self.rank * each), min(count, (self.rank + 1) * each))


def rows_of_heads(
    head: Head, heads: Sequence[int], head_dim: int, angles_len: int
) -> npt.NDArray[np.int64]:
    """The outputs of `head.linear` that these heads are made of, [len(heads) * head_dim].

    What turns together lies in the halves of the rotated part, whatever the recipe's pairing is.

    angles_len: how many angles its rope has
    """
    order = np.arange(head_dim)
    if head.rope is not None and head.rope.pairing == "interleaved":
        pairs = order[: 2 * angles_len].reshape(-1, 2)
        order = np.concatenate((pairs[:, 0], pairs[:, 1], order[2 * angles_len :]))
    return (np.array(heads)[:, None] * head_dim + order).ravel()


# Rows to their numbers in 8 bits, and their scales: see LayerOps.quantize.
Quantize: TypeAlias = Callable[[Tensor], tuple[Tensor, Tensor]]


class Matrix(Protocol):
    """A weight of [num_outputs, num_inputs], in whatever format."""

    def multiply(self, x: Tensor) -> Tensor:
        """[num_rows, num_inputs] to [num_rows, num_outputs], in the dtype of `x`, bias included."""


@dataclass(frozen=True, slots=True, eq=False)
class PlainMatrix:
    """A weight in the model's dtype."""

    weight: Tensor  # [num_outputs, num_inputs]
    bias: Tensor | None = None

    def multiply(self, x: Tensor) -> Tensor:
        """See Matrix."""
        return F.linear(x, self.weight, self.bias)


@dataclass(frozen=True, slots=True, eq=False)
class Float8Matrix:
    """A weight in 8-bit floating point with a scale for each output; inputs are rounded likewise.

    weight: [num_outputs, num_inputs] float8_e4m3fn; scales: [1, num_outputs] float32
    """

    weight: Tensor
    scales: Tensor
    bias: Tensor | None
    _quantize: Quantize

    @classmethod
    def of(cls, quantize: Quantize, weight: Tensor, bias: Tensor | None = None) -> "Float8Matrix":
        """Round a weight of the model's dtype."""
        rounded, scales = quantized(weight)
        return cls(rounded, scales.T.contiguous(), bias, quantize)

    def multiply(self, x: Tensor) -> Tensor:
        """See Matrix."""
        rounded, scales = self._quantize(x)
        product = torch._scaled_mm(rounded, self.weight.T, scales, self.scales, out_dtype=x.dtype)
        return product if self.bias is None else product + self.bias


@dataclass(frozen=True, slots=True, eq=False)
class Int4Matrix:
    """A weight in 4 bits."""

    weight: Int4Weight
    bias: Tensor | None
    _multiply: Callable[[Tensor, Int4Weight, Tensor | None], Tensor]

    def multiply(self, x: Tensor) -> Tensor:
        """See Matrix."""
        return self._multiply(x, self.weight, self.bias)


# A weight of [num_outputs, num_inputs], in the model's dtype or in 4 bits, and the biases of its
# outputs in the model's dtype, to what multiplies by them.
MakeMatrix: TypeAlias = Callable[[Tensor | Int4Weight, Tensor | None], Matrix]


def matrices_of(ops: LayerOps, quantize: str | None = None) -> MakeMatrix:
    """How a device's matrices are made; `quantize` "fp8": those of the model's dtype are rounded.

    A weight in 4 bits stays as it is.
    """

    def make(weight: Tensor | Int4Weight, bias: Tensor | None) -> Matrix:
        if isinstance(weight, Int4Weight):
            return Int4Matrix(weight, bias, ops.multiply_int4)
        if quantize == "fp8":
            return Float8Matrix.of(ops.quantize, weight, bias)
        return PlainMatrix(weight, bias)

    return make


Angles = tuple[Tensor, Tensor]


# Some outputs of a layer, and their biases.
Rows: TypeAlias = tuple[Tensor | Int4Weight, Tensor | None]


# Of what is multiplied in 4 bits; see LayerOps.multiply_int4.
_LEAST_GROUP_LEN = 16


@dataclass(frozen=True, slots=True, eq=False)
class DenseMlp:
    """An MLP of recipe.Mlp, for this rank."""

    ins: Matrix
    layout: str  # "plain" or "gate_up"
    activation: Activation
    out: Matrix


@dataclass(frozen=True, slots=True, eq=False)
class Mixture:
    """An MLP of recipe.Moe: every rank chooses the same experts, and has a part of each."""

    router: Router
    experts: Experts
    shared: DenseMlp | None


@dataclass(frozen=True, slots=True, eq=False)
class DenseAttention:
    """A mixer of recipe.Attention, for this rank. `ins` has its gates behind its values, if any."""

    ins: Matrix
    heads: HeadLayout
    options: LayerOptions
    is_gated: bool
    output: Matrix

    @property
    def geometry(self) -> LayerGeometry:
        """Of its keys and values on this rank."""
        heads = self.heads
        return LayerGeometry(heads.num_kv_heads, heads.head_dim, heads.head_dim)


@dataclass(frozen=True, slots=True, eq=False)
class DenseDelta:
    """A mixer of recipe.Delta, for this rank."""

    ins: Matrix
    rule: DeltaRule
    output: Matrix

    @property
    def state_shapes(self) -> tuple[tuple[int, ...], ...]:
        """Of what a slot holds."""
        return self.rule.state_shapes


@dataclass(frozen=True, slots=True, eq=False)
class DenseShortConv:
    """A mixer of recipe.ShortConv, for this rank."""

    ins: Matrix
    conv: Convolution
    output: Matrix

    @property
    def state_shapes(self) -> tuple[tuple[int, ...], ...]:
        """Of what a slot holds."""
        return (self.conv.window_shape,)


DenseMixer: TypeAlias = DenseAttention | DenseDelta | DenseShortConv


@dataclass(frozen=True, slots=True, eq=False)
class DenseLayer:
    """One layer of recipe.Recipe, for this rank."""

    attention_norm: NormWeights | None
    mixer: DenseMixer
    attention_post_norm: NormWeights | None
    mlp_norm: NormWeights | None  # the same object as attention_norm where the two are one
    mlp: DenseMlp | Mixture
    mlp_post_norm: NormWeights | None
    is_parallel: bool
    residual_scale: float


@dataclass(frozen=True, slots=True, eq=False)
class DenseWeights:
    """All of a decoder. `head` gives this rank's part of the vocabulary, padded to the longest.

    tables: cos and sin of each entry of recipe.Recipe.rotary, which the heads of layers have, too
    """

    embedding: Tensor  # [vocab_size, hidden_size]
    embed_scale: float
    layers: tuple[DenseLayer, ...]
    final_norm: NormWeights | None
    head: Matrix
    vocab_size: int
    logit_scale: float
    softcap: float | None
    tables: tuple[tuple[Tensor, Tensor], ...]


def read_weights(
    recipe: Recipe,
    parameters: Mapping[str, Tensor],
    tables: Sequence[Angles],
    *,
    dtype: torch.dtype,
    device: torch.device,
    partition: Partition,
    make_matrix: MakeMatrix,
    int4: Mapping[str, Int4Weight] | None = None,
    release: Callable[[str], None] = lambda name: None,
) -> DenseWeights:
    """The weights of a recipe that fits; see `unfit_reason_on_cuda`.

    parameters: by the names in the recipe, on any device and of any float dtype
    tables:     cos and sin [num_positions, n / 2] float32 of each entry of `recipe.rotary`
    make_matrix: of the layers; the head stays in the model's dtype
    int4:       of `parameters`, those that are in 4 bits; they stay so where their groups allow it
    release:    called with a parameter's name once it is not needed any more
    """
    reader = WeightReader(recipe, parameters, tables, dtype, device, partition, make_matrix, int4)
    last_use = recipe.last_uses()
    layers = []
    for index, layer in enumerate(recipe.layers):
        layers.append(reader.layer(layer))
        for name, last in last_use.items():
            if last == index:
                release(name)
    weights = DenseWeights(
        embedding=reader.whole(recipe.embedding),
        embed_scale=recipe.embed_scale,
        layers=tuple(layers),
        final_norm=reader.norm(recipe.final_norm),
        head=reader.head(),
        vocab_size=recipe.head.rows.count,
        logit_scale=recipe.logit_scale,
        softcap=recipe.softcap,
        tables=reader.tables,
    )
    for name, last in last_use.items():
        if last == len(recipe.layers):
            release(name)
    return weights


class WeightReader:
    """Reads this rank's part of a decoder; see `read_weights`.

    has_biases: whether `parameters` has those of linear layers, too
    """

    def __init__(
        self,
        recipe: Recipe,
        parameters: Mapping[str, Tensor],
        tables: Sequence[Angles],
        dtype: torch.dtype,
        device: torch.device,
        partition: Partition,
        make_matrix: MakeMatrix,
        int4: Mapping[str, Int4Weight] | None = None,
        *,
        has_biases: bool = True,
    ) -> None:
        self._recipe = recipe
        self._parameters = parameters
        self.tables = tuple(
            (cos.to(device).contiguous(), sin.to(device).contiguous()) for cos, sin in tables
        )
        self._dtype = dtype
        self._device = device
        self._partition = partition
        self._make_matrix = make_matrix
        self._int4 = int4 or {}
        self._has_biases = has_biases

    def layer(self, layer: Layer) -> DenseLayer:
        mlp = layer.feed_forward
        attention_norm = self.norm(layer.attention_norm)
        shares_norm = layer.mlp_norm is not None and layer.mlp_norm == layer.attention_norm
        return DenseLayer(
            attention_norm=attention_norm,
            mixer=self._mixer(layer.mixer),
            attention_post_norm=self.norm(layer.attention_post_norm),
            mlp_norm=attention_norm if shares_norm else self.norm(layer.mlp_norm),
            mlp=self._mixture(mlp) if isinstance(mlp, Moe) else self._mlp(mlp),
            mlp_post_norm=self.norm(layer.mlp_post_norm),
            is_parallel=layer.parallel,
            residual_scale=layer.residual_scale,
        )

    def head(self) -> PlainMatrix:
        """This rank's part of the vocabulary; the last ranks' are filled up with zeros."""
        head = self._recipe.head
        partition = self._partition
        part = partition.longest(head.rows.count)
        weight, bias = self._dense_rows(head, np.arange(part.start, part.stop))
        num_missing = len(Partition(0, partition.num_ranks).longest(head.rows.count)) - len(part)
        if num_missing:
            weight = torch.cat((weight, weight.new_zeros(num_missing, weight.shape[1])))
            bias = None if bias is None else torch.cat((bias, bias.new_zeros(num_missing)))
        return PlainMatrix(weight, bias)

    def whole(self, name: str) -> Tensor:
        """A parameter in the model's dtype."""
        return self._parameters[name].detach().to(self._device, self._dtype)

    def norm(
        self, norm: Norm | None, rows: npt.NDArray[np.int64] | None = None
    ) -> NormWeights | None:
        """`rows`: of the row that is normalised, the numbers that are there, in their order."""
        if norm is None:
            return None
        row_len = norm.width if rows is None else int(rows.max()) + 1
        weight = self._numbers(norm.weights, row_len, 1.0 - norm.plus_one) + norm.plus_one
        bias = self._numbers(norm.biases, row_len, 0.0) if norm.biases else None
        if rows is not None:
            index = torch.from_numpy(rows).to(self._device)
            weight = weight.index_select(0, index)
            bias = None if bias is None else bias.index_select(0, index)
        return NormWeights(norm.kind, norm.width, norm.eps, weight, bias)

    def _numbers(self, names: Sequence[str], row_len: int, default: float) -> Tensor:
        """Concatenated parameters in float32, repeated to the length of a row."""
        if not names:
            return torch.full((row_len,), default, device=self._device)
        values = torch.cat([self._parameters[name].detach().flatten() for name in names])
        values = values.to(self._device, torch.float32)
        return values.repeat(-(-row_len // len(values))).narrow(0, 0, row_len)

    def _mixer(self, mixer: Mixer) -> DenseMixer:
        if isinstance(mixer, Delta):
            return self._delta(mixer)
        if isinstance(mixer, ShortConv):
            return self._short_conv(mixer)
        if isinstance(mixer, Mamba2):
            raise AssertionError("a selective state space is refused before it is loaded")
        return DenseAttention(
            ins=self.ins_of_mixer(mixer),
            heads=self._heads(mixer),
            options=self._options(mixer),
            is_gated=mixer.gate is not None,
            output=self.summed(mixer.output, self.inputs_of_output(mixer)),
        )

    def ins_of_mixer(self, mixer: Mixer) -> Matrix:
        """What reads the layer's input."""
        if isinstance(mixer, Attention):
            return self._qkv(mixer)
        if isinstance(mixer, ShortConv):
            part = self.inputs_of_output(mixer)
            channels = np.arange(part.start, part.stop)
            return self._side_by_side([(each, channels) for each in mixer.ins])
        assert isinstance(mixer, Delta)
        keys, values, heads = self._parts_of_delta(mixer)
        parts = (keys, keys, values, values, heads, heads)
        return self._side_by_side(list(zip(mixer.ins, parts, strict=True)))

    def inputs_of_output(self, mixer: Mixer) -> range:
        """What its last product reads on this rank."""
        if isinstance(mixer, Attention):
            return self._inputs_of_heads(mixer)
        if isinstance(mixer, ShortConv):
            return self._partition.part(mixer.value.rows.count)
        assert isinstance(mixer, Delta)
        _, values, _ = self._parts_of_delta(mixer)
        return range(int(values[0]), int(values[-1]) + 1)

    def _parts_of_delta(
        self, delta: Delta
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """This rank's numbers of keys and of values, and its heads."""
        key_heads = self._partition.part(delta.num_key_heads)
        share = delta.num_heads // delta.num_key_heads
        heads = np.arange(key_heads.start * share, key_heads.stop * share)
        keys = np.arange(key_heads.start * delta.key_dim, key_heads.stop * delta.key_dim)
        values = np.arange(heads[0] * delta.value_dim, (heads[-1] + 1) * delta.value_dim)
        return keys, values, heads

    def _delta(self, delta: Delta) -> DenseDelta:
        keys, values, heads = self._parts_of_delta(delta)
        keys_len = delta.num_key_heads * delta.key_dim
        norm = self.norm(delta.norm)
        assert norm is not None
        rule = DeltaRule(
            num_key_heads=len(keys) // delta.key_dim,
            num_heads=len(heads),
            key_dim=delta.key_dim,
            value_dim=delta.value_dim,
            conv=self._convolution(
                delta.conv, np.concatenate((keys, keys_len + keys, 2 * keys_len + values))
            ),
            a_log=_taken(self._numbers([delta.a_log], delta.num_heads, 0.0), heads),
            dt_bias=_taken(self._numbers([delta.dt_bias], delta.num_heads, 0.0), heads),
            beta_scale=delta.beta_scale,
            norm=norm,
        )
        output = self.summed(delta.output, self.inputs_of_output(delta))
        return DenseDelta(self.ins_of_mixer(delta), rule, output)

    def _short_conv(self, short: ShortConv) -> DenseShortConv:
        part = self.inputs_of_output(short)
        return DenseShortConv(
            self.ins_of_mixer(short),
            self._convolution(short.conv, np.arange(part.start, part.stop)),
            self.summed(short.output, part),
        )

    def _convolution(self, conv: Conv, channels: npt.NDArray[np.int64]) -> Convolution:
        weight = self._parameters[conv.weight].detach().flatten(1).to(self._device, torch.float32)
        bias = None
        if conv.bias is not None:
            bias = _taken(self._numbers([conv.bias], len(weight), 0.0), channels)
        return Convolution(_taken(weight, channels).contiguous(), bias)

    def _qkv(self, attention: Attention) -> Matrix:
        parts = [
            (attention.query.linear, self._query_rows(attention)),
            (attention.key.linear, self._key_rows(attention)),
            (attention.value, self._value_rows(attention)),
        ]
        if attention.gate is not None:
            width = attention.num_heads * attention.head_dim
            part = self._inputs_of_heads(attention)
            # One number for each head is as many equal ones.
            gates = np.arange(part.start, part.stop) * attention.gate.rows.count // width
            parts.append((attention.gate, gates))
        return self._side_by_side(parts)

    def _side_by_side(self, parts: Sequence[tuple[Linear, npt.NDArray[np.int64]]]) -> Matrix:
        """Some outputs of several layers, as one product."""
        rows = [self._rows(linear, chosen) for linear, chosen in parts]
        return self._make_matrix(*_merged(rows, self._dtype))

    def _query_rows(self, attention: Attention) -> npt.NDArray[np.int64]:
        heads = self._partition.part(attention.num_heads)
        return self._head_rows(attention.query, heads, attention.head_dim)

    def _key_rows(self, attention: Attention) -> npt.NDArray[np.int64]:
        heads = self._partition.kv_heads(attention.num_kv_heads)
        return self._head_rows(attention.key, heads, attention.head_dim)

    def _value_rows(self, attention: Attention) -> npt.NDArray[np.int64]:
        heads = self._partition.kv_heads(attention.num_kv_heads)
        head_dim = attention.head_dim
        return np.arange(heads.start * head_dim, heads.stop * head_dim)

    def _head_rows(self, head: Head, heads: Sequence[int], head_dim: int) -> npt.NDArray[np.int64]:
        angles_len = 0 if head.rope is None else self.tables[head.rope.source][0].shape[1]
        return rows_of_heads(head, heads, head_dim, angles_len)

    def _heads(self, attention: Attention) -> HeadLayout:
        query = attention.query
        key = attention.key
        cos, sin = (None, None) if query.rope is None else self.tables[query.rope.source]
        return HeadLayout(
            num_heads=len(self._partition.part(attention.num_heads)),
            num_kv_heads=len(self._partition.kv_heads(attention.num_kv_heads)),
            head_dim=attention.head_dim,
            query_norm=self.norm(query.norm, self._query_rows(attention)),
            key_norm=self.norm(key.norm, self._key_rows(attention)),
            norms_after_rope=query.norm_after_rope or key.norm_after_rope,
            cos=cos,
            sin=sin,
        )

    def _options(self, attention: Attention) -> LayerOptions:
        sinks = None
        if attention.sinks is not None:
            heads = self._partition.part(attention.num_heads)
            sinks = self._parameters[attention.sinks].detach().narrow(0, heads.start, len(heads))
            sinks = sinks.to(self._device, torch.float32)
        return LayerOptions(
            scale=attention.scale,
            window_len=attention.window_len,
            softcap=attention.softcap,
            sinks=sinks,
            chunk_len=attention.chunk_len,
        )

    def _inputs_of_heads(self, attention: Attention) -> range:
        heads = self._partition.part(attention.num_heads)
        return range(heads.start * attention.head_dim, heads.stop * attention.head_dim)

    def _num_inputs(self, linear: Linear) -> int:
        if linear.weight in self._int4:
            return self._int4[linear.weight].num_inputs
        return self._parameters[linear.weight].shape[0 if linear.transposed else 1]

    def _mlp(self, mlp: Mlp) -> DenseMlp:
        return DenseMlp(
            ins=self.ins_of_mlp(mlp),
            layout="plain" if mlp.layout == "plain" else "gate_up",
            activation=mlp.activation,
            out=self.summed(mlp.out, self._partition.part(self._num_inputs(mlp.out))),
        )

    def _mixture(self, moe: Moe) -> Mixture:
        return Mixture(
            router=self._router(moe),
            experts=self._experts(moe),
            shared=None if moe.shared is None else self._mlp(moe.shared),
        )

    def _router(self, moe: Moe) -> Router:
        linears = [each for each in (moe.router, moe.shared_gate) if each is not None]
        dtype = self._dtype
        for linear in linears:
            dtype = torch.promote_types(dtype, self._parameters[linear.weight].dtype)
        parts = [
            self._dense_rows(linear, np.arange(linear.rows.count), dtype=dtype)
            for linear in linears
        ]
        weight, bias = _merged(parts, dtype)
        assert isinstance(weight, Tensor)
        correction = None
        if moe.correction is not None:
            correction = self._numbers([moe.correction], moe.num_experts, 0.0)
        return Router(moe, weight, bias, correction)

    def _experts(self, moe: Moe) -> Experts:
        """Of each expert this rank's inner numbers; the biases of what is summed are rank 0's."""
        outs = self._each_expert(moe.down, moe)
        ins = self._each_expert(moe.gate_up, moe)
        inner_len = outs.shape[2]
        inner = self._partition.part(inner_len)
        rows = np.arange(2 * inner_len).reshape(2, inner_len)[:, inner.start : inner.stop].ravel()
        if moe.layout == "gate_up_pairs":
            rows = np.arange(2 * inner.start, 2 * inner.stop)
        ins_bias = outs_bias = None
        if moe.gate_up_bias is not None:
            ins_bias = self._moved(_taken(self._parameters[moe.gate_up_bias].detach(), rows, 1))
        if moe.down_bias is not None and self._partition.rank == 0:
            outs_bias = self.whole(moe.down_bias)
        return Experts(
            ins=self._moved(_taken(ins, rows, 1)).contiguous(),
            ins_bias=ins_bias,
            outs=self._moved(outs.narrow(2, inner.start, len(inner))).contiguous(),
            outs_bias=outs_bias,
            layout=moe.layout,
            activation=moe.activation,
        )

    def _each_expert(self, name: str, moe: Moe) -> Tensor:
        """[num_experts, num_outputs, num_inputs]"""
        weight = self._parameters[name].detach()
        return weight.transpose(1, 2) if moe.transposed else weight

    def ins_of_mlp(self, mlp: Mlp) -> Matrix:
        """Gate rows, then up rows; or all rows of a plain layer."""
        # Which row of which layer: (layer, row) of the outputs side by side.
        owners = [
            (linear, row)
            for linear in range(len(mlp.ins))
            for row in range(mlp.ins[linear].rows.count)
        ]
        places = np.array(owners)
        if mlp.layout == "plain":
            groups = [places]
        elif mlp.layout == "gate_up_pairs":
            groups = [places[::2], places[1::2]]
        else:
            groups = [places[: len(places) // 2], places[len(places) // 2 :]]
        parts = []
        for group in groups:
            part = self._partition.part(len(group))
            own = group[part.start : part.stop]
            for index, linear in enumerate(mlp.ins):
                rows = own[own[:, 0] == index, 1]
                if len(rows):
                    parts.append(self._rows(linear, rows))
        return self._make_matrix(*_merged(parts, self._dtype))

    def summed(self, linear: Linear, inputs: range) -> Matrix:
        """A product of some inputs, to be added up over the ranks: one of them has the bias."""
        weight, bias = self._rows(linear, np.arange(linear.rows.count), inputs)
        if isinstance(weight, Tensor):
            weight = weight.contiguous()
        return self._make_matrix(weight, bias if self._partition.rank == 0 else None)

    def _rows(
        self, linear: Linear, chosen: npt.NDArray[np.int64], inputs: range | None = None
    ) -> Rows:
        """Rows `chosen` of the layer's outputs, and their biases; in 4 bits if they can be."""
        int4 = self._int4.get(linear.weight)
        if int4 is None or linear.transposed or int4.group_len % _LEAST_GROUP_LEN:
            return self._dense_rows(linear, chosen, inputs)
        if inputs is not None:
            if not int4.can_narrow(inputs):
                return self._dense_rows(linear, chosen, inputs)
            int4 = int4.narrow(inputs)
        rows = np.array(linear.rows.indices())[chosen]
        taken = int4.rows(torch.from_numpy(rows).to(int4.device)).to(self._device)
        return taken, self._bias(linear, rows)

    def _dense_rows(
        self,
        linear: Linear,
        chosen: npt.NDArray[np.int64],
        inputs: range | None = None,
        dtype: torch.dtype | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """As `_rows`, in the model's dtype or in another one."""
        weight = self._parameters[linear.weight].detach()
        weight = weight.T if linear.transposed else weight
        if inputs is not None:
            weight = weight.narrow(1, inputs.start, len(inputs))
        rows = np.array(linear.rows.indices())[chosen]
        return self._moved(_taken(weight, rows), dtype), self._bias(linear, rows)

    def _bias(self, linear: Linear, rows: npt.NDArray[np.int64]) -> Tensor | None:
        if linear.bias is None or not self._has_biases:
            return None
        return self._moved(_taken(self._parameters[linear.bias].detach(), rows))

    def _moved(self, tensor: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        return tensor.to(self._device, dtype or self._dtype)


def _taken(tensor: Tensor, rows: npt.NDArray[np.int64], axis: int = 0) -> Tensor:
    """Some rows: a view where they follow one another."""
    first = int(rows[0])
    if np.array_equal(rows, np.arange(first, first + len(rows))):
        return tensor.narrow(axis, first, len(rows))
    return tensor.index_select(axis, torch.from_numpy(rows).to(tensor.device))


def _merged(parts: Sequence[Rows], dtype: torch.dtype) -> Rows:
    """One matrix of several, one below the other: in 4 bits if all of them are."""
    weights = [weight for weight, _ in parts]
    biases = None
    if any(bias is not None for _, bias in parts):
        biases = torch.cat([_bias_or_zeros(part, dtype) for part in parts])
    if all(isinstance(weight, Int4Weight) for weight in weights):
        one = stacked([weight for weight in weights if isinstance(weight, Int4Weight)])
        if one is not None:
            return one, biases
    dense = [each.dense(dtype) if isinstance(each, Int4Weight) else each for each in weights]
    return torch.cat(dense) if len(dense) > 1 else dense[0].contiguous(), biases


def _bias_or_zeros(part: Rows, dtype: torch.dtype) -> Tensor:
    weight, bias = part
    if bias is not None:
        return bias
    num_outputs = weight.num_outputs if isinstance(weight, Int4Weight) else len(weight)
    return torch.zeros(num_outputs, dtype=dtype, device=weight.device)
