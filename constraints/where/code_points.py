"""Sets of code points, and the classes of characters that an automaton distinguishes.

set:        sorted ranges (first, last), both included
partition:  every code point has one label; those in no set have label 0
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

Ranges = tuple[tuple[int, int], ...]

NUM_CODE_POINTS = 0x110000
# What str.split() splits at.
WHITESPACE: Ranges = (
    (0x09, 0x0D),
    (0x1C, 0x20),
    (0x85, 0x85),
    (0xA0, 0xA0),
    (0x1680, 0x1680),
    (0x2000, 0x200A),
    (0x2028, 0x2029),
    (0x202F, 0x202F),
    (0x205F, 0x205F),
    (0x3000, 0x3000),
)


@lru_cache(maxsize=4096)
def first_bytes(ranges: Ranges) -> int:
    """The bytes with which characters of a set without surrogates begin in UTF-8, as bits."""
    found = 0
    for first, last in ranges:
        low = chr(first).encode()[0]
        high = chr(last).encode()[0]
        found |= (1 << high + 1) - (1 << low)
    return found


@dataclass(frozen=True, slots=True, eq=False)
class Partition:
    """Labels of code points: from `starts[i]` on, up to the next start, all have `labels[i]`."""

    starts: npt.NDArray[np.int64]  # [num_ranges], ascending, the first is 0
    labels: npt.NDArray[np.int32]  # [num_ranges]

    @classmethod
    def of_sets(cls, sets: Sequence[Ranges]) -> "Partition":
        """Label i + 1 for the set i, 0 for the rest; the sets are disjoint."""
        bounds = {0: 0}
        pieces = [
            (first, last, label + 1) for label, ranges in enumerate(sets) for first, last in ranges
        ]
        for first, last, label in sorted(pieces):
            bounds[first] = label
            bounds.setdefault(last + 1, 0)
        starts = sorted(start for start in bounds if start < NUM_CODE_POINTS)
        return cls(
            np.array(starts, dtype=np.int64),
            np.array([bounds[start] for start in starts], dtype=np.int32),
        )

    @classmethod
    def of_chars(cls, chars: Iterable[str]) -> "Partition":
        """Label i + 1 for the i-th distinct character in order of code points."""
        return cls.of_sets([((ord(char), ord(char)),) for char in sorted(set(chars))])

    @property
    def num_labels(self) -> int:
        """Labels are 0 .. num_labels - 1; no code point may have label 0."""
        return int(self.labels.max()) + 1

    def label_of(self, code_point: int) -> int:
        return int(self.labels[np.searchsorted(self.starts, code_point, side="right") - 1])


def join(
    partitions: Sequence[Partition],
) -> tuple[Partition, npt.NDArray[np.int32]]:
    """The coarsest common refinement, and the label in each partition.

    Returns the partition and [num_partitions, num_labels].
    """
    if not partitions:
        return Partition.of_sets([]), np.zeros((0, 1), dtype=np.int32)
    starts = np.unique(np.concatenate([partition.starts for partition in partitions]))
    stacked = np.stack(
        [
            partition.labels[np.searchsorted(partition.starts, starts, side="right") - 1]
            for partition in partitions
        ]
    )
    columns, labels = np.unique(stacked, axis=1, return_inverse=True)
    return Partition(starts, labels.reshape(-1).astype(np.int32)), columns
