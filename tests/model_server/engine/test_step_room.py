"""Ranks agree on whether a step fits before one of them enters a collective."""

import pytest

from model_server.engine.distributed import World
from model_server.engine.runner import StepRoom
from model_server.errors import OutOfMemory
from tests.model_server.engine.ranks import on_two_ranks


def _refused(world: World) -> list[int]:
    """Of some steps those that are refused; the second rank has less room than the first."""
    room = StepRoom(world, lambda num_bytes: num_bytes <= 400 - 200 * world.rank, bytes_per_token=4)
    refused = []
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
    StepRoom(World(), lambda num_bytes: False, bytes_per_token=4).require(1000)
