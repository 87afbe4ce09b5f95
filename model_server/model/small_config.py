"""A config of the same architecture, small enough to build and run within a fraction of a second.

What decides how a model attends is kept: the kinds of its layers, head sizes (rotary factors come
in lists of that length), whether heads share keys. Widths, counts and the vocabulary are cut. It
knows configs by the spellings that they share, and no library.
"""

import copy
from typing import Any

NUM_TOKENS = 128  # of the small vocabulary
WINDOW_LEN = 8  # of sliding windows and of attention chunks

_MAX_LAYERS = 8
_SHARED_LAYERS = 2  # that take keys and values of earlier ones, where a model has such layers
_WIDTH = 64
_NUM_EXPERTS = 4
# Twice to three times the usual, so that attention scores are large enough to feel a softcap.
_WEIGHT_STD = 0.05
_WIDTHS = (
    "intermediate_size",
    "ffn_dim",
    "moe_intermediate_size",
    "shared_expert_intermediate_size",
    "intermediate_size_mlp",
)
_REACHES = ("sliding_window", "attention_chunk_size")
_VOCABULARIES = ("vocab_size", "vocab_size_per_layer_input")
_EXPERT_COUNTS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
_TOKEN_IDS = ("pad_token_id", "bos_token_id", "eos_token_id")


def shrink(config: Any) -> Any:
    """A small copy of `config`, in float32 and without quantization."""
    small = copy.deepcopy(config)
    text = small.get_text_config()
    if getattr(small, "quantization_config", None) is not None:
        del small.quantization_config
    _shrink_layers(text)
    _shrink_heads(text)
    _shrink_experts(text)
    for names, number in (
        (_WIDTHS, _WIDTH),
        (_REACHES, WINDOW_LEN),
        (_VOCABULARIES, NUM_TOKENS),
        (_TOKEN_IDS, 0),
    ):
        for name in names:
            _set_if_there(text, name, number)
    if getattr(text, "initializer_range", None):
        text.initializer_range = _WEIGHT_STD
    for name in small.sub_configs:
        part = getattr(small, name, None)
        if part is not None and part is not text and hasattr(part, "num_hidden_layers"):
            part.num_hidden_layers = 1
    return small


def _set_if_there(text: Any, name: str, number: int) -> None:
    """Replace a number, or each of a list of them; what is None stays so."""
    value = getattr(text, name, None)
    if isinstance(value, list):
        setattr(text, name, [number] * len(value))
    elif value is not None:
        setattr(text, name, number)


def _shrink_layers(text: Any) -> None:
    """The first layers, as many as contain every kind."""
    num_layers = text.num_hidden_layers
    kinds = list(getattr(text, "layer_types", None) or ())
    needed = max((kinds.index(kind) + 1 for kind in set(kinds)), default=1)
    num_shared = min(_SHARED_LAYERS, getattr(text, "num_kv_shared_layers", None) or 0)
    num_kept = min(num_layers, max(2, needed) + num_shared, _MAX_LAYERS)
    per_layer = {
        name: value[:num_kept]
        for name, value in vars(text).items()
        if isinstance(value, list) and len(value) == num_layers and num_layers > num_kept
    }
    text.num_hidden_layers = num_kept
    if num_shared:
        text.num_kv_shared_layers = num_shared
    for name, value in per_layer.items():
        setattr(text, name, value)


def _shrink_heads(text: Any) -> None:
    if getattr(text, "is_heterogeneous", False):
        # Its layers have heads of unlike sizes, and only the config itself knows which.
        return
    num_heads = text.num_attention_heads
    num_kv_heads = getattr(text, "num_key_value_heads", None)
    head_dim = getattr(text, "head_dim", None) or text.hidden_size // num_heads
    small_heads, small_kv_heads = 2, 2
    if num_kv_heads == 1:
        small_kv_heads = 1
    elif num_kv_heads is not None and num_kv_heads < num_heads:
        small_heads = 4
    hidden_size = small_heads * head_dim
    # OPT projects its embeddings only when their width is not the model's.
    if getattr(text, "word_embed_proj_dim", None) == text.hidden_size:
        text.word_embed_proj_dim = hidden_size
    text.hidden_size = hidden_size
    text.num_attention_heads = small_heads
    if num_kv_heads is not None:
        text.num_key_value_heads = small_kv_heads


def _shrink_experts(text: Any) -> None:
    for name in _EXPERT_COUNTS:
        if getattr(text, name, None):
            setattr(text, name, _NUM_EXPERTS)
    if (getattr(text, "num_experts_per_tok", None) or 0) > 2:
        text.num_experts_per_tok = 2
    for name in ("n_group", "topk_group", "first_k_dense_replace"):
        if getattr(text, name, None):
            setattr(text, name, 1)
