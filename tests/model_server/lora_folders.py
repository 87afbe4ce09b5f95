"""LoRA adapters of random numbers, in folders as PEFT saves them."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from model_server.adapter import CONFIG_NAME, WEIGHTS_NAME, LinearShapes


def save(
    folder: Path,
    shapes: LinearShapes,
    *,
    rank: int = 4,
    seed: int = 0,
    changes: Mapping[str, Tensor | None] | None = None,
    **config: Any,
) -> Path:
    """An adapter of all these layers.

    changes: tensors by their keys in place of others or beside them; None: it is left out
    """
    generator = torch.Generator().manual_seed(seed)
    tensors: dict[str, Tensor | None] = {}
    for name, (outputs, inputs) in shapes.items():
        a = torch.randn(rank, inputs, generator=generator) / inputs**0.5
        b = torch.randn(outputs, rank, generator=generator) / rank**0.5
        tensors |= {key(name, "A"): a, key(name, "B"): b}
    tensors |= changes or {}
    folder.mkdir(parents=True)
    settings = {"peft_type": "LORA", "r": rank, "lora_alpha": rank, **config}
    (folder / CONFIG_NAME).write_text(json.dumps(settings))
    left = {name: tensor for name, tensor in tensors.items() if tensor is not None}
    save_file(left, folder / WEIGHTS_NAME)
    return folder


def key(name: str, matrix: str) -> str:
    """Of a layer's matrix "A" or "B" in the file."""
    return f"base_model.model.{name}.lora_{matrix}.weight"
