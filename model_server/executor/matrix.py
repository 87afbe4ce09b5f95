"""A linear layer's weights on a device, in the format in which they are multiplied."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional as F

from model_server.executor.int4_weight import Int4Weight
from model_server.executor.layer_ops import LayerOps, quantized

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


@dataclass(frozen=True, slots=True, eq=False)
class Int4Matrix:
    """A weight in 4 bits."""

    weight: Int4Weight
    bias: Tensor | None
    _multiply: Callable[[Tensor, Int4Weight, Tensor | None], Tensor]

    def multiply(self, x: Tensor) -> Tensor:
        """See Matrix."""
        return self._multiply(x, self.weight, self.bias)


# A weight of [num_outputs, num_inputs], in the model's dtype or in 4 bits, and the biases of its
# outputs in the model's dtype, to what multiplies by them.
MakeMatrix: TypeAlias = Callable[[Tensor | Int4Weight, Tensor | None], Matrix]


def matrices_of(ops: LayerOps, quantize: str | None = None) -> MakeMatrix:
    """How a device's matrices are made; `quantize` "fp8": those of the model's dtype are rounded.

    A weight in 4 bits stays as it is.
    """

    def make(weight: Tensor | Int4Weight, bias: Tensor | None) -> Matrix:
        if isinstance(weight, Int4Weight):
            return Int4Matrix(weight, bias, ops.multiply_int4)
        if quantize == "fp8":
            return Float8Matrix.of(ops.quantize, weight, bias)
        return PlainMatrix(weight, bias)

    return make
