"""What a model's logits are by others, before its weights are packed and must say the same.

It takes longer than packing. So a shard leaves it to the one that takes its place.
"""

import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from functools import partial
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

_log = logging.getLogger(__name__)
_OF = "checkpoint"
_OF_TEXTS = ".safetensors"
OF_IMAGES = ".image"


@dataclass(frozen=True, slots=True, eq=False)
class Evidence:
    """Logits of some tokens, of the weights as they are stored."""

    token_ids: Tensor
    exact: Tensor  # by the oracle in float32, of weights in 4 bits where they will be
    exact_of_chosen: Tensor  # the same, of the experts that transformers chose
    native: Tensor  # by transformers in the dtype in which the weights were read
    # Of each token, the oracle's, [num_layers, num_tokens, the largest top_k] int32; empty: none.
    experts: Tensor = field(default_factory=partial(torch.empty, 0, dtype=torch.int32))


class KeptEvidence:
    """Owner of files in which a shard leaves evidence to the next one of the same launcher.

    path:       of texts; that of an image lies beside it; None: nothing is left
    checkpoint: names the weights and how they are read; of others nothing is taken
    """

    def __init__(self, path: Path | None = None, checkpoint: str = "") -> None:
        self._path = path
        self._checkpoint = checkpoint

    def evidence(self, compute: Callable[[], Evidence], device: torch.device) -> Evidence:
        """What was left, or else what is computed, which is left then."""
        found = self.read(_OF_TEXTS)
        if found is not None:
            return Evidence(**{name: each.to(device) for name, each in found.items()})
        evidence = compute()
        tensors = {each.name: getattr(evidence, each.name) for each in fields(Evidence)}
        self.write(_OF_TEXTS, tensors)
        return evidence

    def read(self, suffix: str) -> dict[str, Tensor] | None:
        """On the host. None: none was left, or it is of other weights."""
        if self._path is None:
            return None
        try:
            with safe_open(self._path.with_suffix(suffix), framework="pt") as file:
                if (file.metadata() or {}).get(_OF) != self._checkpoint:
                    return None
                return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        except FileNotFoundError:
            return None
        except (OSError, SafetensorError) as error:
            _log.warning("the evidence of an earlier shard cannot be read: %s", error)
            return None

    def write(self, suffix: str, tensors: Mapping[str, Tensor]) -> None:
        """Whole or not at all; without room for it the next shard computes it anew."""
        if self._path is None:
            return
        path = self._path.with_suffix(suffix)
        unfinished = path.with_name(f"{path.name}.{os.getpid()}")
        # None shares memory with another one.
        own = {name: each.cpu().contiguous().clone() for name, each in tensors.items()}
        try:
            save_file(own, unfinished, {_OF: self._checkpoint})
            os.replace(unfinished, path)
        except (OSError, SafetensorError) as error:
            _log.warning("no evidence is left to the next shard: %s", error)
            unfinished.unlink(missing_ok=True)


NOT_KEPT = KeptEvidence()
