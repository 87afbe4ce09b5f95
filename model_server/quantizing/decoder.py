"""A model of transformers whose layers run one at a time, in float32.

embeddings -> layer 0 -> layer 1 -> ... -> final norm and head
              widened, run, forgotten

The other layers stay as they lie in the checkpoint's files, which are mapped: of a model that is
larger than the memory each layer is read when its turn comes.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from model_server.errors import ModelRefused
from model_server.zoo import HfModel


class _Reached(Exception):
    """The first layer was called."""


class Decoder:
    """Owner of the model, whose layers are gone once they have run.

    All rows of tokens are as long as `row`, so that a layer's further arguments, as masks and
    angles, are the same for all of them.
    """

    @torch.inference_mode()
    def __init__(self, model: HfModel, row: Tensor) -> None:
        self._model = model
        self._layers = max(
            (part for part in model.module.modules() if isinstance(part, nn.ModuleList)), key=len
        )
        self._names: Mapping[nn.Module, str] = {
            part: name for name, part in model.module.named_modules()
        }
        inner = {id(parameter) for parameter in self._layers.parameters()}
        for parameter in model.module.parameters():
            if id(parameter) not in inner:
                parameter.data = parameter.data.float()
        # By layer: its further arguments, and what it gives beside its rows; None: rows alone.
        self._further: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
        self._beside: list[tuple[None, ...] | None] = []
        with self._replaced(
            [partial(self._record, layer, layer.forward) for layer in self._layers]
        ):
            model.native_logits(row)

    def _record(
        self, layer: nn.Module, forward: Any, hidden: Tensor, *further: Any, **named: Any
    ) -> Any:
        as_stored = [parameter.data for parameter in layer.parameters()]
        layer.float()
        given = forward(hidden, *further, **named)
        for parameter, data in zip(layer.parameters(), as_stored, strict=True):
            parameter.data = data
        self._further.append((further, named))
        self._beside.append((None,) * (len(given) - 1) if isinstance(given, tuple) else None)
        return given

    def __len__(self) -> int:
        return len(self._layers)

    def linears(self, index: int) -> dict[str, nn.Linear]:
        """Of a layer, by their names in the model."""
        parts = self._layers[index].modules()
        return {self._names[part]: part for part in parts if isinstance(part, nn.Linear)}

    @torch.inference_mode()
    def embedded(self, row: Tensor) -> Tensor:
        """What the first layer reads of a row of tokens, [1, row_len, hidden_size]."""
        read: list[Tensor] = []

        def reach(hidden: Tensor, *_: Any, **__: Any) -> None:
            read.append(hidden)
            raise _Reached

        with self._replaced([reach] * len(self)), suppress(_Reached):
            self._model.native_logits(row)
        return read[0]

    def widen(self, index: int) -> None:
        """Read a layer, in float32."""
        self._layers[index].float()

    @torch.inference_mode()
    def run(self, index: int, hidden: Tensor) -> Tensor:
        """What a layer gives."""
        further, named = self._further[index]
        given = self._layers[index](hidden, *further, **named)
        return given if self._beside[index] is None else given[0]

    def forget(self, index: int) -> None:
        """A layer that has run."""
        self._layers[index].to("meta")

    def products(self, index: int, rows: Sequence[Tensor]) -> list[tuple[list[str], Tensor]]:
        """Of what the linear ones of a layer read, products of inputs with each other, summed over
        all tokens of what the layer reads; those that read the same have one.

        Raises ModelRefused for one that is not called.
        """
        linears = self.linears(index)
        readers: dict[nn.Module, dict[str, None]] = {}
        products: dict[nn.Module, Tensor] = {}
        last: list[tuple[Tensor, nn.Module]] = []

        def see(name: str, linear: nn.Module, arguments: tuple[Tensor, ...]) -> None:
            (x,) = arguments
            if not last or last[0][0] is not x:
                last[:] = [(x, linear)]
                flat = x.flatten(0, -2)
                if linear not in products:
                    products[linear] = flat.new_zeros(flat.shape[1], flat.shape[1])
                products[linear].addmm_(flat.T, flat)
            readers.setdefault(last[0][1], {})[name] = None

        handles = [
            linear.register_forward_pre_hook(partial(see, name)) for name, linear in linears.items()
        ]
        for row in rows:
            self.run(index, row)
            last.clear()
        for handle in handles:
            handle.remove()
        called = {name for names in readers.values() for name in names}
        if unused := linears.keys() - called:
            raise ModelRefused(f"{min(unused)} is not called, so what it reads is not known")
        return [(list(names), products[first]) for first, names in readers.items()]

    @torch.inference_mode()
    def logits(self, row: Tensor, hidden: Tensor) -> Tensor:
        """[row_len, vocab_size] of a row, by what the last layer gave."""

        def give(beside: tuple[None, ...] | None, *_: Any, **__: Any) -> Any:
            return hidden if beside is None else (hidden, *beside)

        with self._replaced([partial(give, beside) for beside in self._beside]):
            return self._model.native_logits(row)

    @contextmanager
    def _replaced(self, forwards: Sequence[Any]) -> Iterator[None]:
        for layer, forward in zip(self._layers, forwards, strict=True):
            layer.forward = forward
        try:
            yield
        finally:
            for layer in self._layers:
                del layer.forward
