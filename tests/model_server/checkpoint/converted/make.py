"""Makes the files of this folder: small random models as llama.cpp's own converter writes them.

    python -m tests.model_server.checkpoint.converted.make LLAMA_CPP PYTHON [NAME ...]

LLAMA_CPP is a checkout of llama.cpp, PYTHON an interpreter that has what its converter needs. Of
each of CONFIGS (or of the names) there is, behind it, NAME.gguf and NAME.json: what transformers
answers with the model that the file was made of.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import transformers
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel

from model_server.recipe.small import saved_buffers

FOLDER = Path(__file__).parent
VOCAB_SIZE = 288
PROMPT = [3 + 7 * index % 250 for index in range(24)]
# The converter knows tokenizers by what they make of a text, and none of 288 tokens, to which
# transformers adds some in some families. Of others it asks for sentencepiece's, or for tokens by
# their names.
_CONVERTER = """
import runpy, sys, transformers
transformers.AutoTokenizer = transformers.PreTrainedTokenizerFast
folder = sys.argv.pop(1)
sys.path[:0] = [folder, folder + "/gguf-py"]
from conversion.base import TextModel
class_made = TextModel.__init_subclass__.__func__
def with_own_vocabulary(cls):
    class_made(cls)
    if cls.__name__ == "Mistral3Model":  # leaves it to another
        return
    cls.set_vocab = TextModel._set_vocab_gpt2
TextModel.__init_subclass__ = classmethod(with_own_vocabulary)
TextModel.get_vocab_base_pre = lambda self, tokenizer: "gpt-2"
sys.argv[0] = folder + "/convert_hf_to_gguf.py"
runpy.run_path(sys.argv[0], run_name="__main__")
"""

_LEN = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 256,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": None,
    "tie_word_embeddings": False,
}
# Of the families whose heads are hidden_size / num_attention_heads long.
_SPLIT = {**_LEN, "num_attention_heads": 2, "num_key_value_heads": 1}
# Large enough that another one is seen.
_EPS = {"rms_norm_eps": 0.01}
_EXPERTS = {"moe_intermediate_size": 32, "num_experts": 4, "num_experts_per_tok": 2}
# Phi-4-mini's, in small.
_LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 20000.0,
    "partial_rotary_factor": 0.75,
    "short_factor": [1.0 + 0.3 * index for index in range(6)],
    "long_factor": [2.0 + 3.0 * index for index in range(6)],
    "original_max_position_embeddings": 64,
}
_DELTA = {
    "layer_types": ["linear_attention", "full_attention"],
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 6,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 32,
    "mtp_num_hidden_layers": 1,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "partial_rotary_factor": 0.25},
}
# In layers behind those without experts, which are chosen by corrected scores.
_SIGMOID_EXPERTS = {
    **_LEN,
    "moe_intermediate_size": 32,
    "num_experts_per_tok": 2,
    "rms_norm_eps": 1e-5,
}
_YARN = {
    "rope_type": "yarn",
    "rope_theta": 20000.0,
    "factor": 8.0,
    "original_max_position_embeddings": 4096,
    "attention_factor": 1.3,
    "beta_fast": 4.0,
    "beta_slow": 2.0,
}
_LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 1000000.0,
    "factor": 16.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
_VISION = {
    "depth": 1,
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_heads": 2,
    "out_hidden_size": 32,
}
_SECTIONS = {"rope_type": "default", "rope_theta": 20000.0, "mrope_section": [2, 3, 3]}
_PLAIN = {"rope_type": "default", "rope_theta": 20000.0}
_HALF = {**_PLAIN, "partial_rotary_factor": 0.5}
# Every fourth layer has none, or no rotation.
_IN_FOURS = {**_SPLIT, "num_hidden_layers": 4, "tie_word_embeddings": True}
_GRANITE_HYBRID = {
    **_SPLIT,
    "layer_types": ["linear_attention", "full_attention"],
    "intermediate_size": 32,
    "shared_intermediate_size": 64,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "attention_multiplier": 0.2,
    "embedding_multiplier": 3.0,
    "logits_scaling": 2.0,
    "residual_multiplier": 0.6,
    "mamba_n_heads": 4,
    "mamba_d_head": 16,
    "mamba_n_groups": 1,
    "mamba_d_state": 16,
    "position_embedding_type": "nope",
    "tie_word_embeddings": True,
}
_NEMOTRON_H = {
    **{name: number for name, number in _LEN.items() if name != "num_hidden_layers"},
    "attention_bias": False,
    "layer_norm_epsilon": 1e-3,
    "mamba_num_heads": 4,
    "mamba_head_dim": 16,
    "n_groups": 2,
    "ssm_state_size": 16,
    "tie_word_embeddings": True,
}
# Of config.json as it is published, where transformers writes another; None: has it not.
_PUBLISHED: dict[str, dict[str, Any]] = {
    "glm": {
        "architectures": ["ChatGLMModel"],
        "multi_query_group_num": 1,
        "seq_length": 256,
        "ffn_hidden_size": 64,
        "layernorm_epsilon": 0.01,
        "rope_ratio": 2.0,
    },
    # Read as it is: transformers' class would leave its name for the rotation's part out.
    "gpt_neox": {"model_type": "gpt_neox_as_published", "rotary_pct": 0.25},
    "granitemoehybrid": {"layer_types": ["mamba", "attention"]},
    "granitemoehybrid-dense": {"layer_types": ["mamba", "attention"]},
    "granitemoehybrid-attention": {"layer_types": ["attention", "attention"]},
    "nemotron_h": {
        # Read as it is: transformers' class would add experts to it.
        "model_type": "nemotron_h_without_experts",
        "hybrid_override_pattern": "M-*",
        "num_hidden_layers": 3,
        "layers_block_type": None,
        "num_experts_per_tok": None,
        "n_routed_experts": None,
        "n_group": None,
        "topk_group": None,
    },
    "nemotron_h-moe": {"hybrid_override_pattern": "ME*E", "num_hidden_layers": 4},
}
# By the model's type, and what else tells them apart.
CONFIGS: dict[str, dict[str, Any]] = {
    "mixtral": {
        **_LEN,
        "intermediate_size": 32,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "rms_norm_eps": 1e-5,
        "rope_parameters": _PLAIN,
    },
    "qwen2_moe": {
        **_SPLIT,
        **_EXPERTS,
        "shared_expert_intermediate_size": 64,
        "rope_parameters": _PLAIN,
    },
    "granitemoe": {
        **_SPLIT,
        "intermediate_size": 32,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "attention_multiplier": 0.2,
        "embedding_multiplier": 3.0,
        "logits_scaling": 2.0,
        "residual_multiplier": 0.6,
        "tie_word_embeddings": True,
    },
    "granitemoehybrid": _GRANITE_HYBRID,
    "granitemoehybrid-dense": {
        **_GRANITE_HYBRID,
        "num_local_experts": 0,
        "num_experts_per_tok": 0,
    },
    "granitemoehybrid-attention": {
        **_GRANITE_HYBRID,
        "layer_types": ["full_attention", "full_attention"],
        "intermediate_size": 64,
        "num_local_experts": 0,
        "num_experts_per_tok": 0,
        "position_embedding_type": "rope",
        "rope_parameters": _PLAIN,
    },
    "nemotron_h": {
        **_NEMOTRON_H,
        "layers_block_type": ["linear_attention", "mlp", "full_attention"],
    },
    "nemotron_h-moe": {
        **_NEMOTRON_H,
        "layers_block_type": ["linear_attention", "moe", "full_attention", "moe"],
        "moe_intermediate_size": 32,
        "moe_shared_expert_intermediate_size": 64,
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "routed_scaling_factor": 2.5,
    },
    "glm4_moe": {
        **_SIGMOID_EXPERTS,
        "n_routed_experts": 4,
        "n_shared_experts": 1,
        "first_k_dense_replace": 1,
        "routed_scaling_factor": 1.5,
        "attention_bias": True,
        "use_qk_norm": True,
        "num_mtp_layers": 0,
    },
    "dots1": {
        **_SIGMOID_EXPERTS,
        "n_routed_experts": 4,
        "n_shared_experts": 2,
        "first_k_dense_replace": 1,
        "norm_topk_prob": True,
        "routed_scaling_factor": 2.5,
        "sliding_window": None,
        "scoring_func": "sigmoid",
    },
    "ernie4_5_moe": {
        **_SIGMOID_EXPERTS,
        "moe_num_experts": 4,
        "moe_k": 2,
        "moe_num_shared_experts": 2,
        "moe_layer_start_index": 1,
        "moe_layer_interval": 1,
        "tie_word_embeddings": True,
    },
    "minimax_m2": {
        **_LEN,
        "intermediate_size": 32,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "scoring_func": "sigmoid",
        "rotary_dim": 8,
    },
    "hunyuan_v1_moe": {
        **_LEN,
        "intermediate_size": 32,
        "num_experts": 4,
        "moe_topk": [2, 2],
        "num_shared_expert": [1, 1],
        "moe_intermediate_size": [32, 32],
        "tie_word_embeddings": True,
    },
    "afmoe": {
        **_SPLIT,
        "intermediate_size": 32,
        "moe_intermediate_size": 32,
        "num_hidden_layers": 4,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "num_shared_experts": 1,
        "num_dense_layers": 3,
        "route_scale": 2.5,
        "route_norm": True,
        "score_func": "sigmoid",
        "sliding_window": 8,
        "mup_enabled": True,
        "rms_norm_eps": 1e-5,
    },
    "exaone_moe": {
        **_SPLIT,
        "intermediate_size": 32,
        "moe_intermediate_size": 32,
        "num_hidden_layers": 3,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "num_shared_experts": 1,
        "first_k_dense_replace": 2,
        "sliding_window": 8,
        "scoring_func": "sigmoid",
    },
    "solar_open": {
        **_SIGMOID_EXPERTS,
        "num_hidden_layers": 1,
        "n_routed_experts": 4,
        "n_shared_experts": 1,
        "routed_scaling_factor": 1.5,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 1e6,
            "partial_rotary_factor": 1.0,
        },
    },
    "olmoe": {
        **_SPLIT,
        "intermediate_size": 32,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "rms_norm_eps": 1e-5,
    },
    "gpt_oss": {
        **_LEN,
        "intermediate_size": 32,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "sliding_window": 8,
        "rms_norm_eps": 1e-5,
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 150000.0,
            "factor": 32.0,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "truncate": False,
            "original_max_position_embeddings": 64,
        },
    },
    "qwen3_moe": {**_LEN, **_EXPERTS, "norm_topk_prob": True},
    "phi3-longrope": {
        **_SPLIT,
        **_EPS,
        "rope_parameters": _LONGROPE,
        "original_max_position_embeddings": 64,
        "tie_word_embeddings": True,
    },
    "lfm2": {
        **_SPLIT,
        "num_hidden_layers": 3,
        "layer_types": ["conv", "full_attention", "conv"],
        "intermediate_size": 96,
        "block_auto_adjust_ff_dim": True,
        "block_ffn_dim_multiplier": 1.0,
        "block_multiple_of": 32,
        "norm_eps": 1e-3,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
        "tie_word_embeddings": True,
    },
    "lfm2_moe": {
        **_SPLIT,
        **_EXPERTS,
        "num_hidden_layers": 3,
        "layer_types": ["conv", "full_attention", "conv"],
        "num_dense_layers": 1,
        "norm_eps": 1e-3,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
        "tie_word_embeddings": True,
    },
    "qwen3_next": {
        **_LEN,
        **_DELTA,
        **_EXPERTS,
        "num_experts": 3,
        "shared_expert_intermediate_size": 32,
        "linear_num_value_heads": 4,
        "tie_word_embeddings": True,
    },
    "qwen3_5_text": {**_LEN, **_DELTA, "tie_word_embeddings": True},
    "qwen3_5_moe_text": {
        **{name: number for name, number in _LEN.items() if name != "intermediate_size"},
        **_DELTA,
        **_EXPERTS,
        "num_experts": 3,
        "shared_expert_intermediate_size": 32,
        "linear_num_value_heads": 4,
        "tie_word_embeddings": True,
    },
    "smollm3": {**_IN_FOURS, **_EPS, "rope_parameters": _PLAIN},
    "granite": {
        **_SPLIT,
        **_EPS,
        "rope_parameters": _PLAIN,
        "embedding_multiplier": 12.3,
        "logits_scaling": 7.0,
        "residual_multiplier": 0.22,
        "attention_multiplier": 0.3,
        "tie_word_embeddings": True,
    },
    "olmo2": {**_SPLIT, **_EPS, "rope_parameters": _PLAIN},
    "olmo3": {
        **_IN_FOURS,
        **_EPS,
        "rope_parameters": {"full_attention": _YARN, "sliding_attention": _PLAIN},
        "sliding_window": 8,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        "num_hidden_layers": 3,
        "tie_word_embeddings": False,
    },
    "seed_oss": {
        **_LEN,
        **_EPS,
        "rope_parameters": _PLAIN,
        "attention_bias": True,
        "attention_out_bias": False,
    },
    "ernie4_5": {**_LEN, **_EPS, "rope_parameters": _PLAIN, "tie_word_embeddings": True},
    "exaone4": {
        **_IN_FOURS,
        **_EPS,
        "rope_parameters": _LLAMA3,
        "max_position_embeddings": 131072,
        "sliding_window": 8,
        "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
        "num_hidden_layers": 3,
    },
    "exaone4-full": {
        **_SPLIT,
        **_EPS,
        "rope_parameters": _PLAIN,
        "sliding_window": None,
        "layer_types": ["full_attention"] * 2,
    },
    "glm4": {**_LEN, **_EPS, "rope_parameters": _HALF, "attention_bias": True},
    "cohere": {
        **_SPLIT,
        "layer_norm_eps": 0.01,
        "rope_parameters": _PLAIN,
        "logit_scale": 0.3,
        "use_qk_norm": True,
        "tie_word_embeddings": True,
    },
    "cohere2": {
        **_IN_FOURS,
        "layer_norm_eps": 0.01,
        "rope_parameters": _PLAIN,
        "logit_scale": 0.25,
        "sliding_window": 8,
        "rotary_pct": 1.0,
    },
    "starcoder2": {
        **_SPLIT,
        "norm_epsilon": 0.01,
        "rope_parameters": _PLAIN,
        "use_bias": True,
        "sliding_window": 4096,
        "tie_word_embeddings": True,
    },
    "stablelm": {
        **_SPLIT,
        "layer_norm_eps": 0.01,
        "rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.25},
        "use_qkv_bias": True,
    },
    "arcee": {**_SPLIT, **_EPS, "rope_parameters": _YARN},
    "hunyuan_v1_dense": {
        **_LEN,
        **_EPS,
        "rope_parameters": {
            "rope_type": "dynamic",
            "rope_theta": 10000.0,
            "alpha": 1000.0,
            "factor": 1.0,
        },
        "max_position_embeddings": 32768,
        "tie_word_embeddings": True,
    },
    "nemotron": {**_SPLIT, "norm_eps": 0.01, "rope_parameters": _HALF},
    "qwen2_5_vl": {
        "text_config": {**_SPLIT, **_EPS, "rope_parameters": _SECTIONS},
        "vision_config": _VISION,
    },
    "qwen3_vl": {
        "text_config": {**_LEN, **_EPS, "rope_parameters": _SECTIONS},
        "vision_config": {**_VISION, "deepstack_visual_indexes": [0]},
    },
    "mistral3": {
        "text_config": {
            **_LEN,
            **_EPS,
            "model_type": "mistral",
            "rope_parameters": _PLAIN,
            "sliding_window": None,
        },
        "vision_config": {
            "model_type": "pixtral",
            "hidden_size": 32,
            "intermediate_size": 32,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
        },
    },
    "gemma": {**_LEN, **_EPS, "tie_word_embeddings": True},
    "phi": {
        **_SPLIT,
        "num_key_value_heads": 2,
        "intermediate_size": 128,
        "layer_norm_eps": 0.01,
        "rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5},
    },
    "olmo": {**_SPLIT, "rope_parameters": _PLAIN},
    "glm": {
        **_SPLIT,
        **_EPS,
        "head_dim": 16,
        "rope_parameters": _HALF,
        "attention_bias": True,
    },
    "gpt_neox": {
        **_SPLIT,
        "num_key_value_heads": 2,
        "layer_norm_eps": 0.01,
        "rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.25},
    },
    "jais2": {**_LEN, "layer_norm_eps": 0.01, "rope_parameters": _PLAIN},
}

# GLM-4-9B's names, as it was published.
_CHATGLM = {
    "self_attn.o_proj": "self_attention.dense",
    "mlp.gate_up_proj": "mlp.dense_h_to_4h",
    "mlp.down_proj": "mlp.dense_4h_to_h",
    "model.layers.": "transformer.encoder.layers.",
    "model.norm.": "transformer.encoder.final_layernorm.",
    "model.embed_tokens.": "transformer.embedding.word_embeddings.",
    "lm_head.": "transformer.output_layer.",
}
# Whose experts' gates and ups the converter joins, with a flag of its own.
_FUSED = ("qwen3_next",)


def small_model(name: str) -> Any:
    """With numbers of bfloat16, of unit gain; norms and biases are not one and none."""
    torch.manual_seed(0)
    config = transformers.CONFIG_MAPPING[name.split("-")[0]](**CONFIGS[name])
    sees = "vision_config" in CONFIGS[name]
    of_kind = (
        transformers.AutoModelForImageTextToText if sees else transformers.AutoModelForCausalLM
    )
    model = of_kind.from_config(config).float()
    for parameter in model.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=parameter.shape[-1] ** -0.5)
        else:
            parameter.data += 0.2 * torch.randn_like(parameter)
        parameter.data = parameter.data.bfloat16().float()
    for buffer in saved_buffers(model).values():
        buffer += (0.2 * torch.randn_like(buffer)).bfloat16().float()
    return model.eval()


def write_tokenizer(folder: Path) -> None:
    alphabet = sorted(ByteLevel.alphabet())
    tokens = ["<s>", "</s>", *alphabet]
    tokens += [f"{a}{b}" for a in "aeiou" for b in "lmnrst"]
    vocabulary = {token: index for index, token in enumerate(tokens[:VOCAB_SIZE])}
    merges = [(token[0], token[1]) for token in tokens[2 + len(alphabet) : VOCAB_SIZE]]
    tokenizer = Tokenizer(BPE(vocabulary, merges))
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
    tokenizer.decoder = ByteLevelDecoder()
    tokenizer.add_special_tokens(tokens[:2])
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>"
    )
    fast.save_pretrained(folder)


def add_draft_layer(folder: Path, like: int) -> None:
    """As checkpoints have it, and the class does not; of norms alone, to be short."""
    path = folder / "model.safetensors"
    weights = load_file(path)
    prefix = f"model.layers.{like}."
    drafting = {
        name.replace(prefix, "mtp.layers.0."): weight.clone()
        for name, weight in weights.items()
        if name.startswith(prefix) and "norm" in name
    }
    norm = weights["model.norm.weight"]
    for name in ("norm", "pre_fc_norm_embedding", "pre_fc_norm_hidden"):
        drafting[f"mtp.{name}.weight"] = norm.clone()
    drafting["mtp.fc.weight"] = torch.ones(len(norm), 2 * len(norm), dtype=norm.dtype)
    save_file(weights | drafting, path, {"format": "pt"})


def name_as_chatglm(folder: Path) -> None:
    """With one product for queries, keys and values."""
    path = folder / "model.safetensors"
    weights = load_file(path)
    for name in [name for name in weights if ".q_proj." in name]:
        parts = [weights.pop(name.replace(".q_proj.", f".{each}_proj.")) for each in "qkv"]
        fused = name.replace("self_attn.q_proj", "self_attention.query_key_value")
        weights[fused] = torch.cat(parts)
    for own, published in _CHATGLM.items():
        weights = {name.replace(own, published): each for name, each in weights.items()}
    save_file(weights, path, {"format": "pt"})


def make(name: str, llama_cpp: Path, python: Path) -> None:
    """Raises CalledProcessError where the converter refuses."""
    model = small_model(name)
    with torch.inference_mode():
        logits = model(torch.tensor([PROMPT])).logits[0, -1]
    with TemporaryDirectory() as folder:
        model.bfloat16().save_pretrained(folder)
        if name == "glm":
            name_as_chatglm(Path(folder))
        if "mtp_num_hidden_layers" in CONFIGS[name]:
            add_draft_layer(Path(folder), like=1)
        config_path = Path(folder) / "config.json"
        published = json.loads(config_path.read_text()) | _PUBLISHED.get(name, {})
        published = {key: value for key, value in published.items() if value is not None}
        config_path.write_text(json.dumps(published))
        write_tokenizer(Path(folder))
        given = ["--outtype", "bf16", "--outfile", str(FOLDER / f"{name}.gguf"), folder]
        given += ["--fuse-gate-up-exps"] if name in _FUSED else []
        command = [str(python), "-c", _CONVERTER, str(llama_cpp.resolve()), *given]
        subprocess.run(command, check=True)
    answer = {"prompt": PROMPT, "logits": [round(each, 4) for each in logits.tolist()]}
    (FOLDER / f"{name}.json").write_text(json.dumps(answer) + "\n")


def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.model_server.checkpoint.converted.make")
    parser.add_argument("llama_cpp", type=Path)
    parser.add_argument("python", type=Path)
    parser.add_argument("names", nargs="*")
    given = parser.parse_args(argv)
    for name in given.names or CONFIGS:
        make(name, given.llama_cpp, given.python)


if __name__ == "__main__":
    main(sys.argv[1:])
