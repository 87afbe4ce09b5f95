"""How queries, keys and values come about: which rows of which linear layer, which norm and rope.

What may come after the linear layer is undone, until one is found that gives the rest.
"""

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from model_server.recipe.norms import Norms
from model_server.recipe.pieces import rotate
from model_server.recipe.recipe import Head, Linear, Rope, Rotary, Rows, Unreadable
from model_server.recipe.recording import NUM_TOKENS, Attended, Call, close, rows, same
from model_server.recipe.rotary import each_once

_PAIRINGS: tuple[Literal["half", "interleaved"], ...] = ("half", "interleaved")
_TOLERANCE = 3e-5  # of the largest number


def is_linear(call: Call) -> bool:
    return isinstance(call.module, nn.Linear | Conv1D) and isinstance(call.output, Tensor)


def whole(call: Call) -> Linear:
    """All rows of a linear layer. Raises Unreadable for a layer of another class."""
    if not is_linear(call):
        raise Unreadable(f"{call.name} is no plain linear layer")
    num_rows = call.output.shape[-1]
    return _linear(call, Rows(0, 1, num_rows, num_rows))


def _linear(call: Call, chosen: Rows) -> Linear:
    bias = None if call.module.bias is None else f"{call.name}.bias"
    return Linear(f"{call.name}.weight", bias, isinstance(call.module, Conv1D), chosen)


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


def columns(tensor: Tensor, linears: Sequence[Call]) -> tuple[Call, Linear] | None:
    """The linear layer that has this among its outputs, and which of them."""
    for call in linears:
        if same(call.output, tensor):
            return call, whole(call)
    limit = _TOLERANCE * float(tensor.abs().max())
    for call in linears:
        if chosen := _runs(tensor.T, rows(call.output).T, limit):
            return call, _linear(call, chosen)
    return None


def _runs(wanted: Tensor, had: Tensor, limit: float) -> Rows | None:
    """Where the rows of `wanted` lie in `had`, as runs of one length, as far apart each."""
    start = _nearest(wanted[0], had)
    num_rows = min(len(wanted), len(had) - start)
    errors = (wanted[:num_rows] - had[start : start + num_rows]).abs().amax(1)
    used = int((errors <= limit).cumprod(0).sum())
    if used == 0 or len(wanted) % used:
        return None
    blocks = len(wanted) // used
    stride = used if blocks == 1 else _nearest(wanted[used], had) - start
    chosen = Rows(start, blocks, stride, used)
    indices = chosen.indices()
    if len(indices) != len(wanted) or not 0 <= indices[-1] < len(had):
        return None
    return chosen if float((had[indices] - wanted).abs().max()) <= limit else None


def _nearest(row: Tensor, had: Tensor) -> int:
    return int((had - row).abs().amax(1).argmin())


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
