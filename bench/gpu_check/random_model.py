"""Models of the shapes of served ones, with random weights made on the device: no checkpoint."""

from typing import Any

import torch
from torch import Tensor
from transformers import LlamaConfig, Qwen3Config

from bench.gpu_check.rows import Sizes
from model_server import zoo
from model_server.executor.dense_cuda import build_dense_cuda
from model_server.executor.device_weights import Partition
from model_server.executor.executor import PagedModel
from model_server.recipe.proof import read_recipe
from model_server.recipe.recipe import Recipe

MAX_POSITIONS = 16384

SHAPES: dict[str, Any] = {
    "Llama 3 8B": LlamaConfig(
        vocab_size=128_256,
        hidden_size=4096,
        intermediate_size=14_336,
        num_hidden_layers=32,
        num_attention_heads=32,
        num_key_value_heads=8,
        max_position_embeddings=MAX_POSITIONS,
    ),
    "Qwen3 8B": Qwen3Config(
        vocab_size=151_936,
        hidden_size=4096,
        intermediate_size=12_288,
        num_hidden_layers=36,
        num_attention_heads=32,
        num_key_value_heads=8,
        head_dim=128,
        max_position_embeddings=MAX_POSITIONS,
    ),
    "Qwen3 0.6B": Qwen3Config(
        vocab_size=151_936,
        hidden_size=1024,
        intermediate_size=3072,
        num_hidden_layers=28,
        num_attention_heads=16,
        num_key_value_heads=8,
        head_dim=128,
        tie_word_embeddings=True,
        max_position_embeddings=MAX_POSITIONS,
    ),
}
_TINY = {
    "vocab_size": 4096,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 512,
}


def config_of(shape: str, sizes: Sizes) -> Any:
    """The configuration of a shape; in a rehearsal a tiny one of its family."""
    config = SHAPES[shape]
    if not sizes.is_rehearsal:
        return config
    return type(config)(**_TINY)


def random_model(config: Any, device: torch.device) -> PagedModel:
    """A model of random bfloat16 weights by its recipe, as loading makes it of a checkpoint."""
    recipe = read_recipe(config, trust_remote_code=False)
    empty = zoo.build_empty(config, trust_remote_code=False).module
    parameters = _random_parameters(empty, device)
    executor = build_dense_cuda(
        recipe,
        torch.bfloat16,
        device,
        Partition(),
        None,
        parameters,
        _tables(recipe, empty, config, device),
        release=parameters.__delitem__,
    )
    return PagedModel(
        executor,
        model_type=config.model_type,
        dtype=torch.bfloat16,
        device=device,
        vocab_size=config.vocab_size,
        max_position_embeddings=config.max_position_embeddings,
        window_len=None,
        eos_token_ids=(),
    )


def _random_parameters(empty: Any, device: torch.device) -> dict[str, Tensor]:
    made: dict[int, Tensor] = {}
    parameters = {}
    for name, parameter in empty.named_parameters(remove_duplicate=False):
        if id(parameter) not in made:
            weight = torch.empty(parameter.shape, dtype=torch.bfloat16, device=device)
            made[id(parameter)] = (
                weight.fill_(1.0)
                if weight.dim() == 1
                else weight.normal_(0, weight.shape[1] ** -0.5)
            )
        parameters[name] = made[id(parameter)]
    return parameters


def _tables(
    recipe: Recipe, empty: Any, config: Any, device: torch.device
) -> list[tuple[Tensor, Tensor]]:
    positions = torch.arange(config.max_position_embeddings)
    tables = []
    for rotary in recipe.rotary:
        made = type(empty.get_submodule(rotary.module))(config)
        cos, sin = made(torch.empty(1), positions[None], *rotary.arguments)
        half = cos.shape[-1] // 2
        tables.append((cos[0, :, :half].to(device), sin[0, :, :half].to(device)))
    return tables
