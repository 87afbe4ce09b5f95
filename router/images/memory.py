"""What images of requests may take together (--image-memory).

files, as they come                            held until their prompt is made
tensors that were made of them                 held while a request needs them
tensors that no request needs any more         kept; the least used go first where room is needed
"""

from collections import OrderedDict
from dataclasses import dataclass, field

from processes.instruments import Gauge
from router.request.errors import Overloaded

# Nobody knows when the requests end that hold it.
_RETRY_S = 1.0


class ImageMemory:
    """Owner of what is kept, and of the sum of all."""

    def __init__(self, max_bytes: int, gauge: Gauge) -> None:
        self._max_bytes = max_bytes
        self._gauge = gauge
        self._kept: OrderedDict[bytes, object] = OrderedDict()
        self.num_bytes = 0

    def make_room(self, num_bytes: int = 1) -> None:
        """Raises Overloaded where what is held leaves less."""
        self._let_go(self._max_bytes - num_bytes)
        if self.num_bytes > self._max_bytes - num_bytes:
            mib = self._max_bytes >> 20
            raise Overloaded(
                f"images of requests that wait and run take all of {mib} MiB (--image-memory)",
                _RETRY_S,
            )

    def keep(self, digest: bytes, tensors: object) -> None:
        """Keep what has just been used, while there is room."""
        self._kept[digest] = tensors
        self._kept.move_to_end(digest)
        self._let_go(self._max_bytes)

    def count(self, num_bytes: int) -> None:
        """So many were taken, or given back."""
        self.num_bytes += num_bytes
        self._gauge.set(self.num_bytes)

    def _let_go(self, most_bytes: int) -> None:
        while self.num_bytes > most_bytes and self._kept:
            self._kept.popitem(last=False)


class Held:
    """A part of the memory, given back once nobody has this any more."""

    def __init__(self, memory: ImageMemory, num_bytes: int = 0) -> None:
        self._memory = memory
        self._num_bytes = num_bytes
        memory.count(num_bytes)

    def grow(self, num_bytes: int) -> None:
        """Raises Overloaded."""
        self._memory.make_room(num_bytes)
        self._memory.count(num_bytes)
        self._num_bytes += num_bytes

    def __del__(self) -> None:
        self._memory.count(-self._num_bytes)


@dataclass(frozen=True, slots=True)
class ImageFile:
    """A file as it came, which is not decoded here, from base64 neither."""

    data: bytes = field(repr=False)
    held: Held = field(repr=False)
    is_base64: bool = False
