"""The executor of a model whose recipe is known: its weights are packed and proven.

transformers' module, mapped from the checkpoint's files -> logits of some tokens
    in its dtype by itself, in float32 by the oracle, and by the packed weights
"""

import ctypes
import logging
from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from pathlib import Path

import torch
from torch import Tensor

from model_server.engine.step import SequenceStep, StepInputs
from model_server.executor.dense_cpu import DenseCpu
from model_server.model.model import HfModel
from model_server.recipe.dense_torch import DenseTorch
from model_server.recipe.proof import relative_error, require_near
from model_server.recipe.recipe import Recipe, Unreadable
from model_server.recipe.rotary import angles_of

_log = logging.getLogger(__name__)

# Tokens that prove the loaded weights: a prompt in two chunks, then one token.
_CHUNK_LENS = (13, 6, 1)
# Relative error of logits: 0.07 is usual; beyond this something is wrong with the weights.
_MAX_INT8_ERROR = 0.3
_MADV_DONTNEED = 4
_PAGE_SIZE = 4096


def load_dense(
    model: HfModel, recipe: Recipe, *, dtype: torch.dtype, quantize: str | None, num_threads: int
) -> DenseCpu:
    """The executor, with the weights taken out of `model`: it cannot be called any more.

    Raises Unreadable where the logits are farther from float32 than rounding explains,
    NativeUnavailable and MemoryError.
    """
    parameters = dict(model.module.named_parameters(remove_duplicate=False))
    parameters |= dict(model.module.named_buffers(remove_duplicate=False))
    num_tokens = sum(_CHUNK_LENS)
    token_ids = (torch.arange(1, 1 + num_tokens) * 7) % model.facts.vocab_size
    angles = angles_of(recipe, model.module)
    with torch.inference_mode():
        exact = DenseTorch(recipe, parameters, angles).logits(token_ids, [num_tokens])
        native = model.native_logits(token_ids)
        positions = torch.arange(model.facts.max_position_embeddings or num_tokens)
        tables = [each(positions) for each in angles]
    executor = DenseCpu(
        recipe,
        parameters,
        tables,
        dtype=dtype,
        num_threads=num_threads,
        quantize=quantize,
        release=_Release(parameters),
    )
    actual = _logits(executor, token_ids)
    if quantize is None:
        require_near(actual, native, exact)
        return executor
    error = relative_error(actual, exact)
    _log.info("relative error of logits in %s: %.2g", quantize, error)
    if not error <= _MAX_INT8_ERROR:
        raise Unreadable(f"in {quantize} its logits are too far from float32 ({error:.2g})")
    return executor


def _logits(executor: DenseCpu, token_ids: Tensor) -> Tensor:
    """Of every token, computed in chunks."""
    num_blocks = -(-len(token_ids) // executor.block_size)
    # Blocks in falling order: a table that is not followed shows.
    block_ids = list(reversed(range(num_blocks)))
    executor.allocate(num_blocks + 1)
    ids: Sequence[int] = token_ids.tolist()
    rows = []
    for first, end in pairwise(accumulate(_CHUNK_LENS, initial=0)):
        step = SequenceStep(ids[first:end], first, block_ids, end - first)
        inputs = StepInputs.build(
            [step],
            block_size=executor.block_size,
            scratch_block_id=num_blocks,
            device=torch.device("cpu"),
        )
        rows.append(executor.forward(inputs))
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
        start, end = parameter.data_ptr(), parameter.data_ptr() + parameter.nbytes
        if any(first <= start and end <= last for first, last in self._mapped):
            start, end = -(-start // _PAGE_SIZE) * _PAGE_SIZE, end // _PAGE_SIZE * _PAGE_SIZE
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
