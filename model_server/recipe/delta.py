"""Reads a gated delta rule: where what it was asked comes from, and who reads what it gave.

Queries, keys, values and gates are outputs of linear layers, found as such. Beta and decay are not
turned back into one, since a loud row loses its digits in a sigmoid: each head's is computed
forwards from every output, until one fits.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import permutations

from torch import Tensor

from model_server.recipe.dense_torch import log_decay
from model_server.recipe.gated_norm import read_gated_norm
from model_server.recipe.products import is_linear, linear_of, whole
from model_server.recipe.recipe import Delta, Linear, Rows, Unreadable
from model_server.recipe.recording import Call, Ruled, rows, same
from model_server.recipe.short_conv import conv_of, convolved_products

_TOLERANCE = 3e-5  # of the largest number


def read_delta(
    ruled: Ruled,
    inside: Sequence[Call],
    parameters: Mapping[str, Tensor],
    epsilons: Sequence[float],
) -> tuple[Delta, Tensor, Tensor]:
    """A rule, what it read and what it gave, [num_tokens, hidden_size]. Raises Unreadable.

    inside: all calls of its layer; parameters: of the model
    """
    asked = (ruled.query, ruled.key, ruled.value)
    source, (query, key, value) = convolved_products(asked, ruled.convolved, inside)
    beside = [call for call in inside if is_linear(call) and same(call.source, source)]
    beta, beta_scale = _beta(ruled.beta, beside)
    alpha, a_log, dt_bias = _decay(ruled, beside, _vectors(ruled, inside, parameters))
    value_dim = ruled.value.shape[1] // ruled.num_heads
    end = read_gated_norm(ruled.answer, (value_dim,), (False,), inside, beside, epsilons)
    delta = Delta(
        query=query,
        key=key,
        value=value,
        gate=end.gate,
        beta=beta,
        alpha=alpha,
        conv=conv_of(ruled.convolved, parameters),
        a_log=a_log,
        dt_bias=dt_bias,
        norm=end.norm,
        beta_scale=beta_scale,
        num_key_heads=ruled.num_key_heads,
        num_heads=ruled.num_heads,
        key_dim=ruled.key.shape[1] // ruled.num_key_heads,
        value_dim=value_dim,
        output=whole(end.output),
    )
    return delta, source, rows(end.output.output)


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
