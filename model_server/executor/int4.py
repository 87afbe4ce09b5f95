"""Weights in 4 bits: groups of inputs share a scale and a zero point for each output.

    value[o, i] = (nibble[o, i] - zeros[o, g]) * scales[o, g],  g = i // group_len

    packed:  one word holds 8 inputs of an output, the first in its lowest bits
             | i 7 | i 6 | i 5 | i 4 | i 3 | i 2 | i 1 | i 0 |

All formats of checkpoints are read into this one, see checkpoint/int4_checkpoint.py.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from model_server.executor.grouped import (
    GroupedParameters,
    GroupedWeight,
    GroupValues,
    group_len_of,
)

PER_WORD = 8


@dataclass(frozen=True, slots=True, eq=False)
class Int4Weight:
    """A weight [num_outputs, num_inputs].

    packed: [num_outputs, num_inputs / 8] int32
    scales: [num_outputs, num_groups], of the checkpoint's dtype
    zeros:  [num_outputs, num_groups] uint8, 0 to 16
    """

    packed: Tensor
    scales: Tensor
    zeros: Tensor

    @property
    def num_inputs(self) -> int:
        """Of a row."""
        return self.packed.shape[1] * PER_WORD

    @property
    def num_outputs(self) -> int:
        """Rows."""
        return self.packed.shape[0]

    @property
    def group_len(self) -> int:
        """Inputs that share a scale."""
        return self.num_inputs // self.scales.shape[1]

    @property
    def device(self) -> torch.device:
        """Of all parts."""
        return self.packed.device

    def dense(self, dtype: torch.dtype) -> Tensor:
        """[num_outputs, num_inputs]: computed in float32, and rounded once."""
        groups = unpacked(self.packed).unflatten(1, (-1, self.group_len)).float()
        values = (groups - self.zeros.unsqueeze(-1)) * self.scales.float().unsqueeze(-1)
        return values.flatten(1).to(dtype)

    def grouped(self) -> GroupedWeight | None:
        """As the native forward takes it; None: its groups are not multiplied."""
        group_len = group_len_of(self.group_len)
        if group_len is None:
            return None
        numbers = unpacked(self.packed).contiguous()
        scales = self.scales.float().contiguous()
        zero = int(self.zeros[0, 0])
        is_even = bool((self.zeros == zero).all())
        minimums = None if is_even else GroupValues(scales * -self.zeros.float())
        weight = GroupedWeight(numbers, GroupValues(scales), minimums, zero, 4)
        return weight.in_groups_of(group_len)

    def rows(self, chosen: Tensor) -> "Int4Weight":
        """Some outputs; `chosen` [n] int64, on the weight's device."""
        return Int4Weight(*(part.index_select(0, chosen) for part in self._parts()))

    def can_narrow(self, inputs: range) -> bool:
        """Whether these inputs are whole groups and whole words."""
        return all(
            edge % length == 0
            for edge in (inputs.start, inputs.stop)
            for length in (self.group_len, PER_WORD)
        )

    def narrow(self, inputs: range) -> "Int4Weight":
        """Some inputs; see `can_narrow`."""
        words = slice(inputs.start // PER_WORD, inputs.stop // PER_WORD)
        groups = slice(inputs.start // self.group_len, inputs.stop // self.group_len)
        return Int4Weight(self.packed[:, words], self.scales[:, groups], self.zeros[:, groups])

    def to(self, device: torch.device) -> "Int4Weight":
        """The same on a device, contiguous."""
        return Int4Weight(*(part.to(device).contiguous() for part in self._parts()))

    def _parts(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.packed, self.scales, self.zeros


def stacked(weights: Sequence[Int4Weight]) -> Int4Weight | None:
    """One below the other; None: their groups are of different lengths."""
    if len({weight.group_len for weight in weights}) > 1:
        return None
    scales = torch.promote_types(weights[0].scales.dtype, weights[-1].scales.dtype)
    return Int4Weight(
        torch.cat([weight.packed for weight in weights]),
        torch.cat([weight.scales.to(scales) for weight in weights]),
        torch.cat([weight.zeros for weight in weights]),
    )


def unpacked(words: Tensor) -> Tensor:
    """[n, m] int32 to [n, 8 m] uint8: the numbers in each word, from its lowest bits up."""
    shifts = torch.arange(0, 32, 4, dtype=torch.int32, device=words.device)
    numbers = (words.unsqueeze(-1) >> shifts) & 15
    return numbers.flatten(1).to(torch.uint8)


def packed(numbers: Tensor) -> Tensor:
    """[n, 8 m] of 0 to 15 to [n, m] int32: see `unpacked`."""
    shifts = torch.arange(0, 32, 4, dtype=torch.int64, device=numbers.device)
    words = (numbers.to(torch.int64).unflatten(1, (-1, PER_WORD)) << shifts).sum(-1)
    return torch.where(words >= 1 << 31, words - (1 << 32), words).to(torch.int32)


class Int4Parameters(GroupedParameters):
    """A checkpoint's parameters by name; those in 4 bits are made ones of `dtype` when asked for.

    int4: those weights as they are
    """

    def __init__(
        self, plain: dict[str, Tensor], int4: dict[str, Int4Weight], dtype: torch.dtype
    ) -> None:
        if both := plain.keys() & int4.keys():
            raise ValueError(f"{sorted(both)} are in 4 bits and are not")
        self._plain = plain
        self._int4 = int4
        self._dtype = dtype

    @property
    def int4(self) -> Mapping[str, Int4Weight]:
        """Weights in 4 bits, by name."""
        return self._int4

    @property
    def device(self) -> torch.device:
        """See GroupedParameters."""
        return next(iter(self._plain.values())).device

    def __getitem__(self, name: str) -> Tensor:
        if name in self._int4:
            return self._int4[name].dense(self._dtype)
        return self._plain[name]

    @property
    def has_groups(self) -> bool:
        """See GroupedParameters."""
        return bool(self._int4)

    def grouped(self, name: str) -> GroupedWeight | None:
        """See GroupedParameters."""
        return self._int4[name].grouped() if name in self._int4 else None

    def __iter__(self) -> Iterator[str]:
        yield from self._plain
        yield from self._int4

    def __len__(self) -> int:
        return len(self._plain) + len(self._int4)

    def release(self, name: str) -> None:
        """See GroupedParameters."""
        self._plain.pop(name, None)
        self._int4.pop(name, None)
