"""Reads the recipe of a narrow model: by what one recorded pass computes, not by names.

Who reads whose output, by exact equality, gives the structure: where norms stand, what is added to
what. What a piece computes is found by a few hypotheses on its own input and output, so that
hypotheses add instead of multiplying:

    Norms       which calls are norms
    Heads       which rows of which linear layer, which norm and rope make queries and keys: what
                may come after the linear layer is undone, until one is found that gives the rest
    read_delta, read_mamba2, read_short_conv
                how a layer without attention mixes tokens
    read_mlp    how a layer's MLP computes, dense or with experts

No family is known here.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, permutations, product
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from model_server.recipe.delta import read_delta
from model_server.recipe.dense_torch import (
    ACTIVATIONS,
    CLAMPED,
    activate,
    each_once,
    feed_forward,
    gate_heads,
    multiply,
    normalise,
    rotate,
    route,
)
from model_server.recipe.mamba2 import read_mamba2
from model_server.recipe.products import columns, is_linear, whole
from model_server.recipe.recipe import (
    Attention,
    Groups,
    Head,
    Layer,
    Linear,
    Mixer,
    Mlp,
    Moe,
    Norm,
    Recipe,
    Rope,
    Rotary,
    Rows,
    Unreadable,
    uses_of,
)
from model_server.recipe.recording import (
    NUM_TOKENS,
    Attended,
    Call,
    Mixed,
    Recording,
    Ruled,
    Scanned,
    choice_of,
    close,
    handed_to,
    named,
    record,
    rows,
    same,
    scalars,
)
from model_server.recipe.short_conv import read_short_conv
from model_server.recipe.small import numbers, parameters_of

_LOGIT_TOLERANCE = 3e-6  # two scalars may be near each other


@torch.inference_mode()
def read(model: Any) -> Recipe:
    """The recipe of a model of `small.small_model`, with the model's own numbers.

    Raises Unreadable.
    """
    text = model.config.get_text_config()
    generator = torch.Generator().manual_seed(1)
    token_ids = torch.randint(0, text.vocab_size, (NUM_TOKENS,), generator=generator)
    try:
        recording = record(model, token_ids)
    except Unreadable:
        raise
    # The classes of other people fail in every way there is.
    except Exception as error:
        raise Unreadable(
            "its class does not run with narrower layers, by which recipes are read:"
            f" {type(error).__name__}: {error}"
        ) from error
    return _Reader(model, token_ids, recording).recipe()


class _Reader:
    def __init__(self, model: Any, token_ids: Tensor, recording: Recording) -> None:
        self._model = model
        self._config = model.config.get_text_config()
        self._token_ids = token_ids
        self._calls = recording.calls
        self._mixed = recording.mixed
        self._logits = recording.logits
        self._norms = Norms(self._config)
        self._heads = Heads(recording.calls, self._norms)
        self._names = {module: name for name, module in model.named_modules()}
        self._parameters = parameters_of(model)

    def recipe(self) -> Recipe:
        parts = self._parts()
        blocks = [block for _, own in parts for block in own]
        embedding, embed_scale = self._embedding(rows(blocks[0].source))
        layers = []
        for index, (mixed, own) in enumerate(parts):
            try:
                layers.append(self._layer(mixed, own))
            except Unreadable as error:
                raise Unreadable(f"layer {index}: {error}") from error
        for before, after in pairwise(blocks):
            if not same(_first(before.output), after.source):
                raise Unreadable(f"something happens between {before.name} and {after.name}")
        last = rows(_first(blocks[-1].output))
        final = self._norms.reading(last, self._calls)
        head_call = [call for call in self._calls if is_linear(call)][-1]
        if not same(head_call.source, last if final is None else final.output):
            raise Unreadable("its head reads something else than the last layer's output")
        logit_scale, softcap = self._logit_scale(rows(head_call.output))
        return Recipe(
            embedding=embedding,
            embed_scale=embed_scale,
            layers=tuple(layers),
            final_norm=self._norm(final),
            head=self._tied(whole(head_call), head_call, embedding),
            logit_scale=logit_scale,
            softcap=softcap,
            rotary=self._heads.rotary,
        )

    def _parts(self) -> list[tuple[Mixed, list[Call]]]:
        """Of each layer how it mixes its tokens, and its blocks: its MLP may be one of its own."""
        mixers = {self._block(mixed).name: mixed for mixed in self._mixed.values()}
        stacks = {name.rpartition(".")[0] for name in mixers}
        parts: list[tuple[Mixed, list[Call]]] = []
        for call in self._calls:
            stack, _, number = call.name.rpartition(".")
            if call.name in mixers:
                parts.append((mixers[call.name], [call]))
            elif stack in stacks and number.isdigit():
                if not parts:
                    raise Unreadable(f"{call.name} does not mix tokens in a way that is known")
                parts[-1][1].append(call)
        return parts

    def _block(self, mixed: Mixed) -> Call:
        """The call of the decoder layer around its mixer."""
        name = self._names[mixed.module]
        while name:
            call = next((call for call in self._calls if call.name == name), None)
            if call is not None and name.rpartition(".")[2].isdigit():
                return call
            name = name.rpartition(".")[0]
        raise Unreadable("its layers are no modules of their own")

    def _embedding(self, first: Tensor) -> tuple[str, float]:
        weight = self._model.get_input_embeddings().weight
        name = next(name for name, p in self._model.named_parameters() if p is weight)
        embedded = F.embedding(self._token_ids, weight)
        if embedded.shape != first.shape:
            raise Unreadable("its embeddings have another width than its layers")
        scale = _ratio(first, embedded)
        if not close(embedded * scale, first):
            raise Unreadable(
                "more than a scale lies between embeddings and first layer, such as learned"
                " positions or a norm"
            )
        return name, named(scale, self._config, "the scale of its embeddings")

    def _tied(self, head: Linear, call: Call, embedding: str) -> Linear:
        is_tied = call.module.weight is self._model.get_input_embeddings().weight
        return Linear(embedding, head.bias, head.transposed, head.rows) if is_tied else head

    def _layer(self, mixed: Mixed, blocks: Sequence[Call]) -> Layer:
        prefixes = tuple(block.name + "." for block in blocks)
        inside = [call for call in self._calls if call.name.startswith(prefixes)]
        x = rows(blocks[0].source)
        out = rows(_first(blocks[-1].output))
        before_attention, mixer, a = self._mixer(mixed, x, inside)
        post = self._norms.reading(a, inside)
        a = a if post is None else rows(post.output)
        used_names = {use.name for use in uses_of(mixer)}
        rest = [c for c in inside if is_linear(c) and f"{c.name}.weight" not in used_names]
        found = read_mlp(self._config, self._parameters, rest, inside)
        if found is None:
            scale = named(_ratio(out - x, a), self._config, "the scale of its residuals")
            if not close(x + scale * a, out):
                raise Unreadable("its sum is not that of a residual stream")
            return Layer(
                attention_norm=self._norm(before_attention),
                mixer=mixer,
                attention_post_norm=self._norm(post),
                mlp_norm=None,
                mlp=None,
                mlp_post_norm=None,
                parallel=False,
                residual_scale=scale,
            )
        mlp_post = self._norms.reading(found.output, inside)
        m = found.output if mlp_post is None else rows(mlp_post.output)
        before_mlp = self._norms.writing(found.source, inside)
        y = found.source if before_mlp is None else rows(before_mlp.source)
        parallel = same(y, x)
        scale = _ratio(out - x, a + m) if parallel else _ratio(y - x, a)
        scale = named(scale, self._config, "the scale of its residuals")
        middle = x + scale * a
        if not (close(x if parallel else middle, y) and close(middle + scale * m, out)):
            raise Unreadable("its sums are not those of a residual stream")
        return Layer(
            attention_norm=self._norm(before_attention),
            mixer=mixer,
            attention_post_norm=self._norm(post),
            mlp_norm=self._norm(before_mlp),
            mlp=found.mlp,
            mlp_post_norm=self._norm(mlp_post),
            parallel=parallel,
            residual_scale=scale,
        )

    def _mixer(
        self, mixed: Mixed, x: Tensor, inside: Sequence[Call]
    ) -> tuple[Call | None, Mixer, Tensor]:
        """The norm before it, the mixer itself, and what it gives."""
        mixer: Mixer
        if isinstance(mixed, Attended):
            return self._attention(mixed, x, inside)
        if isinstance(mixed, Ruled):
            epsilons = self._norms.epsilons
            mixer, source, output = read_delta(mixed, inside, self._parameters, epsilons)
        elif isinstance(mixed, Scanned):
            epsilons = self._norms.epsilons
            mixer, source, output = read_mamba2(mixed, inside, self._parameters, epsilons)
        else:
            mixer, source, output = read_short_conv(mixed, inside, self._parameters)
        return self._norm_before(source, x, inside), mixer, output

    def _norm_before(self, source: Tensor, x: Tensor, inside: Sequence[Call]) -> Call | None:
        """What made a mixer's source of its layer's input."""
        if same(source, x):
            return None
        norm = self._norms.writing(source, inside)
        if norm is None or not same(norm.source, x):
            raise Unreadable("attention reads something else than its layer's input")
        return norm

    def _attention(
        self, attended: Attended, x: Tensor, inside: Sequence[Call]
    ) -> tuple[Call | None, Attention, Tensor]:
        """The norm before it, attention itself, and what it gives."""
        linears = [call for call in inside if is_linear(call)]
        value_call, value = self._heads.value(attended, linears)
        norm = self._norm_before(rows(value_call.source), x, inside)
        head_dim = attended.head_dim
        query = self._heads.head(attended.query, head_dim, linears, inside)
        output, gate = self._output(attended, query.linear, value_call, linears)
        attention = Attention(
            query=query,
            key=self._heads.head(attended.key, head_dim, linears, inside),
            value=value,
            output=whole(output),
            num_heads=attended.num_heads,
            num_kv_heads=attended.num_kv_heads,
            head_dim=head_dim,
            scale=attended.scale,
            window_len=attended.window_len,
            chunk_len=attended.chunk_len,
            softcap=attended.softcap,
            sinks=None if attended.sinks is None else self._parameter(attended.sinks),
            gate=gate,
        )
        return norm, attention, rows(output.output)

    def _output(
        self, attended: Attended, query: Linear, value_call: Call, linears: Sequence[Call]
    ) -> tuple[Call, Linear | None]:
        """What reads attention's answer, and the gate between them."""
        answer = attended.answer
        readers = [call for call in linears if same(call.source, answer)]
        if len(readers) == 1:
            return readers[0], None
        source = rows(value_call.source)
        widths = (answer.shape[1], attended.num_heads)
        for gate in self._gates(query, widths, value_call, linears):
            wanted = gate_heads(answer, multiply(gate, source, self._parameters))
            readers = [call for call in linears if close(call.source, wanted)]
            if len(readers) == 1:
                return readers[0], gate
        raise Unreadable("no one linear layer reads what attention gives, nor that times a gate")

    def _gates(
        self,
        query: Linear,
        widths: tuple[int, int],
        value_call: Call,
        linears: Sequence[Call],
    ) -> Iterator[Linear]:
        """What may be a gate: rows beside each query's, or a whole linear layer of such a width."""
        if query.rows.blocks > 1:
            yield replace(query, rows=replace(query.rows, start=query.rows.start + query.rows.used))
        for call in linears:
            if call.output.shape[-1] in widths and same(call.source, value_call.source):
                yield whole(call)

    def _norm(self, call: Call | None) -> Norm | None:
        return None if call is None else self._norms.of(call)

    def _parameter(self, tensor: Tensor) -> str:
        for name, parameter in self._model.named_parameters():
            if parameter.shape == tensor.shape and torch.equal(parameter, tensor):
                return name
        raise Unreadable("its attention sinks are no parameter")

    def _logit_scale(self, raw: Tensor) -> tuple[float, float | None]:
        numbers = sorted({1.0, *scalars(self._config).values()}, key=lambda each: each != 1)
        for softcap in (None, *numbers):
            for scale in numbers:
                tried = raw * scale
                if softcap is not None:
                    tried = torch.tanh(tried / softcap) * softcap
                if close(tried, self._logits, _LOGIT_TOLERANCE):
                    return scale, softcap
        raise Unreadable("what happens to its logits is not known")


def _first(output: Any) -> Any:
    return output[0] if isinstance(output, tuple) else output


def _ratio(whole_tensor: Tensor, part: Tensor) -> float:
    return float((whole_tensor * part).sum() / part.square().sum())


_USUAL_EPSILONS = (1e-5, 1e-6)


_KINDS = ("rms", "layer")


# Inputs so small that epsilon is what matters.
_TINY = 1e-3


class Norms:
    """The norms of a recorded pass; each call is tried once."""

    def __init__(self, config: Any) -> None:
        # As in a number of the config, or in the code of the class.
        known = {value for (form, _), value in scalars(config).items() if form == "itself"}
        self.epsilons: tuple[float, ...] = (
            *sorted(each for each in known if each < 0.1),
            *_USUAL_EPSILONS,
        )
        self._found: dict[str, Norm | None] = {}
        self._last: tuple[str, float, bool] | None = None

    def of(self, call: Call) -> Norm | None:
        """The norm that this call computes, if it is one."""
        if call.name not in self._found:
            self._found[call.name] = self._find(call)
        return self._found[call.name]

    def writing(self, tensor: Tensor, calls: Sequence[Call]) -> Call | None:
        """The norm whose result this is."""
        return next((c for c in calls if same(c.output, tensor) and self.of(c)), None)

    def reading(self, tensor: Tensor, calls: Sequence[Call]) -> Call | None:
        """The norm of this."""
        return next((c for c in calls if same(c.source, tensor) and self.of(c)), None)

    def _find(self, call: Call) -> Norm | None:
        source = call.source
        output = call.output
        if isinstance(call.module, nn.Embedding) or source is None or same(source, output):
            return None
        if not isinstance(output, Tensor) or output.shape != source.shape:
            return None
        parameters = dict(call.module.named_parameters(prefix=call.name))
        if any(parameter.dim() > 2 for parameter in parameters.values()):
            return None
        weights = tuple(name for name in parameters if not name.endswith("bias"))
        biases = tuple(name for name in parameters if name.endswith("bias"))
        row_len = rows(source).shape[-1]
        num_weights = sum(parameters[name].numel() for name in weights)
        widths = [
            width
            for width in sorted({row_len, source.shape[-1]})
            if num_weights in (0, width, row_len)
        ]
        tries = list(product(_KINDS, self.epsilons, (False, True)))
        if self._last is not None:
            tries.insert(0, self._last)
        for width, tried in product(widths, tries):
            kind, eps, plus_one = tried
            norm = Norm(kind, width, eps, plus_one, weights, biases)  # type: ignore[arg-type]
            if all(
                close(normalise(norm, rows(x), parameters), call.module(x))
                for x in (source, source * _TINY)
            ):
                self._last = tried
                return norm
        return None


_PAIRINGS: tuple[Literal["half", "interleaved"], ...] = ("half", "interleaved")


class Heads:
    """Reads the heads of layers, given the tables of cos and sin of the whole pass."""

    def __init__(self, calls: Sequence[Call], norms: Norms) -> None:
        self._norms = norms
        self._raw: list[Tensor] = []
        self._tables: list[tuple[Tensor, Tensor]] = []
        self._pairings = list(_PAIRINGS)
        rotary = []
        for call in calls:
            if not _makes_angles(call):
                continue
            cos, sin = (table.reshape(NUM_TOKENS, -1) for table in call.output)
            layout = _layout(cos)
            extra = tuple(each for each in call.arguments if isinstance(each, str))
            rotary.append(Rotary(call.name, extra, layout))
            self._raw.append(call.result[0])
            self._tables.append((each_once(cos, layout), each_once(sin, layout)))
        self.rotary = tuple(rotary)

    def value(self, attended: Attended, linears: Sequence[Call]) -> tuple[Call, Linear]:
        """The linear layer that gives values. Raises Unreadable."""
        found = columns(attended.value, linears)
        if found is None:
            raise Unreadable("its values are no output of a linear layer")
        return found

    def head(
        self, tensor: Tensor, head_dim: int, linears: Sequence[Call], inside: Sequence[Call]
    ) -> Head:
        """How queries or keys [num_tokens, heads * head_dim] come about. Raises Unreadable."""
        writer = self._norms.writing(tensor, inside)
        for rope in self._ropes(inside):
            before = self._unturn(tensor, rope, head_dim)
            if before is None:
                continue
            # A norm first: its output is compared sooner than columns are sought.
            for call in inside:
                if not (close(call.output, before) and (norm := self._norms.of(call))):
                    continue
                if found := columns(rows(call.source), linears):
                    return self._found(Head(found[1], norm, rope, False))
            if found := columns(before, linears):
                return self._found(Head(found[1], None, rope, False))
            if writer is not None and rope is not None:
                inner = self._unturn(rows(writer.source), rope, head_dim)
                if inner is not None and (found := columns(inner, linears)):
                    return self._found(Head(found[1], self._norms.of(writer), rope, True))
        raise Unreadable("how its queries or keys come about is not known")

    def _ropes(self, inside: Sequence[Call]) -> list[Rope | None]:
        """Two tables may agree on a few positions: a layer's own is taken if it was handed one."""
        handed = [pair for c in inside for pair in c.arguments if isinstance(pair, tuple) and pair]
        own = [i for i, cos in enumerate(self._raw) if any(pair[0] is cos for pair in handed)]
        sources = own or range(len(self._tables))
        return [None, *(Rope(p, i) for i in sources for p in self._pairings)]

    def _found(self, head: Head) -> Head:
        """The next layer's rope is probably the same."""
        if head.rope is not None:
            self._pairings.sort(key=lambda pairing: pairing != head.rope.pairing)  # type: ignore[union-attr]
        return head

    def _unturn(self, tensor: Tensor, rope: Rope | None, head_dim: int) -> Tensor | None:
        if rope is None:
            return tensor
        cos, sin = self._tables[rope.source]
        if 2 * cos.shape[-1] > head_dim:
            return None
        length = cos.square() + sin.square()  # of scaled tables not one
        split = tensor.unflatten(-1, (-1, head_dim))
        return rotate(split, cos / length, -sin / length, rope.pairing).flatten(1)


def _makes_angles(call: Call) -> bool:
    """Whether it gives two tables of all positions, without a parameter."""
    pair: Any = call.output
    return (
        isinstance(pair, tuple)
        and len(pair) == 2
        and not list(call.module.parameters())
        and all(isinstance(t, Tensor) and t.numel() % NUM_TOKENS == 0 for t in pair)
        and all(t.dim() > 1 and t.shape[-2] == NUM_TOKENS for t in pair)
    )


def _layout(cos: Tensor) -> Literal["cat", "repeat", "half"]:
    half = cos.shape[-1] // 2
    if torch.equal(cos[:, :half], cos[:, half:]):
        return "cat"
    return "repeat" if torch.equal(cos[:, ::2], cos[:, 1::2]) else "half"


_NUM_ROUTED = 150  # tokens of each loudness
_QUIET = 0.3


_SCORES: tuple[Literal["softmax", "sigmoid"], ...] = ("softmax", "sigmoid")


_GATED: tuple[Literal["gate_up", "gate_up_pairs"], ...] = ("gate_up", "gate_up_pairs")


@dataclass(frozen=True, slots=True, eq=False)
class ReadMlp:
    """An MLP, what it read and what it gave, [num_tokens, hidden_size] each."""

    mlp: Mlp | Moe
    source: Tensor
    output: Tensor


def read_mlp(
    config: Any, parameters: Mapping[str, Tensor], rest: Sequence[Call], inside: Sequence[Call]
) -> ReadMlp | None:
    """`rest`: a layer's linear layers beside attention's; `inside`: all its calls.

    None if it has no MLP. Raises Unreadable.
    """
    experts = [c for c in inside if any(p.dim() == 3 for p in c.module.parameters(recurse=False))]
    if not experts:
        return _dense(rest) if rest else None
    if len(experts) > 1:
        raise Unreadable("its experts are more than one module")
    return _experts(config, parameters, experts[0], rest, inside)


def _dense(linears: Sequence[Call]) -> ReadMlp:
    if len(linears) not in (2, 3):
        raise Unreadable(f"beside attention a layer has {len(linears)} linear layers, no MLP")
    *ins, out = linears
    if not all(same(call.source, ins[0].source) for call in ins):
        raise Unreadable("the linear layers of its MLP do not read the same")
    wanted = rows(out.source)
    is_plain = len(ins) == 1 and ins[0].output.shape[-1] == wanted.shape[-1]
    layouts: Sequence[Any] = ("plain",) if is_plain else _GATED
    for order, layout, activation in product(permutations(ins), layouts, ACTIVATIONS):
        inner = torch.cat([rows(call.output) for call in order], -1)
        tried = activate(layout, activation, inner)
        if close(tried, wanted):
            mlp = Mlp(tuple(map(whole, order)), layout, activation, whole(out))  # type: ignore[arg-type]
            return ReadMlp(mlp, rows(ins[0].source), rows(out.output))
    raise Unreadable("the activation of its MLP is not known")


def _experts(
    config: Any,
    weights: Mapping[str, Tensor],
    experts: Call,
    rest: Sequence[Call],
    inside: Sequence[Call],
) -> ReadMlp:
    name = experts.name.rpartition(".")[0]
    block = next(call for call in inside if call.name == name)
    source = rows(block.source)
    output = rows(_first(block.output))
    if beside := [call for call in rest if not call.name.startswith(name + ".")]:
        if not same(beside[0].source, source):
            raise Unreadable("a shared expert outside of the experts' block reads something else")
        output = output + rows(beside[-1].output)
    own = {each: tensor for each, tensor in weights.items() if each.startswith(name + ".")}
    width = source.shape[-1]
    moe = _mixture(experts, own, rest, width)
    moe = _routed(moe, block.module, experts, own, source, config)
    gated = product(_GATED, (*ACTIVATIONS, CLAMPED), (False, True))
    plain = product(("plain",), ACTIVATIONS, (False, True))
    first = own[moe.gate_up].shape
    last = own[moe.down].shape
    for layout, activation, transposed in (*gated, *plain):
        axis = 1 if transposed else 2
        is_plain = first[3 - axis] == last[axis]
        if {first[axis], last[3 - axis]} != {width} or is_plain != (layout == "plain"):
            continue
        tried: Any = {"layout": layout, "activation": activation, "transposed": transposed}
        if close(feed_forward(replace(moe, **tried), source, weights), output):
            return ReadMlp(replace(moe, **tried), source, output)
    raise Unreadable("what its experts compute is not known")


def _mixture(experts: Call, own: dict[str, Tensor], rest: Sequence[Call], width: int) -> Moe:
    """The mixture that has these parameters, of the simplest kind that there is."""
    stacks = [name for name, parameter in own.items() if parameter.dim() == 3]
    if len(stacks) != 2:
        raise Unreadable("its experts are no pair of matrices")
    gate_up, down = stacks
    biases = [name + "_bias" if name + "_bias" in own else None for name in stacks]
    num_experts = own[gate_up].shape[0]
    router = _router(experts, own, (num_experts, width))
    shared = [c for c in rest if c.name + ".weight" != router.weight and c.output.shape[-1] > 1]
    gates = [c for c in rest if c.name + ".weight" != router.weight and c.output.shape[-1] == 1]
    return Moe(
        router=router,
        num_experts=num_experts,
        top_k=choice_of(experts.arguments)[0].shape[-1],
        scoring="softmax",
        gate_up=gate_up,
        gate_up_bias=biases[0],
        down=down,
        down_bias=biases[1],
        transposed=False,
        layout="gate_up",
        activation="silu",
        shared=_shared(shared),
        shared_gate=whole(gates[0]) if gates else None,
    )


def _routed(
    moe: Moe,
    block: nn.Module,
    experts: Call,
    own: dict[str, Tensor],
    source: Tensor,
    config: Any,
) -> Moe:
    """The mixture with the routing that gives what its experts are handed.

    They are asked of many more tokens, since on a few one way to rank groups often is like another.
    Weights are compared where tokens are quiet: classes keep sums of scores from zero, each in its
    way.
    """
    x = torch.randn(2, _NUM_ROUTED, source.shape[-1], generator=torch.Generator().manual_seed(3))
    x = torch.cat((x[0] * _QUIET * source.std(), x[1] * source.std(), source))
    with handed_to(experts.module) as calls:
        block(x[None])
    chosen, weights = _by_expert(*choice_of(calls[0]))
    corrections = [
        name
        for name, tensor in own.items()
        if tensor.numel() == moe.num_experts
        and name != moe.router.bias
        and not name.startswith(experts.name + ".")
    ]
    for scores, correction, groups in product(
        _SCORES, (None, *corrections), (None, *_groupings(moe, config))
    ):
        for scoring in (scores + "_normed", scores):
            kind: Any = {"scoring": scoring, "correction": correction, "groups": groups}
            tried = replace(moe, **kind)
            own_chosen, own_weights = _by_expert(*route(tried, x, own))
            if not torch.equal(own_chosen, chosen):
                break
            quiet = weights[:_NUM_ROUTED]
            own_quiet = own_weights[:_NUM_ROUTED]
            scale = _ratio(quiet, own_quiet)
            if torch.allclose(own_quiet * scale, quiet, rtol=1e-4, atol=1e-7):
                return replace(tried, scale=named(scale, config, "the scale of its experts"))
    raise Unreadable("how it chooses experts is not known")


def _by_expert(chosen: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Ordered by the numbers of the experts."""
    order = chosen.argsort(-1)
    return chosen.gather(-1, order), weights.gather(-1, order)


def _groupings(moe: Moe, config: Any) -> Iterable[Groups]:
    """Whose numbers are the config's."""
    known = set(numbers(config).values())
    for num_groups in range(2, moe.num_experts):
        if num_groups in known and moe.num_experts % num_groups == 0:
            for top_k, num_best in product(range(1, num_groups), (1, 2)):
                if top_k in known and num_best <= moe.num_experts // num_groups:
                    yield Groups(num_groups, top_k, num_best)


def _shared(linears: Sequence[Call]) -> Mlp | None:
    if not linears:
        return None
    mlp = _dense(linears).mlp
    if isinstance(mlp, Moe):
        raise AssertionError("a dense MLP was read")
    return mlp


def _router(experts: Call, own: dict[str, Tensor], shape: tuple[int, int]) -> Linear:
    names = [
        name
        for name, parameter in own.items()
        if parameter.shape == shape and not name.startswith(experts.name + ".")
    ]
    if len(names) != 1:
        raise Unreadable("how it chooses experts is not known")
    bias = names[0].removesuffix("weight") + "bias"
    all_rows = Rows(0, 1, shape[0], shape[0])
    return Linear(names[0], bias if bias in own else None, False, all_rows)
