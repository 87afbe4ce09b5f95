"""Launches of kernels as the product makes them, to be compiled ahead of time."""

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from model_server.attention.base import LayerOptions, TokenMajorLayout
from model_server.attention.triton import TritonAttention
from model_server.executor.int4 import Int4Weight
from model_server.executor.layer_ops import (
    Convolution,
    DeltaRule,
    Experts,
    HeadLayout,
    NormWeights,
    Router,
    Routes,
)
from model_server.executor.triton_layers import TritonLayerOps
from model_server.recipe.recipe import Groups, Linear, Mlp, Moe, Rows
from model_server.sampling.edits import BITS_PER_WORD, DeviceMasks
from model_server.sampling.filters import Filters
from model_server.sampling.plan import Bias, Group, Kind, Penalties
from model_server.sampling.triton import TritonChooser, TritonEdits
from model_server.step import StateSlots, StepInputs
from tests.kernels.ahead_of_time import Recorder
from tests.kernels.paged_steps import Heads

META = torch.device("meta")
BF16 = torch.bfloat16

_NUM_TOKENS = 32
_PLAIN = LayerOptions(scale=0.125)
_ALL = LayerOptions(scale=0.125, window_len=1024, softcap=30.0, sinks=torch.empty(64, device=META))
# Compiled for all architectures are those that take the fewest and the most registers.
_HEADS = {
    "64": (Heads(64, 8, 64), _ALL),
    "sm_90 80": (Heads(32, 8, 80), _PLAIN),
    "sm_90 128": (Heads(32, 8, 128), _PLAIN),
    "sm_90 128, all": (Heads(64, 8, 128), _ALL),
    "256": (Heads(16, 8, 256), _PLAIN),
}


def attention(recorder: Recorder) -> None:
    """A mixed step of served models' shapes."""
    for label, (heads, options) in _HEADS.items():
        cache = TokenMajorLayout().allocate(64, heads.geometry, torch.bfloat16, META)
        query = torch.empty(
            _NUM_TOKENS, heads.num_heads, heads.head_dim, dtype=torch.bfloat16, device=META
        )
        with recorder.case(label):
            TritonAttention(launch=recorder).read(cache, query, _mixed_step(), options)
    with recorder.case("sm_90 256, image"):
        key_ends = torch.empty(_NUM_TOKENS, dtype=torch.int32, device=META)
        step = replace(_mixed_step(), key_ends=key_ends)
        TritonAttention(launch=recorder).read(cache, query, step, options)


def _mixed_step() -> StepInputs:
    def numbers(*shape: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype, device=META)

    return StepInputs(
        token_ids=numbers(_NUM_TOKENS),
        positions=numbers(_NUM_TOKENS),
        slot_mapping=numbers(_NUM_TOKENS),
        query_lens=(1, _NUM_TOKENS - 1),
        context_lens=(1000, 1000),
        block_tables=numbers(2, 64, dtype=torch.int32),
        cu_query_lens=numbers(3, dtype=torch.int32),
        device_context_lens=numbers(2, dtype=torch.int32),
        logits_indices=numbers(2),
        head_indices=numbers(2),
    )


def layer(recorder: Recorder) -> None:
    """Of Llama 3 8B, of Qwen3 8B and of a model as wide as Llama 3 70B with Gemma's norms."""
    ops = TritonLayerOps(recorder)
    for label, hidden, inner in (("sm_90 4096", 4096, 14336), ("8192", 8192, 28672)):
        rows = _empty(8, hidden)
        norm = _norm(hidden, hidden)
        with recorder.case(label):
            ops.add_norm(rows, rows, norm)
            ops.add_norm(rows, rows, norm, post_norm=norm)
            ops.activate(_empty(8, 2 * inner), "gate_up", "silu")
    table = _empty(1000, 64, dtype=torch.float32)
    places = _empty(8, dtype=torch.int64)
    for label, query_norm, key_norm in (
        ("no norms", None, None),
        ("norms", _norm(128, 4096), _norm(128, 1024)),
    ):
        heads = HeadLayout(32, 8, 128, query_norm, key_norm, cos=table, sin=table)
        pool = _empty(64, 16, 8, 128)
        with recorder.case(label):
            ops.rotate_and_write(_empty(8, 6144), heads, places, places, pool, pool)


def _empty(*shape: int, dtype: torch.dtype = BF16) -> Tensor:
    return torch.empty(shape, dtype=dtype, device=META)


def _norm(width: int, row_len: int) -> NormWeights:
    return NormWeights("rms", width, 1e-5, _empty(row_len, dtype=torch.float32), None)


def quantize(recorder: Recorder) -> None:
    """Rows in 8 bits, as wide as an MLP of Llama 3 8B. sm_80 has no such numbers."""
    with recorder.case("inner 14336"):
        TritonLayerOps(recorder).quantize(_empty(8, 14336))


INT4_ROWS = (1, 32, 512)


def int4(recorder: Recorder) -> None:
    """Of the widths of Llama 3 8B: a decode of one sequence and of a batch, and a prompt."""
    ops = TritonLayerOps(recorder)
    num_inputs = 4096
    num_outputs = 6144
    weight = Int4Weight(
        torch.empty(num_outputs, num_inputs // 8, dtype=torch.int32, device="meta"),
        torch.empty(num_outputs, num_inputs // 128, dtype=torch.float16, device="meta"),
        torch.empty(num_outputs, num_inputs // 128, dtype=torch.uint8, device="meta"),
    )
    for num_rows in INT4_ROWS:
        with recorder.case(f"{num_rows} rows"):
            x = torch.empty(num_rows, num_inputs, dtype=torch.bfloat16, device="meta")
            ops.multiply_int4(x, weight, None)


def adapters(recorder: Recorder) -> None:
    """Of rank 16, beside queries, keys and values of Llama 3 8B."""
    with recorder.case("rank 16"):
        TritonLayerOps(recorder).add_low_rank(
            _empty(8, 4096),
            _empty(4, 48, 4096, dtype=torch.float32),
            _empty(4, 6144, 48, dtype=torch.float32),
            _empty(8, dtype=torch.int32),
            _empty(8, 6144),
        )


def experts(recorder: Recorder) -> None:
    """Of Qwen3 30B-A3B with a router like DeepSeek's: a decode step, and a prompt."""
    hidden, inner, num_experts = (2048, 768, 128)
    linear = Linear("router", None, transposed=False, rows=Rows(0, 1, num_experts, num_experts))
    moe = Moe(
        router=linear,
        num_experts=num_experts,
        top_k=8,
        scoring="sigmoid_normed",
        gate_up="ins",
        gate_up_bias=None,
        down="outs",
        down_bias=None,
        transposed=False,
        layout="gate_up",
        activation="silu",
        shared=Mlp((linear,), "gate_up", "silu", linear),
        correction="correction",
        groups=Groups(8, 4, 2),
    )
    router = Router(
        moe, _empty(num_experts, hidden), None, _empty(num_experts, dtype=torch.float32)
    )
    weights = Experts(
        _empty(num_experts, 2 * inner, hidden),
        None,
        _empty(num_experts, hidden, inner),
        None,
        "gate_up",
        "silu",
    )
    ops = TritonLayerOps(recorder)
    with recorder.case("any step"):
        ops.route(_empty(32, hidden), router)
    for label, num_tokens in (("decode", 32), ("prompt", 4096)):
        x = _empty(num_tokens, hidden)
        routes = Routes(
            _empty(num_tokens, moe.top_k, dtype=torch.int32),
            _empty(num_tokens, moe.top_k + 1, dtype=torch.float32),
        )
        with recorder.case(label):
            ops.mix(x, weights, routes, x)


def states(recorder: Recorder) -> None:
    """A delta rule and a gate of Qwen3.5 9B, and a convolution of LFM2."""
    heads, dim, channels, hidden = (32, 128, 8192, 2048)
    ops = TritonLayerOps(recorder)
    numbers = _empty(channels, dtype=torch.float32)
    places = _empty(4, dtype=torch.int32)
    slots = StateSlots(places, places, places, places, places)
    rule = DeltaRule(
        num_key_heads=16,
        num_heads=heads,
        key_dim=dim,
        value_dim=dim,
        conv=Convolution(_empty(channels, 4, dtype=torch.float32), None),
        a_log=numbers,
        dt_bias=numbers,
        beta_scale=1.0,
        norm=_norm(dim, dim),
    )
    windows, matrices = (_empty(9, *each, dtype=torch.float32) for each in rule.state_shapes)
    with recorder.case("rule"):
        rows = _empty(4, channels + heads * dim + 2 * heads)
        ops.apply_rule(rows, rule, windows, matrices, slots)
    with recorder.case("gate"):
        ops.gate(_empty(4, 4096), _empty(4, 10240))
    conv = Convolution(_empty(hidden, 3, dtype=torch.float32), None)
    windows = _empty(9, *conv.window_shape, dtype=torch.float32)
    with recorder.case("convolution"):
        ops.convolve(_empty(4, 3 * hidden), conv, windows, slots)


_NUM_ROWS = 4
_WIDTH = 128_256


def sample(recorder: Recorder) -> None:
    """Edits and each kind of group, in four rows of a vocabulary as large as Llama 3's."""
    _record_edits(recorder)
    choose = TritonChooser(META, _NUM_ROWS, launch=recorder)
    scores = _column(torch.float32, _WIDTH)
    for kind in (Kind.GREEDY, Kind.PLAIN, Kind.PREFIX):
        with recorder.case(kind.name):
            choose(_group(kind), scores, _column(torch.float64))


def _record_edits(recorder: Recorder) -> None:
    edits = TritonEdits(_WIDTH, META, _NUM_ROWS, launch=recorder)
    scores = _column(torch.float32, _WIDTH)
    places = np.arange(_NUM_ROWS)
    indices = _column(torch.int64)
    numbers = _column(torch.float32)
    with recorder.case("edits"):
        edits.mask(scores, DeviceMasks(places, None, _column(torch.int32, _WIDTH // BITS_PER_WORD)))
        edits.add_bias(scores, Bias(indices, indices, numbers))
        edits.penalise(
            scores, Penalties(places, places, indices, indices, numbers, numbers, numbers), 100
        )
        edits.history.append(places, places, places)


def _group(kind: Kind) -> Group:
    return Group(
        kind=kind,
        places=np.arange(_NUM_ROWS),
        rows=None,
        temperature=_column(torch.float32, 1),
        filters=Filters(top_k=_column(torch.int64), nucleus=_column(torch.float64)),
        num_candidates=64,
        top=None,
    )


def _column(dtype: torch.dtype, *shape: int) -> Tensor:
    return torch.empty((_NUM_ROWS, *shape), dtype=dtype, device=META)
