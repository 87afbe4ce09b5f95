"""Processors that change scores before any token is filtered, and the token masks of a step's rows.

They know rows and token ids, not requests, and work in place on float32 scores
[num_rows, width], width >= vocab_size, whatever lies beyond the vocabulary being -inf. Only the
rows named are changed, so a step pays for the rows that need a processor and not for the others.

A mask allows tokens one by one; the check of a sampled token may still refuse it, and changes the
mask of its row before the row samples again. Rows without a mask are not in here.

First comes the watermark (`watermark.py`), as in TGI; then the order is transformers': bias,
repetition penalty, then the penalties that transformers lacks. Masks may come anywhere, since -inf
stays -inf under all of them; a token is masked by adding -inf, which keeps a NaN or +inf of the
model visible (as NaN) instead of hiding it.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from model_server.sampling.rows import Rows
from model_server.staging import PinnedStaging

BITS_PER_WORD = 32
# The sign and exponent bits of float32: read as a float, -inf.
_MINUS_INF_BITS = -0x0080_0000


def apply_bitmask(scores: Tensor, bitmask: Tensor, rows: Tensor | None = None) -> None:
    """Allow only the tokens whose bit is set.

    bitmask: [n, num_words] int32; token t is bit t % 32 of word t // 32. Bits beyond the vocabulary
             are ignored; the words must fit into the width of the scores.
    rows:    [n], the rows that have a mask, each once; None: all of them
    """
    masked = scores[:, : bitmask.shape[-1] * BITS_PER_WORD]
    if scores.device.type == "cpu":
        _apply_on_host(masked.numpy(), bitmask.numpy(), None if rows is None else rows.numpy())
        return
    minus_inf = spread_bits(~bitmask, _MINUS_INF_BITS)
    if rows is None:
        masked += minus_inf
    else:
        masked.index_add_(0, rows, minus_inf)


def _of_each_byte() -> npt.NDArray[np.float32]:
    """The terms that each byte of a mask adds to its eight tokens, lowest bit first: [256, 8]."""
    bits = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little")
    table = np.where(bits, np.float32(0.0), np.float32(-np.inf))
    table.setflags(write=False)
    return table


_ADDED_BY_BYTE = _of_each_byte()


def _apply_on_host(
    masked: npt.NDArray[np.float32],
    bitmask: npt.NDArray[np.int32],
    rows: npt.NDArray[np.int64] | None,
) -> None:
    """`apply_bitmask` in one pass of one thread.

    Waking the other threads for each of a device's passes takes longer than all of them.
    """
    # +inf becomes NaN, which fails the row.
    with np.errstate(invalid="ignore"):
        for index, words in enumerate(bitmask.astype("<i4", copy=False)):
            row = masked[index if rows is None else rows[index]]
            # Every byte is in the table; "clip" skips the bounds check.
            row += np.take(_ADDED_BY_BYTE, words.view(np.uint8), axis=0, mode="clip").reshape(-1)


def spread_bits(words: Tensor, value_bits: int) -> Tensor:
    """The float32 of these bits where a bit of `words` is set, else 0: [num_rows, num_words * 32].

    words: [num_rows, num_words] int32; number t is bit t % 32 of word t // 32

    Each bit is moved to the sign, spread over the word and cut down to the value's bits: no branch
    per token, which makes masking twenty times faster than masked_fill.
    """
    to_sign = torch.arange(BITS_PER_WORD - 1, -1, -1, dtype=torch.int32, device=words.device)
    spread = words.unsqueeze(-1) << to_sign  # [num_rows, num_words, 32]
    spread.bitwise_right_shift_(BITS_PER_WORD - 1).bitwise_and_(value_bits)
    return spread.view(torch.float32).view(len(words), -1)


def add_bias(scores: Tensor, rows: Tensor, token_ids: Tensor, values: Tensor) -> None:
    """Add values[i] to the score of token_ids[i] in rows[i]; all three are [num_places]."""
    scores.index_put_((rows, token_ids), values, accumulate=True)


def penalise(
    scores: Tensor,
    rows: Tensor,
    token_ids: Tensor,
    repetition: Tensor,
    counts: Tensor | None = None,
    presence: Tensor | None = None,
    frequency: Tensor | None = None,
) -> None:
    """Lower the scores of tokens that a sequence has used.

    rows:       [n], the rows that have a penalty
    token_ids:  [n, len] the tokens of prompt and output; repeats change nothing
    repetition: [n] divides a positive score and multiplies a negative one; 1: off
    counts:     [n, len] how often each of token_ids is in the output; with presence and
                frequency [n]: a score loses frequency * count, and presence if count > 0

    Sources: Keskar et al., "CTRL", 2019, section 4.1 (repetition); OpenAI's API (the others).
    """
    places = (rows.unsqueeze(-1), token_ids)
    used = scores[places]
    factor = repetition.unsqueeze(-1)
    used = torch.where(used < 0, used * factor, used / factor)
    if counts is not None and presence is not None and frequency is not None:
        used -= frequency.unsqueeze(-1) * counts + presence.unsqueeze(-1) * (counts > 0)
    scores[places] = used


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
    def of(
        cls, places: Rows, words: Tensor, num_rows: int, staging: PinnedStaging
    ) -> "DeviceMasks":
        """Copy masks from the host; pinned words are still being copied when this returns."""
        return cls(places, _unless_all(places, num_rows, staging), staging.tensor_to_device(words))

    def among(self, places: Rows, staging: PinnedStaging) -> "DeviceMasks | None":
        """The masks of some rows, as a step of their own; None: none of them has one."""
        _, which, rows = np.intersect1d(self.places, places, return_indices=True)
        if len(which) == 0:
            return None
        words = self.words[staging.to_device(which)]
        return DeviceMasks(rows, _unless_all(rows, len(places), staging), words)


def _unless_all(places: Rows, num_rows: int, staging: PinnedStaging) -> Tensor | None:
    return None if len(places) == num_rows else staging.to_device(places)
