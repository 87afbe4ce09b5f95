"""Reads a selective state space: where what its scan was asked comes from, and who reads what it
gave.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from model_server.recipe.gated_norm import read_gated_norm
from model_server.recipe.products import columns, is_linear, parameter_of, whole
from model_server.recipe.recipe import Mamba2, Unreadable
from model_server.recipe.recording import Call, Scanned, rows, same
from model_server.recipe.short_conv import conv_of, convolved_products


def read_mamba2(
    scanned: Scanned,
    inside: Sequence[Call],
    parameters: Mapping[str, Tensor],
    epsilons: Sequence[float],
) -> tuple[Mamba2, Tensor, Tensor]:
    """A scan, what it read and what it gave, [num_tokens, hidden_size]. Raises Unreadable.

    inside: all calls of its layer; parameters: of the model
    """
    asked = (scanned.value, scanned.b, scanned.c)
    source, (value, b, c) = convolved_products(asked, scanned.convolved, inside)
    beside = [call for call in inside if is_linear(call) and same(call.source, source)]
    dt = columns(scanned.dt, beside)
    if dt is None:
        raise Unreadable("its time steps are no output of a linear layer")
    inner_len = scanned.value.shape[1]
    widths = sorted({inner_len // scanned.num_groups, inner_len})
    end = read_gated_norm(scanned.answer, widths, (True, False), inside, beside, epsilons)
    mamba = Mamba2(
        gate=end.gate,
        value=value,
        b=b,
        c=c,
        dt=dt[1],
        conv=conv_of(scanned.convolved, parameters),
        a_log=_a_log(scanned, parameters),
        dt_bias=parameter_of(scanned.dt_bias, parameters, "the bias of its time steps"),
        skip=parameter_of(scanned.skip, parameters, "its D"),
        dt_limits=scanned.dt_limits,
        norm=end.norm,
        gate_first=end.gate_first,
        num_groups=scanned.num_groups,
        num_heads=scanned.num_heads,
        head_dim=inner_len // scanned.num_heads,
        state_size=scanned.b.shape[1] // scanned.num_groups,
        output=whole(end.output),
    )
    return mamba, source, rows(end.output.output)


def _a_log(scanned: Scanned, parameters: Mapping[str, Tensor]) -> str:
    for name, parameter in parameters.items():
        if parameter.shape == scanned.a.shape and torch.equal(-parameter.exp(), scanned.a):
            return name
    raise Unreadable("how it forgets is not known")
