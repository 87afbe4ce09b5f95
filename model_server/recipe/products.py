"""Linear layers of a recorded pass, and which of their outputs a tensor is."""

from collections.abc import Mapping, Sequence

from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from model_server.recipe.recipe import Linear, Rows, Unreadable
from model_server.recipe.recording import Call, rows, same

_TOLERANCE = 3e-5  # of the largest number


def columns(tensor: Tensor, linears: Sequence[Call]) -> tuple[Call, Linear] | None:
    """The linear layer that has this among its outputs, and which of them."""
    for call in linears:
        if same(call.output, tensor):
            return call, whole(call)
    limit = _TOLERANCE * float(tensor.abs().max())
    for call in linears:
        if chosen := _runs(tensor.T, rows(call.output).T, limit):
            return call, linear_of(call, chosen)
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


def is_linear(call: Call) -> bool:
    return isinstance(call.module, nn.Linear | Conv1D) and isinstance(call.output, Tensor)


def whole(call: Call) -> Linear:
    """All rows of a linear layer. Raises Unreadable for a layer of another class."""
    if not is_linear(call):
        raise Unreadable(f"{call.name} is no plain linear layer")
    num_rows = call.output.shape[-1]
    return linear_of(call, Rows(0, 1, num_rows, num_rows))


def parameter_of(tensor: Tensor, parameters: Mapping[str, Tensor], what: str) -> str:
    """The name of the parameter whose memory this is. Raises Unreadable if it is none's."""
    for name, parameter in parameters.items():
        if parameter.data_ptr() == tensor.data_ptr() and parameter.numel() == tensor.numel():
            return name
    raise Unreadable(f"{what} is no parameter")


def linear_of(call: Call, chosen: Rows) -> Linear:
    bias = None if call.module.bias is None else f"{call.name}.bias"
    return Linear(f"{call.name}.weight", bias, isinstance(call.module, Conv1D), chosen)
