"""A linear layer's weights on a device, in the format in which they are multiplied."""

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor
from torch.nn import functional as F


class Matrix(Protocol):
    """A weight of [num_outputs, num_inputs], in whatever format."""

    def multiply(self, x: Tensor) -> Tensor:
        """[num_rows, num_inputs] to [num_rows, num_outputs], in the dtype of `x`, bias included."""


@dataclass(frozen=True, slots=True, eq=False)
class PlainMatrix:
    """A weight in the model's dtype."""

    weight: Tensor  # [num_outputs, num_inputs]
    bias: Tensor | None = None

    def multiply(self, x: Tensor) -> Tensor:
        """See Matrix."""
        return F.linear(x, self.weight, self.bias)
