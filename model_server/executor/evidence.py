"""What a model's logits are by others, before its weights are packed and must say the same.

It takes longer than packing. So a shard leaves it to the one that takes its place.
"""

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

_log = logging.getLogger(__name__)
_OF = "checkpoint"
# Beside the names of what a processor makes.
_SPAN_IDS = "evidence.span_ids"
_NATIVE = "evidence.native"


@dataclass(frozen=True, slots=True, eq=False)
class Evidence:
    """Logits of some tokens, of the weights as they are stored."""

    token_ids: Tensor
    exact: Tensor  # by the oracle in float32, of weights in 4 bits where they will be
    exact_of_chosen: Tensor  # the same, of the experts that transformers chose
    native: Tensor  # by transformers in the dtype in which the weights were read


@dataclass(frozen=True, slots=True, eq=False)
class ImageEvidence:
    """Logits of a prompt with an image, by transformers, and what its processor made of that."""

    span_ids: Tensor
    tensors: Mapping[str, Tensor]
    native: Tensor


class KeptEvidence:
    """Owner of files in which a shard leaves evidence to the next one of the same launcher.

    path:       of the first; that of an image lies beside it
    checkpoint: names the weights and how they are read; of others nothing is taken
    """

    def __init__(self, path: Path, checkpoint: str) -> None:
        self._path = path
        self._image_path = path.with_suffix(".image")
        self._checkpoint = checkpoint

    def read(self, device: torch.device) -> Evidence | None:
        """None: none was left, or it is of other weights."""
        found = self._read(self._path)
        if found is None:
            return None
        return Evidence(**{each.name: found[each.name].to(device) for each in fields(Evidence)})

    def write(self, evidence: Evidence) -> None:
        """Whole or not at all; without room for it the next shard computes it anew."""
        self._write(
            self._path, {each.name: getattr(evidence, each.name) for each in fields(Evidence)}
        )

    def read_image(self) -> ImageEvidence | None:
        """As `read`, on the host."""
        found = self._read(self._image_path)
        if found is None:
            return None
        span_ids, native = found.pop(_SPAN_IDS), found.pop(_NATIVE)
        return ImageEvidence(span_ids, found, native)

    def write_image(self, evidence: ImageEvidence) -> None:
        """As `write`."""
        own = {_SPAN_IDS: evidence.span_ids, _NATIVE: evidence.native}
        self._write(self._image_path, {**evidence.tensors, **own})

    def _read(self, path: Path) -> dict[str, Tensor] | None:
        try:
            with safe_open(path, framework="pt") as file:
                if (file.metadata() or {}).get(_OF) != self._checkpoint:
                    return None
                return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        except FileNotFoundError:
            return None
        except (OSError, SafetensorError) as error:
            _log.warning("the evidence of an earlier shard cannot be read: %s", error)
            return None

    def _write(self, path: Path, tensors: Mapping[str, Tensor]) -> None:
        unfinished = path.with_name(f"{path.name}.{os.getpid()}")
        # None shares memory with another one.
        own = {name: each.cpu().contiguous().clone() for name, each in tensors.items()}
        try:
            save_file(own, unfinished, {_OF: self._checkpoint})
            os.replace(unfinished, path)
        except (OSError, SafetensorError) as error:
            _log.warning("no evidence is left to the next shard: %s", error)
            unfinished.unlink(missing_ok=True)
