"""What a model's logits are by others, before its weights are packed and must say the same.

It takes longer than packing. So a shard leaves it to the one that takes its place.
"""

import logging
import os
from dataclasses import dataclass, fields
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

_log = logging.getLogger(__name__)
_OF = "checkpoint"


@dataclass(frozen=True, slots=True, eq=False)
class Evidence:
    """Logits of some tokens, of the weights as they are stored."""

    token_ids: Tensor
    exact: Tensor  # by the oracle in float32, of weights in 4 bits where they will be
    exact_of_chosen: Tensor  # the same, of the experts that transformers chose
    native: Tensor  # by transformers in the dtype in which the weights were read


class KeptEvidence:
    """Owner of a file in which a shard leaves evidence to the next one of the same launcher.

    checkpoint: names the weights and how they are read; of others nothing is taken
    """

    def __init__(self, path: Path, checkpoint: str) -> None:
        self._path = path
        self._checkpoint = checkpoint

    def read(self, device: torch.device) -> Evidence | None:
        """None: none was left, or it is of other weights."""
        try:
            with safe_open(self._path, framework="pt") as file:
                if (file.metadata() or {}).get(_OF) != self._checkpoint:
                    return None
                found = {each.name: file.get_tensor(each.name) for each in fields(Evidence)}
                return Evidence(**{name: tensor.to(device) for name, tensor in found.items()})
        except FileNotFoundError:
            return None
        except (OSError, SafetensorError) as error:
            _log.warning("the evidence of an earlier shard cannot be read: %s", error)
            return None

    def write(self, evidence: Evidence) -> None:
        """Whole or not at all; without room for it the next shard computes it anew."""
        unfinished = self._path.with_suffix(".unfinished")
        tensors = {
            # None shares memory with another one.
            each.name: getattr(evidence, each.name).cpu().contiguous().clone()
            for each in fields(Evidence)
        }
        try:
            save_file(tensors, unfinished, {_OF: self._checkpoint})
            os.replace(unfinished, self._path)
        except (OSError, SafetensorError) as error:
            _log.warning("no evidence is left to the next shard: %s", error)
            unfinished.unlink(missing_ok=True)
