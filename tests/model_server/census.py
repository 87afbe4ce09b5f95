"""The families of language models that are tried, each small, by what becomes of them.

BY_RECIPE:    what they compute is read, and an executor of ours runs it
IN_ITS_CLASS: transformers' own class runs; by words of the reason
REFUSED:      by words of the reason
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeAlias

from tests.model_server.checkpoint import tiny_models
from tests.model_server.checkpoint.tiny_models import WINDOW_LEN, seeing_config, text_config

Configs: TypeAlias = Mapping[str, Callable[[], Any]]

_WINDOWED: dict[str, Any] = {
    "sliding_window": WINDOW_LEN,
    "layer_types": ["sliding_attention", "full_attention"],
}
_EXPERTS: dict[str, Any] = {
    "num_experts": 4,
    "num_local_experts": 4,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 48,
}
_BESIDE: dict[str, Any] = {
    **_EXPERTS,
    "n_shared_experts": 1,
    "num_shared_experts": 1,
    "first_k_dense_replace": 1,
    "n_group": 2,
    "topk_group": 1,
}
_LATENT: dict[str, Any] = {
    "num_key_value_heads": 4,
    "kv_lora_rank": 32,
    "q_lora_rank": 24,
    "qk_rope_head_dim": 16,
    "qk_nope_head_dim": 16,
    "v_head_dim": 24,
}
# Something else is computed behind so many tokens.
_FAR: dict[str, Any] = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "original_max_position_embeddings": 128,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
}
_GROWING: dict[str, Any] = {**_FAR, "llama_4_scaling_beta": 0.5}
_LATENT_FAR: dict[str, Any] = {**_LATENT, "rope_parameters": _FAR}
_INDEXED: dict[str, Any] = {"index_n_heads": 2, "index_head_dim": 32, "index_topk": 16}
_RULED: dict[str, Any] = {
    "num_hidden_layers": 4,
    "layer_types": [*["linear_attention"] * 3, "full_attention"],
    "head_dim": 32,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
}
_SHORT: dict[str, Any] = {
    "num_hidden_layers": 4,
    "layer_types": ["conv", "conv", "full_attention", "conv"],
}
_SCALED: dict[str, Any] = {"head_dim": 16, "query_pre_attn_scalar": 24}
# Embeddings of each layer, and keys and values that the last layers take from earlier ones.
_OF_LAYERS: dict[str, Any] = {
    "num_hidden_layers": 6,
    "sliding_window": WINDOW_LEN,
    "layer_types": ["sliding_attention", "sliding_attention", "full_attention"] * 2,
    "head_dim": 16,
    "vocab_size_per_layer_input": tiny_models.VOCAB_SIZE,
    "hidden_size_per_layer_input": 16,
    "num_kv_shared_layers": 3,
}
_GEMMA3N: dict[str, Any] = {
    **_OF_LAYERS,
    "intermediate_size": [96] * 6,
    "activation_sparsity_pattern": [0.95, 0.95, *[0.0] * 4],
    "laurel_rank": 8,
}


def _tiny(*names: str) -> Configs:
    """Those of tiny_models."""
    known = {**tiny_models.CONFIGS, **tiny_models.FAR_CONFIGS, **tiny_models.HYBRIDS}
    return {name: known[name] for name in names}


def _text(kind: str, *parts: Mapping[str, Any], **own: Any) -> Callable[[], Any]:
    settings = {name: value for part in parts for name, value in part.items()}
    return partial(text_config, kind, **{**settings, **own})


def _seeing(kind: str, text_kind: str, *parts: Mapping[str, Any], **own: Any) -> Callable[[], Any]:
    settings = {name: value for part in parts for name, value in part.items()}
    return partial(seeing_config, kind, text_kind, **{**settings, **own})


BY_RECIPE: Configs = {
    **_tiny("llama", "llama-tied", "llama-yarn", "qwen2", "mistral", "gemma2", "gemma3"),
    **_tiny("gpt_neox", "phi3", "mixtral", "qwen3_moe", "gpt_oss", *tiny_models.EXPERT_CONFIGS),
    **_tiny("qwen3_5", "qwen3_5_moe", "qwen3_next", "olmo_hybrid", *tiny_models.SEEING),
    "llama3": _text(
        "llama",
        rope_parameters={
            "rope_type": "llama3",
            "rope_theta": 10000.0,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 128,
        },
    ),
    "internlm3": _text("internlm3", head_dim=16),
    "qwen2_moe": _text("qwen2_moe", _EXPERTS, shared_expert_intermediate_size=80),
    "qwen3": _text("qwen3", head_dim=32),
    "ministral": _text("ministral", _WINDOWED, head_dim=16),
    "gemma": _text("gemma", head_dim=16),
    "vaultgemma": _text("vaultgemma", _WINDOWED, head_dim=16),
    "phi": _text("phi", num_hidden_layers=4),
    "glm": _text("glm", head_dim=16),
    "glm4": _text("glm4", head_dim=16),
    "granite": _text("granite"),
    "granitemoe": _text("granitemoe", _EXPERTS),
    "granite_swa": _text("granite_swa", _WINDOWED),
    "smollm3": _text("smollm3", no_rope_layers=[1, 0]),
    "olmo": _text("olmo"),
    "olmo2": _text("olmo2"),
    "olmo3": _text("olmo3", _WINDOWED),
    "olmoe": _text("olmoe", _EXPERTS),
    "flex_olmo": _text("flex_olmo", _EXPERTS),
    "nemotron": _text("nemotron"),
    "stablelm": _text("stablelm"),
    "cohere": _text("cohere"),
    "cohere2": _text("cohere2", _WINDOWED),
    "cohere2_moe": _text("cohere2_moe", _EXPERTS, _WINDOWED),
    "exaone4": _text("exaone4", _WINDOWED),
    "hunyuan": _text("hunyuan_v1_dense", head_dim=16),
    "hunyuan_moe": _text("hunyuan_v1_moe", _EXPERTS, head_dim=16, moe_topk=2),
    "seed_oss": _text("seed_oss", head_dim=16),
    "ernie4_5": _text("ernie4_5", head_dim=16),
    "arcee": _text("arcee"),
    "helium": _text("helium", head_dim=16),
    "jais2": _text("jais2"),
    "starcoder2": _text("starcoder2"),
    "afmoe": _text("afmoe", _BESIDE, _WINDOWED, head_dim=16, num_dense_layers=1),
    **_tiny("lfm2", "lfm2_moe", "granitemoehybrid", "bamba", "nemotron_h"),
    "lfm3": _text("lfm3", _SHORT, head_dim=16),
    "lfm2_vl": _seeing("lfm2_vl", "lfm2", _SHORT, block_auto_adjust_ff_dim=False),
    "step3p7": _seeing(
        "step3p7",
        "step3p5",
        _EXPERTS,
        _WINDOWED,
        head_dim=16,
        share_expert_dim=48,
        mlp_layer_types=["dense", "sparse"],
    ),
    "gemma3-seeing": _seeing("gemma3", "gemma3_text", _WINDOWED, _SCALED),
    "qwen3_5_moe-seeing": _seeing(
        "qwen3_5_moe",
        "qwen3_5_moe_text",
        _RULED,
        _EXPERTS,
        shared_expert_intermediate_size=48,
    ),
}

IN_ITS_CLASS: Mapping[str, Configs] = {
    "multi-head latent attention is not read": {
        **_tiny("kimi_linear"),
        "deepseek_v2": _text("deepseek_v2", _LATENT_FAR, _BESIDE),
        "deepseek_v3": _text("deepseek_v3", _LATENT_FAR, _BESIDE),
        "glm4_moe_lite": _text("glm4_moe_lite", _LATENT, _BESIDE),
        "longcat_flash": _text(
            "longcat_flash",
            _LATENT,
            n_routed_experts=4,
            zero_expert_num=2,
            moe_topk=2,
            expert_ffn_hidden_size=48,
            ffn_hidden_size=96,
            num_layers=2,
            head_dim=16,
        ),
        "mistral4": _text("mistral4", _LATENT, _BESIDE, rope_parameters=_GROWING),
        "bailing_hybrid": _text(
            "bailing_hybrid",
            _LATENT,
            _BESIDE,
            num_hidden_layers=4,
            layer_group_size=4,
            head_dim=16,
        ),
        "mistral3-mistral4": _seeing(
            "mistral3", "mistral4", _LATENT, _BESIDE, rope_parameters=_GROWING
        ),
        "kimi_k25": _seeing("kimi_k25", "deepseek_v3", _LATENT_FAR, _BESIDE),
    },
    "its embeddings have another width": {
        **_tiny("opt"),
        "gemma3n": _text("gemma3n_text", _GEMMA3N),
    },
    "no narrow model of it can be built.*head_dim": {
        "gemma4": _text("gemma4_text", _OF_LAYERS),
        "gemma4-moe": _text(
            "gemma4_text",
            _EXPERTS,
            _WINDOWED,
            head_dim=16,
            hidden_size_per_layer_input=0,
            enable_moe_block=True,
            top_k_experts=2,
        ),
        "gemma4-seeing": _seeing("gemma4", "gemma4_text", _OF_LAYERS),
    },
    "such as learned positions or a norm": {
        **_tiny("gpt2"),
        "nanochat": _text("nanochat"),
        "zaya": _text(
            "zaya",
            hidden_size=32,
            head_dim=32,
            moe_intermediate_size=48,
            num_experts=8,
            num_experts_per_tok=1,
            router_hidden_size=32,
        ),
        "muse_glimmer": _seeing("muse_glimmer", "muse_glimmer_text", _WINDOWED, head_dim=16),
    },
    "how it chooses experts is not known": {"phimoe": _text("phimoe", _EXPERTS)},
    "keys and values of unlike sizes": {
        "mimo_v2_flash": _text("mimo_v2_flash", _EXPERTS, _WINDOWED, head_dim=32, v_head_dim=16)
    },
    "does not run with narrower layers": {
        "laguna": _text(
            "laguna", _EXPERTS, _WINDOWED, head_dim=16, shared_expert_intermediate_size=48
        ),
    },
    "the activation of its MLP is not known": {"apertus": _text("apertus")},
    "how its queries or keys come about is not known": {
        "llama4-seeing": _seeing(
            "llama4",
            "llama4_text",
            num_local_experts=4,
            num_experts_per_tok=1,
            intermediate_size_mlp=96,
            head_dim=16,
            attention_chunk_size=WINDOW_LEN,
            no_rope_layers=[1, 0],
            floor_scale=64,
        ),
    },
    "which experts a token takes is not handed to its experts": _tiny("llama4"),
    "at its last positions": _tiny("ministral3"),
    "mixes its tokens more than once": _tiny("falcon_h1"),
}

REFUSED: Mapping[str, Configs] = {
    "layers of type indexed_attention do not store plain keys and values": {
        "deepseek_v32": _text("deepseek_v32", _LATENT, _BESIDE, _INDEXED),
        "glm_moe_dsa": _text("glm_moe_dsa", _LATENT, _BESIDE, _INDEXED),
        "glm5_next": _seeing(
            "glm5_next",
            "glm5_next_text",
            _LATENT,
            _EXPERTS,
            _INDEXED,
            num_hidden_layers=4,
            qk_rope_head_dim=0,
            index_kpool=4,
            linear_head_dim=16,
            linear_num_heads=4,
        ),
        "qwen4_exp": _text(
            "qwen4_exp_text",
            {key: value for key, value in _RULED.items() if key != "layer_types"},
            _EXPERTS,
            shared_expert_intermediate_size=48,
            hc_lowrank=8,
            indexer_n_heads=2,
            indexer_kv_heads=1,
            indexer_head_dim=32,
            indexer_budget=16,
            indexer_compress_ratio=4,
        ),
    },
    "layers of type compressed_sparse_attention": {
        "deepseek_v4": _text(
            "deepseek_v4",
            _EXPERTS,
            _INDEXED,
            num_hidden_layers=4,
            num_key_value_heads=1,
            head_dim=32,
            q_lora_rank=24,
            o_groups=2,
            o_lora_rank=16,
            sliding_window=WINDOW_LEN,
        )
    },
    "wants more of its cache than keys, values and states.*get_linear_cache": {
        "minimax": _text(
            "minimax",
            _EXPERTS,
            layer_types=["linear_attention", "full_attention"],
            block_size=16,
            head_dim=16,
        )
    },
    "on paged, flattened batches its logits are not its own": {
        "jamba": _text(
            "jamba",
            _EXPERTS,
            num_hidden_layers=4,
            mamba_d_state=8,
            mamba_dt_rank=8,
            attn_layer_period=4,
            attn_layer_offset=2,
        ),
        "recurrent_gemma": _text("recurrent_gemma", num_hidden_layers=3),
    },
}

SERVED: Configs = {
    **BY_RECIPE,
    **{name: make for configs in IN_ITS_CLASS.values() for name, make in configs.items()},
}
