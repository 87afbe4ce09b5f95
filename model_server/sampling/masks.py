"""The token masks of a step's rows, and the check of the tokens that were sampled under them.

A mask allows tokens one by one; the check may still refuse the token that was sampled, and changes
the mask of its row before the row samples again. Rows without a mask are not in here.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from model_server.sampling.rows import Rows


@dataclass(slots=True, eq=False)
class Masks:
    """The masks of a step's rows; this class accepts every token that they allow.

    places: rows of the step that have a mask, in rising order, at least one
    words:  [num_masked, ceil(vocab_size / 32)] int32 on the host, of row places[i]; see
            `apply_bitmask`
    """

    places: Rows
    words: Tensor

    def accepts(self, index: int, token_id: int) -> bool:
        """Whether the token sampled for row places[index] may be appended.

        If not, `words` of that row have changed, and it samples again, until a token is accepted or
        none is left.
        """
        return True


@dataclass(frozen=True, slots=True, eq=False)
class DeviceMasks:
    """Masks of some rows of a step, on the device of the scores."""

    places: Rows
    rows: Tensor | None  # the same, on the device; None: all rows of the step
    words: Tensor  # [num_masked, num_words] int32

    @classmethod
    def of(cls, places: Rows, words: Tensor, num_rows: int, device: torch.device) -> "DeviceMasks":
        """Copy masks from the host; pinned words are still being copied when this returns."""
        rows = None if len(places) == num_rows else torch.from_numpy(places).to(device)
        return cls(places, rows, words.to(device, non_blocking=True))

    def among(self, places: Rows) -> "DeviceMasks | None":
        """The masks of some rows, as a step of their own; None: none of them has one."""
        _, which, rows = np.intersect1d(self.places, places, return_indices=True)
        if len(which) == 0:
            return None
        device = self.words.device
        words = self.words[torch.from_numpy(which).to(device)]
        return DeviceMasks.of(rows, words, len(places), device)
