"""A gated delta rule by kernels: as the oracle computes it, however tokens are cut into steps."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor

from model_server.executor.layer_ops import Convolution, DeltaRule, NormWeights
from model_server.executor.triton_delta import apply_rule
from model_server.recipe.dense_torch import DenseTorch, Memory, multiply
from model_server.recipe.recipe import Conv, Delta, Linear, Norm, Recipe, Rows
from tests.kernels.ahead_of_time import TARGETS, compiled
from tests.kernels.paged_steps import DEVICE, state_slots

HIDDEN = 24
KEY_HEADS = 2
HEADS = 4
KEY_DIM = 24
VALUE_DIM = 40
CHANNELS = 2 * KEY_HEADS * KEY_DIM + HEADS * VALUE_DIM
NUM_TAPS = 4
NUM_SLOTS = 12


def linear(name: str, num_rows: int) -> Linear:
    return Linear(name, None, transposed=False, rows=Rows(0, 1, num_rows, num_rows))


RULE = Delta(
    query=linear("query", KEY_HEADS * KEY_DIM),
    key=linear("key", KEY_HEADS * KEY_DIM),
    value=linear("value", HEADS * VALUE_DIM),
    gate=linear("gate", HEADS * VALUE_DIM),
    beta=linear("beta", HEADS),
    alpha=linear("alpha", HEADS),
    conv=Conv("conv", "conv.bias", NUM_TAPS),
    a_log="a_log",
    dt_bias="dt_bias",
    norm=Norm("rms", VALUE_DIM, 0.03, plus_one=False, weights=("norm",), biases=()),
    beta_scale=2.0,
    num_key_heads=KEY_HEADS,
    num_heads=HEADS,
    key_dim=KEY_DIM,
    value_dim=VALUE_DIM,
    output=linear("output", HEADS * VALUE_DIM),
)
RECIPE = Recipe("", 1.0, (), None, linear("", 1), 1.0, None, ())


def numbers(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE)


def weights_of() -> dict[str, Tensor]:
    linears = (RULE.query, RULE.key, RULE.value, RULE.gate, RULE.beta, RULE.alpha)
    weights = {
        each.weight: numbers(each.rows.count, HIDDEN, seed=index) * HIDDEN**-0.5
        for index, each in enumerate(linears)
    }
    return weights | {
        "conv": numbers(CHANNELS, 1, NUM_TAPS, seed=10),
        "conv.bias": numbers(CHANNELS, seed=11) / 4,
        "a_log": numbers(HEADS, seed=12) - 2,
        "dt_bias": numbers(HEADS, seed=13) * 4,
        "norm": 1 + numbers(VALUE_DIM, seed=14) / 4,
        "output": torch.eye(HEADS * VALUE_DIM, device=DEVICE),
    }


WEIGHTS: Mapping[str, Tensor] = weights_of()


def product(x: Tensor) -> Tensor:
    linears = (RULE.query, RULE.key, RULE.value, RULE.gate, RULE.beta, RULE.alpha)
    return torch.cat([multiply(each, x, WEIGHTS) for each in linears], -1)


def rule() -> DeltaRule:
    return DeltaRule(
        num_key_heads=KEY_HEADS,
        num_heads=HEADS,
        key_dim=KEY_DIM,
        value_dim=VALUE_DIM,
        conv=Convolution(WEIGHTS["conv"][:, 0].contiguous(), WEIGHTS["conv.bias"]),
        a_log=WEIGHTS["a_log"],
        dt_bias=WEIGHTS["dt_bias"],
        beta_scale=2.0,
        norm=NormWeights("rms", VALUE_DIM, 0.03, WEIGHTS["norm"], None),
    )


def poisoned() -> tuple[Tensor, ...]:
    return tuple(
        torch.full((NUM_SLOTS, *shape), float("nan"), device=DEVICE)
        for shape in rule().state_shapes
    )


@dataclass(slots=True)
class Pool:
    """Slots, of which none holds a number at first: windows and matrices."""

    states: tuple[Tensor, ...] = field(default_factory=poisoned)

    def run(
        self,
        rows: Sequence[Tensor],
        reads: Sequence[int | None],
        writes: Sequence[int],
        kept: Mapping[int, int] | None = None,
        num_drafts: int = 0,
    ) -> tuple[Tensor, ...]:
        """The answers of each sequence; see state_slots."""
        windows, matrices = self.states
        lens = [len(each) for each in rows]
        slots = state_slots(lens, reads, writes, kept, num_drafts)
        return apply_rule(torch.cat(list(rows)), rule(), windows, matrices, slots).split(lens)

    def slot(self, index: int) -> tuple[Tensor, Tensor]:
        windows, matrices = self.states
        return windows[index], matrices[index]


def test_tokens_are_answered_and_states_left_as_by_the_oracle() -> None:
    """Two sequences of which one goes on, and one of a single token."""
    oracle = DenseTorch(RECIPE, WEIGHTS, ())
    memories = [Memory(), Memory()]
    pool = Pool()
    for lens, reads, writes in (((5, 2), (None, None), (3, 7)), ((1, 3), (3, 7), (4, 0))):
        x = numbers(sum(lens), HIDDEN, seed=sum(lens))
        expected = oracle._delta(0, RULE, x, lens, memories)
        answers = pool.run(product(x).split(list(lens)), reads, writes)
        torch.testing.assert_close(torch.cat(answers), expected, rtol=1e-4, atol=1e-5)
        for memory, slot in zip(memories, writes, strict=True):
            window, matrices = memory.layers[0]
            torch.testing.assert_close(pool.slot(slot)[0], window)
            torch.testing.assert_close(pool.slot(slot)[1].mT, matrices, rtol=1e-4, atol=1e-5)


def bits(pool: Pool, slot: int) -> list[Tensor]:
    return [part.clone() for part in pool.slot(slot)]


def test_bits_depend_neither_on_steps_nor_on_the_batch() -> None:
    rows = product(numbers(9, HIDDEN, seed=1))
    other = product(numbers(4, HIDDEN, seed=2))
    whole = Pool()
    (expected,) = whole.run([rows], [None], [0])
    pool = Pool()
    found = []
    read = None
    for slot, part in enumerate(rows.split([4, 1, 4])):
        _, answers = pool.run([other, part], [None, read], [9, slot])
        found.append(answers)
        read = slot
    assert read is not None
    assert torch.equal(torch.cat(found), expected)
    for actual, of_whole in zip(bits(pool, read), bits(whole, 0), strict=True):
        assert torch.equal(actual, of_whole)


def test_states_are_kept_behind_tokens_and_no_other_slot_is_written() -> None:
    rows = product(numbers(7, HIDDEN, seed=1))
    pool = Pool()
    pool.run([rows[:4]], [None], [2])
    before = bits(pool, 2)
    pool.run([rows[4:]], [2], [5], kept={0: 8, 2: 6})
    short = Pool()
    short.run([rows[:5]], [None], [0])
    for slot, expected in ((2, before), (8, bits(short, 0)), (6, bits(pool, 5))):
        for actual, wanted in zip(bits(pool, slot), expected, strict=True):
            assert torch.equal(actual, wanted)
    for slot in set(range(NUM_SLOTS)) - {2, 5, 6, 8}:
        assert all(part.isnan().all() for part in pool.slot(slot))


def test_a_state_behind_which_drafts_follow_knows_nothing_of_them() -> None:
    rows = product(numbers(6, HIDDEN, seed=1))
    pool = Pool()
    pool.run([rows], [None], [1], num_drafts=2)
    short = Pool()
    short.run([rows[:4]], [None], [0])
    for actual, wanted in zip(bits(pool, 1), bits(short, 0), strict=True):
        assert torch.equal(actual, wanted)


@pytest.mark.nightly
@pytest.mark.parametrize("architecture", TARGETS)
def test_kernels_do_not_spill_and_hold_a_matrix_in_registers(architecture: int) -> None:
    found = compiled("states", architecture)
    assert {each.kernel: each.local_bytes for each in found if each.local_bytes} == {}
    (rule,) = (each for each in found if each.kernel == "advance_heads")
    assert rule.num_wide_loads > 0
    assert rule.num_wide_stores > 0
