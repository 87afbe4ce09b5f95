"""Whether ranks divide a model among them."""

import logging
from collections.abc import Mapping
from typing import Any

from model_server.errors import ModelRefused
from model_server.model.zoo import ZooModel

_log = logging.getLogger(__name__)


def can_shard(model: ZooModel, world_size: int) -> bool:
    """Whether so many ranks divide the model among them; False: each of them computes all of it.

    Raises ModelRefused when its heads cannot be divided by the number of ranks.
    """
    if world_size == 1:
        return False
    plan: Mapping[str, str] = model.module.tp_plan or {}
    if not plan:
        _log.warning(
            "%s has no plan for tensor parallelism: each of %d ranks holds and computes all of it",
            model.facts.class_name,
            world_size,
        )
        return False
    attention = ("q_proj", "k_proj", "v_proj", "qkv_proj", "query_key_value")
    if not any(
        name.rpartition(".")[2] in attention and style == "colwise" for name, style in plan.items()
    ):
        return True
    config = model.module.config.get_text_config()
    is_mixed = getattr(config, "is_heterogeneous", False)
    for layer in config.per_layer_config if is_mixed else (config,):
        _require_divisible(model.facts.class_name, layer, world_size)
    return True


def _require_divisible(class_name: str, config: Any, world_size: int) -> None:
    num_heads = config.num_attention_heads
    for name, count in (
        ("num_attention_heads", num_heads),
        ("num_key_value_heads", getattr(config, "num_key_value_heads", None) or num_heads),
    ):
        if count % world_size:
            raise ModelRefused(
                f"{name} {count} is no multiple of {world_size} shards;"
                f" serve {class_name} with another --num-shard"
            )
