"""A model that computes steps: a transformers class, paged attention and this rank's weights.

    HfModel.paged_logits:  flattened batch [1, num_tokens], attention through our own function
    HfModel.native_logits: one sequence, the model's own eager attention

Models call our attention function under the name that is registered here; since no mask function
bears that name, transformers makes no mask. It finds its step in a context variable, which also
reaches those models that do not hand keyword arguments down. It knows no request, no sampling and
no RPC; the caller decides who owns which block.
"""

import inspect
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from transformers import AttentionInterface

from model_server.errors import ArchitectureUnfit

# What a layer's attention is asked: the module, query [num_tokens, num_heads, head_dim], key and
# value [num_tokens, num_kv_heads, dim], the mask and all other arguments as they were handed in.
# The answer is [num_tokens, num_heads, value_dim].
Attend: TypeAlias = Callable[
    [nn.Module, Tensor, Tensor, Tensor, Tensor | None, Mapping[str, Any]], Tensor
]

_PAGED = "tandem_paged"
EAGER = "eager"
_attend: ContextVar[Attend] = ContextVar("attend")


def _paged_attention(
    module: nn.Module,
    query: Tensor,  # [1, num_heads, num_tokens, head_dim]
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    if query.shape[0] != 1:
        raise ArchitectureUnfit(
            f"{type(module).__name__} attends over a batch of {query.shape[0]}, not a flattened one"
        )
    output = _attend.get()(
        module,
        query[0].transpose(0, 1),
        key[0].transpose(0, 1),
        value[0].transpose(0, 1),
        attention_mask,
        options,
    )
    return output.unsqueeze(0), None


AttentionInterface.register(_PAGED, _paged_attention)


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


class HfModel:
    """A causal language model of transformers, called on flattened batches.

    Owner of the module. Not for two threads at a time.
    """

    def __init__(self, module: Any) -> None:
        self.module = module
        self.facts = facts_of(module)
        # Older models read the batch back from the device to warn about padding.
        for part in module.modules():
            if hasattr(part, "warn_if_padding_and_no_attention_mask"):
                part.warn_if_padding_and_no_attention_mask = _no_warning

    def paged_logits(
        self, token_ids: Tensor, positions: Tensor, rows: Tensor, attend: Attend
    ) -> Tensor:
        """Logits [len(rows), vocab_size] of a flattened step; `attend` serves each layer.

        token_ids and positions are [num_tokens] int64, rows [num_rows] int64.
        """
        self._use(_PAGED)
        token = _attend.set(attend)
        try:
            return self._logits(token_ids, positions, rows)
        finally:
            _attend.reset(token)

    def native_logits(self, token_ids: Tensor) -> Tensor:
        """Logits [num_tokens, vocab_size] of one whole sequence by the model's own attention."""
        self._use(EAGER)
        rows = torch.arange(token_ids.shape[0], device=token_ids.device)
        return self._logits(token_ids, rows, rows)

    def num_parameters(self) -> int:
        """The number of parameters; shared ones count once."""
        return sum(parameter.numel() for parameter in self.module.parameters())

    def _use(self, implementation: str) -> None:
        if self.module.config._attn_implementation != implementation:
            self.module.set_attn_implementation(implementation)

    def _logits(self, token_ids: Tensor, positions: Tensor, rows: Tensor) -> Tensor:
        logits: Tensor = self.module(
            input_ids=token_ids.unsqueeze(0),
            position_ids=positions.unsqueeze(0),
            use_cache=False,
            logits_to_keep=rows,
        ).logits
        return logits[0]


def _no_warning(*_: object) -> None:
    """Replaces a check of padded batches."""
