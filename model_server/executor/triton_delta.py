"""A gated delta rule by Triton kernels, token by token; see LayerOps.apply_rule.

    mix_channels    convolution and norms of queries, keys and values; decays and betas
    advance_heads   each head's matrix from token to token, and what queries get from it
    gate_answers    the norm of what a head gives, and its gate

    row of the product:  | queries | keys | values | gates | betas | alphas |
    mixed row, float32:  | queries | keys | values | decays | betas |

A step reads one slot of a sequence and writes others, so it may be done twice. Columns of a matrix
never meet, and a sum has the order of its numbers, so that bits depend neither on the batch nor on
how tokens are cut into steps.
"""

# mypy: disable-error-code="no-untyped-def"

import triton
import triton.language as tl
from torch import Tensor

from model_server.executor.layer_ops import DeltaRule
from model_server.executor.triton_convolution import convolved
from model_server.step import StateSlots
from model_server.triton_launch import Launch, launch, padded


@triton.jit
def mix_channels(
    rows, conv_weight, conv_bias, a_log, dt_bias, windows, cu_query_lens, sequences, reads, writes,
    kept, mixed, beta_scale,
    NUM_KEY_HEADS: tl.constexpr, NUM_HEADS: tl.constexpr, KEY_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr, DIM_PADDED: tl.constexpr, NUM_TAPS: tl.constexpr,
    HAS_BIAS: tl.constexpr,
):  # fmt: skip
    """Grid (tokens, heads of queries, keys and values)."""
    VALUES: tl.constexpr = 2 * NUM_KEY_HEADS * KEY_DIM
    CHANNELS: tl.constexpr = VALUES + NUM_HEADS * VALUE_DIM
    BETAS: tl.constexpr = CHANNELS + NUM_HEADS * VALUE_DIM
    ROW_LEN: tl.constexpr = BETAS + 2 * NUM_HEADS
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    is_value = head >= 2 * NUM_KEY_HEADS
    value_head = head - 2 * NUM_KEY_HEADS
    dims = tl.arange(0, DIM_PADDED)
    channels = tl.where(is_value, VALUES + value_head * VALUE_DIM, head * KEY_DIM) + dims
    inside = dims < tl.where(is_value, VALUE_DIM, KEY_DIM)
    total = convolved(
        rows, conv_weight, conv_bias, windows, cu_query_lens, sequences, reads, writes, kept, token,
        channels, inside, CHANNELS, ROW_LEN, NUM_TAPS, HAS_BIAS, False,
    )  # fmt: skip
    total = tl.where(inside, total / (1.0 + tl.exp(-total)), 0.0)
    row = rows + token * ROW_LEN
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
        write = tl.load(writes + token).to(tl.int64)
        if write >= 0:
            tl.store(at + write * SLOT, matrix, mask=inside)
        keep = tl.load(kept + token).to(tl.int64)
        if keep >= 0:
            tl.store(at + keep * SLOT, matrix, mask=inside)


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
    rows: Tensor,
    rule: DeltaRule,
    windows: Tensor,
    matrices: Tensor,
    slots: StateSlots,
    launch: Launch = launch,
) -> Tensor:
    """See LayerOps.apply_rule; all are contiguous."""
    num_tokens = rows.shape[0]
    num_channels, num_taps = rule.conv.weight.shape
    mixed = rule.a_log.new_empty((num_tokens, num_channels + 2 * rule.num_heads))
    answers = rule.a_log.new_empty((num_tokens, rule.num_heads * rule.value_dim))
    sizes = {
        "NUM_KEY_HEADS": rule.num_key_heads,
        "NUM_HEADS": rule.num_heads,
        "KEY_DIM": rule.key_dim,
        "VALUE_DIM": rule.value_dim,
    }
    launch(
        mix_channels,
        (num_tokens, 2 * rule.num_key_heads + rule.num_heads),
        rows,
        rule.conv.weight,
        rule.conv.weight if rule.conv.bias is None else rule.conv.bias,
        rule.a_log,
        rule.dt_bias,
        windows,
        slots.cu_query_lens,
        slots.sequences,
        slots.reads,
        slots.writes,
        slots.kept,
        mixed,
        rule.beta_scale,
        **sizes,
        DIM_PADDED=padded(max(rule.key_dim, rule.value_dim)),
        NUM_TAPS=num_taps,
        HAS_BIAS=rule.conv.bias is not None,
        num_warps=1,
    )
    launch(
        advance_heads,
        (len(slots.reads), rule.num_heads, triton.cdiv(rule.value_dim, _COLUMNS)),
        mixed,
        matrices,
        slots.cu_query_lens,
        slots.reads,
        slots.writes,
        slots.kept,
        answers,
        **sizes,
        KEY_PADDED=padded(rule.key_dim),
        COLUMNS=_COLUMNS,
        num_warps=4,
    )
    output = rows.new_empty(answers.shape)
    launch(
        gate_answers,
        (num_tokens, rule.num_heads),
        answers,
        rows,
        rule.norm.weight,
        output,
        rule.norm.eps,
        **sizes,
        VALUE_PADDED=padded(rule.value_dim),
        num_warps=1,
    )
    return output
