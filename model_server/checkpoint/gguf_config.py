"""The config.json of a GGUF file's metadata, and its generation_config.json.

Whatever could change a number and is not known is refused by name: metadata that the model's class
has no setting for, a rotation that is scaled in another way.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from gguf import TokenType
from transformers import CONFIG_MAPPING
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from model_server.checkpoint.gguf_architectures import (
    EXPECTED,
    REQUIRED,
    SETTINGS,
    STATE_LEN,
)
from model_server.checkpoint.gguf_source import GgufSource
from model_server.errors import ModelRefused

# Of yarn, what a file may say.
_YARN = {
    "rope.scaling.yarn_attn_factor": "attention_factor",
    "rope.scaling.yarn_beta_fast": "beta_fast",
    "rope.scaling.yarn_beta_slow": "beta_slow",
}
# What the class has if the first layer has this tensor.
_BY_TENSORS = {
    "attention_bias": "attn_q.bias",
    "attention_out_bias": "attn_output.bias",
    "mlp_bias": "ffn_down.bias",
    "use_bias": "attn_q.bias",
    "use_qkv_bias": "attn_q.bias",
    "use_qk_norm": "attn_q_norm.weight",
    "mamba_conv_bias": "ssm_conv1d.bias",
    "use_conv_bias": "ssm_conv1d.bias",
}
# What the config, or the tensors' own shapes, say otherwise.
_KNOWN_OTHERWISE = frozenset(
    (
        "vocab_size",
        "attention.key_length",
        "attention.value_length",
        "expert_shared_feed_forward_length",
        "rope.dimension_count",
        "rope.freq_base",
        "rope.freq_base_swa",
        "rope.scaling.type",
        "rope.scale_linear",
        "rope.scaling.factor",
        "rope.scaling.attn_factor",
        "rope.scaling.original_context_length",
        "rope.scaling.finetuned",
        *_YARN,
        "use_parallel_residual",
        "tensor_data_layout",
        # Which layers have no attention.
        "attention.recurrent_layers",
        "full_attention_interval",
        "nextn_predict_layers",
    )
)
# Llama 3's scale of rotations, of which a file has only what it does to each frequency.
_LLAMA3_ROPE = {
    "rope_type": "llama3",
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
# Gemma 2, whose files do not say how it rotates.
_LONGEST_BY_10000 = 8192
_FREQUENCIES = "rope_freqs.weight"
_LONG_FACTORS = "rope_factors_long.weight"
_SHORT_FACTORS = "rope_factors_short.weight"
ROTATION_TENSORS = (_FREQUENCIES, _LONG_FACTORS, _SHORT_FACTORS)
# Control tokens that end an answer, by llama.cpp's src/llama-vocab.cpp.
_ENDS = frozenset(
    "<|endoftext|> <|end_of_text|> <|eot_id|> <|eom_id|> <|im_end|> <|end|> <|return|> <|call|>"
    " <end_of_turn> <end_of_utterance> </s> <eos> <EOT> [EOT] [EOS] [e~["
    " <｜end▁of▁sentence｜>".split()
)
_SAMPLING = {
    "temp": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "penalty_repeat": "repetition_penalty",
}


def config_of(source: GgufSource) -> dict[str, Any]:
    """The content of config.json. Raises ModelRefused."""
    rules = source.rules
    of_class = CONFIG_MAPPING[rules.model_type]()
    config: dict[str, Any] = {"model_type": rules.model_type, **rules.constants}
    config |= _settings(source, of_class)
    _require_computed(source, of_class)
    _require_layers(source)
    config["num_hidden_layers"] -= source.num_draft_layers
    kinds_of_class = getattr(of_class, "layer_types", None) or ()
    if "sliding_attention" in kinds_of_class and "sliding_window" not in config:
        config["sliding_window"] = None
        config["layer_types"] = ["full_attention"] * config["num_hidden_layers"]
    if rules.mixer is not None:
        config["layer_types"] = _layer_types(source, config["num_hidden_layers"], rules.mixer)
    num_heads = config["num_attention_heads"]
    head_dim = source.value("attention.key_length") or config["hidden_size"] // num_heads
    config["head_dim"] = head_dim
    config.setdefault("num_key_value_heads", num_heads)
    value_dim = source.value("attention.value_length") or head_dim
    if value_dim != head_dim:
        raise ModelRefused(
            f"{source.architecture}.attention.value_length {value_dim}: heads of {head_dim} have"
            " values of as many numbers, or are not served"
        )
    config["vocab_size"] = _vocab_size(source)
    config["tie_word_embeddings"] = "output.weight" not in source.tensors
    for name, tensor_name in _BY_TENSORS.items():
        if hasattr(of_class, name):
            config[name] = source.stored_in(f"blk.0.{tensor_name}") in source.tensors
    if hasattr(of_class, "use_parallel_residual"):
        # As llama.cpp: StableLM's converter says true where the model says nothing.
        is_parallel = "blk.0.ffn_norm.weight" not in source.tensors
        config.setdefault("use_parallel_residual", is_parallel)
    if hasattr(of_class, "query_pre_attn_scalar"):
        config["query_pre_attn_scalar"] = _scale_of_queries(config)
    if getattr(of_class, "rope_parameters", None) is not None:
        config["rope_parameters"] = _rope(source, config, of_class)
    return config | _named_tokens(source)


def _vocab_size(source: GgufSource) -> int:
    embedding = source.tensors.get("token_embd.weight")
    if embedding is None or len(embedding.shape) != 2:
        raise ModelRefused("lacks token_embd.weight, which its architecture has")
    vocab_size = int(embedding.shape[1])
    num_tokens = len(source.metadata.get("tokenizer.ggml.tokens") or ())
    if num_tokens > vocab_size:
        raise ModelRefused(
            f"tokenizer.ggml.tokens: {num_tokens} of them, and token_embd.weight has {vocab_size}"
        )
    return vocab_size


def _require_layers(source: GgufSource) -> None:
    """Before they are built, however many it says."""
    present = {name.split(".")[1] for name in source.tensors if name.startswith("blk.")}
    num_layers = source.value("block_count")
    if not isinstance(num_layers, int) or num_layers <= source.num_draft_layers:
        raise ModelRefused(
            f"{source.architecture}.block_count {num_layers!r}: is no number of layers"
        )
    for index in range(num_layers):
        if str(index) not in present:
            raise ModelRefused(f"lacks blk.{index}., which its architecture has")
    if source.num_draft_layers and not any(".nextn." in name for name in source.tensors):
        raise ModelRefused(
            f"{source.architecture}.nextn_predict_layers {source.num_draft_layers}: it has no layer"
            " that drafts"
        )


def _settings(source: GgufSource, of_class: Any) -> dict[str, Any]:
    """What the architecture's metadata say. Raises ModelRefused for what the class knows not."""
    names = {**SETTINGS, **source.rules.settings}
    expected = {**EXPECTED, **source.rules.expected}
    config: dict[str, Any] = {}
    for key in source.own_names():
        value = source.value(key)
        if key == STATE_LEN:
            num_heads = source.value("ssm.time_step_rank")
            if not num_heads or not value or value % num_heads:
                raise ModelRefused(
                    f"{source.architecture}.{key} {value}: is not so many of each of the"
                    f" ssm.time_step_rank {num_heads!r} heads"
                )
            value //= num_heads
        if key in expected:
            if value != expected[key]:
                raise ModelRefused(
                    f"{source.architecture}.{key} {value!r}: {source.rules.model_type} of"
                    f" transformers computes {expected[key]!r}"
                )
        # A number of nothing; that something is not so may matter.
        elif not value and value is not False and not hasattr(of_class, names.get(key, "")):
            continue
        elif key not in names:
            if key not in _KNOWN_OTHERWISE and key not in source.rules.harmless:
                raise ModelRefused(f"{source.architecture}.{key} {value!r}: is not known")
        # Phi-4's files say so that it has no window.
        elif (key, value) != ("attention.sliding_window", 0):
            if not hasattr(of_class, names[key]):
                raise ModelRefused(
                    f"{source.architecture}.{key} {value!r}: {source.rules.model_type} of"
                    f" transformers has no {names[key]}"
                )
            config[names[key]] = _of_all_layers(source, names[key], value)
    for key in (*REQUIRED, *source.rules.required):
        if not config.get(names[key]):
            raise ModelRefused(f"has no {source.architecture}.{key}")
    if not any(key.endswith("_epsilon") for key in source.own_names()):
        raise ModelRefused(f"has no {source.architecture}.attention.layer_norm_rms_epsilon")
    return config


def _require_computed(source: GgufSource, of_class: Any) -> None:
    """Raises ModelRefused for windows and experts that the class has not."""
    window_len = source.value("attention.sliding_window")
    if window_len and getattr(of_class, "use_sliding_window", True) is False:
        raise ModelRefused(
            f"{source.architecture}.attention.sliding_window {window_len!r}:"
            f" {source.rules.model_type} of transformers computes none"
        )
    num_experts = source.value("expert_count") or 0
    num_used = source.value("expert_used_count")
    if num_experts and not (isinstance(num_used, int) and 1 <= num_used <= num_experts):
        raise ModelRefused(
            f"{source.architecture}.expert_used_count {num_used!r}: is not from 1 to {num_experts}"
        )


def _of_all_layers(source: GgufSource, name: str, value: Any) -> Any:
    """The number of those that have any. Raises ModelRefused where they have unlike ones.

    Of windows: which layers have one.
    """
    if not isinstance(value, list):
        return value
    if name == "layer_types":
        return ["sliding_attention" if each else "full_attention" for each in value]
    numbers = set(value) - ({0} if source.rules.mixer else set())
    if len(numbers) != 1:
        raise ModelRefused(f"{name} differs between layers")
    return numbers.pop()


def _layer_types(source: GgufSource, num_layers: int, mixer: str) -> list[str]:
    """Which have attention is said by their keys, by a list, or it is one of so many."""
    mlp_lens = source.value("feed_forward_length")
    num_kv_heads = source.value("attention.head_count_kv")
    recurrent = source.value("attention.recurrent_layers")
    if isinstance(num_kv_heads, list):
        attends = [number > 0 for number in num_kv_heads]
    elif recurrent is not None:
        if not isinstance(recurrent, list):
            raise ModelRefused(
                f"{source.architecture}.attention.recurrent_layers {recurrent!r}: is no list"
            )
        attends = [not each for each in recurrent]
    else:
        interval = source.value("full_attention_interval") or 4
        attends = [index % interval == interval - 1 for index in range(num_layers)]
    types = ["full_attention" if each else mixer for each in attends[:num_layers]]
    if source.rules.mlp is not None:
        types = [
            source.rules.mlp if mlp_len else each
            for each, mlp_len in zip(types, mlp_lens, strict=False)
        ]
    return types


def _scale_of_queries(config: Mapping[str, Any]) -> int:
    """No file has it; the largest model of each Gemma has another than the others, as llama.cpp."""
    is_largest = config["num_hidden_layers"] == {"gemma2": 46}.get(config["model_type"], 62)
    width = config["hidden_size"] // config["num_attention_heads"]
    return int(width if is_largest else config["head_dim"])


def _rope(source: GgufSource, config: Mapping[str, Any], of_class: Any) -> dict[str, Any]:
    """Of all layers, or by their types where the class has it so."""
    theta = source.value("rope.freq_base") or 10000.0
    scaling = _scaling(source, config)
    context_len = config["max_position_embeddings"]
    has_base = source.value("rope.freq_base") or scaling
    rotates = config.get("position_embedding_type") != "nope"
    if rotates and not has_base and context_len > _LONGEST_BY_10000:
        # Of CodeLlama and Stable Code some files lack it, and llama.cpp answers with a wrong one.
        raise ModelRefused(
            f"has no {source.architecture}.rope.freq_base, without which its context of"
            f" {context_len} tokens cannot be right"
        )
    rope = {"rope_type": "default", "rope_theta": theta} | scaling
    head_dim = config["head_dim"]
    rotated = source.value("rope.dimension_count") or head_dim
    if not isinstance(rotated, int) or rotated % 2 or rotated > head_dim:
        raise ModelRefused(
            f"{source.architecture}.rope.dimension_count {rotated!r}: is not so many pairs of"
            f" heads of {head_dim}"
        )
    heads_len = head_dim * config["num_attention_heads"]
    if source.rules.model_type == "nemotron" and heads_len != config["hidden_size"]:
        raise ModelRefused(
            f"nemotron.rope.dimension_count {rotated}: llama.cpp's converter counts it by"
            f" embedding_length / attention.head_count, and not by heads of {head_dim}"
        )
    if source.rules.rotates_in_part or "partial_rotary_factor" in of_class.rope_parameters:
        rope["partial_rotary_factor"] = rotated / head_dim
    elif rotated != head_dim:
        raise ModelRefused(
            f"{source.architecture}.rope.dimension_count {rotated}: {source.rules.model_type} of"
            f" transformers rotates heads of {head_dim} whole"
        )
    local_theta = source.value("rope.freq_base_swa") or source.rules.local_theta or theta
    if "full_attention" in of_class.rope_parameters:
        local = {"rope_type": "default", "rope_theta": local_theta}
        return {"full_attention": rope, "sliding_attention": local}
    if local_theta != theta:
        raise ModelRefused(
            f"{source.architecture}.rope.freq_base_swa {local_theta}: {source.rules.model_type} of"
            f" transformers rotates all layers by {theta}"
        )
    return rope


def _scaling(source: GgufSource, config: Mapping[str, Any]) -> dict[str, Any]:
    """How rotations are scaled: what rope_parameters have of it."""
    factor = source.value("rope.scaling.factor") or source.value("rope.scale_linear")
    kind = source.value("rope.scaling.type") or "linear"
    original_len = source.value("rope.scaling.original_context_length")
    of_attention = source.value("rope.scaling.attn_factor")
    if _LONG_FACTORS in source.tensors:
        # Phi-3's files have no type.
        if source.value("rope.scaling.type") not in (None, "none", "longrope"):
            raise ModelRefused(f"{_LONG_FACTORS}: is not served with {kind}")
        return {
            "rope_type": "longrope",
            "long_factor": source.tensors[_LONG_FACTORS].data.tolist(),
            "short_factor": source.tensors[_SHORT_FACTORS].data.tolist(),
            "attention_factor": of_attention,
            "original_max_position_embeddings": original_len,
        }
    if of_attention not in (None, 1.0):
        raise ModelRefused(f"{source.architecture}.rope.scaling.attn_factor: is not served")
    if _FREQUENCIES in source.tensors:
        return _llama3_rope(source, config)
    if kind == "none" or (kind == "linear" and factor in (None, 0.0, 1.0)):
        return {}
    if kind == "linear":
        return {"rope_type": "linear", "factor": factor}
    if kind == "yarn" and factor and original_len:
        scaling = {"rope_type": "yarn", "factor": factor}
        scaling["original_max_position_embeddings"] = original_len
        given = {name: source.value(key) for key, name in _YARN.items()}
        scaling |= {name: value for name, value in given.items() if value is not None}
        return {**scaling, **source.rules.rope}
    raise ModelRefused(f"{source.architecture}.rope.scaling.type {kind!r} is not served")


def _llama3_rope(source: GgufSource, config: Mapping[str, Any]) -> dict[str, Any]:
    """Raises ModelRefused where the file divides frequencies otherwise."""
    divisors = source.tensors[_FREQUENCIES].data.astype(np.float64)
    scaling = {**_LLAMA3_ROPE, "factor": float(divisors.max())}
    rope = {"rope_theta": source.value("rope.freq_base") or 10000.0}
    model = CONFIG_MAPPING["llama"](**{**config, "rope_scaling": {**scaling, **rope}})
    scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](model, None)
    half = np.arange(len(divisors)) / len(divisors)
    expected = rope["rope_theta"] ** -half / divisors
    if not np.allclose(scaled.numpy(), expected, rtol=1e-4):
        raise ModelRefused(f"{_FREQUENCIES}: its frequencies are not scaled as Llama 3's")
    return scaling


def _named_tokens(source: GgufSource) -> dict[str, Any]:
    """Every token that ends an answer is one of config.json's."""

    num_tokens = len(source.metadata.get("tokenizer.ggml.tokens") or ())

    def token_id(name: str) -> int | None:
        key = f"tokenizer.ggml.{name}_token_id"
        index = source.metadata.get(key)
        if index is not None and index >= num_tokens:
            raise ModelRefused(f"{key} {index}: there are {num_tokens} tokens")
        return index

    ends = {token_id(name) for name in ("eos", "eot", "eom")} - {None}
    # Ollama's own files have more than one.
    ends.update(
        index
        for index in source.metadata.get("tokenizer.ggml.eos_token_ids") or ()
        if index < num_tokens
    )
    return {
        "bos_token_id": token_id("bos"),
        "eos_token_id": sorted(ends | _ends_by_text(source)),
        "pad_token_id": None,
    }


def _ends_by_text(source: GgufSource) -> set[int]:
    """A file names one end of each sort, and models have more: GPT-OSS's calls end in another."""
    tokens = source.metadata.get("tokenizer.ggml.tokens") or ()
    kinds = source.metadata.get("tokenizer.ggml.token_type") or ()
    found = {
        token: index
        for index, (token, kind) in enumerate(zip(tokens, kinds, strict=False))
        if kind == TokenType.CONTROL and token in _ENDS
    }
    # Where these end an answer, that one ends a part of it.
    if {"<|return|>", "<|call|>"} <= found.keys():
        found.pop("<|end|>", None)
    return set(found.values())


def sampling_of(source: GgufSource) -> dict[str, float]:
    """What the model's makers recommend: the content of generation_config.json."""
    values = {
        name: source.metadata.get(f"general.sampling.{key}") for key, name in _SAMPLING.items()
    }
    return {name: value for name, value in values.items() if value is not None}
