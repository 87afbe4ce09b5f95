"""Small GGUF files, written as llama.cpp's converter writes them, of models with random weights."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
import torch
import transformers
from gguf import GGMLQuantizationType as Kind

from model_server.checkpoint.gguf_conversion import convert
from model_server.checkpoint.gguf_file import GgufFile

VOCAB_SIZE = 256
DOWN = "model.layers.0.mlp.down_proj.weight"  # of a Llama
_LEN = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": None,
    "tie_word_embeddings": False,
}
_GEMMA = {
    "head_dim": 64,
    "query_pre_attn_scalar": 64,
    "sliding_window": 8,
    "tie_word_embeddings": True,
}
# By the file's word for the architecture.
CONFIGS: dict[str, Any] = {
    "llama": lambda **more: transformers.LlamaConfig(**{**_LEN, **more}),
    "qwen2": lambda **more: transformers.Qwen2Config(**{**_LEN, "rope_theta": 5e5, **more}),
    "qwen3": lambda **more: transformers.Qwen3Config(**{**_LEN, "head_dim": 64, **more}),
    "gemma2": lambda **more: transformers.Gemma2Config(**{**_LEN, **_GEMMA, **more}),
    "gemma3": lambda **more: transformers.Gemma3TextConfig(
        **{**_LEN, **_GEMMA, "num_hidden_layers": 6, **more}
    ),
    "phi3": lambda **more: transformers.Phi3Config(
        **{**_LEN, "original_max_position_embeddings": 256, "sliding_window": 8, **more}
    ),
}


def small_model(architecture: str, **more: Any) -> Any:
    """In float32, with weights of unit gain and norms that are not one."""
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(CONFIGS[architecture](**more)).float()
    for parameter in model.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=parameter.shape[-1] ** -0.5)
        else:
            parameter.data += 0.1 * torch.randn_like(parameter)
    return model.eval()


def write_gguf(
    path: Path,
    model: Any,
    kind: Kind = Kind.F32,
    order: gguf.GGUFEndian = gguf.GGUFEndian.LITTLE,
    control_tokens: Sequence[str] = (),
    split_max_tensors: int = 0,
    **metadata: Any,
) -> Path:
    """Matrices in `kind`, vectors in float32.

    control_tokens:    texts of the tokens from the tenth
    split_max_tensors: in each file
    metadata:          more, by names with __ for a dot
    """
    config = model.config
    architecture = config.model_type.removesuffix("_text")
    writer = gguf.GGUFWriter(
        path, architecture, endianess=order, split_max_tensors=split_max_tensors
    )
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    rope = config.rope_parameters
    writer.add_rope_freq_base(rope.get("full_attention", rope)["rope_theta"])
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // 4
    writer.add_key_length(head_dim)
    writer.add_rope_dimension_count(head_dim)
    if getattr(config, "sliding_window", None):
        writer.add_sliding_window(config.sliding_window)
    if architecture == "gemma2":
        writer.add_attn_logit_softcapping(config.attn_logit_softcapping)
        writer.add_final_logit_softcapping(config.final_logit_softcapping)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    tokens = [chr(0x100 + index) for index in range(VOCAB_SIZE)]
    tokens[-1] = tokens[3] + tokens[4]
    kinds = [3] * 3 + [1] * (VOCAB_SIZE - 3)
    for index, text in enumerate(control_tokens, 10):
        tokens[index] = text
        kinds[index] = 3
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_merges([f"{tokens[3]} {tokens[4]}"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    for name, value in metadata.items():
        key = name.replace("__", ".")
        if isinstance(value, str):
            writer.add_string(key, value)
        elif isinstance(value, np.ndarray):
            writer.add_tensor(key, value)
        elif isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, list):
            writer.add_array(key, value)
        elif isinstance(value, float):
            writer.add_float32(key, value)
        else:
            writer.add_uint32(key, value)
    (arch,) = [arch for arch, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture]
    names = gguf.get_tensor_name_map(arch, config.num_hidden_layers)
    for name, parameter in model.named_parameters():
        stored_name = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert stored_name is not None
        values = parameter.detach().numpy()
        if architecture == "llama" and ".attn_q." in stored_name:
            values = interleaved(values, config.num_attention_heads)
        if architecture == "llama" and ".attn_k." in stored_name:
            values = interleaved(values, config.num_key_value_heads)
        if architecture.startswith("gemma") and stored_name.endswith("norm.weight"):
            values = values + 1
        of_kind = kind if values.ndim > 1 else Kind.F32
        writer.add_tensor(stored_name, blocks(values, of_kind), raw_dtype=of_kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def file_of(folder: Path, kind: str, **metadata: Any) -> GgufFile:
    """Of a Llama of one layer, its matrices in `kind`."""
    is_wide = gguf.GGML_QUANT_SIZES[Kind[kind]][0] == 256
    wide = {"hidden_size": 256, "intermediate_size": 512} if is_wide else {}
    model = small_model("llama", num_hidden_layers=1, **wide)
    convert(write_gguf(folder / "model.gguf", model, Kind[kind], **metadata), folder)
    file = GgufFile.of_folder(folder)
    assert file is not None
    return file


def requantized(
    source: Path,
    target: Path,
    kind: Kind,
    changed: Mapping[str, Any] = MappingProxyType({}),
) -> Path:
    """The same file with matrices in `kind`, but for those of routers, biases and short rows.

    changed: metadata and tensors by name, None: left out
    """
    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(target, str(reader.fields["general.architecture"].contents()))
    for name, field in reader.fields.items():
        value = changed.get(name, field.contents())
        is_own = not name.startswith("GGUF.") and name != "general.architecture"
        if is_own and value is not None:
            item_type = field.types[-1] if len(field.types) > 1 else None
            writer.add_key_value(name, value, field.types[0], item_type)
    numbers: dict[str, Any] = {
        tensor.name: gguf.dequantize(tensor.data, tensor.tensor_type) for tensor in reader.tensors
    }
    numbers |= {name: each for name, each in changed.items() if isinstance(each, np.ndarray)}
    for name, values in numbers.items():
        is_plain = (
            values.ndim == 1
            or name.endswith(".bias")
            or any(part in name for part in ("ffn_gate_inp", "norm"))
            or values.shape[-1] % 32
        )
        of_kind = Kind.F32 if is_plain else kind
        if changed.get(name, values) is not None:
            writer.add_tensor(name, gguf.quantize(values, of_kind), raw_dtype=of_kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target


def interleaved(values: npt.NDArray[Any], num_heads: int) -> npt.NDArray[Any]:
    """Rows of each head as the file has them: the halves in turns."""
    heads = values.reshape(num_heads, 2, -1, *values.shape[1:])
    return np.stack([heads[:, 0], heads[:, 1]], axis=2).reshape(values.shape)


def blocks(values: npt.NDArray[Any], kind: Kind) -> npt.NDArray[Any]:
    """Values as `kind`; of one that `gguf` cannot make, random blocks of that many numbers."""
    if kind == Kind.I32:
        return values.astype(np.int32)
    try:
        return gguf.quantize(values, kind)
    except NotImplementedError:
        block_len, block_bytes = gguf.GGML_QUANT_SIZES[kind]
        shape = (*values.shape[:-1], values.shape[-1] // block_len, block_bytes)
        random = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
        # Where a kind has its scales, in float16: small numbers of either sign.
        scales = {"Q2_K": (-4, -2), "Q3_K": (-2,), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (-2,)}
        for start in scales.get(kind.name, (0,)):
            random[..., start + 1] &= 0x83
            random[..., start + 1] |= 0x20
        return random.reshape(*values.shape[:-1], -1)


def dequantized(model: Any, folder: Path) -> Any:
    """The model with the weights that the folder's file has."""
    file = GgufFile.of_folder(folder)
    assert file is not None
    model.load_state_dict(file.read(torch.float32), strict=False)
    return model
