"""Shows without a device that code never waits for one: fake "cuda" tensors that refuse to be read.

    with no_sync():
        step(torch.empty(4, 8, device="cuda"))

All tensors that the code uses have to be made inside. Where torch has no CUDA, `x[rows]`, `copy_`
and `float(x)` raise as well, by a RuntimeError that says so; `x.index_select(0, rows)` passes.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode


class NoReadBack(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Refuses copies from the device to the host, which FakeTensorMode lets pass."""

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Raises RuntimeError for such a copy."""
        output = func(*args, **(kwargs or {}))
        inputs = [each for each in args if isinstance(each, torch.Tensor)]
        is_read = isinstance(output, torch.Tensor) and output.device.type == "cpu"
        if is_read and any(each.device.type == "cuda" for each in inputs):
            raise RuntimeError(f"{func} reads back from the device")
        return output


@contextmanager
def no_sync() -> Iterator[None]:
    """Raises where a device's tensor is read: DataDependentOutputException for values, as by
    `.item()`, `.tolist()` or `bool()`, RuntimeError for copies, as by `.cpu()`.
    """
    with FakeTensorMode(), NoReadBack():  # type: ignore[no-untyped-call]
        yield
