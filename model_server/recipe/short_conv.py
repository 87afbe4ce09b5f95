"""Reads a convolution between two gates: of which linear layers these are outputs."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations

import torch
from torch import Tensor

from model_server.recipe.products import columns, is_linear, linear_of, parameter_of, whole
from model_server.recipe.recipe import Conv, Linear, Rows, ShortConv, Unreadable
from model_server.recipe.recording import Call, Convolved, close, rows, same

_SILU = ("silu", "swish")


def read_short_conv(
    convolved: Convolved, inside: Sequence[Call], parameters: Mapping[str, Tensor]
) -> tuple[ShortConv, Tensor, Tensor]:
    """A convolution, what its layer's mixer read and what it gave, [num_tokens, hidden_size].

    inside: all calls of its layer; parameters: of the model

    Raises Unreadable.
    """
    if convolved.activation is not None:
        raise Unreadable("an activation stands behind its convolution")
    linears = [call for call in inside if is_linear(call)]
    channels = convolved.source.shape[1]
    for call in linears:
        beside = [each for each in linears if same(each.source, call.source)]
        parts = [part for each in beside for part in _parts(each, channels)]
        for (first, x), (second, y) in combinations(parts, 2):
            if not close(x * y, convolved.source):
                continue
            for gate, z in parts:
                wanted = z * convolved.output
                output = next((each for each in linears if close(each.source, wanted)), None)
                if output is not None:
                    conv = conv_of(convolved, parameters)
                    short = ShortConv(first, second, gate, conv, whole(output))
                    return short, rows(call.source), rows(output.output)
    raise Unreadable("what stands before or behind its convolution is not known")


def _parts(call: Call, channels: int) -> Iterator[tuple[Linear, Tensor]]:
    """Its outputs, as many at a time as there are channels."""
    outputs = rows(call.output)
    if outputs.shape[1] % channels == 0:
        for index, part in enumerate(outputs.split(channels, -1)):
            yield linear_of(call, Rows(index * channels, 1, channels, channels)), part


def convolved_products(
    asked: Sequence[Tensor], convolved: Convolved, inside: Sequence[Call]
) -> tuple[Tensor, list[Linear]]:
    """Where what a mixer asks comes from, if it is convolved together: the one source
    [num_tokens, hidden_size] of all, and of each the product. Raises Unreadable.
    """
    if convolved.activation not in _SILU or not same(torch.cat(list(asked), -1), convolved.output):
        raise Unreadable("what it asks of its memory is not what its convolution gives")
    linears = [call for call in inside if is_linear(call)]
    parts = convolved.source.split([part.shape[1] for part in asked], -1)
    found = [each for part in parts if (each := columns(part, linears)) is not None]
    if len(found) != len(parts):
        raise Unreadable("its convolution reads something else than outputs of linear layers")
    source = found[0][0].source
    if not all(same(call.source, source) for call, _ in found):
        raise Unreadable("what it asks of its memory is not made of the same")
    return rows(source), [linear for _, linear in found]


def conv_of(convolved: Convolved, parameters: Mapping[str, Tensor]) -> Conv:
    """Raises Unreadable where its weight or bias is no parameter."""
    weight = parameter_of(convolved.weight, parameters, "the weight of its convolution")
    bias = None
    if convolved.bias is not None:
        bias = parameter_of(convolved.bias, parameters, "the bias of its convolution")
    return Conv(weight, bias, convolved.weight.shape[-1])
