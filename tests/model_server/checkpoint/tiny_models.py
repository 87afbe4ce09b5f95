"""Shrunk models of every architecture that must be served: real classes, random weights, saved.

Weights have unit gain, so that attention is neither uniform nor one-hot and a wrong mask, position
or scale changes tokens. Sliding windows are shorter than the prompts of the tests.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn

from model_server.recipe.small import saved_buffers

VOCAB_SIZE = 160
WINDOW_LEN = 8

_COMMON: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    # Of tied random embeddings a model tends to repeat its last token.
    "tie_word_embeddings": False,
}
_WINDOWED: dict[str, Any] = {
    "sliding_window": WINDOW_LEN,
    "layer_types": ["sliding_attention", "full_attention"],
}
_EXPERTS: dict[str, Any] = {"num_experts_per_tok": 2}

CONFIGS: dict[str, Callable[[], Any]] = {
    "llama": lambda: transformers.LlamaConfig(**_COMMON),
    "llama-tied": lambda: transformers.LlamaConfig(**{**_COMMON, "tie_word_embeddings": True}),
    "qwen2": lambda: transformers.Qwen2Config(
        **_COMMON, **_WINDOWED, use_sliding_window=True, max_window_layers=1
    ),
    "qwen3": lambda: transformers.Qwen3Config(**_COMMON, head_dim=24),
    "mistral": lambda: transformers.MistralConfig(**_COMMON, sliding_window=WINDOW_LEN),
    "gemma2": lambda: transformers.Gemma2Config(
        **_COMMON,
        **_WINDOWED,
        head_dim=16,
        query_pre_attn_scalar=24,
        attn_logit_softcapping=2.0,
        final_logit_softcapping=10.0,
    ),
    "gemma3": lambda: transformers.Gemma3TextConfig(
        **_COMMON, **_WINDOWED, head_dim=16, query_pre_attn_scalar=24
    ),
    "gpt2": lambda: transformers.GPT2Config(
        vocab_size=VOCAB_SIZE,
        n_embd=64,
        n_layer=2,
        n_head=4,
        n_positions=512,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
        tie_word_embeddings=False,
    ),
    "gpt_neox": lambda: transformers.GPTNeoXConfig(
        **{name: value for name, value in _COMMON.items() if name != "num_key_value_heads"}
    ),
    "phi3": lambda: transformers.Phi3Config(**_COMMON),
    "opt": lambda: transformers.OPTConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=64,
        word_embed_proj_dim=64,
        ffn_dim=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=512,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        tie_word_embeddings=False,
    ),
    "mixtral": lambda: transformers.MixtralConfig(**_COMMON, **_EXPERTS, num_local_experts=4),
    "qwen3_moe": lambda: transformers.Qwen3MoeConfig(
        **_COMMON, **_EXPERTS, num_experts=4, moe_intermediate_size=48
    ),
    "gpt_oss": lambda: transformers.GptOssConfig(
        **_COMMON, **_EXPERTS, **_WINDOWED, num_local_experts=4, head_dim=16
    ),
}
ARCHITECTURES = tuple(name for name in CONFIGS if name != "llama-tied")

_ORIGINAL_LEN = 128
_YARN: dict[str, Any] = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "original_max_position_embeddings": _ORIGINAL_LEN,
}
# Experts of every kind: how they are chosen and weighed, and what is computed beside them.
_CHOSEN: dict[str, Any] = {
    **_COMMON,
    **_EXPERTS,
    "moe_intermediate_size": 48,
    "head_dim": 16,
    "first_k_dense_replace": 1,
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "n_group": 4,
    "topk_group": 2,
    "norm_topk_prob": True,
    "routed_scaling_factor": 2.5,
}
_BESIDE: dict[str, Any] = {
    **_COMMON,
    **_EXPERTS,
    "num_local_experts": 4,
    "shared_intermediate_size": 48,
    "residual_multiplier": 0.5,
}
EXPERT_CONFIGS: dict[str, Callable[[], Any]] = {
    "glm4_moe": lambda: transformers.Glm4MoeConfig(**_CHOSEN, use_qk_norm=True),
    "dots1": lambda: transformers.Dots1Config(**{**_CHOSEN, "norm_topk_prob": False}),
    "solar_open": lambda: transformers.SolarOpenConfig(**_CHOSEN),
    "exaone_moe": lambda: transformers.ExaoneMoeConfig(**_CHOSEN, **_WINDOWED, num_experts=8),
    "minimax_m2": lambda: transformers.MiniMaxM2Config(
        **_COMMON, **_EXPERTS, num_local_experts=4, head_dim=16
    ),
    "ernie4_5_moe": lambda: transformers.Ernie4_5_MoeConfig(
        **_COMMON, moe_num_experts=4, moe_k=2, moe_intermediate_size=48
    ),
    "hy_v3": lambda: transformers.HYV3Config(
        **_COMMON, **_EXPERTS, num_experts=4, moe_intermediate_size=48, head_dim=16
    ),
    "afmoe": lambda: transformers.AfmoeConfig(
        **_COMMON,
        **_EXPERTS,
        **_WINDOWED,
        num_experts=4,
        num_dense_layers=1,
        moe_intermediate_size=48,
        head_dim=16,
    ),
    "granitemoeshared": lambda: transformers.GraniteMoeSharedConfig(**_BESIDE),
    "granitemoehybrid-attention": lambda: transformers.GraniteMoeHybridConfig(
        **_BESIDE, layer_types=["full_attention"] * 2
    ),
}
CONFIGS |= EXPERT_CONFIGS

# Of these something changes far out alone.
FAR_CONFIGS: dict[str, Callable[[], Any]] = {
    "llama-yarn": lambda: transformers.LlamaConfig(**_COMMON, rope_parameters=_YARN),
    "ministral3": lambda: transformers.Ministral3Config(
        **_COMMON, head_dim=16, rope_parameters={**_YARN, "llama_4_scaling_beta": 0.5}
    ),
    "llama4": lambda: transformers.Llama4TextConfig(
        **{**_COMMON, "num_hidden_layers": 4},
        num_local_experts=4,
        num_experts_per_tok=1,
        intermediate_size_mlp=96,
        head_dim=16,
        attention_chunk_size=_ORIGINAL_LEN,
        no_rope_layers=[0, 1, 0, 0],
        floor_scale=64,
        attn_scale=2.0,
    ),
}

_MIXED: dict[str, Any] = {
    **_COMMON,
    "num_hidden_layers": 4,
    "layer_types": [*["linear_attention"] * 3, "full_attention"],
}
_SHORT: dict[str, Any] = {
    **_COMMON,
    "num_hidden_layers": 4,
    "conv_L_cache": 3,
    "layer_types": ["conv", "conv", "full_attention", "conv"],
}
_DELTA: dict[str, Any] = {
    "head_dim": 32,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
}
_STATE_SPACE: dict[str, Any] = {
    "mamba_n_heads": 8,
    "mamba_d_head": 16,
    "mamba_d_state": 16,
    "mamba_n_groups": 1,
    "mamba_chunk_size": 16,
}
_SPARSE: dict[str, Any] = {**_EXPERTS, "moe_intermediate_size": 48}

# Layers with a state of a fixed size, beside layers that attend or within them.
HYBRIDS: dict[str, Callable[[], Any]] = {
    "qwen3_5": lambda: transformers.Qwen3_5TextConfig(**_MIXED, **_DELTA),
    "qwen3_5_moe": lambda: transformers.Qwen3_5MoeTextConfig(
        **_MIXED, **_DELTA, **_SPARSE, num_experts=4, shared_expert_intermediate_size=48
    ),
    "qwen3_next": lambda: transformers.Qwen3NextConfig(
        **_MIXED, **_DELTA, **_SPARSE, num_experts=4, shared_expert_intermediate_size=48
    ),
    "olmo_hybrid": lambda: transformers.OlmoHybridConfig(
        **_MIXED, **{**_DELTA, "linear_num_value_heads": 2, "linear_value_head_dim": 32}
    ),
    "kimi_linear": lambda: transformers.KimiLinearConfig(
        **{**_MIXED, "num_key_value_heads": 4},
        kv_lora_rank=32,
        qk_rope_head_dim=16,
        qk_nope_head_dim=16,
        v_head_dim=24,
        num_local_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=48,
        linear_head_dim=16,
        linear_num_heads=4,
        mlp_layer_types=["dense", "sparse", "sparse", "sparse"],
    ),
    "granitemoehybrid": lambda: transformers.GraniteMoeHybridConfig(
        **_MIXED, **_EXPERTS, **_STATE_SPACE, num_local_experts=4, shared_intermediate_size=48
    ),
    "bamba": lambda: transformers.BambaConfig(
        **{**_COMMON, "num_hidden_layers": 4}, **_STATE_SPACE, attn_layer_indices=[3]
    ),
    "falcon_h1": lambda: transformers.FalconH1Config(**_COMMON, **_STATE_SPACE, mamba_d_ssm=128),
    "nemotron_h": lambda: transformers.NemotronHConfig(
        **_COMMON,
        **_SPARSE,
        layers_block_type=["linear_attention", "mlp", "full_attention", "moe"],
        head_dim=16,
        ssm_state_size=16,
        mamba_num_heads=8,
        mamba_head_dim=16,
        n_groups=2,
        chunk_size=16,
        # Several tokens are held to it and a single one is not, in transformers itself.
        time_step_min=1e-12,
        n_routed_experts=4,
        moe_shared_expert_intermediate_size=48,
    ),
    "lfm2": lambda: transformers.Lfm2Config(**_SHORT, block_auto_adjust_ff_dim=False),
    "lfm3": lambda: transformers.Lfm3Config(
        **{**_COMMON, "num_hidden_layers": 4},
        head_dim=16,
        sliding_window=WINDOW_LEN,
        layer_types=["sliding_attention", "conv", "full_attention", "conv"],
    ),
    "lfm2_moe": lambda: transformers.Lfm2MoeConfig(
        **{**_SHORT, **_SPARSE, "num_experts_per_tok": 3}, num_experts=8, num_dense_layers=1
    ),
}

# Of what sees: a small part of each kind, by the names that configs have for their numbers.
_EYE: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 1,
    "depth": 1,
    "num_attention_heads": 2,
    "num_heads": 2,
    "image_size": 28,
    "patch_size": 14,
    "out_hidden_size": 64,
    "num_position_embeddings": 16,
    "deepstack_visual_indexes": [0],
}


def _mrope(sections: list[int], **more: Any) -> dict[str, Any]:
    rope = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": sections, **more}
    return {"rope_parameters": rope}


# The kind of the whole, that of its language model, and what is set in that.
_SEEING: dict[str, tuple[str, str, dict[str, Any]]] = {
    "mistral3-mistral": ("mistral3", "mistral", {"head_dim": 16}),
    "mistral3-ministral3": ("mistral3", "ministral3", {"head_dim": 16}),
    "qwen2_5_vl": ("qwen2_5_vl", "qwen2_5_vl_text", _mrope([4, 2, 2])),
    "qwen3_vl": ("qwen3_vl", "qwen3_vl_text", {"head_dim": 16, **_mrope([4, 2, 2])}),
    "llava": ("llava", "llama", {}),
    "idefics3": ("idefics3", "llama", {}),
    "smolvlm": ("smolvlm", "llama", {}),
    "internvl": ("internvl", "qwen2", {}),
    "glm4v": (
        "glm4v",
        "glm4v_text",
        {"head_dim": 16, **_mrope([2, 1, 1], partial_rotary_factor=0.5)},
    ),
    "aya_vision": ("aya_vision", "cohere2", _WINDOWED),
    "qwen3_5_vl": (
        "qwen3_5",
        "qwen3_5_text",
        {**_MIXED, **_DELTA, **_mrope([2, 1, 1], partial_rotary_factor=0.25)},
    ),
}
SEEING = tuple(_SEEING)


def text_config(kind: str, **own: Any) -> Any:
    """Of a language model of this kind, small but for what is its own."""
    return transformers.AutoConfig.for_model(kind, **{**_COMMON, **own})


def seeing_config(kind: str, text_kind: str, **own: Any) -> Any:
    """Of a model of this kind that sees. `own` is set in its language model."""
    default = transformers.AutoConfig.for_model(kind)
    parts: dict[str, Any] = {}
    for part in default.sub_configs:
        settings = (getattr(default, part) or default.sub_configs[part]()).to_dict()
        small = {key: value for key, value in _EYE.items() if key in settings}
        parts[part] = {"model_type": settings["model_type"], **small}
    text = {**_COMMON, **own, "model_type": text_kind}
    kind_of_config: Any = type(default)
    return kind_of_config(**{**parts, "text_config": text}, tie_word_embeddings=False)


CONFIGS |= {
    name: partial(seeing_config, kind, text_kind, **own)
    for name, (kind, text_kind, own) in _SEEING.items()
}


def build(name: str, *, seed: int = 0, context_len: int | None = None) -> Any:
    """A model of one of the configs above; see `of_config`."""
    config = {**CONFIGS, **FAR_CONFIGS, **HYBRIDS}[name]()
    return of_config(config, seed=seed, context_len=context_len)


def of_config(config: Any, *, seed: int = 0, context_len: int | None = None) -> Any:
    """A model of random float32 weights with unit gain. context_len: its longest, if another."""
    if context_len is not None:
        config.get_text_config().max_position_embeddings = context_len
    sees = type(config) in transformers.AutoModelForImageTextToText._model_mapping
    kind = "AutoModelForImageTextToText" if sees else "AutoModelForCausalLM"
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(seed)
        model: Any = getattr(transformers, kind).from_config(
            config, dtype=torch.float32, attn_implementation="eager"
        )
        for parameter in model.parameters():
            if parameter.ndim >= 2:
                nn.init.normal_(parameter, std=parameter.shape[-1] ** -0.5)
            else:
                parameter.data += 0.1 * torch.randn_like(parameter)
        for buffer in saved_buffers(model).values():
            buffer += 0.1 * torch.randn_like(buffer)
    # A model of random weights must be free to say anything for as long as a test asks.
    for part in (model, _generating(model)):
        part.generation_config.eos_token_id = None
    model.config.get_text_config().eos_token_id = None
    return model.eval()


def _generating(model: Any) -> Any:
    """The part that does: all of Llama 4 fails, and its language model is whole by itself."""
    part = getattr(model, "language_model", None)
    return part if isinstance(part, transformers.GenerationMixin) else model


def save(name: str, folder: Path, *, seed: int = 0) -> Path:
    """Write such a model as a checkpoint; answers the folder."""
    build(name, seed=seed).save_pretrained(folder)
    return folder


@torch.inference_mode()
def greedy(model: Any, prompt: list[int], num_tokens: int, **options: Any) -> list[int]:
    """What generate() answers to a prompt. `options` are its own."""
    output = _generating(model).generate(
        torch.tensor([prompt], device=model.device),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.int64, device=model.device),
        max_new_tokens=num_tokens,
        do_sample=False,
        pad_token_id=0,
        **options,
    )
    tokens: list[int] = output[0, len(prompt) :].tolist()
    return tokens
