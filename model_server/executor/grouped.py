"""Weights in groups along their inputs: whole numbers, and for each group a scale and a minimum.

    value[o, i] = numbers[o, i] * scales[o, g] + minimums[o, g],  g = i // group_len

What the native forward multiplies in 4 bits, and what it is made of: a checkpoint's own numbers, or
any weight, rounded here.
"""

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

GROUP_LENS = (128, 64, 32, 16)  # that are multiplied, the best first


FACTOR_LEN = 256  # inputs that share a factor of their groups' scales


@dataclass(frozen=True, slots=True, eq=False)
class GroupValues:
    """One number for each group of each output.

    values:  [num_outputs, num_groups] float32 or float16, or int8 with factors
    factors: [num_outputs, num_inputs / FACTOR_LEN] float16, that values are multiplied by
    """

    values: Tensor
    factors: Tensor | None = None

    def floats(self) -> Tensor:
        """[num_outputs, num_groups] float32."""
        if self.factors is None:
            return self.values.float()
        times = self.values.shape[1] // self.factors.shape[1]
        return self.values * self.factors.float().repeat_interleave(times, 1)

    def in_shorter_groups(self, times: int) -> "GroupValues":
        """The same, each for so many groups."""
        return replace(self, values=self.values.repeat_interleave(times, 1))

    def with_turned_inputs(self, n: int, m: int) -> "GroupValues":
        """See GroupedWeight.with_turned_inputs."""
        return GroupValues(turned_columns(self.floats(), n, m))

    def __mul__(self, number: int) -> "GroupValues":
        factors = None if self.factors is None else self.factors * number
        # What is too large for a half is kept as floats.
        if factors is None or not factors.isfinite().all():
            return GroupValues(self.floats() * number)
        return replace(self, factors=factors)

    def stored(self, dtype: torch.dtype) -> "GroupValues":
        """As int8 with factors, which they are then; or as float16 or float32 without."""
        return self if dtype == torch.int8 else GroupValues(self.floats().to(dtype))

    def fits_halves(self) -> bool:
        """Whether all are float16s."""
        values = self.floats()
        return torch.equal(values.half().float(), values) and bool(values.isfinite().all())


@dataclass(frozen=True, slots=True, eq=False)
class GroupedWeight:
    """A weight [num_outputs, num_inputs].

    numbers:  [num_outputs, num_inputs] uint8, whatever their bits
    minimums: None: each is -zero times its scale
    bits:     that the largest number may need, 4, 5, 6 or 8
    kind:     what it is called where it is shown
    """

    numbers: Tensor
    scales: GroupValues
    minimums: GroupValues | None
    zero: int
    bits: int
    kind: str = "int4"

    @classmethod
    def rounded(cls, weight: Tensor, bits: int = 4) -> "GroupedWeight | None":
        """To the nearest of 2^bits numbers from the least to the largest of each group.

        None: no length of a group divides the inputs.
        """
        group_len = group_len_of(weight.shape[1])
        if group_len is None:
            return None
        groups = weight.detach().float().unflatten(1, (-1, group_len))
        least, largest = groups.aminmax(dim=2, keepdim=True)
        most = (1 << bits) - 1
        scales = (largest - least) / most
        # A group of equal values is its minimum alone.
        steps = (groups - least) / scales.clamp(min=torch.finfo(torch.float32).tiny)
        numbers = steps.round_().clamp_(0, most).to(torch.uint8)
        of_groups = GroupValues(scales.squeeze(2)), GroupValues(least.squeeze(2))
        return cls(numbers.flatten(1), *of_groups, 0, bits, f"int{bits}")

    @property
    def shape(self) -> torch.Size:
        """As of its values."""
        return self.numbers.shape

    @property
    def group_len(self) -> int:
        """Inputs that share a scale."""
        return self.shape[1] // self.scales.values.shape[1]

    def dense(self) -> Tensor:
        """Its values in float32."""
        groups = self.numbers.unflatten(1, (-1, self.group_len)).float()
        scales = self.scales.floats().unsqueeze(2)
        return (groups * scales + self._all_minimums().floats().unsqueeze(2)).flatten(1)

    def in_groups_of(self, group_len: int) -> "GroupedWeight":
        """The same in shorter groups; `group_len` divides its own."""
        times = self.group_len // group_len
        minimums = self.minimums
        if times == 1:
            return self
        return replace(
            self,
            scales=self.scales.in_shorter_groups(times),
            minimums=None if minimums is None else minimums.in_shorter_groups(times),
        )

    def with_turned_inputs(self, n: int, m: int) -> "GroupedWeight | None":
        """The same, of m times n runs of inputs n times m; None: a run is of no whole groups."""
        minimums = self.minimums
        if self.shape[1] % (n * m * self.group_len):
            return None
        return replace(
            self,
            numbers=turned_columns(self.numbers, n, m),
            scales=self.scales.with_turned_inputs(n, m),
            minimums=None if minimums is None else minimums.with_turned_inputs(n, m),
        )

    def with_minimums(self) -> "GroupedWeight":
        """The same with minimums of its own."""
        return replace(self, minimums=self._all_minimums(), zero=0)

    def with_values_in(self, dtype: torch.dtype) -> "GroupedWeight":
        """The same, its scales and minimums stored so: see GroupValues.stored."""
        minimums = None if self.minimums is None else self.minimums.stored(dtype)
        return replace(self, scales=self.scales.stored(dtype), minimums=minimums)

    def _all_minimums(self) -> GroupValues:
        return self.scales * -self.zero if self.minimums is None else self.minimums


def turned_columns(columns: Tensor, n: int, m: int) -> Tensor:
    """Of m times n runs of columns n times m."""
    return columns.unflatten(1, (m, n, -1)).transpose(1, 2).flatten(1)


def group_len_of(length: int) -> int | None:
    """The longest group that is multiplied and divides a length; None: none does."""
    return next((each for each in GROUP_LENS if length % each == 0), None)


def alike(weights: Sequence[GroupedWeight]) -> list[GroupedWeight]:
    """The same weights in groups of one length, with one zero or with minimums, stored alike."""
    group_len = min(each.group_len for each in weights)
    weights = [each.in_groups_of(group_len) for each in weights]
    if len({(each.zero, each.minimums is None) for each in weights}) > 1:
        weights = [each.with_minimums() for each in weights]
    values = [each.scales for each in weights]
    values += [each.minimums for each in weights if each.minimums is not None]
    if all(each.factors is not None for each in values):
        dtype = torch.int8
    else:
        dtype = torch.float16 if all(each.fits_halves() for each in values) else torch.float32
    return [each.with_values_in(dtype) for each in weights]


def joined(weights: Sequence[GroupedWeight], num_turns: int = 1) -> GroupedWeight:
    """Their outputs in one: so many runs of each, in turns."""
    weights = alike(weights)

    def in_turns(tensors: Sequence[Tensor]) -> Tensor:
        return torch.cat([each.unflatten(0, (num_turns, -1)) for each in tensors], 1).flatten(0, 1)

    def values_in_turns(values: Sequence[GroupValues]) -> GroupValues:
        factors = [each.factors for each in values if each.factors is not None]
        return GroupValues(
            in_turns([each.values for each in values]), in_turns(factors) if factors else None
        )

    minimums = [each.minimums for each in weights if each.minimums is not None]
    return replace(
        weights[0],
        numbers=in_turns([each.numbers for each in weights]),
        scales=values_in_turns([each.scales for each in weights]),
        minimums=values_in_turns(minimums) if minimums else None,
        bits=max(each.bits for each in weights),
    )


class GroupedParameters(Mapping[str, Tensor]):
    """A checkpoint's parameters by name, of which some are stored in groups."""

    @property
    @abstractmethod
    def device(self) -> torch.device:
        """Of all of them."""

    @property
    @abstractmethod
    def has_groups(self) -> bool:
        """Whether any is stored so."""

    @abstractmethod
    def grouped(self, name: str) -> GroupedWeight | None:
        """As it is stored; None: it is not so, or not in groups that are multiplied."""

    def grouped_expert(self, name: str, index: int) -> tuple[GroupedWeight, ...]:
        """Of the experts' weights one expert's: the gate and the up apart, if it has these.

        Empty: they are not stored so.
        """
        return ()

    @abstractmethod
    def release(self, name: str) -> None:
        """Forget a parameter that nobody needs any more."""


class RoundedParameters(Mapping[str, Tensor]):
    """Parameters with the values that they have in 4 bits.

    turned: of the names that are rounded, whether their inputs come first
    """

    def __init__(self, parameters: Mapping[str, Tensor], turned: Mapping[str, bool]) -> None:
        self._parameters = parameters
        self._turned = turned

    def __getitem__(self, name: str) -> Tensor:
        if name not in self._turned or self._is_grouped(name):
            return self._parameters[name]
        return self._rounded(self._parameters[name], self._turned[name])

    def _is_grouped(self, name: str) -> bool:
        given = self._parameters
        if not isinstance(given, GroupedParameters):
            return False
        return given.grouped(name) is not None or bool(given.grouped_expert(name, 0))

    def _rounded(self, weight: Tensor, is_turned: bool) -> Tensor:
        if weight.dim() == 3:
            return torch.stack([self._rounded(each, is_turned) for each in weight])
        rows = weight.T if is_turned else weight
        rounded = GroupedWeight.rounded(rows)
        if rounded is None:
            return weight
        return rounded.dense().T if is_turned else rounded.dense()

    def __iter__(self) -> Iterator[str]:
        return iter(self._parameters)

    def __len__(self) -> int:
        return len(self._parameters)
