"""Whether every rank has the memory for a step, asked before any of them enters its collectives.

A rank that runs out of memory in the middle of a forward leaves the others in a collective that it
will never enter. So ranks agree first, on the host, before each step of more tokens than a decode
has; what a step takes was measured at warm-up, by its tokens.
"""

from collections.abc import Callable

from model_server.engine.distributed import World
from model_server.errors import OutOfMemory


class StepRoom:
    """has_room: whether this rank could allocate so many bytes; bytes_per_token: of a step."""

    def __init__(self, world: World, has_room: Callable[[int], bool], bytes_per_token: int) -> None:
        self._world = world
        self._has_room = has_room
        self._bytes_per_token = bytes_per_token

    def require(self, num_tokens: int) -> None:
        """Raise OutOfMemory on all ranks, or on none."""
        if self._world.world_size == 1 or not self._bytes_per_token:
            return
        needed = num_tokens * self._bytes_per_token
        if not self._world.smallest(int(self._has_room(needed))):
            raise OutOfMemory(f"a step of {num_tokens} tokens does not fit on every rank")
