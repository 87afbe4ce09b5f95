"""Ranks agree on whether a step fits before one of them enters a collective."""

import pytest
import torch

from model_server.engine import memory
from model_server.engine.distributed import World
from model_server.engine.warmup import StepRoom
from model_server.errors import OutOfMemory
from tests.model_server.engine.ranks import on_two_ranks

CPU = torch.device("cpu")


def _refused(world: World) -> list[int]:
    """Of some steps those that are refused; the second rank has less room than the first."""
    room = StepRoom(world, CPU, bytes_per_token=4)
    room_bytes = 400 - 200 * world.rank
    refused = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(memory, "has_room", lambda device, num_bytes: num_bytes <= room_bytes)
        for num_tokens in (10, 50, 51, 120):
            try:
                room.require(num_tokens)
            except OutOfMemory:
                refused.append(num_tokens)
    return refused


@pytest.mark.slow
def test_a_step_that_one_rank_has_no_room_for_is_refused_by_all() -> None:
    assert on_two_ranks(_refused) == [[51, 120], [51, 120]]


def test_one_rank_alone_tries_the_step_instead() -> None:
    StepRoom(World(), CPU, bytes_per_token=1 << 50).require(1000)
