"""Masks as the sampler sees them: which rows of a step have one, and who judges what they drew.

A mask says which tokens may be drawn one by one; a judge may still refuse the one that was drawn,
and changes the mask of that row before it draws again. Rows without a mask are not in here at all.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from model_server.sampling.rows import Rows


@dataclass(slots=True, eq=False)
class Masks:
    """The masks of a step's rows, and a judge who accepts all that they allow.

    places: rows of the step that have a mask, in rising order, at least one
    words:  [num_masked, ceil(vocab_size / 32)] int32 on the host, of row places[i]; see
            `apply_bitmask`
    """

    places: Rows
    words: Tensor

    def accepts(self, index: int, token_id: int) -> bool:
        """Whether the token drawn for row places[index] may be appended.

        If not, `words` of that row have changed, and it is drawn again. Sooner or later no token is
        left there, or one is accepted.
        """
        return True


@dataclass(frozen=True, slots=True, eq=False)
class DeviceMasks:
    """Masks of some rows of a step, where the scores are."""

    places: Rows
    rows: Tensor | None  # the same, on the device; None: all rows of the step
    words: Tensor  # [num_masked, num_words] int32

    @classmethod
    def of(cls, places: Rows, words: Tensor, num_rows: int, device: torch.device) -> "DeviceMasks":
        """From the host; pinned words are on their way when this returns."""
        rows = None if len(places) == num_rows else torch.from_numpy(places).to(device)
        return cls(places, rows, words.to(device, non_blocking=True))

    def among(self, places: Rows) -> "DeviceMasks | None":
        """Those of some rows, which make a step of their own; None: none of them has a mask."""
        _, which, rows = np.intersect1d(self.places, places, return_indices=True)
        if len(which) == 0:
            return None
        device = self.words.device
        words = self.words[torch.from_numpy(which).to(device)]
        return DeviceMasks.of(rows, words, len(places), device)
