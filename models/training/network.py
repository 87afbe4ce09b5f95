"""The network: a small Qwen3 with tied embeddings, and how it is saved."""

import json
from pathlib import Path

import torch
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

MAX_BYTES, MAX_PARAMS = 16_000_000, 8_000_000


def build(tokenizer: PreTrainedTokenizerFast) -> Qwen3ForCausalLM:
    """Random weights, 4 layers of width 256."""
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=256,
        intermediate_size=640,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=4,
        head_dim=64,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
    )
    return Qwen3ForCausalLM(config)


def save(model: Qwen3ForCausalLM, folder: Path) -> None:
    """Writes config.json, generation_config.json and model.safetensors, the weights in bfloat16."""
    copy = Qwen3ForCausalLM(model.config)
    copy.load_state_dict(model.state_dict())
    copy.bfloat16().save_pretrained(folder)
    generation = {
        "eos_token_id": model.config.eos_token_id,
        "pad_token_id": model.config.pad_token_id,
        "do_sample": False,
    }
    (folder / "generation_config.json").write_text(json.dumps(generation, indent=2) + "\n")


def load(folder: Path) -> Qwen3ForCausalLM:
    """The model in float32."""
    return Qwen3ForCausalLM.from_pretrained(str(folder), dtype=torch.float32)
