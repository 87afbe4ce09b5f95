"""Reads how what a mixer gives is normalised, gated and multiplied."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from torch import Tensor

from model_server.recipe.dense_torch import gated
from model_server.recipe.products import columns, is_linear
from model_server.recipe.recipe import Linear, Norm, Unreadable
from model_server.recipe.recording import Call, close, rows, same

_TINY = 1e-3  # inputs of a norm so small that its epsilon is what matters


@dataclass(frozen=True, slots=True, eq=False)
class GatedNorm:
    """A norm with a gate, and the linear layer that reads what they give.

    gate_first: what is gated is normalised, not what is normalised gated
    """

    norm: Norm
    gate: Linear
    gate_first: bool
    output: Call


def read_gated_norm(
    answer: Tensor,
    widths: Sequence[int],
    orders: Sequence[bool],
    inside: Sequence[Call],
    linears: Sequence[Call],
    epsilons: Sequence[float],
) -> GatedNorm:
    """What reads a mixer's answer [num_tokens, heads * dim]. Raises Unreadable.

    widths:  how many numbers may be normalised together
    orders:  whether the gate may come first
    inside:  all calls of its layer
    linears: those of which the gate may be an output
    """
    for call in inside:
        if not same(call.source, answer):
            continue
        gates = [each for each in call.arguments if isinstance(each, Tensor)][1:]
        outputs = [each for each in inside if is_linear(each) and same(each.source, call.output)]
        if len(gates) != 1 or len(outputs) != 1:
            continue
        gate = columns(rows(gates[0]), linears)
        if gate is None:
            raise Unreadable("the gate of what it gives is no output of a linear layer")
        parameters = dict(call.module.named_parameters(prefix=call.name))
        source: Any = call.source
        for width, order, eps, plus_one in product(widths, orders, epsilons, (False, True)):
            norm = Norm("rms", width, eps, plus_one, tuple(parameters), ())
            if all(
                close(
                    gated(norm, rows(x), rows(gates[0]), parameters, gate_first=order),
                    call.module(x, gates[0]),
                )
                for x in (source, source * _TINY)
            ):
                return GatedNorm(norm, gate[1], order, outputs[0])
        raise Unreadable("the norm of what it gives is not known")
    raise Unreadable("what it gives is not normalised with a gate")
