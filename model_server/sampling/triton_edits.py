"""Edits by Triton kernels: one launch each for masks, biases and penalties."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from model_server.kernels import edit_scores
from model_server.kernels.launch import Launch, launch
from model_server.sampling.edits import Ints
from model_server.sampling.logits_processors import DeviceMasks
from model_server.sampling.penalty_history import known_tokens
from model_server.sampling.plan import Bias, Penalties
from model_server.staging import PinnedStaging

_CHUNK = 4096  # of a row: what one program edits
_BLOCK = 256
_MIN_SLOTS = 4


class UsedTokens:
    """The table that penalties read, see edit_scores.py: [num_slots, vocab_size] int32.

    It grows by doubling, beyond what was reserved. Its size does not depend on the lengths of
    sequences.
    """

    def __init__(
        self, vocab_size: int, device: torch.device, staging: PinnedStaging, launch: Launch
    ) -> None:
        self._vocab_size = vocab_size
        self._staging = staging
        self._launch = launch
        self.table = torch.zeros((0, vocab_size), dtype=torch.int32, device=device)
        self._free: list[int] = []

    def open(self, token_ids: Sequence[int], prompt_len: int) -> int:
        """See History.open."""
        tokens = np.asarray(token_ids, dtype=np.int64)
        known = known_tokens(tokens, self._vocab_size)
        output = tokens[prompt_len:]
        counts = np.bincount(output[output < self._vocab_size], minlength=self._vocab_size)
        entries = (counts << 1).astype(np.int32)
        entries[known] |= 1
        if not self._free:
            self.reserve(max(2 * len(self.table), _MIN_SLOTS))
        slot = self._free.pop()
        row, entries_of_row = self._staging.to_device_all((np.array([slot]), entries[None]))
        self.table.index_copy_(0, row, entries_of_row)
        return slot

    def close(self, slot: int) -> None:
        """See History.close."""
        self._free.append(slot)

    def append(self, slots: Ints, positions: Ints, token_ids: Ints) -> None:
        """See History.append."""
        self._count(slots, token_ids, np.ones(len(slots), dtype=np.int64))

    def extend(self, slot: int, position: int, token_ids: Sequence[int]) -> None:
        """See History.extend."""
        tokens, counts = np.unique(np.asarray(token_ids, dtype=np.int64), return_counts=True)
        self._count(np.full(len(tokens), slot), tokens, counts)

    def reserve(self, num_slots: int, max_len: int = 0) -> None:
        """See History.reserve."""
        num_held = len(self.table)
        if num_slots > num_held:
            more = self.table.new_zeros(num_slots - num_held, self._vocab_size)
            self.table = torch.cat((self.table, more))
            self._free.extend(range(num_held, num_slots))

    def _count(self, slots: Ints, token_ids: Ints, counts: Ints) -> None:
        columns = self._staging.to_device_all((slots, token_ids, counts))
        self._launch(
            edit_scores.count_output,
            (-(-len(slots) // _BLOCK),),
            *(self.table, *columns, self._vocab_size, len(slots)),
            BLOCK=_BLOCK,
        )


class TritonEdits:
    """See Edits.

    max_rows: of a step; more are taken, at the cost of an allocation
    """

    def __init__(
        self,
        vocab_size: int,
        device: torch.device,
        max_rows: int,
        *,
        staging: PinnedStaging | None = None,
        launch: Launch = launch,
    ) -> None:
        self._vocab_size = vocab_size
        self._launch = launch
        self.history = UsedTokens(vocab_size, device, staging or PinnedStaging(device), launch)
        self._places = torch.arange(max_rows, device=device)
        self._off = torch.zeros(1, device=device)

    def mask(self, scores: Tensor, masks: DeviceMasks) -> None:
        """See Edits.mask."""
        num_rows, num_words = masks.words.shape
        rows = masks.rows
        if rows is None:
            rows = self._first(num_rows)
        self._run(
            edit_scores.mask_scores,
            self._chunks(scores, num_rows),
            *(scores, masks.words, rows, scores.shape[-1], num_words),
            CHUNK=_CHUNK,
        )

    def add_bias(self, scores: Tensor, bias: Bias) -> None:
        """See Edits.add_bias."""
        num_places = len(bias.rows)
        self._run(
            edit_scores.add_biases,
            (-(-num_places // _BLOCK),),
            *(scores, bias.rows, bias.token_ids, bias.values, scores.shape[-1], num_places),
            BLOCK=_BLOCK,
        )

    def penalise(self, scores: Tensor, penalties: Penalties, used_len: int) -> None:
        """See Edits.penalise."""
        num_rows = len(penalties.rows)
        off = self._off.expand(num_rows)
        presence = off if penalties.presence is None else penalties.presence
        frequency = off if penalties.frequency is None else penalties.frequency
        self._run(
            edit_scores.penalise_used,
            self._chunks(scores, num_rows),
            *(scores, self.history.table, penalties.rows, penalties.slots, penalties.repetition),
            *(presence, frequency, scores.shape[-1], self._vocab_size),
            *(presence.stride(0), frequency.stride(0)),
            CHUNK=_CHUNK,
        )

    def _run(self, kernel: Any, grid: tuple[int, ...], *arguments: Any, **constants: Any) -> None:
        # A fused multiplication and addition rounds once where torch rounds twice.
        self._launch(kernel, grid, *arguments, enable_fp_fusion=False, **constants)

    @staticmethod
    def _chunks(scores: Tensor, num_rows: int) -> tuple[int, int]:
        return -(-scores.shape[-1] // _CHUNK), num_rows

    def _first(self, num_rows: int) -> Tensor:
        """The places of all rows of a step."""
        if num_rows > len(self._places):
            self._places = torch.arange(num_rows, device=self._places.device)
        return self._places[:num_rows]
