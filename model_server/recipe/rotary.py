"""Cosines and sines of positions, from the rotary modules of a transformers model.

Frequencies come in a dozen kinds (linear, yarn, longrope, ...), and the modules that make them are
part of the model anyway. An executor asks them once, for a table of all positions.
"""

from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch import Tensor

from model_server.recipe.recipe import Recipe, Rotary

# positions [num_tokens] int64 -> cos and sin [num_tokens, n / 2] float32, each angle once
Angles: TypeAlias = Callable[[Tensor], tuple[Tensor, Tensor]]


def angles_of(recipe: Recipe, model: Any) -> tuple[Angles, ...]:
    """One per entry of `recipe.rotary`; `model` is the recipe's, with weights."""
    return tuple(_angles(rotary, model) for rotary in recipe.rotary)


def _angles(rotary: Rotary, model: Any) -> Angles:
    module = model.get_submodule(rotary.module)

    def angles(positions: Tensor) -> tuple[Tensor, Tensor]:
        like = torch.empty(1, dtype=torch.float32, device=positions.device)
        cos, sin = module(like, positions[None], *rotary.arguments)
        return each_once(cos[0], rotary.layout), each_once(sin[0], rotary.layout)

    return angles


def each_once(table: Tensor, layout: str) -> Tensor:
    """[..., n / 2] of a module's table [..., n], or of one that has each angle once already."""
    if layout == "cat":
        return table[..., : table.shape[-1] // 2]
    return table[..., ::2] if layout == "repeat" else table
