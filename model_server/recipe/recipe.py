"""The recipe of a decoder, dense or with experts: everything that an executor has to know.

A recipe names weights by their parameter names in the transformers model, and its numbers are those
of that model; it holds no tensor and no module. `dense_torch.py` computes it, `reader.py` reads it,
`proof.py` proves it.

    x = embedding[ids] * embed_scale
    per layer:  a = o(attention(rope(q_norm(q(n1(x)))), rope(k_norm(k(n1(x)))), v(n1(x))))
                or what another mixer of tokens gives: see Delta, Mamba2, ShortConv
                y = x + residual_scale * n2(a)
                m = mlp(n3(y))                       (parallel: mlp(n3(x)))
                x = y + residual_scale * n4(m)
    logits = softcap * tanh(head(final_norm(x)) * logit_scale / softcap)

Every norm n1..n4, q_norm, k_norm may be absent. A recipe says what is computed, not where bfloat16
rounds: transformers rounds at unlike places in every family, and an executor that rounds less is
nearer to the truth.
"""

from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Literal, TypeAlias

Activation: TypeAlias = Literal["silu", "gelu", "gelu_tanh", "relu", "relu2", "clamped_swiglu"]


class Unreadable(Exception):
    """No recipe describes this model; the message says why."""


@dataclass(frozen=True, slots=True)
class Norm:
    """(x - mean) / sqrt(var + eps) ("layer"), or x / sqrt(mean(x²) + eps) ("rms"), * w + b.

    width:   how many neighbouring numbers are normalised together: a whole row, or a head of it
    weights: parameters that are concatenated; empty: none. As long as `width` or as the whole row
    """

    kind: Literal["rms", "layer"]
    width: int
    eps: float
    plus_one: bool  # the weight is stored as its difference to one
    weights: tuple[str, ...]
    biases: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Rows:
    """Which outputs of a linear layer are meant: `blocks` runs of `used` rows, `stride` apart.

    |<- start ->|<- used ->|          |<- used ->|          | ...
                |<----- stride ------>|
    """

    start: int
    blocks: int
    stride: int
    used: int

    @property
    def count(self) -> int:
        """How many rows they are."""
        return self.blocks * self.used

    def indices(self) -> list[int]:
        """The rows, in their order."""
        starts = range(self.start, self.start + self.blocks * self.stride, self.stride)
        return [row for first in starts for row in range(first, first + self.used)]


@dataclass(frozen=True, slots=True)
class Linear:
    """x @ weight.T + bias, of some rows of a weight [out, in]."""

    weight: str
    bias: str | None
    transposed: bool  # stored as [in, out]
    rows: Rows


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary positions on the first numbers of a head, twice as many as there are angles."""

    pairing: Literal["half", "interleaved"]  # number i turns with i + n/2, or with its neighbour
    source: int  # which entry of Recipe.rotary gives cos and sin


@dataclass(frozen=True, slots=True)
class Head:
    """How queries or keys come about."""

    linear: Linear
    norm: Norm | None
    rope: Rope | None
    norm_after_rope: bool


@dataclass(frozen=True, slots=True)
class Attention:
    """A query at position p sees keys from max(0, p - window_len + 1, p // chunk_len * chunk_len)
    to p; a bound that is None does not apply. `sinks` names [num_heads] scores without a value.

    gate: as many numbers as attention gives, or one for each head; `output` reads
          attention * sigmoid(gate(x)), where x is what queries are made of
    """

    query: Head
    key: Head
    value: Linear
    output: Linear
    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    window_len: int | None
    chunk_len: int | None
    softcap: float | None
    sinks: str | None
    gate: Linear | None = None

    @property
    def ins(self) -> tuple[Linear, ...]:
        """What reads the layer's input."""
        gates = () if self.gate is None else (self.gate,)
        return (self.query.linear, self.key.linear, self.value, *gates)


@dataclass(frozen=True, slots=True)
class Conv:
    """Of each channel, a sum over its last `num_taps` rows; the last weight is that of the newest.

    Before a sequence's first row all are zero. To go on with a sequence is to have its window: the
    last num_taps - 1 rows that were read, [num_taps - 1, channels].
    """

    weight: str  # [channels, 1, num_taps]
    bias: str | None  # [channels]
    num_taps: int


@dataclass(frozen=True, slots=True)
class Delta:
    """A gated delta rule. What a head keeps of a sequence is a matrix S [key_dim, value_dim], zeros
    at first; of its token x it does

        q, k, v = silu(conv(query(x), key(x), value(x)))    channels in this order, side by side
        q = q / (|q| sqrt(key_dim)), k = k / |k|            of each head; 1e-6 is added to |.|²
        S = exp(-exp(a_log) softplus(alpha(x) + dt_bias)) S
        S = S + kᵀ beta_scale sigmoid(beta(x)) (v - k S)
        output(norm(q S) * silu(gate(x)))                   norm of each head

    Head h has q and k of key head h // (num_heads / num_key_heads). To go on with a sequence is to
    have its window (see Conv) and S of every head, [num_heads, key_dim, value_dim], in float32.
    """

    query: Linear  # [num_key_heads * key_dim, hidden_size]
    key: Linear  # as query
    value: Linear  # [num_heads * value_dim, hidden_size]
    gate: Linear  # as value
    beta: Linear  # [num_heads, hidden_size]
    alpha: Linear  # as beta
    conv: Conv
    a_log: str  # [num_heads]; in float32 whatever the dtype of the others
    dt_bias: str  # as a_log
    norm: Norm  # of value_dim numbers, one weight for all heads
    beta_scale: float  # 2 where an eigenvalue of a step may be negative, else 1
    num_key_heads: int
    num_heads: int
    key_dim: int
    value_dim: int
    output: Linear  # [hidden_size, num_heads * value_dim]

    @property
    def ins(self) -> tuple[Linear, ...]:
        """What reads the layer's input."""
        return (self.query, self.key, self.value, self.gate, self.beta, self.alpha)

    @property
    def state_bytes(self) -> int:
        """Of a window and matrices in float32."""
        num_channels = 2 * self.num_key_heads * self.key_dim + self.num_heads * self.value_dim
        window_len = (self.conv.num_taps - 1) * num_channels
        return 4 * (window_len + self.num_heads * self.key_dim * self.value_dim)


@dataclass(frozen=True, slots=True)
class Mamba2:
    """A selective state space. What a head keeps of a sequence is a matrix S [head_dim,
    state_size], zeros at first; of its token x it does

        v, b, c = silu(conv(value(x), b(x), c(x)))          channels in this order, side by side
        dt = min(max(softplus(dt(x) + dt_bias), dt_limits[0]), dt_limits[1])
        S = exp(-exp(a_log) dt) S + dt vᵀ b
        y = c Sᵀ + skip v
        output(norm(y * silu(gate(x))))                     or norm(y) * silu(gate(x))

    Head h has b and c of group h // (num_heads / num_groups). To go on with a sequence is to have
    its window (see Conv) and S of every head, [num_heads, head_dim, state_size], in float32.
    """

    gate: Linear  # [num_heads * head_dim, hidden_size]
    value: Linear  # as gate
    b: Linear  # [num_groups * state_size, hidden_size]
    c: Linear  # as b
    dt: Linear  # [num_heads, hidden_size]
    conv: Conv
    a_log: str  # [num_heads]; in float32 whatever the dtype of the others
    dt_bias: str  # as a_log
    skip: str  # as a_log
    dt_limits: tuple[float, float]  # of every token; transformers' own step of one has none
    norm: Norm  # of the heads of a group or of all; as many weights as all have numbers
    gate_first: bool  # what is gated is normalised, not what is normalised gated
    num_groups: int
    num_heads: int
    head_dim: int
    state_size: int
    output: Linear  # [hidden_size, num_heads * head_dim]

    @property
    def ins(self) -> tuple[Linear, ...]:
        """What reads the layer's input."""
        return (self.value, self.b, self.c, self.gate, self.dt)

    @property
    def state_bytes(self) -> int:
        """Of a window and matrices in float32."""
        num_channels = 2 * self.b.rows.count + self.value.rows.count
        window_len = (self.conv.num_taps - 1) * num_channels
        return 4 * (window_len + self.state_size * self.value.rows.count)


@dataclass(frozen=True, slots=True)
class ShortConv:
    """A convolution between two gates: output(gate_out(x) * conv(gate_in(x) * value(x))).

    To go on with a sequence is to have its window (see Conv) of gate_in(x) * value(x).
    """

    gate_in: Linear  # [channels, hidden_size]
    value: Linear  # as gate_in
    gate_out: Linear  # as gate_in
    conv: Conv
    output: Linear  # [hidden_size, channels]

    @property
    def ins(self) -> tuple[Linear, ...]:
        """What reads the layer's input."""
        return (self.gate_in, self.value, self.gate_out)

    @property
    def state_bytes(self) -> int:
        """Of a window in float32."""
        return 4 * (self.conv.num_taps - 1) * self.value.rows.count


Mixer: TypeAlias = Attention | Delta | Mamba2 | ShortConv


@dataclass(frozen=True, slots=True)
class Mlp:
    """out(activation(gate) * up), or out(activation(x)) where the layout is plain.

    Clamped swiglu: (clamp(up, -7, 7) + 1) * g * sigmoid(1.702 g), where g = min(gate, 7).
    """

    ins: tuple[Linear, ...]  # their outputs side by side, in this order
    layout: Literal["plain", "gate_up", "gate_up_pairs"]
    activation: Activation
    out: Linear


@dataclass(frozen=True, slots=True)
class Groups:
    """Experts in `num_groups` runs of neighbours: a token chooses among those of `top_k` of them.

    num_best: a group's score is the sum of so many of its experts' best
    """

    num_groups: int
    top_k: int
    num_best: int


@dataclass(frozen=True, slots=True)
class Moe:
    """Each token's `top_k` experts, weighed by the router's scores, and a shared one for all.

    The scores are a softmax over all experts, or the sigmoid of each. A chosen expert's weight is
    its score; normed: over the sum of those of the chosen ones.

        chosen = the top_k of scores + correction, in groups that are chosen by the same numbers
        output = scale * sum(weight * expert(x) over chosen) + sigmoid(shared_gate(x)) * shared(x)
    """

    router: Linear
    num_experts: int
    top_k: int
    scoring: Literal["softmax", "softmax_normed", "sigmoid", "sigmoid_normed"]
    gate_up: str  # [experts, out, in], or [experts, in, out] when transposed
    gate_up_bias: str | None
    down: str
    down_bias: str | None
    transposed: bool
    layout: Literal["plain", "gate_up", "gate_up_pairs"]  # as of an MLP
    activation: Activation
    shared: Mlp | None = None  # beside the chosen experts, for every token
    shared_gate: Linear | None = None  # its sigmoid is the weight of `shared`
    correction: str | None = None  # [num_experts] numbers; of the choice alone, not of the weights
    groups: Groups | None = None
    scale: float = 1.0  # of the chosen experts, not of the shared one

    @property
    def module(self) -> str:
        """That of the experts, in the transformers model."""
        return self.gate_up.rpartition(".")[0]


@dataclass(frozen=True, slots=True)
class Layer:
    """One decoder layer; the module's docstring has its formula."""

    attention_norm: Norm | None
    mixer: Mixer
    attention_post_norm: Norm | None
    mlp_norm: Norm | None
    mlp: Mlp | Moe | None  # None: y is what it gives
    mlp_post_norm: Norm | None
    parallel: bool  # the MLP reads the layer's input, not the sum after attention
    residual_scale: float

    @property
    def attention(self) -> Attention:
        """Its mixer, where only layers that attend are served."""
        if not isinstance(self.mixer, Attention):
            raise AssertionError(f"a layer mixes its tokens by {type(self.mixer).__name__}")
        return self.mixer

    @property
    def products(self) -> tuple[tuple[Linear, ...], ...]:
        """The linear layers that are multiplied together: of the mixer the first ones and the last,
        of the MLP as well. Of experts only a shared one counts; () where there is none.
        """
        mlp = self.plain_mlp
        of_mlp = ((), ()) if mlp is None else (mlp.ins, (mlp.out,))
        return (self.mixer.ins, (self.mixer.output,), *of_mlp)

    @property
    def plain_mlp(self) -> Mlp | None:
        """What every token passes: the MLP, or beside experts the shared one."""
        return self.mlp.shared if isinstance(self.mlp, Moe) else self.mlp

    @property
    def feed_forward(self) -> Mlp | Moe:
        """Its MLP, where only layers that have one are served."""
        if self.mlp is None:
            raise AssertionError("a layer has no MLP")
        return self.mlp


@dataclass(frozen=True, slots=True)
class Rotary:
    """A module that makes cos and sin of positions, its further arguments, and where the angles
    lie in its tables: twice, one after the other ("cat"); each beside itself ("repeat"); once.
    """

    module: str
    arguments: tuple[str, ...]
    layout: Literal["cat", "repeat", "half"]


@dataclass(frozen=True, slots=True)
class Use:
    """Which rows of a parameter are used, along which axis; None: all."""

    name: str
    rows: Rows | None = None
    axis: int = 0


@dataclass(frozen=True, slots=True)
class Recipe:
    """A whole decoder; the module's docstring has its formula."""

    embedding: str
    embed_scale: float
    layers: tuple[Layer, ...]
    final_norm: Norm | None
    head: Linear
    logit_scale: float
    softcap: float | None
    rotary: tuple[Rotary, ...]

    def attentions(self) -> Iterator[Attention]:
        """Of the layers that attend."""
        return (layer.mixer for layer in self.layers if isinstance(layer.mixer, Attention))

    @property
    def state_bytes(self) -> int:
        """Of one sequence."""
        mixers = (layer.mixer for layer in self.layers)
        return sum(each.state_bytes for each in mixers if not isinstance(each, Attention))

    def weights(self) -> set[str]:
        """Names of all parameters that it uses."""
        return {use.name for use in self.uses()}

    def uses(self) -> Iterator[Use]:
        """Every use of a parameter. A tied embedding counts as the head's alone, and so does a norm
        that attention and MLP of a parallel layer share.
        """
        return (
            use for use in uses_of(self) if use.rows is not None or use.name != self.head.weight
        )

    def products(self) -> dict[str, bool]:
        """Weights that layers multiply, but for those that choose experts; by their names, whether
        their inputs come first.
        """
        return {name: turned for layer in self.layers for name, turned in _products_of(layer)}

    def wide_names(self) -> set[str]:
        """Names of parameters that are read in float32 whatever the dtype of the others."""
        names = set()
        for layer in self.layers:
            if isinstance(layer.mixer, Delta | Mamba2):
                names |= {layer.mixer.a_log, layer.mixer.dt_bias}
            if isinstance(layer.mixer, Mamba2):
                names.add(layer.mixer.skip)
        return names

    def last_uses(self) -> dict[str, int]:
        """The layer that reads each parameter last; len(layers) for what no layer reads."""
        above = replace(self, layers=())
        found = dict.fromkeys(above.weights(), len(self.layers))
        for index in reversed(range(len(self.layers))):
            for name in replace(above, layers=(self.layers[index],)).weights():
                found.setdefault(name, index)
        return found


_NAME_FIELDS = frozenset(
    (
        "embedding weights biases sinks gate_up gate_up_bias down down_bias correction"
        " a_log dt_bias skip"
    ).split()
)


def _products_of(part: object) -> Iterator[tuple[str, bool]]:
    if isinstance(part, Linear):
        yield part.weight, part.transposed
    elif isinstance(part, Moe):
        yield part.gate_up, part.transposed
        yield part.down, part.transposed
        yield from _products_of(part.shared)
    elif is_dataclass(part):
        for field in fields(part):
            value = getattr(part, field.name)
            for each in value if isinstance(value, tuple) else (value,):
                yield from _products_of(each)


def uses_of(part: object) -> Iterator[Use]:
    """Every use of a parameter by a part of a recipe."""
    if isinstance(part, Linear):
        yield Use(part.weight, part.rows, 1 if part.transposed else 0)
        if part.bias is not None:
            yield Use(part.bias, part.rows)
        return
    if isinstance(part, Conv):
        yield from (Use(name) for name in (part.weight, part.bias) if name is not None)
        return
    if isinstance(part, Layer) and part.mlp_norm == part.attention_norm:
        part = replace(part, mlp_norm=None)
    for field in fields(part):  # type: ignore[arg-type]
        value = getattr(part, field.name)
        for each in value if isinstance(value, tuple) else (value,):
            if is_dataclass(each):
                yield from uses_of(each)
            elif isinstance(each, str) and field.name in _NAME_FIELDS:
                yield Use(each)
