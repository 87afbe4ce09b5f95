"""A mixture of experts by Triton kernels; see LayerOps.route and LayerOps.mix.

    score_experts    the router's product, in float32
    choose_experts   each token's experts, and their weights
    group_slots      the slots of each expert one after the other, cut into tiles
    multiply_slots   an expert's first product and its activation, place by place;
                     then its second product, slot by slot
    combine_slots    the weighted sum of a token's slots, and the shared expert

    slots:   | token 0: expert 5, expert 2 | token 1: expert 2, expert 0 | ...   token * top_k + n
    places:  | expert 0: slot 3 | expert 2: slot 1, slot 2 | expert 5: slot 0 | ...

How many rows an expert has is known on the device alone: the grid has as many tiles as there could
be, and those that are too many leave at once. A row's sums have the order of their numbers, and of
its slots, whoever shares its tile.
"""

# mypy: disable-error-code="no-untyped-def"

import torch
import triton
import triton.language as tl
from torch import Tensor

from model_server.attention.triton import multiply_add
from model_server.executor.layer_ops import Experts, Router, Routes
from model_server.executor.triton_activations import KINDS, gated
from model_server.triton_launch import Launch, launch, padded


@triton.jit
def _product(
    x_rows, weight_rows, has_row, has_output,
    NUM_INPUTS: tl.constexpr, BLOCK_ROWS: tl.constexpr, BLOCK_OUTPUTS: tl.constexpr,
    BLOCK_INPUTS: tl.constexpr,
):  # fmt: skip
    """Of the rows that begin at these pointers, [BLOCK_ROWS, BLOCK_OUTPUTS] float32."""
    columns = tl.arange(0, BLOCK_INPUTS)
    sums = tl.zeros((BLOCK_ROWS, BLOCK_OUTPUTS), tl.float32)
    for start in range(0, NUM_INPUTS, BLOCK_INPUTS):
        inside = start + columns < NUM_INPUTS
        at = start + columns[None, :]
        x = tl.load(x_rows[:, None] + at, mask=has_row[:, None] & inside[None, :], other=0.0)
        weights = tl.load(
            weight_rows[:, None] + at, mask=has_output[:, None] & inside[None, :], other=0.0
        )
        sums = multiply_add(x.to(weights.dtype), tl.trans(weights), sums)
    return sums


@triton.jit(do_not_specialize=["num_rows"])
def score_experts(
    x, weight, bias, logits, num_rows,
    NUM_INPUTS: tl.constexpr, NUM_OUTPUTS: tl.constexpr, HAS_BIAS: tl.constexpr,
    BLOCK_ROWS: tl.constexpr, BLOCK_OUTPUTS: tl.constexpr, BLOCK_INPUTS: tl.constexpr,
):  # fmt: skip
    """Grid (tiles of outputs, tiles of rows)."""
    outputs = tl.program_id(0) * BLOCK_OUTPUTS + tl.arange(0, BLOCK_OUTPUTS)
    rows = (tl.program_id(1) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)).to(tl.int64)
    has_output = outputs < NUM_OUTPUTS
    has_row = rows < num_rows
    sums = _product(
        x + rows * NUM_INPUTS, weight + outputs * NUM_INPUTS, has_row, has_output,
        NUM_INPUTS, BLOCK_ROWS, BLOCK_OUTPUTS, BLOCK_INPUTS,
    )  # fmt: skip
    if HAS_BIAS:
        sums += tl.load(bias + outputs, mask=has_output, other=0.0).to(tl.float32)[None, :]
    at = rows[:, None] * NUM_OUTPUTS + outputs[None, :]
    tl.store(logits + at, sums, mask=has_row[:, None] & has_output[None, :])


@triton.jit
def _first_best(ranks, numbers, NONE: tl.constexpr):
    """The best rank, and the least number that has it."""
    best = tl.max(ranks)
    return best, tl.min(tl.where(ranks == best, numbers, NONE))


@triton.jit
def choose_experts(
    logits, correction, chosen, weights, scale,
    NUM_LOGITS: tl.constexpr, NUM_WEIGHTS: tl.constexpr, TOP_K: tl.constexpr,
    TOP_K_PADDED: tl.constexpr, NUM_GROUPS: tl.constexpr, GROUPS_PADDED: tl.constexpr,
    GROUP_LEN: tl.constexpr, GROUP_PADDED: tl.constexpr, TOP_GROUPS: tl.constexpr,
    NUM_BEST: tl.constexpr, IS_SIGMOID: tl.constexpr, IS_NORMED: tl.constexpr,
    HAS_CORRECTION: tl.constexpr,
):  # fmt: skip
    """Grid (tokens,). Experts are held as [groups, experts of a group].

    Of equal ranks the lower number is chosen. A token whose logits are no numbers chooses as well:
    its weights are none, and it disturbs nobody.
    """
    NUM_EXPERTS: tl.constexpr = NUM_GROUPS * GROUP_LEN
    token = tl.program_id(0).to(tl.int64)
    groups = tl.arange(0, GROUPS_PADDED)
    members = tl.arange(0, GROUP_PADDED)
    experts = groups[:, None] * GROUP_LEN + members[None, :]
    is_there = (groups[:, None] < NUM_GROUPS) & (members[None, :] < GROUP_LEN)
    numbers = tl.load(logits + token * NUM_LOGITS + experts, mask=is_there, other=-float("inf"))
    if IS_SIGMOID:
        scores = 1.0 / (1.0 + tl.exp(-numbers))
    else:
        powers = tl.where(is_there, tl.exp(numbers - tl.max(numbers)), 0.0)
        scores = powers / tl.sum(powers)
    ranks = scores
    if HAS_CORRECTION:
        ranks += tl.load(correction + experts, mask=is_there, other=0.0)
    ranks = tl.where(is_there, ranks, -float("inf"))
    if TOP_GROUPS < NUM_GROUPS:
        rest = ranks
        totals = tl.zeros((GROUPS_PADDED,), tl.float32)
        for _ in tl.static_range(NUM_BEST):
            best = tl.max(rest, 1)
            place = tl.min(tl.where(rest == best[:, None], members[None, :], GROUP_PADDED), 1)
            totals += best
            rest = tl.where(members[None, :] == place[:, None], -float("inf"), rest)
        totals = tl.where(groups < NUM_GROUPS, totals, -float("inf"))
        is_open = groups < 0
        for _ in tl.static_range(TOP_GROUPS):
            _, group = _first_best(totals, groups, GROUPS_PADDED)
            is_open = is_open | (groups == group)
            totals = tl.where(groups == group, -float("inf"), totals)
        ranks = tl.where(is_open[:, None], ranks, -float("inf"))
    slots = tl.arange(0, TOP_K_PADDED)
    found = tl.zeros((TOP_K_PADDED,), tl.int32)
    shares = tl.zeros((TOP_K_PADDED,), tl.float32)
    for slot in tl.static_range(TOP_K):
        _, expert = _first_best(ranks, experts, NUM_EXPERTS)
        expert = tl.minimum(expert, NUM_EXPERTS - 1)  # no rank is the best of those that are none
        share = tl.sum(tl.where((experts == expert) & is_there, scores, 0.0))
        found = tl.where(slots == slot, expert, found)
        shares = tl.where(slots == slot, share, shares)
        ranks = tl.where(experts == expert, -float("inf"), ranks)
    if IS_NORMED:
        shares = shares / tl.sum(shares)
    is_slot = slots < TOP_K
    tl.store(chosen + token * TOP_K + slots, found, mask=is_slot)
    tl.store(weights + token * NUM_WEIGHTS + slots, shares * scale, mask=is_slot)
    if NUM_WEIGHTS > TOP_K:
        share = 1.0
        if NUM_LOGITS > NUM_EXPERTS:
            gate = tl.load(logits + token * NUM_LOGITS + NUM_EXPERTS)
            share = 1.0 / (1.0 + tl.exp(-gate))
        tl.store(weights + token * NUM_WEIGHTS + TOP_K, share)


# The router's tile is the same whatever the step.
_SCORE_ROWS = 16


_SCORE_INPUTS = 128


def routed(x: Tensor, router: Router, launch: Launch = launch) -> Routes:
    """See LayerOps.route; all contiguous."""
    moe = router.moe
    num_tokens, hidden_size = x.shape
    num_logits = router.weight.shape[0]
    logits = x.new_empty((num_tokens, num_logits), dtype=torch.float32)
    launch(
        score_experts,
        (triton.cdiv(num_logits, _SCORE_ROWS), triton.cdiv(num_tokens, _SCORE_ROWS)),
        x,
        router.weight,
        x if router.bias is None else router.bias,
        logits,
        num_tokens,
        NUM_INPUTS=hidden_size,
        NUM_OUTPUTS=num_logits,
        HAS_BIAS=router.bias is not None,
        BLOCK_ROWS=_SCORE_ROWS,
        BLOCK_OUTPUTS=_SCORE_ROWS,
        BLOCK_INPUTS=_SCORE_INPUTS,
        num_warps=4,
        num_stages=4,
    )
    num_groups = 1 if moe.groups is None else moe.groups.num_groups
    num_weights = moe.top_k + (moe.shared is not None)
    chosen = x.new_empty((num_tokens, moe.top_k), dtype=torch.int32)
    weights = x.new_empty((num_tokens, num_weights), dtype=torch.float32)
    launch(
        choose_experts,
        (num_tokens,),
        logits,
        logits if router.correction is None else router.correction,
        chosen,
        weights,
        moe.scale,
        NUM_LOGITS=num_logits,
        NUM_WEIGHTS=num_weights,
        TOP_K=moe.top_k,
        TOP_K_PADDED=padded(moe.top_k),
        NUM_GROUPS=num_groups,
        GROUPS_PADDED=padded(num_groups),
        GROUP_LEN=moe.num_experts // num_groups,
        GROUP_PADDED=padded(moe.num_experts // num_groups),
        TOP_GROUPS=num_groups if moe.groups is None else moe.groups.top_k,
        NUM_BEST=0 if moe.groups is None else moe.groups.num_best,
        IS_SIGMOID=moe.scoring.startswith("sigmoid"),
        IS_NORMED=moe.scoring.endswith("normed"),
        HAS_CORRECTION=router.correction is not None,
        num_warps=1 if moe.num_experts <= 128 else 4,
    )
    return Routes(chosen, weights)


@triton.jit(do_not_specialize=["num_slots", "most_tiles"])
def group_slots(
    chosen, slots, tiles, num_slots, most_tiles,
    NUM_EXPERTS: tl.constexpr, EXPERTS_PADDED: tl.constexpr, BLOCK_ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Grid (experts,). Each program counts all slots, and writes those of its expert in order.

    A tile is an expert, its first place, and its expert's last place and one; expert -1: no tile.

    EXPERTS_PADDED: more than NUM_EXPERTS: what fills the last block up is counted, too
    """
    expert = tl.program_id(0)
    experts = tl.arange(0, EXPERTS_PADDED)
    block = tl.arange(0, BLOCK)
    counts = tl.zeros((EXPERTS_PADDED,), tl.int32)
    for start in range(0, num_slots, BLOCK):
        at = start + block
        theirs = tl.load(chosen + at, mask=at < num_slots, other=NUM_EXPERTS)
        counts += tl.histogram(theirs, EXPERTS_PADDED)
    num_tiles = (counts + BLOCK_ROWS - 1) // BLOCK_ROWS
    place = tl.sum(tl.where(experts < expert, counts, 0))
    end = tl.sum(tl.where(experts <= expert, counts, 0))
    first_tile = tl.sum(tl.where(experts < expert, num_tiles, 0))
    end_tile = tl.sum(tl.where(experts <= expert, num_tiles, 0))
    for tile in range(first_tile, end_tile):
        tl.store(tiles + 3 * tile, expert)
        tl.store(tiles + 3 * tile + 1, place + (tile - first_tile) * BLOCK_ROWS)
        tl.store(tiles + 3 * tile + 2, end)
    if expert == NUM_EXPERTS - 1:
        for tile in range(end_tile, most_tiles):
            tl.store(tiles + 3 * tile, -1)
    for start in range(0, num_slots, BLOCK):
        at = start + block
        theirs = tl.load(chosen + at, mask=at < num_slots, other=NUM_EXPERTS)
        is_own = (theirs == expert).to(tl.int32)
        tl.store(slots + place + tl.cumsum(is_own, 0) - 1, at, mask=is_own > 0)
        place += tl.sum(is_own)


@triton.jit
def multiply_slots(
    x, weight, bias, slots, tiles, output,
    TOP_K: tl.constexpr, NUM_INPUTS: tl.constexpr, NUM_OUTPUTS: tl.constexpr,
    IS_FIRST: tl.constexpr, IS_PAIRED: tl.constexpr, KIND: tl.constexpr, HAS_BIAS: tl.constexpr,
    BLOCK_ROWS: tl.constexpr, BLOCK_OUTPUTS: tl.constexpr, BLOCK_INPUTS: tl.constexpr,
):  # fmt: skip
    """Grid (tiles of NUM_OUTPUTS, tiles of rows).

    IS_FIRST: reads tokens and writes places, else reads places and writes slots. A row of weights
              is a gate, the next of the tile what it lets pass, whatever the layout: there are
              twice as many as outputs
    """
    NUM_HALVES: tl.constexpr = 2 if IS_FIRST else 1
    tile = tiles + 3 * tl.program_id(1)
    expert = tl.load(tile).to(tl.int64)
    if expert < 0:
        return
    places = tl.load(tile + 1) + tl.arange(0, BLOCK_ROWS)
    has_row = places < tl.load(tile + 2)
    own_slots = tl.load(slots + places, mask=has_row, other=0)
    first = tl.program_id(0) * BLOCK_OUTPUTS
    outputs = first + tl.arange(0, BLOCK_OUTPUTS)
    products = tl.arange(0, BLOCK_OUTPUTS * NUM_HALVES)
    if IS_FIRST:
        x_rows = (own_slots // TOP_K).to(tl.int64)
        out_rows = places.to(tl.int64)
    else:
        x_rows = places.to(tl.int64)
        out_rows = own_slots.to(tl.int64)
    of = first + products // NUM_HALVES
    half = products % NUM_HALVES
    has_product = of < NUM_OUTPUTS
    weight_rows = of * NUM_HALVES + half if IS_PAIRED else of + half * NUM_OUTPUTS
    weight_rows += expert * (NUM_HALVES * NUM_OUTPUTS)
    sums = _product(
        x + x_rows * NUM_INPUTS, weight + weight_rows * NUM_INPUTS, has_row, has_product,
        NUM_INPUTS, BLOCK_ROWS, BLOCK_OUTPUTS * NUM_HALVES, BLOCK_INPUTS,
    )  # fmt: skip
    if HAS_BIAS:
        sums += tl.load(bias + weight_rows, mask=has_product, other=0.0).to(tl.float32)[None, :]
    if IS_FIRST:
        gate, up = tl.split(tl.reshape(sums, (BLOCK_ROWS, BLOCK_OUTPUTS, 2)))
        sums = gated(gate, up, KIND)
    at = out_rows[:, None] * NUM_OUTPUTS + outputs[None, :]
    inside = has_row[:, None] & (outputs[None, :] < NUM_OUTPUTS)
    tl.store(output + at, sums.to(output.dtype.element_ty), mask=inside)


@triton.jit
def combine_slots(
    outs, weights, shared, output,
    WIDTH: tl.constexpr, TOP_K: tl.constexpr, HAS_SHARED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Grid (tokens, ceil(WIDTH / BLOCK))."""
    NUM_WEIGHTS: tl.constexpr = TOP_K + HAS_SHARED
    token = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < WIDTH
    total = tl.zeros((BLOCK,), tl.float32)
    for slot in tl.static_range(TOP_K):
        at = outs + (token * TOP_K + slot) * WIDTH + columns
        part = tl.load(at, mask=inside, other=0.0).to(tl.float32)
        total += part * tl.load(weights + token * NUM_WEIGHTS + slot)
    if HAS_SHARED:
        part = tl.load(shared + token * WIDTH + columns, mask=inside, other=0.0).to(tl.float32)
        total += part * tl.load(weights + token * NUM_WEIGHTS + TOP_K)
    tl.store(output + token * WIDTH + columns, total.to(output.dtype.element_ty), mask=inside)


# Rows of a tile where experts have few of them, as in a batch that decodes, and where many.
_FEW_ROWS = 16


_MANY_ROWS = 64


_COMBINED = 1024


def most_tiles(num_slots: int, num_experts: int, block_rows: int) -> int:
    """How many tiles of rows there are at most, however slots are spread over experts."""
    num_used = min(num_slots, num_experts)
    return min(num_slots, (num_slots + num_used * (block_rows - 1)) // block_rows)


def mixed(
    x: Tensor,
    experts: Experts,
    routes: Routes,
    shared: Tensor | None,
    launch: Launch = launch,
) -> Tensor:
    """See LayerOps.mix; all contiguous."""
    chosen = routes.experts
    num_tokens, top_k = chosen.shape
    num_experts, width, inner_len = experts.outs.shape
    num_slots = num_tokens * top_k
    # Large tiles of float32 do not fit into registers.
    is_many = x.element_size() == 2 and num_slots > 2 * _FEW_ROWS * num_experts
    block_rows = _MANY_ROWS if is_many else _FEW_ROWS
    num_tiles = most_tiles(num_slots, num_experts, block_rows)
    slots = torch.empty_like(chosen)
    tiles = chosen.new_empty((num_tiles, 3))
    launch(
        group_slots,
        (num_experts,),
        chosen,
        slots,
        tiles,
        num_slots,
        num_tiles,
        NUM_EXPERTS=num_experts,
        EXPERTS_PADDED=padded(num_experts + 1),
        BLOCK_ROWS=block_rows,
        BLOCK=4096 if is_many else 1024,
        num_warps=4,
    )

    def product(source: Tensor, weight: Tensor, bias: Tensor | None, num_outputs: int) -> Tensor:
        block_outputs = 64 if is_many else 32
        output = source.new_empty((num_slots, num_outputs))
        launch(
            multiply_slots,
            (triton.cdiv(num_outputs, block_outputs), num_tiles),
            source,
            weight,
            source if bias is None else bias,
            slots,
            tiles,
            output,
            TOP_K=top_k,
            NUM_INPUTS=weight.shape[2],
            NUM_OUTPUTS=num_outputs,
            IS_FIRST=weight is experts.ins,
            IS_PAIRED=experts.layout == "gate_up_pairs",
            KIND=KINDS[experts.activation],
            HAS_BIAS=bias is not None,
            BLOCK_ROWS=block_rows,
            BLOCK_OUTPUTS=block_outputs,
            BLOCK_INPUTS=64,
            num_warps=4,
            num_stages=3 if is_many else 4,
        )
        return output

    inner = product(x, experts.ins, experts.ins_bias, inner_len)
    outs = product(inner, experts.outs, experts.outs_bias, width)
    output = torch.empty_like(x)
    launch(
        combine_slots,
        (num_tokens, triton.cdiv(width, _COMBINED)),
        outs,
        routes.weights,
        x if shared is None else shared,
        output,
        WIDTH=width,
        TOP_K=top_k,
        HAS_SHARED=shared is not None,
        BLOCK=_COMBINED,
        num_warps=4,
    )
    return output
