"""The fastest ways to sample that a device has, with torch where there is none.

CPU:   choose by the native library    edit by torch and numpy
CUDA:  choose by Triton's kernels      edit by Triton's kernels
"""

import importlib
import logging
from collections.abc import Callable
from dataclasses import dataclass

import torch

from model_server.sampling.choosing import Choose, choose_by_torch
from model_server.sampling.edits import Edits, TorchEdits
from model_server.sampling.native_chooser import NativeChooser
from native.library import NativeUnavailable, Threads

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SamplingWays:
    """What a Sampler is given."""

    choose: Choose
    edits: Edits


def sampling_ways(
    vocab_size: int,
    device: torch.device,
    max_rows: int,
    threads: Callable[[], Threads | None] = lambda: None,
) -> SamplingWays:
    """The ways of this device; max_rows: of a step; threads: see NativeChooser."""
    if device.type == "cuda":
        try:
            return by_kernels(vocab_size, device, max_rows)
        except ImportError as error:
            _log.warning("tokens are sampled by torch, which is slower: %s", error)
    choose: Choose = choose_by_torch
    if device.type == "cpu":
        try:
            choose = NativeChooser(threads)
        except NativeUnavailable as error:
            _log.warning("tokens are sampled by torch: %s", error)
    return SamplingWays(choose, TorchEdits(vocab_size, device))


def by_kernels(vocab_size: int, device: torch.device, max_rows: int) -> SamplingWays:
    """The ways of Triton's kernels, which a machine without CUDA need not have.

    Raises ImportError where Triton is missing.
    """
    choosing = importlib.import_module("model_server.sampling.triton")
    editing = importlib.import_module("model_server.sampling.triton")
    choose: Choose = choosing.TritonChooser(device, max_rows)
    edits: Edits = editing.TritonEdits(vocab_size, device, max_rows)
    return SamplingWays(choose, edits)
