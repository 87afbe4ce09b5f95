"""A linear layer's weights on a device, in the format in which they are multiplied."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional as F

from model_server.executor.layer_ops import quantized

# Rows to their numbers in 8 bits, and their scales: see LayerOps.quantize.
Quantize: TypeAlias = Callable[[Tensor], tuple[Tensor, Tensor]]


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


@dataclass(frozen=True, slots=True, eq=False)
class Float8Matrix:
    """A weight in 8-bit floating point with a scale for each output; inputs are rounded likewise.

    weight: [num_outputs, num_inputs] float8_e4m3fn; scales: [1, num_outputs] float32
    """

    weight: Tensor
    scales: Tensor
    bias: Tensor | None
    _quantize: Quantize

    @classmethod
    def of(cls, quantize: Quantize, weight: Tensor, bias: Tensor | None = None) -> "Float8Matrix":
        """Round a weight of the model's dtype."""
        rounded, scales = quantized(weight)
        return cls(rounded, scales.T.contiguous(), bias, quantize)

    def multiply(self, x: Tensor) -> Tensor:
        """See Matrix."""
        rounded, scales = self._quantize(x)
        product = torch._scaled_mm(rounded, self.weight.T, scales, self.scales, out_dtype=x.dtype)
        return product if self.bias is None else product + self.bias


# [num_outputs, num_inputs] and [num_outputs] of the model's dtype to what multiplies by them.
MakeMatrix: TypeAlias = Callable[[Tensor, Tensor | None], Matrix]
