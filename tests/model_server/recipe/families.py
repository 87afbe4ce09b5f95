"""A config of every family that a recipe describes, and of some that none does: six layers deep."""

from collections.abc import Collection, Iterable
from typing import Any

import pytest
from transformers import AutoConfig

_BASE: dict[str, Any] = {
    "vocab_size": 130,
    "hidden_size": 192,
    "intermediate_size": 200,
    "num_hidden_layers": 6,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
    "bos_token_id": 0,
    "eos_token_id": 0,
}
_KINDS: dict[str, Any] = {"layer_types": ["sliding_attention", "full_attention"] * 3}
_MIXED: dict[str, Any] = {"sliding_window": 11, **_KINDS}
_DEFAULT_ROPE = {"rope_type": "default", "rope_theta": 10000.0}
_PARTIAL = {**_DEFAULT_ROPE, "partial_rotary_factor": 0.5}
_YARN = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 64,
}
_LONG = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [1.0 + 0.1 * i for i in range(12)],
    "long_factor": [2.0] * 12,
    "original_max_position_embeddings": 64,
}
_DYNAMIC = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}
_TWO_ROPES = {"full_attention": _YARN, "sliding_attention": _DEFAULT_ROPE}
EXPERTS: dict[str, Any] = {
    "num_experts": 12,
    "num_local_experts": 12,
    "num_experts_per_tok": 4,
    "moe_intermediate_size": 88,
}
_SIGMOID: dict[str, Any] = {
    **EXPERTS,
    "n_routed_experts": 12,
    "n_shared_experts": 1,
    "n_group": 1,
    "topk_group": 1,
    "norm_topk_prob": True,
    "routed_scaling_factor": 1.7,
    "first_k_dense_replace": 1,
    "head_dim": 32,
}
_GROUPS: dict[str, Any] = {"n_group": 4, "topk_group": 2}
_MULTIPLIERS: dict[str, Any] = {
    "embedding_multiplier": 12.3,
    "logits_scaling": 7.0,
    "residual_multiplier": 0.22,
    "attention_multiplier": 0.3,
}
_CAPS: dict[str, Any] = {"attn_logit_softcapping": 6.0, "final_logit_softcapping": 3.0}

_RULED: dict[str, Any] = {
    "layer_types": ["linear_attention", "linear_attention", "full_attention"] * 2,
    "linear_num_key_heads": 4,
    "linear_num_value_heads": 8,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 48,
    "head_dim": 32,
}
_CONVOLVED: dict[str, Any] = {
    "layer_types": ["conv", "conv", "full_attention"] * 2,
    "block_auto_adjust_ff_dim": False,
}
_SCANNED: dict[str, Any] = {
    "mamba_n_heads": 16,
    "mamba_d_head": "auto",
    "mamba_n_groups": 4,
    "mamba_d_state": 48,
    "mamba_chunk_size": 16,
}
_SHARED: dict[str, Any] = {**EXPERTS, "shared_expert_intermediate_size": 120}

FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama-bias-tied": (
        "llama",
        {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True},
    ),
    "llama-yarn": ("llama", {"rope_parameters": _YARN}),
    "llama-dynamic": ("llama", {"rope_parameters": _DYNAMIC}),
    "mistral": ("mistral", {"sliding_window": 11, "head_dim": 32}),
    "ministral": ("ministral", {**_MIXED, "head_dim": 32}),
    "qwen2": ("qwen2", {"use_sliding_window": True, **_MIXED}),
    "qwen3": ("qwen3", {"head_dim": 32}),
    "gemma": ("gemma", {"head_dim": 32, "tie_word_embeddings": True}),
    "gemma2": ("gemma2", {**_MIXED, **_CAPS, "head_dim": 32, "query_pre_attn_scalar": 20}),
    "gemma3_text": ("gemma3_text", {**_MIXED, "head_dim": 32, "query_pre_attn_scalar": 20}),
    "phi3": ("phi3", {"sliding_window": 11}),
    "phi3-longrope": ("phi3", {"rope_parameters": _LONG, "original_max_position_embeddings": 64}),
    "phi3-partial": ("phi3", {"rope_parameters": _PARTIAL}),
    "olmo": ("olmo", {}),
    "olmo2": ("olmo2", {}),
    "olmo3": ("olmo3", {**_MIXED, "rope_parameters": _TWO_ROPES}),
    "granite": ("granite", _MULTIPLIERS),
    "starcoder2": ("starcoder2", {"sliding_window": 11, "use_bias": True}),
    "stablelm": ("stablelm", {"use_qkv_bias": True}),
    "stablelm-qk": ("stablelm", {"qk_layernorm": True, "use_parallel_residual": True}),
    "cohere": ("cohere", {"logit_scale": 0.0625}),
    "cohere-qk": ("cohere", {"logit_scale": 0.3, "use_qk_norm": True}),
    "cohere2": ("cohere2", {**_MIXED, "logit_scale": 0.25}),
    "gpt_neox": ("gpt_neox", {"rotary_pct": 0.5}),
    "gpt_neox-seq": ("gpt_neox", {"use_parallel_residual": False}),
    "phi": ("phi", {"partial_rotary_factor": 0.5}),
    "phi-qk": ("phi", {"qk_layernorm": True}),
    "glm": ("glm", {"head_dim": 32, "attention_bias": True}),
    "glm4": ("glm4", {"head_dim": 32}),
    "helium": ("helium", {"head_dim": 24}),
    "smollm3": ("smollm3", {"no_rope_layers": [1, 1, 0, 1, 1, 0]}),
    "exaone4": ("exaone4", _MIXED),
    "hunyuan": ("hunyuan_v1_dense", {"head_dim": 32}),
    "nemotron": ("nemotron", {"partial_rotary_factor": 0.5}),
    "arcee": ("arcee", {}),
    "seed_oss": ("seed_oss", {"head_dim": 32}),
    "ernie4_5": ("ernie4_5", {"head_dim": 32}),
    "persimmon": ("persimmon", {"num_key_value_heads": 8}),
    "vaultgemma": ("vaultgemma", {**_MIXED, "head_dim": 32}),
    "mixtral": ("mixtral", EXPERTS),
    "qwen3_moe": (
        "qwen3_moe",
        {**EXPERTS, "norm_topk_prob": True, "head_dim": 32, "mlp_only_layers": [1]},
    ),
    "qwen3_moe-raw": ("qwen3_moe", {**EXPERTS, "norm_topk_prob": False, "head_dim": 32}),
    "qwen2_moe": ("qwen2_moe", {**EXPERTS, "shared_expert_intermediate_size": 120}),
    "olmoe": ("olmoe", EXPERTS),
    "granitemoe": ("granitemoe", {**EXPERTS, **_MULTIPLIERS}),
    "glm4_moe": ("glm4_moe", {**_SIGMOID, "use_qk_norm": True}),
    "dots1": ("dots1", {**_SIGMOID, **_GROUPS, "norm_topk_prob": False}),
    "solar_open": ("solar_open", {**_SIGMOID, **_GROUPS}),
    "minimax_m2": ("minimax_m2", {**EXPERTS, "intermediate_size": 88, "head_dim": 32}),
    "ernie4_5_moe": (
        "ernie4_5_moe",
        {**EXPERTS, "moe_num_experts": 12, "moe_k": 4, "moe_layer_start_index": 1},
    ),
    "exaone_moe": ("exaone_moe", {**_SIGMOID, **_GROUPS, **_MIXED, "num_shared_experts": 2}),
    "hy_v3": ("hy_v3", {**EXPERTS, "head_dim": 32, "router_scaling_factor": 2.826}),
    "granitemoeshared": (
        "granitemoeshared",
        {**EXPERTS, **_MULTIPLIERS, "shared_intermediate_size": 48},
    ),
    "granitemoehybrid": (
        "granitemoehybrid",
        {
            **EXPERTS,
            **_MULTIPLIERS,
            "shared_intermediate_size": 48,
            "layer_types": ["full_attention"] * 6,
        },
    ),
    "gpt_oss": (
        "gpt_oss",
        {**EXPERTS, **_MIXED, "head_dim": 32, "rope_parameters": _DEFAULT_ROPE},
    ),
    "qwen3_5": ("qwen3_5_text", _RULED),
    "qwen3_5_moe": ("qwen3_5_moe_text", {**_RULED, **_SHARED}),
    "qwen3_next": ("qwen3_next", {**_RULED, **_SHARED}),
    "olmo_hybrid": ("olmo_hybrid", _RULED),
    "afmoe-dense": ("afmoe", {**_MIXED, "num_dense_layers": 6, "head_dim": 32}),
    "lfm3": (
        "lfm3",
        {
            "layer_types": ["conv", "sliding_attention", "full_attention"] * 2,
            "sliding_window": 11,
            "head_dim": 32,
        },
    ),
    "lfm2": ("lfm2", _CONVOLVED),
    "afmoe": (
        "afmoe",
        {**EXPERTS, **_MIXED, "num_dense_layers": 1, "head_dim": 32, "route_scale": 2.8},
    ),
    "lfm2_moe": ("lfm2_moe", {**_CONVOLVED, **EXPERTS, "num_dense_layers": 1}),
    "granite4": (
        "granitemoehybrid",
        {
            **EXPERTS,
            **_MULTIPLIERS,
            **_SCANNED,
            "shared_intermediate_size": 48,
            "layer_types": ["linear_attention", "linear_attention", "full_attention"] * 2,
        },
    ),
    "bamba": (
        "bamba",
        {
            **_SCANNED,
            "attn_layer_indices": [2, 5],
            "time_step_limit": (0.4, 1.5),
            "mamba_proj_bias": True,
            "mamba_conv_bias": False,
        },
    ),
    "nemotron_h": (
        "nemotron_h",
        {
            **_SIGMOID,
            "layers_block_type": [
                *("linear_attention", "mlp", "linear_attention"),
                *("full_attention", "moe", "linear_attention"),
            ],
            "moe_shared_expert_intermediate_size": 72,
            "mamba_num_heads": 16,
            "mamba_head_dim": 48,
            "n_groups": 4,
            "ssm_state_size": 32,
            "use_bias": True,
            "chunk_size": 16,
        },
    ),
    "lfm2-bias": ("lfm2", {**_CONVOLVED, "conv_bias": True, "conv_L_cache": 4}),
}


# Together they turn every switch of a recipe: executors are tried with these.
EXECUTED = (
    "llama-bias-tied",
    "mistral",
    "gemma2",
    "gemma3_text",
    "phi3-partial",
    "olmo",
    "olmo3",
    "granite",
    "starcoder2",
    "stablelm-qk",
    "cohere2",
    "gpt_neox",
    "phi-qk",
    "glm4",
    "smollm3",
    "hunyuan",
    "nemotron",
    "arcee",
    "mixtral",
    "qwen3_moe",
    "qwen2_moe",
    "glm4_moe",
    "dots1",
    "ernie4_5_moe",
    "granitemoeshared",
    "gpt_oss",
    "qwen3_5",
    "qwen3_next",
    "olmo_hybrid",
    "lfm2-bias",
    "lfm3",
)
# On a CPU alone; all of them with layers that keep a state.
EXECUTED_ON_CPUS = ("granite4", "bamba", "nemotron_h")
# Those with layers that keep a state of fixed size.
WITH_STATES = ("qwen3_5", "qwen3_next", "olmo_hybrid", "lfm2-bias", "lfm3")


def by_night(names: Collection[str], families: Iterable[str] = tuple(FAMILIES)) -> list[Any]:
    """Families as parameters of a test; these of them are left to the night."""
    return [
        pytest.param(name, marks=pytest.mark.nightly) if name in names else name
        for name in families
    ]


def config(kind: str, **changes: Any) -> Any:
    """A config of this kind, of the sizes above unless they are changed."""
    return AutoConfig.for_model(kind, **{**_BASE, **changes})


def family(name: str) -> Any:
    """The config of one of FAMILIES."""
    kind, changes = FAMILIES[name]
    return config(kind, **changes)
