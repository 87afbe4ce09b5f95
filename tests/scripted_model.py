"""Models that write what a test says, for servers that shall see what a trained model would write.

A tiny GPT-2 without weights but for two tables: the position chooses the next token, whatever was
read. Prompts are aligned by their length, so that the answer begins where its script does. Tokens
are bytes, beside those that a template needs, so that no text can be split in two ways.

The templates are written after the public documentation of the formats.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from safetensors.torch import save_file

from tests.byte_tokenizer import NUM_SPECIAL, VOCAB_SIZE, save_byte_tokenizer

# What a model of the family has as tokens: the name, and whether it is special.
Tokens = Mapping[str, bool]

_CHATML_TURNS = r"""
{%- if tools %}
    {{- '<|im_start|>system\n# Tools\n' }}
    {%- for tool in tools %}{{- tool | tojson + '\n' }}{%- endfor %}
    {{- '<|im_end|>\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'tool' %}
        {{- '<|im_start|>user\n<tool_response>\n' + message.content + '\n</tool_response>' }}
    {%- elif message.role == 'assistant' %}
        {{- '<|im_start|>assistant\n' }}
        {%- if message.reasoning_content %}
            {{- '<think>\n' + message.reasoning_content + '\n</think>\n\n' }}
        {%- endif %}
        {{- message.content or '' }}
        {%- for call in message.tool_calls or [] %}
            {{- '\n' if message.content or not loop.first else '' }}
            CALL
        {%- endfor %}
    {%- else %}
        {{- '<|im_start|>' + message.role + '\n' + message.content }}
    {%- endif %}
    {{- '<|im_end|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
    OPENING
{%- endif %}"""
_JSON_CALL = r"""
            {{- '<tool_call>\n{"name": "' + call.function.name + '", "arguments": ' }}
            {{- call.function.arguments | tojson + '}\n</tool_call>' }}"""
_TAGGED_CALL = r"""
            {{- '<tool_call>\n<function=' + call.function.name + '>\n' }}
            {%- for key, value in call.function.arguments.items() %}
                {{- '<parameter=' + key + '>\n' }}
                {{- value if value is string else value | tojson }}
                {{- '\n</parameter>\n' }}
            {%- endfor %}
            {{- '</function>\n</tool_call>' }}"""
# Thinks unless it is told not to; then the prompt has an empty thought.
_SWITCHED = r"""
    {%- if enable_thinking is defined and not enable_thinking %}
        {{- '<think>\n\n</think>\n\n' }}
    {%- endif %}"""
# The prompt opens the thought.
_OPENED = r"""
    {{- '<think>\n' if thinking is not defined or thinking else '<think>\n\n</think>\n\n' }}"""
JSON_CALLS = _CHATML_TURNS.replace("CALL", _JSON_CALL).replace("OPENING", _SWITCHED)
TAGGED_CALLS = _CHATML_TURNS.replace("CALL", _TAGGED_CALL).replace("OPENING", _OPENED)
CHANNELS = r"""
{%- if tools %}
    {{- '<|start|>developer<|message|># Tools\n' }}
    {%- for tool in tools %}{{- tool.function | tojson + '\n' }}{%- endfor %}
    {{- '<|end|>' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'assistant' %}
        {%- if message.thinking %}
            {{- '<|start|>assistant<|channel|>analysis<|message|>' + message.thinking + '<|end|>' }}
        {%- endif %}
        {%- if message.tool_calls %}
            {%- set call = message.tool_calls[0].function %}
            {{- '<|start|>assistant to=functions.' + call.name }}
            {{- '<|channel|>commentary json<|message|>' + call.arguments | tojson + '<|call|>' }}
        {%- else %}
            {{- '<|start|>assistant<|channel|>final<|message|>' + message.content }}
            {{- '<|return|>' if loop.last and not add_generation_prompt else '<|end|>' }}
        {%- endif %}
    {%- elif message.role == 'tool' %}
        {{- '<|start|>functions to=assistant<|channel|>commentary<|message|>' }}
        {{- message.content + '<|end|>' }}
    {%- else %}
        {{- '<|start|>' + message.role + '<|message|>' + message.content + '<|end|>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start|>assistant' }}{%- endif %}"""
CHATML_TOKENS: Tokens = {
    "<|im_start|>": True,
    "<|im_end|>": True,
    "<think>": False,
    "</think>": False,
    "<tool_call>": False,
    "</tool_call>": False,
}
CHANNEL_TOKENS: Tokens = {
    "<|start|>": True,
    "<|end|>": True,
    "<|message|>": True,
    "<|channel|>": True,
    "<|constrain|>": True,
    "<|return|>": True,
    "<|call|>": True,
}


def save_tokenizer(folder: Path, template: str, tokens: Tokens, eos_token: str) -> Path:
    """The tokenizer of bytes with more tokens, whose ids follow those of bytes."""
    save_byte_tokenizer(folder)
    path = folder / "tokenizer.json"
    tokenizer = json.loads(path.read_text())
    rules = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    for index, (name, is_special) in enumerate(tokens.items()):
        added = {"id": VOCAB_SIZE + index, "content": name, "special": is_special}
        tokenizer["added_tokens"].append({**added, **rules})
        tokenizer["model"]["vocab"][name] = VOCAB_SIZE + index
    path.write_text(json.dumps(tokenizer))
    config = {"eos_token": eos_token, "chat_template": template}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def ids_of(text: str, tokens: Tokens) -> list[int]:
    """The tokens of a text."""
    ids = []
    while text:
        name = next((name for name in tokens if text.startswith(name)), "")
        if name:
            ids.append(VOCAB_SIZE + [*tokens].index(name))
        else:
            name = text[0]
            ids += [NUM_SPECIAL + byte for byte in name.encode()]
        text = text[len(name) :]
    return ids


def save_scripted_model(
    folder: Path,
    template: str,
    tokens: Tokens,
    scripts: Mapping[int, str],
    *,
    ends: Sequence[str],
    max_len: int = 2048,
) -> Path:
    """A checkpoint that writes each script behind a prompt of as many tokens, then the first end.

    Scripts hold the others of `ends` themselves.
    """
    save_tokenizer(folder, template, tokens, ends[0])
    vocab_size = VOCAB_SIZE + len(tokens)
    end_ids = [ids_of(end, tokens)[0] for end in ends]
    # What is said at a position. Where nothing is, the answer ends.
    said = {
        start - 1 + index: token_id
        for start, script in scripts.items()
        for index, token_id in enumerate(ids_of(script, tokens))
    }
    # A position's number in the embedding, 0 for all where nothing is said; heads of 16 numbers.
    num_places = 1 + len(said)
    width = num_places + -num_places % 256
    positions = torch.zeros(max_len, width)
    positions[:, 0] = 1.0
    head = torch.zeros(vocab_size, width)
    head[end_ids[0], 0] = 8.0
    for place, (position, token_id) in enumerate(said.items(), 1):
        positions[position] = torch.eye(width)[place]
        head[token_id, place] = 8.0
    weights = {
        "lm_head.weight": head,
        "transformer.wte.weight": torch.zeros(vocab_size, width),
        "transformer.wpe.weight": positions,
        **_norm("transformer.ln_f", width),
        **_norm("transformer.h.0.ln_1", width),
        **_norm("transformer.h.0.ln_2", width),
        **_zeros("transformer.h.0.attn.c_attn", width, 3 * width),
        **_zeros("transformer.h.0.attn.c_proj", width, width),
        **_zeros("transformer.h.0.mlp.c_fc", width, 1),
        **_zeros("transformer.h.0.mlp.c_proj", 1, width),
    }
    config = {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "vocab_size": vocab_size,
        "n_positions": max_len,
        "n_embd": width,
        "n_layer": 1,
        "n_head": width // 16,
        "n_inner": 1,
        "tie_word_embeddings": False,
        "bos_token_id": None,
        "eos_token_id": end_ids,
        "torch_dtype": "float32",
    }
    (folder / "config.json").write_text(json.dumps(config))
    half = {name: each.to(torch.float32) for name, each in weights.items()}
    save_file(half, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def _norm(name: str, size: int) -> dict[str, torch.Tensor]:
    return {f"{name}.weight": torch.ones(size), f"{name}.bias": torch.zeros(size)}


def _zeros(name: str, num_in: int, num_out: int) -> dict[str, torch.Tensor]:
    return {f"{name}.weight": torch.zeros(num_in, num_out), f"{name}.bias": torch.zeros(num_out)}
