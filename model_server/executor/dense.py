"""The executor of a model whose recipe is known: its weights are packed and proven.

transformers' module, mapped from the checkpoint's files -> logits of some tokens
    in its dtype by itself, in float32 by the oracle, and by the packed weights
"""

import ctypes
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from model_server.executor.dense_cpu import DenseCpu
from model_server.executor.evidence import NOT_KEPT, Evidence, KeptEvidence
from model_server.executor.executor import Executor
from model_server.executor.grouped import GroupedParameters, RoundedParameters
from model_server.images import SequenceImages
from model_server.recipe.dense_torch import Angles, DenseTorch, angles_of
from model_server.recipe.proof import (
    handed_to_experts,
    relative_error,
    require_choices,
    require_near,
)
from model_server.recipe.recipe import Recipe, Unreadable
from model_server.step import SequenceStep, StateStep, StepInputs
from model_server.zoo import HfModel

_log = logging.getLogger(__name__)

# Tokens that prove the loaded weights: a prompt in two chunks, then one token.
_CHUNK_LENS = (13, 6, 1)
# Relative error of logits: 0.07 is usual; beyond this something is wrong with the weights.
MAX_QUANTIZED_ERROR = 0.3
# The same where weights stay in their groups, with rows of 16 bits: 2e-5 to 3e-4 in float32, and
# 0.006 to 0.008 in bfloat16, where one wrong scale or block of a small model makes 0.01 to 0.3.
# With rows of 8 bits 0.004 to 0.11 are usual, so that they prove nothing of weights.
MAX_GROUPED_ERRORS = {torch.float32: 0.003, torch.bfloat16: 0.05}
_MADV_DONTNEED = 4
_PAGE_SIZE = 4096


E = TypeVar("E", bound=Executor)
E_co = TypeVar("E_co", bound=Executor, covariant=True)


class Build(Protocol[E_co]):
    """Makes an executor of parameters and tables of angles; see read_weights."""

    def __call__(
        self,
        parameters: Mapping[str, Tensor],
        tables: Sequence[tuple[Tensor, Tensor]],
        *,
        release: Callable[[str], None],
    ) -> E_co: ...


def load_dense(
    model: HfModel,
    recipe: Recipe,
    build: Build[E],
    *,
    dtype: torch.dtype,
    quantize: str | None,
    kept: KeptEvidence = NOT_KEPT,
) -> E:
    """The executor, with the weights taken out of `model`: it cannot be called any more.

    It computes in `dtype`, or in what `quantize` names; the model may be narrower. What `kept` has
    is not computed again, but the packed weights are held to it all the same.

    Raises Unreadable where the logits are farther from float32 than rounding explains, and whatever
    `build` raises.
    """
    device = _device_of(_parameters(model))
    evidence = kept.evidence(partial(_evidence, model, recipe, quantize), device)
    executor = load_unproven(model, recipe, build)
    # What is rounded may have other experts, which compute something else.
    experts = None if quantize is None else evidence.experts
    with in_wide_rows(executor):
        actual = logits_in_chunks(executor, evidence.token_ids, experts=experts)
    if quantize is None:
        require_near(actual, evidence.native, evidence.exact, dtype, evidence.exact_of_chosen)
        error = relative_error(actual, evidence.exact)
        _log.info("proven: its logits are those of transformers (relative error %.2g)", error)
    else:
        _require_within(MAX_QUANTIZED_ERROR, actual, evidence.exact, quantize)
    return executor


def load_grouped(
    recipe: Recipe,
    parameters: GroupedParameters,
    angles: Sequence[Angles],
    build: Build[E],
    *,
    num_positions: int,
    quantize: str | None,
    max_error: float | None,
    kept: KeptEvidence = NOT_KEPT,
) -> E:
    """As `load_dense`, of a checkpoint in groups, with the weights taken out of `parameters`.

    The oracle computes with the same weights in float32: the executor's logits may be so far from
    it. `max_error` None: nothing is compared, since this rank holds a part.
    """
    evidence = None
    if max_error is not None:

        def compute() -> Evidence:
            token_ids = _token_ids(recipe.head.rows.count, parameters.device)
            oracle = DenseTorch(recipe, _as_computed(recipe, parameters, quantize), angles)
            exact = oracle.logits(token_ids, [len(token_ids)])
            return Evidence(token_ids, exact, exact, exact, _experts(recipe, oracle))

        evidence = kept.evidence(compute, parameters.device)
    executor = build(
        parameters, _tables(angles, num_positions, parameters.device), release=parameters.release
    )
    if max_error is not None and evidence is not None:
        _require_grouped(executor, evidence, max_error)
    return executor


def _require_grouped(executor: Executor, evidence: Evidence, max_error: float) -> None:
    experts = evidence.experts
    with in_wide_rows(executor):
        actual = logits_in_chunks(executor, evidence.token_ids, experts=experts)
    _require_within(max_error, actual, evidence.exact, executor.name)
    if isinstance(executor, DenseCpu):
        rounded = logits_in_chunks(executor, evidence.token_ids, experts=experts)
        kind = f"{executor.name}, with rows as they are served,"
        _require_within(MAX_QUANTIZED_ERROR, rounded, evidence.exact, kind)


def _as_computed(
    recipe: Recipe, parameters: Mapping[str, Tensor], quantize: str | None
) -> Mapping[str, Tensor]:
    """Rounding to 4 bits is no error of an executor, so that the oracle rounds, too."""
    return RoundedParameters(parameters, recipe.products()) if quantize == "int4" else parameters


def _require_within(max_error: float, actual: Tensor, exact: Tensor, kind: str) -> None:
    error = relative_error(actual, exact)
    if not error <= max_error:
        way_out = ""
        if kind == "int8":
            # A few numbers of a row that are far larger leave no digits to the others.
            way_out = "; int4 has a scale for each group of a row, and is nearer to such a model"
        raise Unreadable(f"in {kind} its logits are too far from float32 ({error:.2g}){way_out}")
    _log.info(
        "proven: its logits in %s are near those in float32 (relative error %.2g)", kind, error
    )


@torch.inference_mode()
def load_unproven(model: HfModel, recipe: Recipe, build: Build[E]) -> E:
    """As `load_dense`, for ranks that hold a part each: none has the logits to compare."""
    parameters = _parameters(model)
    release: Callable[[str], None] = _Release(parameters)
    num_positions = model.facts.max_position_embeddings or sum(_CHUNK_LENS)
    tables = _tables(angles_of(recipe, model.module), num_positions, _device_of(parameters))
    return build(parameters, tables, release=release)


@torch.inference_mode()
def _tables(
    angles: Sequence[Angles], num_positions: int, device: torch.device
) -> list[tuple[Tensor, Tensor]]:
    positions = torch.arange(num_positions, device=device)
    return [each(positions) for each in angles]


def _parameters(model: HfModel) -> dict[str, Tensor]:
    parameters = dict(model.module.named_parameters(remove_duplicate=False))
    return parameters | dict(model.module.named_buffers(remove_duplicate=False))


def _device_of(parameters: Mapping[str, Tensor]) -> torch.device:
    return next(iter(parameters.values())).device


@torch.inference_mode()
def _evidence(model: HfModel, recipe: Recipe, quantize: str | None) -> Evidence:
    parameters = _parameters(model)
    token_ids = _token_ids(model.facts.vocab_size, _device_of(parameters))
    with handed_to_experts(recipe, model.module) as handed:
        native = model.native_logits(token_ids)
    chosen = {
        index: calls[0] for index, calls in require_choices(recipe, handed, parameters).items()
    }
    weights = _as_computed(recipe, parameters, quantize)
    oracle = DenseTorch(recipe, weights, angles_of(recipe, model.module))
    lens = [len(token_ids)]
    exact = exact_of_chosen = oracle.logits(token_ids, lens)
    experts = _experts(recipe, oracle)
    if chosen and native.dtype != torch.float32:
        exact_of_chosen = oracle.logits(token_ids, lens, chosen=chosen)
    return Evidence(token_ids, exact, exact_of_chosen, native, experts)


def _experts(recipe: Recipe, oracle: DenseTorch) -> Tensor:
    """Of its last call; see Evidence."""
    chosen = oracle.chosen
    if not chosen:
        return torch.empty(0, dtype=torch.int32)
    num_tokens = len(next(iter(chosen.values())))
    top_k = max(each.shape[1] for each in chosen.values())
    experts = torch.zeros(len(recipe.layers), num_tokens, top_k, dtype=torch.int32)
    for index, each in chosen.items():
        experts[index, :, : each.shape[1]] = each
    return experts


def _token_ids(vocab_size: int, device: torch.device) -> Tensor:
    return (torch.arange(1, 1 + sum(_CHUNK_LENS), device=device) * 7) % vocab_size


def in_wide_rows(executor: Executor) -> AbstractContextManager[None]:
    """Meanwhile no row is rounded to 8 bits where 16 can be had: that hides faults of weights."""
    return executor.in_wide_rows() if isinstance(executor, DenseCpu) else nullcontext()


def logits_in_chunks(
    executor: Executor,
    token_ids: Tensor,
    chunk_lens: Sequence[int] = _CHUNK_LENS,
    images: SequenceImages | None = None,
    experts: Tensor | None = None,
) -> Tensor:
    """Of every token, computed in chunks; the images are seen.

    experts: see Evidence; on a CPU they are taken in place of the best
    """
    num_blocks = -(-len(token_ids) // executor.block_size)
    # Blocks in falling order: a table that is not followed shows.
    block_ids = list(reversed(range(num_blocks)))
    has_states = executor.state_bytes > 0
    executor.allocate(num_blocks + 1, 2 * has_states)
    read_id = None
    write_id = 0
    ids: Sequence[int] = token_ids.tolist()
    rows = []
    for first, end in pairwise(accumulate(chunk_lens, initial=0)):
        state = StateStep(read_id, write_id) if has_states else None
        step = SequenceStep(ids[first:end], first, block_ids, end - first, state)
        if images is not None:
            step = step._replace(images=images.part(first, end))
        read_id = write_id
        write_id = 1 - read_id
        inputs = StepInputs.build(
            [step],
            block_size=executor.block_size,
            scratch_block_id=num_blocks,
            device=token_ids.device,
            min_tokens=executor.min_step_tokens,
        )
        if isinstance(executor, DenseCpu) and experts is not None and len(experts):
            executor.hand_experts(experts[:, first:end])
        rows.append(executor.forward(inputs).clone())
    if isinstance(executor, DenseCpu):
        executor.hand_experts(None)
    executor.close()
    return torch.cat(rows)


class _Release:
    """Gives memory back, parameter by parameter, while others of the same file are still read.

    A file that is mapped stays mapped until its last tensor is gone; its pages leave memory here.
    What was copied, to convert it, is freed once nobody holds it.
    """

    def __init__(self, parameters: Mapping[str, Tensor]) -> None:
        self._parameters = parameters
        self._mapped = _mapped_files()
        self._madvise = ctypes.CDLL(None, use_errno=True).madvise
        self._madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)

    def __call__(self, name: str) -> None:
        parameter = self._parameters[name]
        if parameter.device.type != "cpu":
            parameter.data = parameter.new_empty(0)
            return
        start = parameter.data_ptr()
        end = parameter.data_ptr() + parameter.nbytes
        if any(first <= start and end <= last for first, last in self._mapped):
            start = -(-start // _PAGE_SIZE) * _PAGE_SIZE
            end = end // _PAGE_SIZE * _PAGE_SIZE
            if start < end and self._madvise(start, end - start, _MADV_DONTNEED):
                _log.debug("a page of %s stays: %d", name, ctypes.get_errno())
        parameter.data = torch.empty(0, dtype=parameter.dtype)


def _mapped_files() -> list[tuple[int, int]]:
    """Ranges of addresses where files are mapped; none where the system does not tell."""
    try:
        lines = Path("/proc/self/maps").read_text().splitlines()
    except OSError:
        return []
    # address range, permissions, offset, device, inode: 0 is memory without a file
    fields = [line.split(maxsplit=5) for line in lines]
    spans = [field[0].split("-") for field in fields if field[4] != "0"]
    return [(int(first, 16), int(end, 16)) for first, end in spans]
