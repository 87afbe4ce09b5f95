"""What a language remembers of its places: outlooks, and masks of them, both bounded."""

import threading
from collections import OrderedDict
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from constraints.errors import TooComplex
from constraints.token_actions import actions_of
from constraints.token_walk import TokenWalk
from constraints.where.byte_table import ByteTable
from constraints.where.lattice import Lattice
from constraints.where.outlook import Outlook

_MAX_OUTLOOK_BYTES = 64_000_000
_MAX_MASKS = 512
# Places that are walked from at once.
_MAX_WALKED = 128
# Places from which it is found out at once what tokens do; fewer are walked from one by one.
_MIN_ACTED = 4
_MAX_ACTED = 256
# Nodes of the tokens' trie that may be gone through one by one, for all places.
_MAX_NODES = 100_000_000


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
        self._num_acted = _MAX_ACTED
        self._num_nodes = 0
        self._masks: OrderedDict[tuple[int, bytes], npt.NDArray[np.uint8]] = OrderedDict()
        # Its own, since the other one is held while somebody looks out of a new place.
        self._masks_lock = threading.Lock()

    def mask(
        self, place: int, outlook: Outlook, legal: npt.NDArray[np.bool_]
    ) -> npt.NDArray[np.uint8]:
        """The bitmask of the legal kinds of a place's outlook. Not to be written to."""
        key = place, legal.tobytes()
        with self._masks_lock:
            found = self._masks.get(key)
            if found is not None:
                self._masks.move_to_end(key)
                return found
        mask = outlook.mask(legal)
        with self._masks_lock:
            self._masks[key] = mask
            if len(self._masks) > _MAX_MASKS:
                self._masks.popitem(last=False)
        return mask

    def known(self, place: int) -> Outlook | None:
        """The outlook of a place, if it is there; waits for no other thread."""
        return self._outlooks.get(place)

    def outlook(self, place: int) -> Outlook:
        """What tokens lead to from a place."""
        with self._lock:
            found = self._outlooks.get(place)
            if found is not None:
                self._outlooks.move_to_end(place)
                return found
            start = place * self._table.width
            ends = self._walk.walk(self._table.entries, self._columns, start)
            outlook = Outlook.of_ends(ends, self._table, self._lattice, self._walk)
            return self._kept(place, outlook)

    def outlooks(self, places: Sequence[int]) -> list[Outlook]:
        """Those of several places, many at once where that is less work.

        Raises TooComplex where it was too much in all.
        """
        # Few tokens go on inside a character: these are followed by themselves.
        inside = [place for place in places if place % self._table.utf8.num_places]
        found: dict[int, Outlook] = {}
        for begin in range(0, len(inside), _MAX_WALKED):
            self._walk_from(inside[begin : begin + _MAX_WALKED], found)
        between = [place for place in places if not place % self._table.utf8.num_places]
        while between and len(between) >= _MIN_ACTED <= self._num_acted:
            batch, rest = between[: self._num_acted], between[self._num_acted :]
            if self._act_from(batch, found):
                between = rest
            else:
                self._num_acted //= 4  # from fewer places more tokens do the same
        for place in between:
            self._num_nodes += self._walk.num_nodes_from(
                self._table.entries, self._columns, place * self._table.width
            )
            if self._num_nodes > _MAX_NODES:
                raise TooComplex("tokens do too many different things from too many places")
            found[place] = self.outlook(place)
        return [found[place] for place in places]

    def _walk_from(self, places: list[int], found: dict[int, Outlook]) -> None:
        starts = np.array(places, dtype=np.int64) * self._table.width
        ends = self._walk.walk_several(self._table.entries, self._columns, starts)
        with self._lock:
            for place, part in zip(places, ends.split(len(places)), strict=True):
                outlook = Outlook.of_ends(part, self._table, self._lattice, self._walk)
                found[place] = self._kept(place, outlook)

    def _act_from(self, places: list[int], found: dict[int, Outlook]) -> bool:
        """Whether tokens do few enough things there to be told apart by them."""
        starts = np.array(places, dtype=np.int64) * self._table.width
        actions = actions_of(self._walk, self._table.entries, self._columns, starts)
        if actions is None:
            return False
        with self._lock:
            for index, place in enumerate(places):
                outlook = Outlook.of_actions(actions, index, self._table, self._lattice, self._walk)
                found[place] = self._kept(place, outlook)
        return True

    def _kept(self, place: int, outlook: Outlook) -> Outlook:
        known = self._outlooks.get(place)
        if known is not None:
            return known
        self._outlooks[place] = outlook
        self._num_bytes += outlook.num_bytes
        while self._num_bytes > _MAX_OUTLOOK_BYTES and len(self._outlooks) > 1:
            _, gone = self._outlooks.popitem(last=False)
            self._num_bytes -= gone.num_bytes
        return outlook
