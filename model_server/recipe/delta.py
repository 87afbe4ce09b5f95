"""Reads a gated delta rule: where what it was asked comes from, and who reads what it gave.

Queries, keys, values and gates are outputs of linear layers, found as such. Beta and decay are not
turned back into one, since a loud row loses its digits in a sigmoid: each head's is computed
forwards from every output, until one fits.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import permutations, product
from typing import Any

import torch
from torch import Tensor

from model_server.recipe.dense_torch import gated, log_decay
from model_server.recipe.products import columns, is_linear, linear_of, whole
from model_server.recipe.recipe import Delta, Linear, Norm, Rows, Unreadable
from model_server.recipe.recording import Call, Ruled, close, rows, same
from model_server.recipe.short_conv import conv_of

_TOLERANCE = 3e-5  # of the largest number
_TINY = 1e-3  # inputs of a norm so small that its epsilon is what matters
_ACTIVATIONS = ("silu", "swish")


def read_delta(
    ruled: Ruled,
    inside: Sequence[Call],
    parameters: Mapping[str, Tensor],
    epsilons: Sequence[float],
) -> tuple[Delta, Tensor, Tensor]:
    """A rule, what it read and what it gave, [num_tokens, hidden_size]. Raises Unreadable.

    inside: all calls of its layer; parameters: of the model
    """
    linears = [call for call in inside if is_linear(call)]
    products = _products(ruled, linears)
    calls = [call for call, _ in products]
    source = calls[0].source
    if not all(same(call.source, source) for call in calls):
        raise Unreadable("its queries, keys and values are not made of the same")
    beside = [call for call in linears if same(call.source, source)]
    beta, beta_scale = _beta(ruled.beta, beside)
    alpha, a_log, dt_bias = _decay(ruled, beside, _vectors(ruled, inside, parameters))
    value_dim = ruled.value.shape[1] // ruled.num_heads
    norm, gate, output = _end(ruled, value_dim, inside, beside, epsilons)
    query, key, value = (linear for _, linear in products)
    delta = Delta(
        query=query,
        key=key,
        value=value,
        gate=gate,
        beta=beta,
        alpha=alpha,
        conv=conv_of(ruled.convolved, parameters),
        a_log=a_log,
        dt_bias=dt_bias,
        norm=norm,
        beta_scale=beta_scale,
        num_key_heads=ruled.num_key_heads,
        num_heads=ruled.num_heads,
        key_dim=ruled.key.shape[1] // ruled.num_key_heads,
        value_dim=value_dim,
        output=whole(output),
    )
    return delta, rows(source), rows(output.output)


def _products(ruled: Ruled, linears: Sequence[Call]) -> list[tuple[Call, Linear]]:
    """Where queries, keys and values come from, before they are convolved."""
    convolved = ruled.convolved
    asked = torch.cat((ruled.query, ruled.key, ruled.value), -1)
    if convolved.activation not in _ACTIVATIONS or not same(asked, convolved.output):
        raise Unreadable("its queries, keys and values are not what its convolution gives")
    widths = [part.shape[1] for part in (ruled.query, ruled.key, ruled.value)]
    found = [columns(part, linears) for part in convolved.source.split(widths, -1)]
    known = [each for each in found if each is not None]
    if len(known) != len(found):
        raise Unreadable("its convolution reads something else than outputs of linear layers")
    return known


def _vectors(
    ruled: Ruled, inside: Sequence[Call], parameters: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """The parameters of its module that have one number for each head."""
    prefix = next(call.name for call in inside if call.module is ruled.module)
    return {
        name: parameter
        for name, parameter in parameters.items()
        if name.startswith(prefix + ".") and parameter.shape == (ruled.num_heads,)
    }


def _beta(wanted: Tensor, linears: Sequence[Call]) -> tuple[Linear, float]:
    for scale in (1.0, 2.0):
        found = _by_head(wanted, linears, partial(_scaled_sigmoid, scale))
        if found is not None:
            return found, scale
    raise Unreadable("how much of a value it writes is not known")


def _scaled_sigmoid(scale: float, row: Tensor, _: int) -> Tensor:
    return scale * row.sigmoid()


def _decay(
    ruled: Ruled, linears: Sequence[Call], vectors: Mapping[str, Tensor]
) -> tuple[Linear, str, str]:
    for a_log, dt_bias in permutations(vectors, 2):
        form = partial(_log_decay, vectors[a_log], vectors[dt_bias])
        found = _by_head(ruled.decay, linears, form)
        if found is not None:
            return found, a_log, dt_bias
    raise Unreadable("how it forgets is not known")


def _log_decay(a_log: Tensor, dt_bias: Tensor, row: Tensor, head: int) -> Tensor:
    return log_decay(row, a_log[head], dt_bias[head])


def _by_head(
    wanted: Tensor, linears: Sequence[Call], form: Callable[[Tensor, int], Tensor]
) -> Linear | None:
    """The outputs of which `form` makes a number of each head, wanted [num_tokens, num_heads]."""
    limit = _TOLERANCE * float(wanted.abs().max())
    for call in sorted(linears, key=lambda call: call.output.shape[-1]):
        had = rows(call.output)
        indices = []
        for head in range(wanted.shape[1]):
            errors = (form(had, head) - wanted[:, head : head + 1]).abs().amax(0)
            index = int(errors.argmin())
            if errors[index] > limit:
                break
            indices.append(index)
        else:
            if chosen := _as_rows(indices):
                return linear_of(call, chosen)
    return None


def _as_rows(indices: Sequence[int]) -> Rows | None:
    for used in range(len(indices), 0, -1):
        blocks, rest = divmod(len(indices), used)
        stride = used if blocks == 1 else indices[used] - indices[0]
        chosen = Rows(indices[0], blocks, stride, used)
        if rest == 0 and chosen.indices() == list(indices):
            return chosen
    return None


def _end(
    ruled: Ruled,
    value_dim: int,
    inside: Sequence[Call],
    linears: Sequence[Call],
    epsilons: Sequence[float],
) -> tuple[Norm, Linear, Call]:
    """The norm of what it gives, its gate, and the linear layer that reads it."""
    for call in inside:
        if not same(call.source, ruled.answer):
            continue
        gates = [each for each in call.arguments if isinstance(each, Tensor)][1:]
        outputs = [each for each in inside if is_linear(each) and same(each.source, call.output)]
        if len(gates) != 1 or len(outputs) != 1:
            continue
        gate = columns(rows(gates[0]), linears)
        if gate is None:
            raise Unreadable("the gate of what it gives is no output of a linear layer")
        return _norm(call, gates[0], value_dim, epsilons), gate[1], outputs[0]
    raise Unreadable("what it gives is not normalised with a gate")


def _norm(call: Call, gate: Tensor, value_dim: int, epsilons: Sequence[float]) -> Norm:
    parameters = dict(call.module.named_parameters(prefix=call.name))
    source: Any = call.source
    for eps, plus_one in product(epsilons, (False, True)):
        norm = Norm("rms", value_dim, eps, plus_one, tuple(parameters), ())
        if all(
            close(gated(norm, rows(x), rows(gate), parameters), call.module(x, gate))
            for x in (source, source * _TINY)
        ):
            return norm
    raise Unreadable("the norm of what it gives is not known")
