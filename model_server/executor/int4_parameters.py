"""A checkpoint's parameters, some of which are in 4 bits."""

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from model_server.executor.int4_weight import Int4Weight


class Int4Parameters(Mapping[str, Tensor]):
    """By name. A weight in 4 bits is made one of `dtype` each time that it is asked for.

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
        """Of all of them."""
        return next(iter(self._plain.values())).device

    def __getitem__(self, name: str) -> Tensor:
        if name in self._int4:
            return self._int4[name].dense(self._dtype)
        return self._plain[name]

    def __iter__(self) -> Iterator[str]:
        yield from self._plain
        yield from self._int4

    def __len__(self) -> int:
        return len(self._plain) + len(self._int4)

    def release(self, name: str) -> None:
        """Forget a parameter that nobody needs any more."""
        self._plain.pop(name, None)
        self._int4.pop(name, None)
