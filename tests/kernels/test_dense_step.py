"""A whole step of the dense executor by kernels: right, without a wait, in few launches."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from model_server.attention.triton import TritonAttention
from model_server.executor.dense_cuda import CudaCapture, DecodeGraphs, DenseCuda
from model_server.executor.device_weights import Partition, matrices_of, read_weights
from model_server.executor.triton_layers import TritonLayerOps
from model_server.step import SequenceStep, StateSlots, StateStep, StepInputs
from model_server.triton_launch import Launch, launch
from tests.kernels.paged_steps import DEVICE
from tests.model_server.executor.decoders import NUM_BLOCKS, NUM_STATES, Decoder, decoder, distance
from tests.model_server.executor.test_dense_cuda import run_again
from tests.model_server.recipe.families import EXECUTED
from tests.no_sync import no_sync

# In the interpreter each takes ten seconds.
FAMILIES: tuple[Any, ...] = (pytest.param("gemma3_text", marks=pytest.mark.nightly), "cohere2")
if DEVICE.type == "cuda":
    FAMILIES = EXECUTED
# A step of a dense layer, of one with experts and a shared one, of a hybrid; in a graph, too.
FEW_LAYERS = {
    "dense": decoder("llama-bias-tied", num_hidden_layers=1),
    "experts": decoder("qwen2_moe", num_hidden_layers=1, num_experts=4, num_experts_per_tok=2),
    # A delta rule in one layer, attention with a gate in another.
    "hybrid": decoder(
        "qwen3_5",
        num_hidden_layers=2,
        layer_types=None,
        full_attention_interval=2,
        linear_num_key_heads=1,
        linear_num_value_heads=2,
    ),
}
PROMPTS = ([3, 1, 4, 1, 5, 9, 2, 6] * 2 + [5], [2, 7])
MAX_LAUNCHES = 12  # a layer, in eager decode


def executor_of(
    own: Decoder,
    dtype: torch.dtype,
    *,
    device: torch.device = DEVICE,
    launch: Launch = launch,
) -> DenseCuda:
    """By kernels, with a pool."""
    ops = TritonLayerOps(launch)
    weights = read_weights(
        own.recipe,
        own.parameters,
        own.tables,
        dtype=dtype,
        device=device,
        partition=Partition(),
        make_matrix=matrices_of(ops),
    )
    executor = DenseCuda(weights, ops, TritonAttention(launch=launch))
    executor.allocate(NUM_BLOCKS + 1, NUM_STATES)
    return executor


def step_of(parts: Sequence[tuple[Sequence[int], int]]) -> StepInputs:
    """Each sequence's tokens, of which so many are computed; its blocks and slots are its own."""
    return StepInputs.build(
        [
            SequenceStep(
                ids[done:],
                done,
                range(20 * index, 20 * index + 20),
                len(ids) - done,
                StateStep(2 * index if done else None, 2 * index + (done > 0)),
            )
            for index, (ids, done) in enumerate(parts)
        ],
        block_size=16,
        scratch_block_id=NUM_BLOCKS,
        device=DEVICE,
    )


@pytest.mark.parametrize("family", FAMILIES)
def test_prompts_and_the_tokens_after_them_are_as_transformers_computes_them(family: str) -> None:
    own = decoder(family)
    executor = executor_of(own, torch.float32)
    longer = [[*prompt, 11] for prompt in PROMPTS]

    prompts = executor.forward(step_of([(prompt, 0) for prompt in PROMPTS]))
    decoded = executor.forward(step_of([(ids, len(ids) - 1) for ids in longer]))

    expected = [own.native(torch.tensor(ids)) for ids in longer]
    assert distance(prompts.cpu(), torch.cat([each[:-1] for each in expected])) < 1e-5
    assert distance(decoded.cpu(), torch.cat([each[-1:] for each in expected])) < 1e-5


def launched_nothing(kernel: Any, grid: tuple[int, ...], *args: Any, **constants: Any) -> None:
    """Fake tensors have no memory."""


@dataclass
class CountedLaunches(TorchDispatchMode):
    """Counts kernels of Triton, and operations of torch that compute or copy."""

    names: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    def __call__(self, kernel: Any, grid: tuple[int, ...], *args: Any, **constants: Any) -> None:
        """See Launch."""
        self.names.append(kernel.__name__)

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Views and memory that is not written launch nothing."""
        output = func(*args, **(kwargs or {}))
        if not func.is_view and not func.__name__.startswith(("empty", "new_empty", "detach")):
            self.names.append(func.__name__)
        return output


@contextmanager
def faked(own: Decoder, dtype: torch.dtype) -> Iterator[tuple[Decoder, StepInputs]]:
    """Weights and a decode step of four sequences as fake tensors on "cuda"."""
    cuda = torch.device("cuda", 0)
    with no_sync():

        def fake(tensor: Tensor, dtype: torch.dtype | None = None) -> Tensor:
            return torch.empty(tensor.shape, dtype=dtype or tensor.dtype, device=cuda)

        parameters = {name: fake(each, dtype) for name, each in own.parameters.items()}
        tables = tuple((fake(cos), fake(sin)) for cos, sin in own.tables)
        long = torch.empty(4, dtype=torch.int64, device=cuda)
        short = torch.empty(5, dtype=torch.int32, device=cuda)
        places = torch.empty(4, dtype=torch.int32, device=cuda)
        inputs = StepInputs(
            token_ids=long,
            positions=long,
            slot_mapping=long,
            query_lens=(1,) * 4,
            context_lens=(),
            block_tables=torch.empty(4, 8, dtype=torch.int32, device=cuda),
            cu_query_lens=short,
            device_context_lens=torch.empty(4, dtype=torch.int32, device=cuda),
            logits_indices=long,
            head_indices=long,
            state_slots=StateSlots(short, places, places, places, places),
        )
        yield Decoder(own.model, own.recipe, parameters, tables), inputs


@pytest.mark.parametrize(
    ("kind", "max_launches"),
    [("dense", MAX_LAUNCHES), ("experts", MAX_LAUNCHES + 5), ("hybrid", 2 * MAX_LAUNCHES + 1)],
)
def test_a_decode_step_waits_for_nothing_and_takes_few_launches_a_layer(
    kind: str, max_launches: int
) -> None:
    with faked(FEW_LAYERS[kind], torch.bfloat16) as (own, inputs):
        launches = CountedLaunches()
        executor = executor_of(own, torch.bfloat16, device=torch.device("cuda", 0), launch=launches)
        launches.names.clear()
        with launches:
            logits = executor.forward_eager(inputs)
        assert logits.shape == (4, 130)
    num_outside = 4  # embedding, first norm, rows of the logits, head
    assert len(launches.names) - num_outside <= max_launches, launches.names


@pytest.mark.parametrize(
    ("kind", "size"),
    [
        pytest.param("dense", 1, marks=pytest.mark.nightly),
        ("dense", 5),
        ("experts", 5),
        ("hybrid", 2),
    ],
)
def test_a_replayed_step_has_the_bits_of_one_that_is_not(kind: str, size: int) -> None:
    own = FEW_LAYERS[kind]
    executor = executor_of(own, torch.float32)
    prompts = [PROMPTS[min(index, 1)] for index in range(size)]
    executor.forward(step_of([(prompt, 0) for prompt in prompts]))
    graphs = DecodeGraphs(
        executor.forward_eager,
        CudaCapture() if DEVICE.type == "cuda" else run_again,
        device=DEVICE,
        block_size=16,
        scratch_block_id=NUM_BLOCKS,
        max_batch_size=6,
        max_total_len=256,
    )
    longer = [[*prompt, 11] for prompt in prompts]
    step = step_of([(ids, len(ids) - 1) for ids in longer])
    expected = executor.forward_eager(step).clone()
    assert torch.equal(graphs.forward(step), expected)
    native = torch.cat([own.native(torch.tensor(ids))[-1:] for ids in longer])
    assert distance(expected.cpu(), native) < 2e-5
