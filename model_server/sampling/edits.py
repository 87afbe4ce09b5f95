"""Changes of a step's scores before anything is filtered, and what penalties have to remember.

scores -> masks -> biases -> penalties
                                 ^
                              history: the tokens that each penalised sequence has used
"""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from model_server.sampling.logits_processors import DeviceMasks, add_bias, apply_bitmask, penalise
from model_server.sampling.penalty_history import PenaltyHistory
from model_server.sampling.plan import Bias, Penalties
from model_server.staging import PinnedStaging

Ints = npt.NDArray[np.int64]


class History(Protocol):
    """Of penalised sequences, each in a slot of its own."""

    def open(self, token_ids: Sequence[int], prompt_len: int) -> int:
        """A slot that holds these tokens, of which those from prompt_len on are output.

        Tokens that the model embeds but cannot produce change nothing. Raises InvalidStep if there
        are no others.
        """

    def close(self, slot: int) -> None:
        """Release a slot."""

    def append(self, slots: Ints, positions: Ints, token_ids: Ints) -> None:
        """One output token for each of the slots, at its index in the sequence."""

    def extend(self, slot: int, position: int, token_ids: Sequence[int]) -> None:
        """Output tokens of one slot, from this index of the sequence on."""

    def reserve(self, num_slots: int, max_len: int) -> None:
        """Hold memory for so many slots, of sequences of up to so many tokens."""


class Edits(Protocol):
    """Changes scores [num_rows, width] float32 in place; see logits_processors.py for each."""

    @property
    def history(self) -> History:
        """Of the sequences that have a penalty."""

    def mask(self, scores: Tensor, masks: DeviceMasks) -> None:
        """Allow only the tokens whose bit is set, in the rows that have a mask."""

    def add_bias(self, scores: Tensor, bias: Bias) -> None:
        """Add the terms, of which no two are for one score."""

    def penalise(self, scores: Tensor, penalties: Penalties, used_len: int) -> None:
        """Lower the scores of used tokens; used_len: of the longest penalised sequence."""


class TorchEdits:
    """Edits by torch, on any device."""

    def __init__(self, vocab_size: int, device: torch.device) -> None:
        self.history = PenaltyHistory(vocab_size, device, PinnedStaging(device))

    def mask(self, scores: Tensor, masks: DeviceMasks) -> None:
        """See Edits.mask."""
        apply_bitmask(scores, masks.words, masks.rows)

    def add_bias(self, scores: Tensor, bias: Bias) -> None:
        """See Edits.add_bias."""
        add_bias(scores, bias.rows, bias.token_ids, bias.values)

    def penalise(self, scores: Tensor, penalties: Penalties, used_len: int) -> None:
        """See Edits.penalise."""
        tokens = self.history.tokens(penalties.slots, used_len)
        counts = None
        if penalties.presence is not None:
            counts = self.history.counts(penalties.slots, tokens)
        penalise(
            scores,
            penalties.rows,
            tokens,
            penalties.repetition,
            counts,
            penalties.presence,
            penalties.frequency,
        )
