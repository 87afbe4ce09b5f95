"""Makes a checkpoint's folder of a GGUF file: small files, and an index in place of weights.

    python -m model_server.checkpoint.gguf_conversion FILE TARGET

config.json, the tokenizer and the chat templates are made of the file's metadata; of the weights
only the places are written (gguf_file). Whatever could change a number and is not known is refused:
a tensor that the model's class does not have, a rotation that is scaled in another way.

Exit codes: 0 made, with a line about the file on stdout; 1 not, with a line on stderr.
"""

import argparse
import json
import math
import re
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from reprlib import repr as shortened
from typing import Any

import numpy as np
from gguf import (
    GGML_QUANT_SIZES,
    MODEL_ARCH,
    MODEL_ARCH_NAMES,
    GGMLQuantizationType,
    TensorNameMap,
    TokenType,
    get_tensor_name_map,
)
from gguf.gguf_reader import ReaderTensor
from transformers import CONFIG_MAPPING
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from model_server import zoo
from model_server.checkpoint.gguf_architectures import (
    ARCHITECTURES,
    EXPECTED,
    REQUIRED,
    SETTINGS,
    STATE_LEN,
)
from model_server.checkpoint.gguf_file import GgufFile, GgufPart, GgufTensor
from model_server.checkpoint.gguf_kinds import PACKED_KINDS, PLAIN_KINDS, StoredRows
from model_server.checkpoint.gguf_metadata import metadata_of, open_gguf
from model_server.checkpoint.gguf_tokenizer import write_tokenizer
from model_server.errors import ModelRefused, ShardError
from model_server.recipe.small import saved_buffers
from processes.gguf_cache import DESCRIPTION, files_of_gguf

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
_LONG_FACTORS = "rope_factors_long.weight"
_SHORT_FACTORS = "rope_factors_short.weight"


class _Source:
    """A file's metadata and tensors. Raises ModelRefused where it is none of ours."""

    def __init__(self, path: Path) -> None:
        """`path`: of the file, or of one of those that it was split into."""
        self.paths = files_of_gguf(path)
        readers = [open_gguf(each) for each in self.paths]
        self.metadata = metadata_of(readers[0].fields)
        num_files = self.metadata.get("split.count") or 1
        if num_files != len(self.paths):
            raise ModelRefused(
                f"is one of {num_files} parts, and its name is not"
                f" NAME-00001-of-{num_files:05}.gguf"
            )
        self.tensors: dict[str, ReaderTensor] = {}
        # Of each tensor, in which of `paths` it is.
        self.files: dict[str, int] = {}
        for index, reader in enumerate(readers):
            number = reader.fields.get("split.no")
            if number is not None and number.contents() != index:
                raise ModelRefused(
                    f"split.no {number.contents()!r} of {self.paths[index].name}: is not {index},"
                    " which its name says"
                )
            for tensor in reader.tensors:
                if tensor.name in self.tensors:
                    raise ModelRefused(f"has {tensor.name:.80} in two of its parts")
                self.tensors[tensor.name] = tensor
                self.files[tensor.name] = index
        self.architecture = str(self.metadata.get("general.architecture"))
        if self.architecture not in ARCHITECTURES:
            raise ModelRefused(
                f"general.architecture {shortened(self.architecture)}: of GGUF files"
                f" {', '.join(ARCHITECTURES)} are served; serve the model's safetensors"
            )
        self.rules = ARCHITECTURES[self.architecture]
        if self.rules.with_experts is not None and self.value("expert_count"):
            self.rules = self.rules.with_experts
        if self.rules.with_window is not None and self.value("attention.sliding_window"):
            self.rules = self.rules.with_window

    @property
    def num_draft_layers(self) -> int:
        """Behind the others, that the classes leave out."""
        return self.value("nextn_predict_layers") or 0

    def own_names(self) -> list[str]:
        """Of the architecture's own metadata."""
        start = f"{self.architecture}."
        return [name.removeprefix(start) for name in self.metadata if name.startswith(start)]

    def stored_in(self, name: str) -> str:
        """A tensor's own name, or that of the one that has all queries, keys and values."""
        whole = re.sub(r"\.attn_[qkv]\.", ".attn_qkv.", name)
        return whole if name not in self.tensors and whole in self.tensors else name

    def value(self, name: str) -> Any:
        """Of the architecture's own; None: absent."""
        return self.metadata.get(f"{self.architecture}.{name}")


def convert(path: Path, target: Path) -> str:
    """Write the folder; answers what the file is, in one line. Raises ModelRefused and the like."""
    source = _Source(path.absolute())
    try:
        (target / "config.json").write_text(json.dumps(_config(source)))
        (target / "generation_config.json").write_text(json.dumps(_sampling(source)))
        write_tokenizer(source.metadata, target)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise ModelRefused(f"its metadata cannot be read: {error!r}") from error
    config = zoo.read_config(target, trust_remote_code=False)
    module = zoo.build_empty(config, trust_remote_code=False).module
    numbers = dict(module.named_parameters()) | saved_buffers(module)
    tensors = _placed(source, config, {name: tuple(each.shape) for name, each in numbers.items()})
    _require_readable({part.kind for tensor in tensors.values() for part in tensor.parts})
    GgufFile(source.paths, tensors).write_index(target)
    described = _described(source, tensors)
    (target / DESCRIPTION).write_text(described)
    return described


def _config(source: _Source) -> dict[str, Any]:
    rules = source.rules
    of_class = CONFIG_MAPPING[source.rules.model_type]()
    config: dict[str, Any] = {"model_type": source.rules.model_type, **rules.constants}
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


def _vocab_size(source: _Source) -> int:
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


def _require_layers(source: _Source) -> None:
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


def _settings(source: _Source, of_class: Any) -> dict[str, Any]:
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


def _require_computed(source: _Source, of_class: Any) -> None:
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


def _of_all_layers(source: _Source, name: str, value: Any) -> Any:
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


def _layer_types(source: _Source, num_layers: int, mixer: str) -> list[str]:
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


def _rope(source: _Source, config: Mapping[str, Any], of_class: Any) -> dict[str, Any]:
    """Of all layers, or by their types where the class has it so."""
    theta = source.value("rope.freq_base") or 10000.0
    scaling = _scaling(source, config)
    context_len = config["max_position_embeddings"]
    is_told = source.value("rope.freq_base") or scaling
    rotates = config.get("position_embedding_type") != "nope"
    if rotates and not is_told and context_len > _LONGEST_BY_10000:
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


def _scaling(source: _Source, config: Mapping[str, Any]) -> dict[str, Any]:
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
        told = {name: source.value(key) for key, name in _YARN.items()}
        scaling |= {name: value for name, value in told.items() if value is not None}
        return {**scaling, **source.rules.rope}
    raise ModelRefused(f"{source.architecture}.rope.scaling.type {kind!r} is not served")


def _llama3_rope(source: _Source, config: Mapping[str, Any]) -> dict[str, Any]:
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


def _named_tokens(source: _Source) -> dict[str, Any]:
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


def _ends_by_text(source: _Source) -> set[int]:
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


def _sampling(source: _Source) -> dict[str, float]:
    """What the model's makers recommend, as generation_config.json has it."""
    values = {
        name: source.metadata.get(f"general.sampling.{key}") for key, name in _SAMPLING.items()
    }
    return {name: value for name, value in values.items() if value is not None}


def _placed(
    source: _Source, config: Any, shapes: Mapping[str, tuple[int, ...]]
) -> dict[str, GgufTensor]:
    """Each of the model's parameters in the file. Raises ModelRefused unless all of both agree."""
    (architecture,) = [a for a, name in MODEL_ARCH_NAMES.items() if name == source.architecture]
    num_layers = config.num_hidden_layers
    names = get_tensor_name_map(MODEL_ARCH(architecture), num_layers)
    placed: dict[str, GgufTensor] = {}
    drafts = range(num_layers, num_layers + source.num_draft_layers)
    factors = (_FREQUENCIES, _LONG_FACTORS, _SHORT_FACTORS)
    left_out = (*factors, *(f"blk.{index}." for index in drafts))
    unused = {name for name in source.tensors if not name.startswith(left_out)}
    for name, shape in shapes.items():
        stored_names = _stored_names(source, names, name)
        for stored_name in stored_names:
            whole = source.stored_in(stored_name)
            if whole not in unused and (whole == stored_name or whole not in source.tensors):
                raise ModelRefused(f"lacks {stored_name}, which its architecture has")
            unused.discard(whole)
        placed[name] = _tensor(source, config, stored_names, shape)
    if unused:
        raise ModelRefused(
            f"has {len(unused)} tensors that are not served with its architecture, as"
            f" {min(unused):.80}"
        )
    return placed


def _stored_names(source: _Source, names: TensorNameMap, name: str) -> list[str]:
    """Of the file's tensors that a parameter is made of."""
    for own, known in source.rules.names.items():
        name = name.replace(own, known)
    wanted = [name]
    # In a class some names have no end, as those of all experts' weights.
    if not name.endswith((".weight", ".bias", ".A_log", ".D")):
        stem, end = name.removesuffix("_bias"), ".bias" if name.endswith("_bias") else ".weight"
        wanted = [stem + end]
        if stem.endswith(".gate_up_proj"):
            wanted = [stem.replace("gate_up", part) + end for part in ("gate", "up")]
    if "gate+up" in name:
        wanted = [name.replace("gate+up", part) for part in ("gate", "up")]
    # Older files have it whole.
    if ".in_proj_qkvz." in name and names.get_name(name, (".weight",)) not in source.tensors:
        wanted = [name.replace("qkvz", part) for part in ("qkv", "z")]
    stored: list[str] = []
    for each in wanted:
        # What older versions of a class call `backbone`.
        aliases = (each, each.replace("model.", "backbone.", 1))
        found = [names.get_name(alias, try_suffixes=(".weight", ".bias")) for alias in aliases]
        stored.append(found[0] or found[1] or each)
    # With --fuse-gate-up-exps the converter has joined them.
    fused = stored[0].replace(".ffn_gate_exps.", ".ffn_gate_up_exps.")
    is_fused = fused != stored[0] and fused in source.tensors
    return [fused] if is_fused and not source.rules.experts_turned else stored


def _tensor(
    source: _Source, config: Any, stored_names: Sequence[str], shape: tuple[int, ...]
) -> GgufTensor:
    parts = tuple(_part(source, config, stored_name, len(shape)) for stored_name in stored_names)
    axis = int(len(parts) > 1 and "_exps." in stored_names[0])
    if any(len(part.shape) <= axis for part in parts):
        raise ModelRefused(f"{' and '.join(stored_names)}: has too few dimensions")
    is_turned = source.rules.experts_turned
    num_turns = parts[0].shape[axis] if is_turned and len(parts) > 1 else 1
    if len(parts) == 2 and ".attn_qkv." in stored_names[0]:
        # Of Qwen3-Next, which has all that a key's heads need side by side.
        qkv, gate = parts
        num_turns = config.linear_num_key_heads
        key_len = num_turns * config.linear_key_head_dim
        ends = (0, key_len, 2 * key_len, qkv.shape[0])
        parts = (*(qkv.of_rows(*bounds) for bounds in pairwise(ends)), gate)
    if source.rules.qkv_by_heads and ".attn_qkv." in stored_names[0]:
        num_turns = config.num_attention_heads
        each_len = parts[0].shape[0] // 3
        parts = tuple(parts[0].of_rows(n * each_len, (n + 1) * each_len) for n in range(3))
    # Gates and ups.
    if len(parts) > 1 and parts[-1].shape != parts[-2].shape:
        raise ModelRefused(
            f"{' and '.join(stored_names)} have the unlike shapes {list(parts[-2].shape)} and"
            f" {list(parts[-1].shape)}"
        )
    inputs_first = is_turned and len(shape) == 3
    joined = list(parts[0].shape)
    joined[axis] = sum(part.shape[axis] for part in parts)
    if inputs_first:
        joined[1:] = reversed(joined[1:])
    # A row alone is stored as a vector, and a convolution's inputs, of one each, are left out; of a
    # state's vectors some are stored as rows.
    if len(shape) == 1:
        joined = [math.prod(joined)]
    if [n for n in joined if n != 1] != [n for n in shape if n != 1]:
        raise ModelRefused(
            f"{' and '.join(stored_names)} has the shape {joined}, and by its metadata the model's"
            f" is {list(shape)}"
        )
    return GgufTensor(shape, parts, axis, num_turns, inputs_first)


def _part(source: _Source, config: Any, stored_name: str, num_dimensions: int) -> GgufPart:
    """`num_dimensions`: in the class; behind them a file may have more, of one each."""
    whole = source.stored_in(stored_name)
    stored = source.tensors[whole]
    shape = tuple(map(int, reversed(stored.shape)))
    while len(shape) > num_dimensions and shape[0] == 1:
        shape = shape[1:]
    rules = source.rules
    num_heads = None
    if rules.is_interleaved and ".attn_q." in stored_name:
        num_heads = config.num_attention_heads
    if rules.is_interleaved and ".attn_k." in stored_name:
        num_heads = config.num_key_value_heads
    # But for those of gated delta rules.
    is_norm = stored_name.endswith("norm.weight") and ".ssm_norm." not in stored_name
    turned_rows = turned_columns = None
    if rules.first_heads_first:
        turned_rows, turned_columns = _turned_value_heads(config, stored_name)
    part = GgufPart(
        kind=stored.tensor_type.name,
        shape=shape,
        offset=int(stored.data_offset),
        file=source.files[whole],
        num_heads=num_heads,
        turned_rows=turned_rows,
        turned_columns=turned_columns,
        subtrahend=float(rules.norms_plus_one and is_norm),
        negative_exp=stored_name.endswith(".ssm_a"),
    )
    if whole == stored_name:
        return part
    keys_start = part.shape[0] - 2 * config.num_key_value_heads * config.head_dim
    values_start = (keys_start + part.shape[0]) // 2
    bounds = {
        "attn_q": (0, keys_start),
        "attn_k": (keys_start, values_start),
        "attn_v": (values_start, part.shape[0]),
    }
    return part.of_rows(*bounds[stored_name.split(".")[2]])


def _turned_value_heads(
    config: Any, stored_name: str
) -> tuple[tuple[int, int, int] | None, tuple[int, int] | None]:
    """See GgufPart: where the class has all heads of a key, the file has one of each key."""
    num_keys = config.linear_num_key_heads
    num_each = config.linear_num_value_heads // num_keys
    kind = stored_name.split(".")[2:3]
    if num_each == 1:
        return None, None
    if kind == ["ssm_out"]:
        return None, (num_keys, num_each)
    if kind in (["attn_qkv"], ["ssm_conv1d"]):
        return (2 * num_keys * config.linear_key_head_dim, num_keys, num_each), None
    if kind in (["attn_gate"], ["ssm_alpha"], ["ssm_beta"], ["ssm_a"], ["ssm_dt"]):
        return (0, num_keys, num_each), None
    return None, None


def _require_readable(kinds: Iterable[str]) -> None:
    """Raises ModelRefused for a kind whose blocks nobody here can read."""
    for kind in kinds:
        _, block_bytes = GGML_QUANT_SIZES[GGMLQuantizationType[kind]]
        try:
            StoredRows(kind, np.zeros((1, block_bytes), np.uint8)).numbers()
        except NotImplementedError as error:
            raise ModelRefused(f"has tensors of {kind}, which cannot be dequantized") from error


def _described(source: _Source, tensors: Mapping[str, GgufTensor]) -> str:
    numbers: Counter[str] = Counter()
    num_bytes = 0
    for tensor in tensors.values():
        for part in tensor.parts:
            numbers[part.kind] += part.num_numbers
            num_bytes += part.num_bytes
    total = numbers.total()
    shares = ", ".join(f"{100 * n / total:.0f} % {kind}" for kind, n in numbers.most_common(3))
    described = (
        f"{source.paths[0]}: {source.architecture}, {shares}: {8 * num_bytes / total:.2f} bits a"
        f" weight, {num_bytes / 2**20:.0f} MiB"
    )
    widened = sum(n for kind, n in numbers.items() if kind not in PACKED_KINDS | PLAIN_KINDS)
    if not widened:
        return described
    return f"{described}; on a CPU {100 * widened / total:.0f} % of it is dequantized"


def main(argv: Sequence[str]) -> int:
    """Convert one file; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m model_server.checkpoint.gguf_conversion")
    parser.add_argument("file", type=Path)
    parser.add_argument("target", type=Path)
    given = parser.parse_args(argv)
    try:
        sys.stdout.write(f"{convert(given.file, given.target)}\n")
    except ShardError as error:
        # What a file says may have lines of its own.
        reason = " ".join(str(error).split())
        sys.stderr.write(f"error: {given.file}: {reason}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
