"""What each architecture of GGUF files is in the words of transformers.

Most of a file's metadata has the same meaning in all architectures (SETTINGS), and which tensor is
which parameter is known to the package `gguf`. What else differs is said here, as llama.cpp's
converter writes it: https://github.com/ggml-org/llama.cpp/tree/master/conversion.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

# Names in config.json of what metadata says, by the key behind the architecture's name.
SETTINGS = {
    "embedding_length": "hidden_size",
    "block_count": "num_hidden_layers",
    "feed_forward_length": "intermediate_size",
    "context_length": "max_position_embeddings",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "attention.layer_norm_epsilon": "layer_norm_eps",
    "attention.sliding_window": "sliding_window",
    "attention.sliding_window_pattern": "layer_types",
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
    "expert_used_count": "num_experts_per_tok",
    "expert_feed_forward_length": "moe_intermediate_size",
}
# Of all heads of a state, in a file; in a class of one.
STATE_LEN = "ssm.inner_size"
# What all classes compute, where a file says it: embedding models attend in both directions.
EXPECTED = {"attention.causal": True}
REQUIRED = ("embedding_length", "block_count", "context_length", "attention.head_count")


# Of experts, in DeepSeek's words.
_DEEPSEEK = {
    "expert_count": "n_routed_experts",
    "expert_shared_count": "n_shared_experts",
    "expert_group_count": "n_group",
    "expert_group_used_count": "topk_group",
    "expert_weights_norm": "norm_topk_prob",
    "expert_weights_scale": "routed_scaling_factor",
    "leading_dense_block_count": "first_k_dense_replace",
}
# What llama.cpp takes where a file of these is silent.
_DEEPSEEK_SILENT = {
    "first_k_dense_replace": 0,
    "norm_topk_prob": False,
    "routed_scaling_factor": 1.0,
}
_SIGMOID = {"expert_gating_func": 2}


def _nothing() -> Mapping[str, Any]:
    return MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Architecture:
    """One of those that are served.

    model_type:       of the model's class
    settings:         names in config.json that are others than SETTINGS has, or more
    required:         of them, what no file may leave out
    harmless:         what changes no number, and in other architectures might
    constants:        what the class needs and no file says
    rope:             the same of a scaled rotation
    expected:         what the class computes alone, where a file says it
    names:            parts of parameters' names that `gguf` knows by others; gate+up: by two
    with_experts:     what it is where a file has experts
    with_window:      what it is where a file has a window
    is_interleaved:   rows of queries and keys are, for rotation by neighbours
    rotates_in_part:  the class may, though its own config does not
    qkv_by_heads:     the class has each head's queries, keys and values side by side
    norms_plus_one:   norms have what the class adds to them
    experts_turned:   in the class they have inputs first, and gate and up in turns
    local_theta:      of rotations in layers with a window, where the file does not say; None: as
                      in the others
    mixer:            what layer_types call a layer without attention
    mlp:              and one that is nothing else, which alone has a feed_forward_length
    first_heads_first: of a delta rule's values, the first one of each key, then the second ones
    """

    model_type: str
    settings: Mapping[str, str] = field(default_factory=_nothing)
    required: Collection[str] = ()
    harmless: Collection[str] = ()
    constants: Mapping[str, Any] = field(default_factory=_nothing)
    rope: Mapping[str, Any] = field(default_factory=_nothing)
    expected: Mapping[str, Any] = field(default_factory=_nothing)
    names: Mapping[str, str] = field(default_factory=_nothing)
    with_experts: "Architecture | None" = None
    with_window: "Architecture | None" = None
    is_interleaved: bool = False
    rotates_in_part: bool = False
    qkv_by_heads: bool = False
    norms_plus_one: bool = False
    experts_turned: bool = False
    local_theta: float | None = None
    mixer: str | None = None
    mlp: str | None = None
    first_heads_first: bool = False


# A text's positions are the same in all sections, and no image is added to its layers.
_SEEING = ("rope.dimension_sections", "n_deepstack_layers")
_DELTA = {
    "ssm.conv_kernel": "linear_conv_kernel_dim",
    "ssm.state_size": "linear_key_head_dim",
    "ssm.group_count": "linear_num_key_heads",
    "ssm.time_step_rank": "linear_num_value_heads",
    STATE_LEN: "linear_value_head_dim",
}
_GRANITE = {
    "attention.scale": "attention_multiplier",
    "embedding_scale": "embedding_multiplier",
    "residual_scale": "residual_multiplier",
    "logit_scale": "logits_scaling",
}
_GRANITE_HYBRID = Architecture(
    "granitemoehybrid",
    settings={
        "expert_count": "num_local_experts",
        "expert_shared_feed_forward_length": "shared_intermediate_size",
        **_GRANITE,
        "ssm.conv_kernel": "mamba_d_conv",
        "ssm.state_size": "mamba_d_state",
        "ssm.group_count": "mamba_n_groups",
        "ssm.time_step_rank": "mamba_n_heads",
        STATE_LEN: "mamba_d_head",
    },
    constants={"num_local_experts": 0, "position_embedding_type": "nope"},
    # Bamba's, which rotates, have the same name.
    expected={"rope.scaling.finetuned": False},
    names={
        ".dt_bias": ".dt_proj.bias",
        ".shared_mlp.input_linear.": ".feed_forward.gate+up_proj.",
        ".shared_mlp.output_linear.": ".feed_forward.down_proj.",
    },
    is_interleaved=True,
    mixer="linear_attention",
)
_SHARED_EXPERT = {
    "expert_count": "num_experts",
    "expert_shared_feed_forward_length": "shared_expert_intermediate_size",
}
_QWEN35 = Architecture(
    "qwen3_5_text",
    settings=_DELTA,
    harmless=_SEEING,
    names={".dt_bias": ".dt_proj.bias"},
    norms_plus_one=True,
    mixer="linear_attention",
    first_heads_first=True,
)
_LFM2 = Architecture(
    "lfm2",
    settings={
        "attention.layer_norm_rms_epsilon": "norm_eps",
        "shortconv.l_cache": "conv_L_cache",
    },
    # A file has the length that is computed so.
    constants={"block_auto_adjust_ff_dim": False},
    mixer="conv",
)
_COHERE = {"logit_scale": "logit_scale"}
_NEMOTRON_H = Architecture(
    "nemotron_h",
    settings={
        "attention.layer_norm_epsilon": "layer_norm_epsilon",
        "attention.layer_norm_rms_epsilon": "layer_norm_epsilon",
        "expert_count": "n_routed_experts",
        "expert_shared_count": "n_shared_experts",
        "expert_shared_feed_forward_length": "moe_shared_expert_intermediate_size",
        "expert_group_count": "n_group",
        "expert_group_used_count": "topk_group",
        "expert_weights_norm": "norm_topk_prob",
        "expert_weights_scale": "routed_scaling_factor",
        "ssm.conv_kernel": "conv_kernel",
        "ssm.state_size": "ssm_state_size",
        "ssm.group_count": "n_groups",
        "ssm.time_step_rank": "mamba_num_heads",
        STATE_LEN: "mamba_head_dim",
    },
    expected={"rope.scaling.finetuned": False},
    names={".dt_bias": ".dt_proj.bias", ".mixer.experts.": ".mlp.experts."},
    is_interleaved=True,
    mixer="linear_attention",
    mlp="mlp",
)
# By the file's word.
ARCHITECTURES = {
    "llama": Architecture(
        "llama",
        is_interleaved=True,
        with_experts=Architecture(
            "mixtral", settings={"expert_count": "num_local_experts"}, is_interleaved=True
        ),
    ),
    "qwen2": Architecture("qwen2"),
    "qwen2moe": Architecture(
        "qwen2_moe",
        settings=_SHARED_EXPERT,
        constants={"norm_topk_prob": False},
    ),
    "qwen3": Architecture("qwen3"),
    "qwen3moe": Architecture(
        "qwen3_moe",
        settings={"expert_count": "num_experts"},
        constants={"norm_topk_prob": True},
    ),
    "gpt-oss": Architecture(
        "gpt_oss",
        settings={
            "expert_count": "num_local_experts",
            "expert_feed_forward_length": "intermediate_size",
        },
        rope={"truncate": False},
        experts_turned=True,
    ),
    "granitemoe": Architecture(
        "granitemoe",
        settings={"expert_count": "num_local_experts", **_GRANITE},
        required=_GRANITE,
        names={".block_sparse_moe.": ".mlp."},
        is_interleaved=True,
    ),
    # Solar Open's files too, which say nothing of layers without experts.
    "glm4moe": Architecture(
        "glm4_moe",
        settings=_DEEPSEEK,
        constants=_DEEPSEEK_SILENT,
        expected=_SIGMOID,
    ),
    "dots1": Architecture(
        "dots1",
        settings=_DEEPSEEK,
        constants={**_DEEPSEEK_SILENT, "sliding_window": None},
        expected=_SIGMOID,
    ),
    "ernie4_5-moe": Architecture(
        "ernie4_5_moe",
        settings={
            "expert_count": "moe_num_experts",
            "expert_used_count": "moe_k",
            "expert_shared_count": "moe_num_shared_experts",
            "interleave_moe_layer_step": "moe_layer_interval",
            "leading_dense_block_count": "moe_layer_start_index",
        },
        names={".gate.moe_statics.": ".moe_statics."},
    ),
    "minimax-m2": Architecture(
        "minimax_m2",
        settings={
            "expert_count": "num_local_experts",
            "expert_feed_forward_length": "intermediate_size",
        },
        expected=_SIGMOID,
        names={".mlp.e_score_": ".block_sparse_moe.e_score_"},
        rotates_in_part=True,
    ),
    "hunyuan-moe": Architecture(
        "hunyuan_v1_moe",
        settings={
            "expert_count": "num_experts",
            "expert_feed_forward_length": "intermediate_size",
            "expert_used_count": "moe_topk",
        },
        expected={"expert_shared_count": 1},
    ),
    "afmoe": Architecture(
        "afmoe",
        settings={
            "expert_count": "num_experts",
            "expert_shared_count": "num_shared_experts",
            "expert_weights_scale": "route_scale",
            "leading_dense_block_count": "num_dense_layers",
        },
        constants={"mup_enabled": True},
        expected={
            **_SIGMOID,
            "expert_weights_norm": True,
            "expert_group_count": 1,
            "expert_group_used_count": 1,
        },
        names={".expert_bias": ".expert_bias.bias"},
    ),
    "exaone-moe": Architecture(
        "exaone_moe",
        settings={
            **_DEEPSEEK,
            "expert_count": "num_experts",
            "expert_shared_count": "num_shared_experts",
        },
        constants=_DEEPSEEK_SILENT,
        expected=_SIGMOID,
    ),
    "olmoe": Architecture(
        "olmoe",
        settings={"expert_count": "num_experts"},
        constants={"norm_topk_prob": False},
    ),
    # Its first files do not say the window.
    "gemma2": Architecture("gemma2", constants={"sliding_window": 4096}, norms_plus_one=True),
    "gemma3": Architecture("gemma3_text", norms_plus_one=True, local_theta=10000.0),
    "phi3": Architecture(
        "phi3",
        settings={"rope.scaling.original_context_length": "original_max_position_embeddings"},
    ),
    "granitehybrid": replace(
        _GRANITE_HYBRID,
        with_experts=replace(
            _GRANITE_HYBRID,
            names={
                ".dt_bias": ".dt_proj.bias",
                ".shared_mlp.input_linear.": ".mlp.shared_expert.gate+up_proj.",
                ".block_sparse_moe.": ".mlp.",
            },
        ),
    ),
    "lfm2": _LFM2,
    "lfm2moe": replace(
        _LFM2,
        model_type="lfm2_moe",
        settings={
            **_LFM2.settings,
            "expert_count": "num_experts",
            "leading_dense_block_count": "num_dense_layers",
        },
        constants=_nothing(),
        expected=_SIGMOID,
        names={
            ".expert_bias": ".expert_bias.bias",
            ".feed_forward.experts.": ".mlp.experts.",
        },
    ),
    "nemotron_h": _NEMOTRON_H,
    "nemotron_h_moe": replace(_NEMOTRON_H, mlp="moe"),
    "qwen3next": replace(
        _QWEN35,
        model_type="qwen3_next",
        settings=_DELTA | _SHARED_EXPERT,
        constants={"norm_topk_prob": True},
        first_heads_first=False,
    ),
    "qwen35": _QWEN35,
    "qwen35moe": replace(_QWEN35, model_type="qwen3_5_moe_text", settings=_DELTA | _SHARED_EXPERT),
    "smollm3": Architecture("smollm3", is_interleaved=True),
    "granite": Architecture(
        "granite",
        settings=_GRANITE,
        required=_GRANITE,
        # Granite 4's that have no state say how long it would be.
        harmless=(
            "ssm.conv_kernel",
            "ssm.state_size",
            "ssm.group_count",
            "ssm.time_step_rank",
            STATE_LEN,
        ),
        # Where it is not, layers do not rotate.
        expected={"rope.scaling.finetuned": True},
        is_interleaved=True,
    ),
    "olmo2": Architecture("olmo2", with_window=Architecture("olmo3")),
    "seed_oss": Architecture("seed_oss"),
    "ernie4_5": Architecture("ernie4_5"),
    "exaone4": Architecture("exaone4"),
    "glm4": Architecture("glm4"),
    "command-r": Architecture("cohere", settings=_COHERE, required=_COHERE),
    "cohere2": Architecture("cohere2", settings=_COHERE, required=_COHERE),
    "starcoder2": Architecture(
        "starcoder2",
        settings={"attention.layer_norm_epsilon": "norm_epsilon"},
        constants={"sliding_window": 4096},
    ),
    "stablelm": Architecture("stablelm"),
    "arcee": Architecture("arcee", is_interleaved=True),
    "hunyuan-dense": Architecture("hunyuan_v1_dense"),
    "nemotron": Architecture(
        "nemotron",
        settings={
            "attention.layer_norm_epsilon": "norm_eps",
            "attention.layer_norm_rms_epsilon": "norm_eps",
        },
        norms_plus_one=True,
    ),
    # Text alone: what sees is in a file of its own.
    "qwen2vl": Architecture("qwen2", harmless=_SEEING),
    "qwen3vl": Architecture("qwen3", harmless=_SEEING),
    # Mistral's without a window. Ministral 3 has a temperature_scale, and is refused by it.
    "mistral3": Architecture("llama", is_interleaved=True),
    "gemma": Architecture("gemma", norms_plus_one=True),
    "phi2": Architecture("phi"),
    "olmo": Architecture(
        "olmo",
        expected={"attention.layer_norm_epsilon": 1e-5},
        is_interleaved=True,
    ),
    "jais2": Architecture("jais2"),
    "chatglm": Architecture("glm"),
    "gptneox": Architecture(
        "gpt_neox",
        settings={"use_parallel_residual": "use_parallel_residual"},
        required=("use_parallel_residual",),
        qkv_by_heads=True,
    ),
}
