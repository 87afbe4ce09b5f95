"""The structs of `native/model.h` and the Matrix of `native/gemm.h`, field by field.

A null pointer or a zero is absence. Arrays that they point to belong to whoever fills them in.
"""

import ctypes
from ctypes import POINTER, Structure, c_double, c_int64, c_void_p

# "wide" is bfloat16 weights for rows of float32, with the results of "f32".
FORMATS = {"f32": 0, "bf16": 1, "int8": 2, "wide": 3}
NORM_KINDS = {"rms": 1, "layer": 2}
ACTIVATIONS = {
    name: number
    for number, name in enumerate(
        ("silu", "gelu", "gelu_tanh", "relu", "relu2", "clamped_swiglu"),
    )
}
COLUMNS = 32  # of a panel


def _integers(names: str) -> tuple[tuple[str, type], ...]:
    return tuple((name, c_int64) for name in names.split())


def _pointers(names: str) -> tuple[tuple[str, type], ...]:
    return tuple((name, c_void_p) for name in names.split())


class MatrixStruct(Structure):
    """A linear layer, packed by 32 columns."""

    _fields_ = (*_pointers("packed scales sums bias"), *_integers("n k format"))


class NormStruct(Structure):
    """A norm; its arrays are as long as a row."""

    _fields_ = (*_integers("kind width"), ("eps", c_double), *_pointers("weights biases"))


class RopeStruct(Structure):
    """Cosines and sines of all positions."""

    _fields_ = (*_pointers("cos sin"), *_integers("half"))


class MlpStruct(Structure):
    """A feed-forward part, or one expert's shape."""

    _fields_ = (
        ("ins", MatrixStruct),
        ("out", MatrixStruct),
        *_integers("inner activation is_gated"),
    )


class ExpertsStruct(Structure):
    """A mixture of experts."""

    _fields_ = (
        *_integers("num_experts top_k is_normed has_shared has_shared_gate"),
        ("router", MatrixStruct),
        ("ins", POINTER(MatrixStruct)),
        ("outs", POINTER(MatrixStruct)),
        ("each", MlpStruct),
        ("shared", MlpStruct),
    )


class LayerStruct(Structure):
    """One decoder layer."""

    _fields_ = (
        *((name, NormStruct) for name in ("attention_norm", "query_norm", "key_norm")),
        *((name, NormStruct) for name in ("attention_post_norm", "mlp_norm", "mlp_post_norm")),
        ("qkv", MatrixStruct),
        ("output", MatrixStruct),
        *_integers("num_heads num_kv_heads head_dim window_len chunk_len"),
        *_integers("rope norm_after_rope is_parallel"),
        *((name, c_double) for name in ("scale", "softcap", "residual_scale")),
        *_pointers("sinks"),
        ("mlp", MlpStruct),
        ("experts", POINTER(ExpertsStruct)),
        *_pointers("keys values"),
    )


class ModelStruct(Structure):
    """A whole decoder."""

    _fields_ = (
        *_integers("element embedding_element num_layers hidden vocab num_positions"),
        ("layers", POINTER(LayerStruct)),
        ("ropes", POINTER(RopeStruct)),
        *_pointers("embedding"),
        *((name, c_double) for name in ("embed_scale", "logit_scale", "softcap")),
        ("final_norm", NormStruct),
        ("head", MatrixStruct),
    )


class StepStruct(Structure):
    """One step's inputs, and where its logits go."""

    _fields_ = (
        *_integers("num_tokens num_seqs max_blocks num_logits"),
        *_pointers("token_ids positions slots block_tables cu_query_lens context_lens"),
        *_pointers("logits_rows logits"),
    )


def sizes() -> int:
    """One number that changes with the size of every struct; the library answers the same."""
    return (
        ctypes.sizeof(ModelStruct)
        + 1000 * ctypes.sizeof(LayerStruct)
        + 1000_000 * ctypes.sizeof(ExpertsStruct)
        + 1000_000_000 * ctypes.sizeof(StepStruct)
    )
