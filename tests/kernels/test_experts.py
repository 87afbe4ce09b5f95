"""A mixture of experts by kernels: as the oracle computes it, a token alone or in a batch."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

from model_server.executor.layer_ops import Experts, LayerOps, Router, Routes, TorchLayerOps
from model_server.executor.triton_experts import most_tiles
from model_server.executor.triton_layers import TritonLayerOps
from model_server.recipe.dense_torch import feed_forward, route
from model_server.recipe.recipe import Groups, Linear, Mlp, Moe, Rows
from tests.kernels.ahead_of_time import SHARED_LIMITS, TARGETS, compiled
from tests.kernels.paged_steps import DEVICE
from tests.no_sync import no_sync

WIDTH = 80
INNER = 40
NUM_EXPERTS = 8


def linear(name: str, num_rows: int, *, has_bias: bool = False) -> Linear:
    bias = f"{name}.bias" if has_bias else None
    return Linear(name, bias, transposed=False, rows=Rows(0, 1, num_rows, num_rows))


PLAIN = Moe(
    router=linear("router", NUM_EXPERTS),
    num_experts=NUM_EXPERTS,
    top_k=3,
    scoring="softmax",
    gate_up="ins",
    gate_up_bias=None,
    down="outs",
    down_bias=None,
    transposed=False,
    layout="gate_up",
    activation="silu",
)
SHARED = Mlp((linear("shared.ins", 2 * INNER),), "gate_up", "silu", linear("shared.out", WIDTH))
KINDS: dict[str, Moe] = {
    "softmax": PLAIN,
    "normed, all biases, pairs": replace(
        PLAIN,
        router=linear("router", NUM_EXPERTS, has_bias=True),
        scoring="softmax_normed",
        gate_up_bias="ins.bias",
        down_bias="outs.bias",
        layout="gate_up_pairs",
        activation="clamped_swiglu",
    ),
    "sigmoid, correction": replace(PLAIN, scoring="sigmoid", correction="correction"),
    "sigmoid normed, two best of a group, shared": replace(
        PLAIN,
        scoring="sigmoid_normed",
        correction="correction",
        groups=Groups(num_groups=4, top_k=2, num_best=2),
        scale=2.5,
        shared=SHARED,
    ),
    "best of a group, shared with a gate": replace(
        PLAIN,
        groups=Groups(num_groups=2, top_k=1, num_best=1),
        activation="gelu_tanh",
        shared=SHARED,
        shared_gate=linear("shared.gate", 1),
    ),
}


def numbers(*shape: int, seed: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE, dtype)


def weights_of(moe: Moe, dtype: torch.dtype) -> dict[str, Tensor]:
    shapes: dict[str, tuple[int, ...]] = {
        "router": (moe.num_experts, WIDTH),
        "router.bias": (moe.num_experts,),
        "correction": (moe.num_experts,),
        "ins": (moe.num_experts, 2 * INNER, WIDTH),
        "ins.bias": (moe.num_experts, 2 * INNER),
        "outs": (moe.num_experts, WIDTH, INNER),
        "outs.bias": (moe.num_experts, WIDTH),
        "shared.ins": (2 * INNER, WIDTH),
        "shared.out": (WIDTH, INNER),
        "shared.gate": (1, WIDTH),
    }
    return {
        name: numbers(*shape, seed=index, dtype=dtype) * shape[-1] ** -0.5
        for index, (name, shape) in enumerate(shapes.items())
    }


@dataclass(frozen=True, slots=True)
class Mixed:
    """A mixture by the operations of a device."""

    moe: Moe
    router: Router
    experts: Experts
    weights: Mapping[str, Tensor]

    @classmethod
    def of(cls, moe: Moe, weights: Mapping[str, Tensor]) -> "Mixed":
        gates = [] if moe.shared_gate is None else [weights["shared.gate"]]
        return cls(
            moe,
            Router(
                moe,
                torch.cat([weights["router"], *gates]),
                None if moe.router.bias is None else weights[moe.router.bias],
                None if moe.correction is None else weights[moe.correction].float(),
            ),
            Experts(
                ins=weights[moe.gate_up],
                ins_bias=None if moe.gate_up_bias is None else weights[moe.gate_up_bias],
                outs=weights[moe.down],
                outs_bias=None if moe.down_bias is None else weights[moe.down_bias],
                layout=moe.layout,
                activation=moe.activation,
            ),
            weights,
        )

    def __call__(self, ops: LayerOps, x: Tensor) -> Tensor:
        """The weighted sum, [num_tokens, WIDTH]."""
        shared = self.moe.shared
        answer = None if shared is None else feed_forward(shared, x, self.weights)
        return ops.mix(x, self.experts, ops.route(x, self.router), answer)


@pytest.mark.parametrize("num_tokens", [1, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_experts_are_chosen_and_mixed_as_the_oracle_does(kind: str, num_tokens: int) -> None:
    """Some of the experts have no token."""
    moe = KINDS[kind]
    weights = weights_of(moe, torch.float32)
    mixed = Mixed.of(moe, weights)
    x = numbers(num_tokens, WIDTH, seed=99)
    routes = TritonLayerOps().route(x, mixed.router)
    expected, expected_weights = route(moe, x, weights)
    assert torch.equal(routes.experts.long(), expected)
    assert len(expected.unique()) < NUM_EXPERTS
    torch.testing.assert_close(routes.weights[:, : moe.top_k], expected_weights)
    actual = mixed(TritonLayerOps(), x)
    torch.testing.assert_close(actual, feed_forward(moe, x, weights), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_an_expert_of_many_tokens_takes_several_tiles(dtype: torch.dtype) -> None:
    moe = replace(KINDS["normed, all biases, pairs"], num_experts=4)
    mixed = Mixed.of(moe, weights_of(moe, dtype))
    x = numbers(70, WIDTH, seed=99, dtype=dtype)
    chosen = torch.tensor([2, 0, 3], dtype=torch.int32, device=DEVICE).repeat(70, 1)
    chosen[0] = torch.tensor([3, 1, 2], device=DEVICE)
    routes = Routes(chosen, numbers(70, 3, seed=98).abs())
    actual, expected = (
        ops.mix(x, mixed.experts, routes, None).float()
        for ops in (TritonLayerOps(), TorchLayerOps())
    )
    # The interpreter truncates to bfloat16.
    tolerance = 1e-5 if dtype == torch.float32 else 2e-2
    assert (actual - expected).square().mean().sqrt() < tolerance * expected.std()


def in_order_of_inputs(
    builder: Any, left: Any, right: Any, sums: Any, precision: Any, num_imprecise: Any
) -> Any:
    """A product of the interpreter, whose numpy adds a row up by its place in the tile."""
    product = np.einsum("ik,kj->ij", left.data, right.data)
    return TensorHandle(product + sums.data, sums.dtype.scalar)


def test_a_token_has_the_same_bits_alone_and_in_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(InterpreterBuilder, "create_dot", in_order_of_inputs)
    moe = KINDS["best of a group, shared with a gate"]
    mixed = Mixed.of(moe, weights_of(moe, torch.float32))
    x = numbers(32, WIDTH, seed=99)
    shared = numbers(32, WIDTH, seed=98)

    def answer(rows: slice) -> Tensor:
        ops = TritonLayerOps()
        return ops.mix(x[rows], mixed.experts, ops.route(x[rows], mixed.router), shared[rows])

    together = answer(slice(0, 32))
    for token in (0, 5, 31):
        assert torch.equal(answer(slice(token, token + 1)), together[token : token + 1])


# The interpreter's numpy warns of numbers that are none.
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("kind", ["softmax", "sigmoid normed, two best of a group, shared"])
def test_a_token_that_is_no_number_disturbs_nobody(kind: str) -> None:
    moe = KINDS[kind]
    mixed = Mixed.of(moe, weights_of(moe, torch.float32))
    x = numbers(3, WIDTH, seed=99)
    expected = mixed(TritonLayerOps(), x)
    x[1] = torch.nan
    chosen = TritonLayerOps().route(x, mixed.router).experts
    assert ((chosen >= 0) & (chosen < NUM_EXPERTS)).all()
    actual = mixed(TritonLayerOps(), x)
    assert torch.equal(actual[::2], expected[::2])
    assert actual[1].isnan().all()


def test_of_equal_scores_the_first_experts_are_chosen() -> None:
    router = Router(PLAIN, torch.zeros(NUM_EXPERTS, WIDTH, device=DEVICE))
    routes = TritonLayerOps().route(numbers(2, WIDTH, seed=1), router)
    assert routes.experts.tolist() == [[0, 1, 2]] * 2
    torch.testing.assert_close(routes.weights, torch.full((2, 3), 1 / NUM_EXPERTS, device=DEVICE))


@pytest.mark.parametrize("counts", [(1,) * 8, (17, 16, 1), (0, 0, 64), (15, 33, 2, 0)])
def test_there_are_as_many_tiles_as_any_choice_needs(counts: tuple[int, ...]) -> None:
    needed = sum(-(-count // 16) for count in counts)
    assert needed <= most_tiles(sum(counts), len(counts), 16) <= sum(counts)


def launched_nothing(kernel: Any, grid: tuple[int, ...], *args: Any, **constants: Any) -> None:
    """Fake tensors have no memory."""


def test_no_step_waits_for_what_was_chosen() -> None:
    moe = KINDS["best of a group, shared with a gate"]
    with no_sync():
        ops = TritonLayerOps(launched_nothing)
        weights = {
            name: torch.empty(each.shape, device="cuda")
            for name, each in weights_of(moe, torch.float32).items()
        }
        mixed = Mixed.of(moe, weights)
        x = torch.empty(6, WIDTH, device="cuda")
        routes = ops.route(x, mixed.router)
        assert routes.weights.shape == (6, 4)
        assert ops.mix(x, mixed.experts, routes, x).shape == x.shape


@pytest.mark.nightly
@pytest.mark.parametrize("architecture", TARGETS)
def test_kernels_use_matrix_instructions_and_do_not_spill(architecture: int) -> None:
    found = compiled("experts", architecture)
    assert {(each.kernel, each.label): each.local_bytes for each in found if each.local_bytes} == {}
    assert all(each.shared_bytes <= SHARED_LIMITS[architecture] for each in found)
    products = [each for each in found if each.kernel in ("score_experts", "multiply_slots")]
    assert all(each.num_matrix_ops > 0 for each in products)
    assert all(each.num_wide_loads > 0 for each in products)
