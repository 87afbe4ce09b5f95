"""What the tokens of a vocabulary lead to from one place, in few kinds, and masks of them.

token -> kind -> (place, what each count gains)      a kind is legal or not as a whole
"""

import numpy as np
import numpy.typing as npt

from constraints.token_walk import PLACE_BITS, PLACE_MASK, Ends, TokenWalk
from constraints.where.byte_table import GAIN_BITS, ByteTable
from constraints.where.lattice import Lattice, Reserves
from constraints.where.machine import Counts

# Kinds are numbered by a table of all places and gains while it has so many entries.
_MAX_TABLE = 1 << 22
# Kinds of so many fit in 16 bits, with one to spare.
_MAX_SMALL = (1 << 16) - 1


class Outlook:
    """Immutable; shared by threads."""

    def __init__(self, ends: Ends, table: ByteTable, lattice: Lattice, walk: TokenWalk) -> None:
        vocab_size = walk.vocab_size
        kinds, packed = _kinds(ends, table)
        self.targets = table.targets(packed)
        self.gains: Counts = table.gains(packed)
        self.num_kinds = len(packed)
        self._lattice = lattice
        self._num_bits = -(-vocab_size // 32) * 32
        # The plainest token of each kind, as its place among all.
        self._examples = np.full(self.num_kinds, vocab_size, dtype=np.int64)
        np.minimum.at(self._examples, kinds, walk.plainness[ends.token_ids])
        self._plain_first = walk.plain_first
        # Few tokens are listed; of many, the kind of each is told, and one more kind, which is
        # never legal, for all others.
        self._listed: tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]] | None = None
        self._dense: npt.NDArray[np.uint16] | None = None
        if len(kinds) * 8 < vocab_size or self.num_kinds > _MAX_SMALL:
            self._listed = ends.token_ids, kinds
        else:
            self._dense = np.full(self._num_bits, self.num_kinds, dtype=np.uint16)
            self._dense[ends.token_ids] = kinds
        self._cells = self.targets * lattice.num_cells
        # Each axis on the lattice: its place, base, cells and stride.
        self._layout = tuple(
            zip(
                lattice.cells, lattice.bases, lattice.shape, lattice.strides().tolist(), strict=True
            )
        )
        # What it weighs in memory.
        self.num_bytes = (
            self._dense.nbytes if self._dense is not None else 16 * len(kinds)
        ) + 8 * self.num_kinds * (3 + len(lattice.axes))

    def legal(self, reserves: Reserves, counts: list[int]) -> npt.NDArray[np.bool_]:
        """Whether each kind leads to a place that is alive in `reserves`."""
        lattice = self._lattice
        cells = self._cells
        for place, base, size, stride in self._layout:
            along = np.minimum(self.gains[:, place] + (counts[place] - base), size - 1)
            cells = cells + (np.maximum(along, 0) if base else along) * stride
        weighed: npt.NDArray[np.int64] | int = 0
        if lattice.reserve is not None:
            axis = lattice.reserve
            cap = lattice.axes[axis].cap
            weighed = np.minimum(self.gains[:, axis] + counts[axis], cap) * lattice.weight
        legal: npt.NDArray[np.bool_] = reserves.reshape(-1).take(cells) >= weighed
        return legal

    def mask(self, legal: npt.NDArray[np.bool_]) -> npt.NDArray[np.uint8]:
        """The bitmask of the legal kinds, little-endian, in whole words."""
        if self._dense is not None:
            bits = np.append(legal, False).take(self._dense)
        else:
            assert self._listed is not None
            token_ids, kinds = self._listed
            bits = np.zeros(self._num_bits, dtype=np.bool_)
            bits[token_ids[legal[kinds]]] = True
        return np.packbits(bits, bitorder="little")

    def first_token(self, legal: npt.NDArray[np.bool_]) -> int | None:
        """The plainest token of a legal kind."""
        return int(self._plain_first[self._examples[legal].min()]) if legal.any() else None

    def farthest_token(self, legal: npt.NDArray[np.bool_], counts: list[int]) -> int | None:
        """The token of a legal kind that brings counts nearest to their caps; None: none does."""
        caps = np.array([axis.cap for axis in self._lattice.axes])
        gained = np.minimum(self.gains, caps - counts)
        progress = np.where(legal, (gained / caps).sum(axis=1), 0.0)
        if not progress.any():
            return None
        return int(self._plain_first[self._examples[progress == progress.max()].min()])


def _kinds(ends: Ends, table: ByteTable) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """The kind of each end, and the packed state of each kind."""
    states = ends.states
    if not len(states):
        return states, states
    keys = (states & PLACE_MASK) // table.width
    size = table.num_places
    for axis in range(table.num_axes):
        gained = (states >> (PLACE_BITS + GAIN_BITS * axis)) & ((1 << GAIN_BITS) - 1)
        keys += gained * size
        size *= int(gained.max()) + 1
        if size > _MAX_TABLE:
            packed, kinds = np.unique(states, return_inverse=True)
            return kinds.reshape(-1), packed
    packed_at = np.full(size, -1, dtype=np.int64)
    packed_at[keys] = states
    present = np.flatnonzero(packed_at >= 0)
    numbers = np.zeros(size, dtype=np.int64)
    numbers[present] = np.arange(len(present))
    return numbers[keys], packed_at[present]
