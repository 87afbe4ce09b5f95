"""What a language remembers of its places: outlooks, and masks of them, both bounded."""

import threading
from collections import OrderedDict
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from constraints.token_walk import Ends, TokenWalk
from constraints.where.byte_table import ByteTable
from constraints.where.lattice import Lattice
from constraints.where.outlook import Outlook

_MAX_OUTLOOK_BYTES = 64_000_000
_MAX_MASKS = 512
# Places that are walked from at once.
_MAX_WALKED = 128


class Views:
    """Shared by threads; what is used least goes first."""

    def __init__(self, walk: TokenWalk, table: ByteTable, lattice: Lattice) -> None:
        self._walk = walk
        self._table = table
        self._lattice = lattice
        self._columns = walk.bytes_of_levels(table.utf8.classes)
        self._lock = threading.RLock()
        self._outlooks: OrderedDict[int, Outlook] = OrderedDict()
        self._num_bytes = 0
        self._masks: OrderedDict[tuple[int, bytes], npt.NDArray[np.uint8]] = OrderedDict()

    def mask(
        self, place: int, outlook: Outlook, legal: npt.NDArray[np.bool_]
    ) -> npt.NDArray[np.uint8]:
        """The bitmask of the legal kinds of a place's outlook. Not to be written to."""
        key = place, legal.tobytes()
        with self._lock:
            found = self._masks.get(key)
            if found is not None:
                self._masks.move_to_end(key)
                return found
        mask = outlook.mask(legal)
        with self._lock:
            self._masks[key] = mask
            if len(self._masks) > _MAX_MASKS:
                self._masks.popitem(last=False)
        return mask

    def outlook(self, place: int) -> Outlook:
        """What tokens lead to from a place."""
        with self._lock:
            found = self._outlooks.get(place)
            if found is not None:
                self._outlooks.move_to_end(place)
                return found
            start = place * self._table.width
            ends = self._walk.walk(self._table.entries, self._columns, start)
            return self._kept(place, ends)

    def outlooks(self, places: Sequence[int]) -> list[Outlook]:
        """Those of several places. Few tokens go on inside a character: these are done at once."""
        inside = [place for place in places if place % self._table.utf8.num_places]
        found: dict[int, Outlook] = {}
        for begin in range(0, len(inside), _MAX_WALKED):
            batch = inside[begin : begin + _MAX_WALKED]
            starts = np.array(batch, dtype=np.int64) * self._table.width
            ends = self._walk.walk_several(self._table.entries, self._columns, starts)
            with self._lock:
                for place, part in zip(batch, ends.split(len(batch)), strict=True):
                    found[place] = self._kept(place, part)
        return [found.get(place) or self.outlook(place) for place in places]

    def _kept(self, place: int, ends: Ends) -> Outlook:
        known = self._outlooks.get(place)
        if known is not None:
            return known
        outlook = Outlook(ends, self._table, self._lattice, self._walk)
        self._outlooks[place] = outlook
        self._num_bytes += outlook.num_bytes
        while self._num_bytes > _MAX_OUTLOOK_BYTES and len(self._outlooks) > 1:
            _, gone = self._outlooks.popitem(last=False)
            self._num_bytes -= gone.num_bytes
        return outlook
