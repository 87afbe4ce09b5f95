"""Launches of the sampler's kernels, to be compiled ahead of time; see ahead_of_time.py."""

import numpy as np
import torch
from torch import Tensor

from model_server.sampling.filters import Filters
from model_server.sampling.plan import Group, Kind
from model_server.sampling.triton_chooser import TritonChooser
from tests.kernels.ahead_of_time import Recorder

META = torch.device("meta")
NUM_ROWS = 4
WIDTH = 128_256


def record(recorder: Recorder) -> None:
    """Each kind of group in a step of four rows of a vocabulary as large as Llama 3's."""
    choose = TritonChooser(META, NUM_ROWS, launch=recorder)
    scores = _column(torch.float32, WIDTH)
    for kind in (Kind.GREEDY, Kind.PLAIN, Kind.PREFIX):
        with recorder.case(kind.name):
            choose(_group(kind), scores, _column(torch.float64))


def _group(kind: Kind) -> Group:
    return Group(
        kind=kind,
        places=np.arange(NUM_ROWS),
        rows=None,
        temperature=_column(torch.float32, 1),
        filters=Filters(top_k=_column(torch.int64), nucleus=_column(torch.float64)),
        num_candidates=64,
        top=None,
    )


def _column(dtype: torch.dtype, *shape: int) -> Tensor:
    return torch.empty((NUM_ROWS, *shape), dtype=dtype, device=META)
