"""The groups of a step's rows."""

from dataclasses import replace

import numpy as np
import pytest

from model_server.sampling.plan import NARROW, WIDE, Kind, SamplingPlanner, SamplingRows
from model_server.staging import PinnedStaging
from proto.contract import LogprobParams
from tests.model_server.sampling.cases import CPU, DRAWN, GREEDY, NO_STOP

WIDTH = 32_000
REQUESTS = (
    (GREEDY, 0),
    (replace(DRAWN, top_k=40), 0),
    (replace(DRAWN, top_p=0.9), 0),
    (replace(DRAWN, top_k=40, typical_p=0.5), 0),
    (GREEDY, 3),
    (replace(DRAWN, top_k=40), 3),
    (replace(DRAWN, typical_p=0.5), 0),
    (DRAWN, 0),
)


@pytest.mark.parametrize(
    ("by_torch", "expected"),
    [
        (
            True,
            [
                (Kind.GREEDY, [0, 4], WIDTH),
                (Kind.PLAIN, [7], WIDTH),
                (Kind.PREFIX, [1, 3, 5], NARROW),
                (Kind.PREFIX, [2], WIDE),
                (Kind.TYPICAL, [6], WIDE),
            ],
        ),
        (
            False,
            [
                (Kind.GREEDY, [0], WIDTH),
                (Kind.GREEDY, [4], WIDTH),
                (Kind.PLAIN, [7], WIDTH),
                (Kind.PREFIX, [1, 2], WIDTH),
                (Kind.PREFIX, [3, 5], NARROW),
                (Kind.TYPICAL, [6], WIDE),
            ],
        ),
    ],
)
def test_rows_that_are_left_to_torch_have_groups_of_their_own(
    by_torch: bool, expected: list[tuple[Kind, list[int], int]]
) -> None:
    rows = SamplingRows(WIDTH, (0,), len(REQUESTS))
    for request_id, (sampling, num_top_tokens) in enumerate(REQUESTS):
        rows.add(request_id, sampling, NO_STOP, LogprobParams(num_top_tokens), 3, 3)
    planner = SamplingPlanner(rows, PinnedStaging(CPU), WIDTH, by_torch=by_torch)
    plan = planner.plan(np.arange(len(REQUESTS)))
    found = [(group.kind, group.places.tolist(), group.num_candidates) for group in plan.groups]
    assert found == expected
