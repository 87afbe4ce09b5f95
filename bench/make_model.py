"""Make the model that Tandem and its peers are measured on: a Llama of 100 M random parameters.

    python -m bench.make_model /tmp/llama-100m
    python -m bench.make_model /tmp/llama-1b --shape 1b
    python -m bench.make_model /tmp/hybrid --shape hybrid
    python -m bench.make_model /tmp/state-space --shape state-space

Hidden 768, 12 layers, 12 heads of 4 key heads, intermediate 2048, vocabulary 32 000 (tied), 4096
positions, bfloat16, 200 MB; `--shape 1b` is TinyLlama's, 1.1 B parameters, 2.2 GB; `--shape hybrid`
is Qwen3.5-0.8B's but for its vocabulary: 24 layers, of which 18 have a gated delta rule, 1.06 GB;
`--shape state-space` Granite 4.0 H 350M's but for that: 28 of 32 layers have a Mamba2, 580 MB;
`--shape experts` GLM-4.5's, made narrow: a token uses 8 of 64 experts and a shared one, 600 MB.
`--vocab-size 128000 --num-layers 1 --hidden-size 128` makes a quick one of a large vocabulary.
Linear layers have unit gain (std = in_features ** -0.5): of the usual initialisation, with tied
embeddings, greedy decoding repeats one token for ever. The tokenizer is a byte-level BPE trained on
made-up words, so that any text goes in and every token comes out as text.
"""

import itertools
import random
import sys
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import nn
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    LlamaConfig,
    PreTrainedConfig,
    PreTrainedTokenizerFast,
)

from bench.command_line import parser_of

VOCAB_SIZE = 32_000
_HIDDEN_SIZE = 768
_NUM_LAYERS = 12
_HEAD_LEN = 64
# Of a model of 2048 and 22 layers: TinyLlama.
_TINYLLAMA = {
    "num_key_value_heads": 4,
    "intermediate_size": 5632,
    "tie_word_embeddings": False,
}
_EXPERTS = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": _HIDDEN_SIZE,
    "num_hidden_layers": 8,
    "num_attention_heads": 12,
    "num_key_value_heads": 4,
    "head_dim": _HEAD_LEN,
    "intermediate_size": 2048,
    "n_routed_experts": 64,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 224,
    "routed_scaling_factor": 2.5,
    "use_qk_norm": True,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": False,
}
_HYBRID = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 1024,
    "num_hidden_layers": 24,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "intermediate_size": 3584,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 16,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": True,
}
_STATE_SPACE = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": _HIDDEN_SIZE,
    "num_hidden_layers": 32,
    "layer_types": [
        "full_attention" if layer in (10, 13, 17, 27) else "linear_attention" for layer in range(32)
    ],
    "num_attention_heads": 12,
    "num_key_value_heads": 4,
    "num_local_experts": 0,
    "shared_intermediate_size": 2048,
    "mamba_n_heads": 48,
    "mamba_d_state": 128,
    "mamba_n_groups": 1,
    "attention_multiplier": 1 / _HEAD_LEN,
    "embedding_multiplier": 12.0,
    "residual_multiplier": 0.246,
    "logits_scaling": 3.0,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": True,
}
_MADE_UP_WORDS = 200_000
_SPECIAL_TOKENS = ("<s>", "</s>", "<unk>")
_ENDS = ("", "", "n", "r", "s")
_CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}{{ message.role }}: {{ message.content }}\n"
    "{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}"
)


def config(
    vocab_size: int = VOCAB_SIZE,
    hidden_size: int = _HIDDEN_SIZE,
    num_layers: int = _NUM_LAYERS,
    **changes: Any,
) -> LlamaConfig:
    num_heads = hidden_size // _HEAD_LEN
    sizes: dict[str, Any] = {
        "vocab_size": vocab_size,
        "hidden_size": hidden_size,
        "num_hidden_layers": num_layers,
        "num_attention_heads": num_heads,
        "num_key_value_heads": num_heads if num_heads % 3 else num_heads // 3,
        "intermediate_size": hidden_size * 8 // 3,
        "max_position_embeddings": 4096,
        "tie_word_embeddings": True,
    }
    return LlamaConfig(**sizes | changes, bos_token_id=0, eos_token_id=1)


def model(shape: PreTrainedConfig, seed: int = 0) -> Any:
    """Random weights of unit gain, in bfloat16."""
    torch.manual_seed(seed)
    built: Any = AutoModelForCausalLM.from_config(shape)
    for parameter in built.parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter, std=parameter.shape[-1] ** -0.5)
    return built.to(torch.bfloat16).eval()


def tokenizer(vocab_size: int = VOCAB_SIZE, seed: int = 0) -> PreTrainedTokenizerFast:
    """A byte-level BPE of exactly `vocab_size` entries."""
    rng = random.Random(seed)
    syllables = ["".join(parts) for parts in itertools.product("bdfgklmnprstvz", "aeiou", _ENDS)]
    num_words = _MADE_UP_WORDS * -(-vocab_size // VOCAB_SIZE)
    words = ("".join(rng.choices(syllables, k=rng.randint(1, 4))) for _ in range(num_words))
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(_SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator((f" {word}" for word in words), trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token="<s>",
        eos_token="</s>",
        unk_token="<unk>",
        chat_template=_CHAT_TEMPLATE,
        model_max_length=4096,
    )


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--vocab-size", type=int, default=VOCAB_SIZE)
    parser.add_argument("--hidden-size", type=int, default=_HIDDEN_SIZE)
    parser.add_argument("--num-layers", type=int, default=_NUM_LAYERS)
    parser.add_argument("--max-len", type=int, help="positions (default: 4096)")
    shapes = ("1b", "hybrid", "state-space", "experts")
    parser.add_argument("--shape", choices=shapes, help="instead of the sizes above")
    args = parser.parse_args()
    sizes = (args.vocab_size, args.hidden_size, args.num_layers)
    shape: Any
    if args.shape == "1b":
        shape = config(VOCAB_SIZE, 2048, 22, **_TINYLLAMA)
    elif args.shape == "hybrid":
        shape = AutoConfig.for_model("qwen3_5_text", **_HYBRID, bos_token_id=0, eos_token_id=1)
    elif args.shape == "state-space":
        ends = {"bos_token_id": 0, "eos_token_id": 1}
        shape = AutoConfig.for_model("granitemoehybrid", **_STATE_SPACE, **ends)
    elif args.shape == "experts":
        shape = AutoConfig.for_model("glm4_moe", **_EXPERTS, bos_token_id=0, eos_token_id=1)
    else:
        shape = config(*sizes)
    shape.max_position_embeddings = args.max_len or shape.max_position_embeddings
    built = model(shape, args.seed)
    built.save_pretrained(args.folder)
    tokenizer(shape.vocab_size, args.seed).save_pretrained(args.folder)
    num_parameters = sum(parameter.numel() for parameter in built.parameters())
    sys.stdout.write(f"{args.folder}: {num_parameters / 1e6:.2f} M parameters\n")


if __name__ == "__main__":
    main()
