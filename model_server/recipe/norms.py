"""Finds norms among the calls of a recorded pass: by what they compute, not by their classes."""

from collections.abc import Sequence
from itertools import product
from typing import Any

from torch import Tensor, nn

from model_server.recipe.pieces import normalise
from model_server.recipe.recipe import Norm
from model_server.recipe.recording import Call, close, rows, same
from model_server.recipe.scalars import scalars

_USUAL_EPSILONS = (1e-5, 1e-6)
_KINDS = ("rms", "layer")
# Inputs so small that epsilon is what matters.
_TINY = 1e-3


class Norms:
    """The norms of a recorded pass; each call is tried once."""

    def __init__(self, config: Any) -> None:
        # As in a number of the config, or in the code of the class.
        known = {value for (form, _), value in scalars(config).items() if form == "itself"}
        self._epsilons = (*sorted(each for each in known if each < 0.1), *_USUAL_EPSILONS)
        self._found: dict[str, Norm | None] = {}
        self._last: tuple[str, float, bool] | None = None

    def of(self, call: Call) -> Norm | None:
        """The norm that this call computes, if it is one."""
        if call.name not in self._found:
            self._found[call.name] = self._find(call)
        return self._found[call.name]

    def writing(self, tensor: Tensor, calls: Sequence[Call]) -> Call | None:
        """The norm whose result this is."""
        return next((c for c in calls if same(c.output, tensor) and self.of(c)), None)

    def reading(self, tensor: Tensor, calls: Sequence[Call]) -> Call | None:
        """The norm of this."""
        return next((c for c in calls if same(c.source, tensor) and self.of(c)), None)

    def _find(self, call: Call) -> Norm | None:
        source, output = call.source, call.output
        if isinstance(call.module, nn.Embedding) or source is None or same(source, output):
            return None
        if not isinstance(output, Tensor) or output.shape != source.shape:
            return None
        parameters = dict(call.module.named_parameters(prefix=call.name))
        if any(parameter.dim() > 2 for parameter in parameters.values()):
            return None
        weights = tuple(name for name in parameters if not name.endswith("bias"))
        biases = tuple(name for name in parameters if name.endswith("bias"))
        row_len = rows(source).shape[-1]
        num_weights = sum(parameters[name].numel() for name in weights)
        widths = [
            width
            for width in sorted({row_len, source.shape[-1]})
            if num_weights in (0, width, row_len)
        ]
        tries = list(product(_KINDS, self._epsilons, (False, True)))
        if self._last is not None:
            tries.insert(0, self._last)
        for width, tried in product(widths, tries):
            kind, eps, plus_one = tried
            norm = Norm(kind, width, eps, plus_one, weights, biases)  # type: ignore[arg-type]
            if all(
                close(normalise(norm, rows(x), parameters), call.module(x))
                for x in (source, source * _TINY)
            ):
                self._last = tried
                return norm
        return None
