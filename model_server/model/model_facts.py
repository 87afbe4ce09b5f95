"""The facts of a model from its config, whatever spelling the config uses."""

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """The facts of a model that loading and the gate need.

    `layer_types` is empty when the config gives none; `config_window_len` is the config's sliding
    window, whether or not any layer uses it. `max_position_embeddings` None: there
    is no such limit in the config.
    """

    model_type: str
    class_name: str
    vocab_size: int
    num_layers: int
    max_position_embeddings: int | None
    layer_types: tuple[str, ...]
    config_window_len: int | None
    chunk_len: int | None
    routes_attention: bool
    keeps_chosen_logits: bool


def facts_of(module: Any) -> ModelFacts:
    """The facts of a model of transformers."""
    config = module.config.get_text_config()
    return ModelFacts(
        model_type=module.config.model_type,
        class_name=type(module).__name__,
        vocab_size=int(config.vocab_size),
        num_layers=int(config.num_hidden_layers),
        max_position_embeddings=_max_position_embeddings(config),
        layer_types=tuple(getattr(config, "layer_types", None) or ()),
        config_window_len=_config_window_len(config),
        chunk_len=getattr(config, "attention_chunk_size", None),
        routes_attention=bool(module._supports_attention_backend),
        keeps_chosen_logits="logits_to_keep" in inspect.signature(module.forward).parameters,
    )


def _config_window_len(config: Any) -> int | None:
    if getattr(config, "use_sliding_window", True) is False:
        return None
    return getattr(config, "sliding_window", None)


def _max_position_embeddings(config: Any) -> int | None:
    """The positions that a model distinguishes, whatever its batch mates.

    LongRoPE takes other frequencies for the whole batch as soon as one position lies past the
    original length, and dynamic RoPE does past the maximum. Up to there both stand still.
    """
    limit = getattr(config, "max_position_embeddings", None)
    rope = getattr(config, "rope_parameters", None) or {}
    for kind in (rope, *(kind for kind in rope.values() if isinstance(kind, Mapping))):
        original = kind.get("original_max_position_embeddings")
        if kind.get("rope_type") in ("longrope", "dynamic") and original:
            limit = min(limit or original, original)
    return None if limit is None else int(limit)
