"""A gated delta rule by Triton kernels, token by token; see recipe.Delta. No executor runs it yet.

    mix_channels    convolution and norms of queries, keys and values; decays and betas
    advance_heads   each head's matrix from token to token, and what queries get from it
    gate_answers    the norm of what a head gives, and its gate

    row of the product:  | queries | keys | values | gates | betas | alphas |
    mixed row, float32:  | queries | keys | values | decays | betas |

A state is a slot of the pool: a window and matrices. A step reads one slot of a sequence and writes
others, so it may be done twice. Columns of a matrix never meet, and a sum has the order of its
numbers, so that bits depend neither on the batch nor on how tokens are cut into steps.
"""

# mypy: disable-error-code="no-untyped-def"

from dataclasses import dataclass
from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from model_server.executor.layer_ops import NormWeights
from model_server.triton_launch import Launch, launch, padded


@dataclass(frozen=True, slots=True, eq=False)
class DeltaHeads:
    """What a rule has beside its products: see recipe.Delta. Numbers are float32.

    conv_weight: [num_channels, num_taps]; conv_bias: [num_channels], or None
    a_log, dt_bias: [num_heads]
    norm:        of value_dim numbers, without a bias
    """

    num_key_heads: int
    num_heads: int
    key_dim: int
    value_dim: int
    conv_weight: Tensor
    conv_bias: Tensor | None
    a_log: Tensor
    dt_bias: Tensor
    beta_scale: float
    norm: NormWeights

    @property
    def sizes(self) -> dict[str, Any]:
        """As the kernels take them."""
        return {
            "NUM_KEY_HEADS": self.num_key_heads,
            "NUM_HEADS": self.num_heads,
            "KEY_DIM": self.key_dim,
            "VALUE_DIM": self.value_dim,
        }


@dataclass(frozen=True, slots=True, eq=False)
class DeltaStates:
    """A pool of slots of one layer.

    windows:  [num_slots, num_taps - 1, num_channels], of the rows' dtype
    matrices: [num_slots, num_heads, value_dim, key_dim] float32
    """

    windows: Tensor
    matrices: Tensor


@dataclass(frozen=True, slots=True, eq=False)
class DeltaStep:
    """Where states are in a step; all int32.

    cu_query_lens: [num_seqs + 1]
    sequences:     [num_tokens], each token's
    reads:         [num_seqs], the slot before its first token; -1: zeros
    writes:        [num_seqs], another one, written behind its last token
    kept:          [num_tokens], one more, written behind this token, or -1; None: there is none
    """

    cu_query_lens: Tensor
    sequences: Tensor
    reads: Tensor
    writes: Tensor
    kept: Tensor | None = None


@triton.jit
def mix_channels(
    rows, conv_weight, conv_bias, a_log, dt_bias, windows, cu_query_lens, sequences, reads, writes,
    kept, mixed, beta_scale,
    NUM_KEY_HEADS: tl.constexpr, NUM_HEADS: tl.constexpr, KEY_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr, DIM_PADDED: tl.constexpr, NUM_TAPS: tl.constexpr,
    HAS_BIAS: tl.constexpr, HAS_KEPT: tl.constexpr,
):  # fmt: skip
    """Grid (tokens, heads of queries, keys and values)."""
    VALUES: tl.constexpr = 2 * NUM_KEY_HEADS * KEY_DIM
    CHANNELS: tl.constexpr = VALUES + NUM_HEADS * VALUE_DIM
    BETAS: tl.constexpr = CHANNELS + NUM_HEADS * VALUE_DIM
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    is_value = head >= 2 * NUM_KEY_HEADS
    value_head = head - 2 * NUM_KEY_HEADS
    dims = tl.arange(0, DIM_PADDED)
    channels = tl.where(is_value, VALUES + value_head * VALUE_DIM, head * KEY_DIM) + dims
    inside = dims < tl.where(is_value, VALUE_DIM, KEY_DIM)
    row = rows + token * (BETAS + 2 * NUM_HEADS)
    seq = tl.load(sequences + token)
    place = token - tl.load(cu_query_lens + seq)
    is_last = token + 1 == tl.load(cu_query_lens + seq + 1)
    read = tl.load(reads + seq).to(tl.int64)
    # Slots to be written, -1: none. A window's rows are those that its next token convolves.
    write = tl.where(is_last, tl.load(writes + seq), -1).to(tl.int64)
    keep = tl.full((), -1, tl.int64)
    if HAS_KEPT:
        keep = tl.load(kept + token).to(tl.int64)
    total = tl.zeros((DIM_PADDED,), tl.float32)
    for tap in tl.static_range(NUM_TAPS):
        back = NUM_TAPS - 1 - tap  # tokens
        is_old = inside & (place + 0 * dims < back)
        is_known = is_old & (read + 0 * dims >= 0)
        old = windows + (read * (NUM_TAPS - 1) + place + tap) * CHANNELS + channels
        new = row - back * (BETAS + 2 * NUM_HEADS) + channels
        x = tl.load(old, mask=is_known, other=0.0).to(tl.float32)
        x += tl.load(new, mask=inside & (place + 0 * dims >= back), other=0.0).to(tl.float32)
        total += x * tl.load(conv_weight + channels * NUM_TAPS + tap, mask=inside, other=0.0)
        if tap > 0:
            at = windows + (tap - 1) * CHANNELS + channels
            if write >= 0:
                tl.store(at + write * (NUM_TAPS - 1) * CHANNELS, x, mask=inside)
            if keep >= 0:
                tl.store(at + keep * (NUM_TAPS - 1) * CHANNELS, x, mask=inside)
    if HAS_BIAS:
        total += tl.load(conv_bias + channels, mask=inside, other=0.0)
    total = tl.where(inside, total / (1.0 + tl.exp(-total)), 0.0)
    to = mixed + token * (CHANNELS + 2 * NUM_HEADS)
    if is_value:
        alpha = tl.load(row + BETAS + NUM_HEADS + value_head).to(tl.float32)
        alpha += tl.load(dt_bias + value_head)
        # log(1 + power), to the last digits of a small power, too
        power = tl.exp(tl.minimum(alpha, 20.0))
        more = 1.0 + power
        soft = tl.where(more == 1.0, power, tl.log(more) * (power / tl.maximum(more - 1.0, 1e-20)))
        soft = tl.where(alpha > 20.0, alpha, soft)
        tl.store(to + CHANNELS + value_head, tl.exp(-tl.exp(tl.load(a_log + value_head)) * soft))
        beta = tl.load(row + BETAS + value_head).to(tl.float32)
        tl.store(to + CHANNELS + NUM_HEADS + value_head, beta_scale / (1.0 + tl.exp(-beta)))
    else:
        total = total * tl.rsqrt(tl.sum(total * total, 0) + 1e-6)
        total = total * tl.where(head < NUM_KEY_HEADS, KEY_DIM**-0.5, 1.0)
    tl.store(to + channels, total, mask=inside)


@triton.jit
def advance_heads(
    mixed, matrices, cu_query_lens, reads, writes, kept, answers,
    NUM_KEY_HEADS: tl.constexpr, NUM_HEADS: tl.constexpr, KEY_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr, KEY_PADDED: tl.constexpr, COLUMNS: tl.constexpr,
    HAS_KEPT: tl.constexpr,
):  # fmt: skip
    """Grid (sequences, heads, ceil(VALUE_DIM / COLUMNS)): some columns in registers, all tokens."""
    VALUES: tl.constexpr = 2 * NUM_KEY_HEADS * KEY_DIM
    CHANNELS: tl.constexpr = VALUES + NUM_HEADS * VALUE_DIM
    SLOT: tl.constexpr = NUM_HEADS * VALUE_DIM * KEY_DIM
    seq = tl.program_id(0)
    head = tl.program_id(1)
    columns = tl.program_id(2) * COLUMNS + tl.arange(0, COLUMNS)
    keys = tl.arange(0, KEY_PADDED)
    is_column = columns < VALUE_DIM
    is_key = keys < KEY_DIM
    inside = is_column[:, None] & is_key[None, :]
    at = matrices + (head * VALUE_DIM + columns)[:, None] * KEY_DIM + keys[None, :]
    read = tl.load(reads + seq).to(tl.int64)
    matrix = tl.zeros((COLUMNS, KEY_PADDED), tl.float32)
    if read >= 0:
        matrix = tl.load(at + read * SLOT, mask=inside, other=0.0)
    key_head = head // (NUM_HEADS // NUM_KEY_HEADS)
    begin = tl.load(cu_query_lens + seq).to(tl.int64)
    for token in range(begin, tl.load(cu_query_lens + seq + 1).to(tl.int64)):
        row = mixed + token * (CHANNELS + 2 * NUM_HEADS)
        query = tl.load(row + key_head * KEY_DIM + keys, mask=is_key, other=0.0)
        key = tl.load(row + (NUM_KEY_HEADS + key_head) * KEY_DIM + keys, mask=is_key, other=0.0)
        value = tl.load(row + VALUES + head * VALUE_DIM + columns, mask=is_column, other=0.0)
        matrix *= tl.load(row + CHANNELS + head)
        beta = tl.load(row + CHANNELS + NUM_HEADS + head)
        written = (value - tl.sum(matrix * key[None, :], 1)) * beta
        matrix += written[:, None] * key[None, :]
        answer = tl.sum(matrix * query[None, :], 1)
        tl.store(answers + (token * NUM_HEADS + head) * VALUE_DIM + columns, answer, mask=is_column)
        if HAS_KEPT:
            keep = tl.load(kept + token).to(tl.int64)
            if keep >= 0:
                tl.store(at + keep * SLOT, matrix, mask=inside)
    tl.store(at + tl.load(writes + seq).to(tl.int64) * SLOT, matrix, mask=inside)


@triton.jit
def gate_answers(
    answers, rows, weight, output, eps,
    NUM_KEY_HEADS: tl.constexpr, NUM_HEADS: tl.constexpr, KEY_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr, VALUE_PADDED: tl.constexpr,
):  # fmt: skip
    """Grid (tokens, heads)."""
    GATES: tl.constexpr = 2 * NUM_KEY_HEADS * KEY_DIM + NUM_HEADS * VALUE_DIM
    ROW: tl.constexpr = GATES + NUM_HEADS * VALUE_DIM + 2 * NUM_HEADS
    token = tl.program_id(0).to(tl.int64)
    dims = tl.arange(0, VALUE_PADDED)
    inside = dims < VALUE_DIM
    place = tl.program_id(1) * VALUE_DIM + dims
    x = tl.load(answers + token * NUM_HEADS * VALUE_DIM + place, mask=inside, other=0.0)
    gate = tl.load(rows + token * ROW + GATES + place, mask=inside, other=0.0).to(tl.float32)
    x = x * tl.rsqrt(tl.sum(x * x, 0) / VALUE_DIM + eps)
    x = x * tl.load(weight + dims, mask=inside, other=0.0) * (gate / (1.0 + tl.exp(-gate)))
    at = output + token * NUM_HEADS * VALUE_DIM + place
    tl.store(at, x.to(output.dtype.element_ty), mask=inside)


# Of a matrix in one program: 128 keys of 32 columns are 32 registers a thread.
_COLUMNS = 32


def apply_rule(
    rows: Tensor, heads: DeltaHeads, states: DeltaStates, step: DeltaStep, launch: Launch = launch
) -> Tensor:
    """What the last product of a delta rule reads, [num_tokens, num_heads * value_dim].

    rows: of the product, see above; all contiguous
    """
    num_tokens = rows.shape[0]
    num_channels, num_taps = heads.conv_weight.shape
    mixed = heads.a_log.new_empty((num_tokens, num_channels + 2 * heads.num_heads))
    answers = heads.a_log.new_empty((num_tokens, heads.num_heads * heads.value_dim))
    kept = step.reads if step.kept is None else step.kept
    launch(
        mix_channels,
        (num_tokens, 2 * heads.num_key_heads + heads.num_heads),
        rows,
        heads.conv_weight,
        heads.conv_weight if heads.conv_bias is None else heads.conv_bias,
        heads.a_log,
        heads.dt_bias,
        states.windows,
        step.cu_query_lens,
        step.sequences,
        step.reads,
        step.writes,
        kept,
        mixed,
        heads.beta_scale,
        **heads.sizes,
        DIM_PADDED=padded(max(heads.key_dim, heads.value_dim)),
        NUM_TAPS=num_taps,
        HAS_BIAS=heads.conv_bias is not None,
        HAS_KEPT=step.kept is not None,
        num_warps=1,
    )
    launch(
        advance_heads,
        (len(step.reads), heads.num_heads, triton.cdiv(heads.value_dim, _COLUMNS)),
        mixed,
        states.matrices,
        step.cu_query_lens,
        step.reads,
        step.writes,
        kept,
        answers,
        **heads.sizes,
        KEY_PADDED=padded(heads.key_dim),
        COLUMNS=_COLUMNS,
        HAS_KEPT=step.kept is not None,
        num_warps=4,
    )
    output = rows.new_empty(answers.shape)
    launch(
        gate_answers,
        (num_tokens, heads.num_heads),
        answers,
        rows,
        heads.norm.weight,
        output,
        heads.norm.eps,
        **heads.sizes,
        VALUE_PADDED=padded(heads.value_dim),
        num_warps=1,
    )
    return output
