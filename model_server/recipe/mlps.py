"""How a layer's MLP computes, dense or with experts: hypotheses on its own input and output."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import permutations, product
from typing import Any, Literal

import torch
from torch import Tensor

from model_server.recipe.heads import whole
from model_server.recipe.pieces import ACTIVATIONS, CLAMPED, activate, feed_forward
from model_server.recipe.recipe import Linear, Mlp, Moe, Rows, Unreadable
from model_server.recipe.recording import Call, close, rows, same

_GATED: tuple[Literal["gate_up", "gate_up_pairs"], ...] = ("gate_up", "gate_up_pairs")
_SCORINGS: tuple[Literal["softmax_normed", "softmax"], ...] = ("softmax_normed", "softmax")


@dataclass(frozen=True, slots=True, eq=False)
class ReadMlp:
    """An MLP, what it read and what it gave, [num_tokens, hidden_size] each."""

    mlp: Mlp | Moe
    source: Tensor
    output: Tensor


def read_mlp(model: Any, rest: Sequence[Call], inside: Sequence[Call]) -> ReadMlp:
    """`rest`: a layer's linear layers beside attention's; `inside`: all its calls.

    Raises Unreadable.
    """
    experts = [c for c in inside if any(p.dim() == 3 for p in c.module.parameters(recurse=False))]
    if not experts:
        return _dense(rest)
    if len(experts) > 1:
        raise Unreadable("its experts are more than one module")
    return _experts(model, experts[0], rest, inside)


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


def _experts(model: Any, experts: Call, rest: Sequence[Call], inside: Sequence[Call]) -> ReadMlp:
    name = experts.name.rpartition(".")[0]
    block = next(call for call in inside if call.name == name)
    output = block.output[0] if isinstance(block.output, tuple) else block.output
    own = {n: p for n, p in model.named_parameters() if n.startswith(name + ".")}
    source = rows(block.source)
    for moe in _mixtures(experts, own, rest, source.shape[-1]):
        if close(feed_forward(moe, source, own), output):
            return ReadMlp(moe, source, rows(output))
    raise Unreadable("how it chooses experts, or what they compute, is not known")


def _mixtures(
    experts: Call, own: dict[str, Tensor], rest: Sequence[Call], width: int
) -> Iterable[Moe]:
    """Every mixture that has these parameters."""
    stacks = [name for name, parameter in own.items() if parameter.dim() == 3]
    if len(stacks) != 2:
        raise Unreadable("its experts are no pair of matrices")
    gate_up, down = stacks
    biases = [name + "_bias" if name + "_bias" in own else None for name in stacks]
    num_experts = own[gate_up].shape[0]
    router = _router(experts, own, (num_experts, width))
    shared = [c for c in rest if c.name + ".weight" != router.weight and c.output.shape[-1] > 1]
    gates = [c for c in rest if c.name + ".weight" != router.weight and c.output.shape[-1] == 1]
    top_k = next(
        each.shape[-1]
        for each in experts.arguments
        if isinstance(each, Tensor) and not each.is_floating_point()
    )
    for scoring, layout, activation, transposed in product(
        _SCORINGS, _GATED, (*ACTIVATIONS, CLAMPED), (False, True)
    ):
        axis = 1 if transposed else 2
        if own[gate_up].shape[axis] != width or own[down].shape[3 - axis] != width:
            continue
        yield Moe(
            router=router,
            num_experts=num_experts,
            top_k=top_k,
            scoring=scoring,
            gate_up=gate_up,
            gate_up_bias=biases[0],
            down=down,
            down_bias=biases[1],
            transposed=transposed,
            layout=layout,
            activation=activation,  # type: ignore[arg-type]
            shared=_shared(shared),
            shared_gate=whole(gates[0]) if gates else None,
        )


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
