"""Make the model that Tandem and its peers are measured on: a Llama of 100 M random parameters.

    python -m bench.make_model /tmp/llama-100m

Hidden 768, 12 layers, 12 heads of 4 key heads, intermediate 2048, vocabulary 32 000 (tied), 4096
positions, bfloat16, 200 MB. Linear layers have unit gain (std = in_features ** -0.5): of the usual
initialisation, with tied embeddings, greedy decoding repeats one token for ever. The tokenizer is a
byte-level BPE trained on made-up words, so that any text goes in and every token comes out as text.
"""

import argparse
import itertools
import random
import sys
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

VOCAB_SIZE = 32_000
_SPECIAL_TOKENS = ("<s>", "</s>", "<unk>")
_ENDS = ("", "", "n", "r", "s")
_CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}{{ message.role }}: {{ message.content }}\n"
    "{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}"
)


def config() -> LlamaConfig:
    """The shape of the model."""
    return LlamaConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=768,
        num_hidden_layers=12,
        num_attention_heads=12,
        num_key_value_heads=4,
        intermediate_size=2048,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
        bos_token_id=0,
        eos_token_id=1,
    )


def model(seed: int = 0) -> Any:
    """Random weights of unit gain, in bfloat16."""
    torch.manual_seed(seed)
    built: Any = LlamaForCausalLM(config())
    for module in built.modules():
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=module.weight.shape[1] ** -0.5)
    return built.to(torch.bfloat16).eval()


def tokenizer(seed: int = 0) -> PreTrainedTokenizerFast:
    """A byte-level BPE of exactly VOCAB_SIZE entries."""
    rng = random.Random(seed)
    syllables = ["".join(parts) for parts in itertools.product("bdfgklmnprstvz", "aeiou", _ENDS)]
    words = ("".join(rng.choices(syllables, k=rng.randint(1, 4))) for _ in range(200_000))
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
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
    """Write the checkpoint into the folder named on the command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.make_model", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    built = model(args.seed)
    built.save_pretrained(args.folder)
    tokenizer(args.seed).save_pretrained(args.folder)
    num_parameters = sum(parameter.numel() for parameter in built.parameters())
    sys.stdout.write(f"{args.folder}: {num_parameters / 1e6:.2f} M parameters\n")


if __name__ == "__main__":
    main()
