"""Published models' config.json, and in published.json what llama.cpp's converter makes of them.

    python -m tests.model_server.checkpoint.converted.published LLAMA_CPP PYTHON

As with make, but of their sizes, and without weights.
"""

import json
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

PUBLISHED = Path(__file__).with_name("published.json")
# Metadata of the folder's config.json, and the tensors that the converter makes itself.
_DESCRIBE = """
import json, sys
from pathlib import Path
llama_cpp, folder = sys.argv[1:]
sys.path[:0] = [llama_cpp, llama_cpp + "/gguf-py"]
import conversion, gguf
from conversion.base import ModelBase, ModelType, get_model_architecture
hparams = ModelBase.load_hparams(Path(folder), False)
made = conversion.get_model_class(get_model_architecture(hparams, ModelType.TEXT))
model = made(Path(folder), gguf.LlamaFileType.MOSTLY_F16, Path(folder) / "x.gguf", dry_run=True)
model.set_gguf_parameters()
tensors = {name: tensor.numpy().tolist() for name, tensor in model.generate_extra_tensors()}
metadata = {key: field.value for part in model.gguf_writer.kv_data for key, field in part.items()}
print(json.dumps({"metadata": metadata, "tensors": tensors}))
"""

_LLAMA_3 = {
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
    "rope_type": "llama3",
}
_GEMMA_3 = {
    "architectures": ["Gemma3ForCausalLM"],
    "model_type": "gemma3_text",
    "rope_theta": 1000000,
    "rope_local_base_freq": 10000,
    "vocab_size": 262144,
}
_EXAONE_4 = {
    "architectures": ["Exaone4ForCausalLM"],
    "model_type": "exaone4",
    "rms_norm_eps": 1e-5,
    "rope_theta": 1000000,
    "rope_scaling": {**_LLAMA_3, "factor": 16.0},
    "num_key_value_heads": 8,
    "vocab_size": 102400,
}
CONFIGS: dict[str, dict[str, Any]] = {
    "Llama 3.2 1B": {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 2048,
        "head_dim": 64,
        "intermediate_size": 8192,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 128256,
        "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500000.0,
        "rope_scaling": _LLAMA_3,
        "tie_word_embeddings": True,
    },
    "Gemma 2 27B": {
        "architectures": ["Gemma2ForCausalLM"],
        "model_type": "gemma2",
        "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0,
        "max_position_embeddings": 8192,
        "sliding_window": 4096,
        "vocab_size": 256000,
        "head_dim": 128,
        "hidden_size": 4608,
        "intermediate_size": 36864,
        "num_attention_heads": 32,
        "num_hidden_layers": 46,
        "num_key_value_heads": 16,
        "query_pre_attn_scalar": 144,
    },
    "Gemma 3 1B": {
        **_GEMMA_3,
        "head_dim": 256,
        "hidden_size": 1152,
        "intermediate_size": 6912,
        "num_attention_heads": 4,
        "num_hidden_layers": 26,
        "num_key_value_heads": 1,
        "query_pre_attn_scalar": 256,
        "sliding_window": 512,
        "max_position_embeddings": 32768,
    },
    "Gemma 3 27B": {
        **_GEMMA_3,
        "head_dim": 128,
        "hidden_size": 5376,
        "intermediate_size": 21504,
        "num_attention_heads": 32,
        "num_hidden_layers": 62,
        "num_key_value_heads": 16,
        "query_pre_attn_scalar": 168,
        "sliding_window": 1024,
        "max_position_embeddings": 131072,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
    },
    "EXAONE 4.0 32B": {
        **_EXAONE_4,
        "head_dim": 128,
        "hidden_size": 5120,
        "intermediate_size": 27392,
        "max_position_embeddings": 131072,
        "num_attention_heads": 40,
        "num_hidden_layers": 64,
        "sliding_window": 4096,
    },
    "EXAONE 4.0 1.2B": {
        **_EXAONE_4,
        "head_dim": 64,
        "hidden_size": 2048,
        "intermediate_size": 4096,
        "max_position_embeddings": 65536,
        "num_attention_heads": 32,
        "num_hidden_layers": 30,
        "sliding_window": None,
        "layer_types": ["full_attention"] * 30,
        "tie_word_embeddings": True,
    },
    "OLMo 3 7B": {
        "architectures": ["Olmo3ForCausalLM"],
        "model_type": "olmo3",
        "hidden_size": 4096,
        "intermediate_size": 11008,
        "max_position_embeddings": 65536,
        "num_attention_heads": 32,
        "num_hidden_layers": 32,
        "num_key_value_heads": 32,
        "rms_norm_eps": 1e-6,
        "rope_theta": 500000,
        "rope_scaling": {
            "attention_factor": 1.2079441541679836,
            "beta_fast": 32,
            "beta_slow": 1,
            "factor": 8.0,
            "original_max_position_embeddings": 8192,
            "rope_type": "yarn",
        },
        "sliding_window": 4096,
        "vocab_size": 100278,
    },
    "SmolLM3 3B": {
        "architectures": ["SmolLM3ForCausalLM"],
        "model_type": "smollm3",
        "hidden_size": 2048,
        "intermediate_size": 11008,
        "max_position_embeddings": 65536,
        "num_attention_heads": 16,
        "num_hidden_layers": 36,
        "num_key_value_heads": 4,
        "rms_norm_eps": 1e-6,
        "rope_theta": 5000000.0,
        "vocab_size": 128256,
    },
    "Command R7B": {
        "architectures": ["Cohere2ForCausalLM"],
        "model_type": "cohere2",
        "layer_norm_eps": 1e-5,
        "rope_theta": 50000,
        "rotary_pct": 1.0,
        "sliding_window": 4096,
        "vocab_size": 256000,
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "logit_scale": 0.25,
        "max_position_embeddings": 132096,
        "num_attention_heads": 32,
        "num_hidden_layers": 32,
        "num_key_value_heads": 8,
    },
    "Granite 3.3 8B": {
        "architectures": ["GraniteForCausalLM"],
        "model_type": "granite",
        "attention_multiplier": 0.0078125,
        "embedding_multiplier": 12.0,
        "hidden_size": 4096,
        "intermediate_size": 12800,
        "logits_scaling": 16.0,
        "max_position_embeddings": 131072,
        "num_attention_heads": 32,
        "num_hidden_layers": 40,
        "num_key_value_heads": 8,
        "residual_multiplier": 0.22,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000000.0,
        "tie_word_embeddings": True,
        "vocab_size": 49159,
    },
}


def main(argv: list[str]) -> None:
    llama_cpp, python = argv
    described = {}
    for name, config in CONFIGS.items():
        with TemporaryDirectory() as folder:
            (Path(folder) / "config.json").write_text(json.dumps(config))
            command = [python, "-c", _DESCRIBE, str(Path(llama_cpp).resolve()), folder]
            described[name] = json.loads(subprocess.check_output(command, text=True))
    PUBLISHED.write_text(json.dumps(described) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
