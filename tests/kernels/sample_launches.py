"""Launches of the sampler's kernels, to be compiled ahead of time; see ahead_of_time.py."""

import numpy as np
import torch
from torch import Tensor

from model_server.sampling.edits import BITS_PER_WORD, DeviceMasks
from model_server.sampling.filters import Filters
from model_server.sampling.plan import Bias, Group, Kind, Penalties
from model_server.sampling.triton import TritonChooser, TritonEdits
from tests.kernels.ahead_of_time import Recorder

META = torch.device("meta")
COUNTS_INSTRUCTIONS = False
NUM_ROWS = 4
WIDTH = 128_256


def record(recorder: Recorder) -> None:
    """Edits and each kind of group, in four rows of a vocabulary as large as Llama 3's."""
    _record_edits(recorder)
    choose = TritonChooser(META, NUM_ROWS, launch=recorder)
    scores = _column(torch.float32, WIDTH)
    for kind in (Kind.GREEDY, Kind.PLAIN, Kind.PREFIX):
        with recorder.case(kind.name):
            choose(_group(kind), scores, _column(torch.float64))


def _record_edits(recorder: Recorder) -> None:
    edits = TritonEdits(WIDTH, META, NUM_ROWS, launch=recorder)
    scores, places = _column(torch.float32, WIDTH), np.arange(NUM_ROWS)
    indices, numbers = _column(torch.int64), _column(torch.float32)
    with recorder.case("edits"):
        edits.mask(scores, DeviceMasks(places, None, _column(torch.int32, WIDTH // BITS_PER_WORD)))
        edits.add_bias(scores, Bias(indices, indices, numbers))
        edits.penalise(
            scores, Penalties(places, places, indices, indices, numbers, numbers, numbers), 100
        )
        edits.history.append(places, places, places)


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
