"""The inverse of steps: the states that lead to a state."""

import numpy as np
import numpy.typing as npt

Steps = npt.NDArray[np.int32]
Indices = npt.NDArray[np.int64]

# Smaller numbers are sorted in one pass.
_SMALL = 1 << 16


class Sources:
    """The sources of every target; the numbers of both are indices."""

    def __init__(self, targets: npt.NDArray[np.integer], num_targets: int) -> None:
        """targets: of each source, its only one [num_sources] or all [num_sources, num_labels]."""
        flat = targets.reshape(-1)
        if num_targets < _SMALL:
            flat = flat.astype(np.uint16)
        order = np.argsort(flat, kind="stable")
        self._sources = order if targets.ndim == 1 else order // targets.shape[1]
        self._begins = np.searchsorted(flat[order], np.arange(num_targets + 1))

    def of(self, targets: Indices) -> Indices:
        """The sources of some targets, each once and ascending."""
        begins = self._begins[targets]
        counts = self._begins[targets + 1] - begins
        before = np.cumsum(counts) - counts
        return np.unique(
            self._sources[np.arange(int(counts.sum())) + np.repeat(begins - before, counts)]
        )
