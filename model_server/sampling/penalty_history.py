"""The tokens that penalised sequences have used, kept on the device.

    tokens[slot]:  | prompt | output | filled up with the first token: a repeat changes nothing |
    counts[slot]:  how often each token of the vocabulary is in the output

Sequences without a penalty have no slot. The sampler is its only mutator.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from model_server.errors import InvalidStep
from model_server.staging import PinnedStaging

_MIN_SLOTS = 4
_MIN_LEN = 256

Ints = npt.NDArray[np.int64]


def known_tokens(token_ids: Ints, vocab_size: int) -> Ints:
    """Those that the model can produce. Raises InvalidStep if there is none."""
    known: Ints = token_ids[token_ids < vocab_size]
    if len(known) == 0:
        raise InvalidStep(f"a penalty needs a token below vocab_size {vocab_size} to begin with")
    return known


class PenaltyHistory:
    """Tables that grow by doubling: slots as requests come, length as sequences grow."""

    def __init__(self, vocab_size: int, device: torch.device, staging: PinnedStaging) -> None:
        self._vocab_size = vocab_size
        self._staging = staging
        self._tokens = torch.zeros((0, _MIN_LEN), dtype=torch.int64, device=device)
        self._counts = torch.zeros((0, vocab_size), dtype=torch.float32, device=device)
        self._free: list[int] = []

    def open(self, token_ids: Sequence[int], prompt_len: int) -> int:
        """A slot that holds these tokens, of which those from prompt_len on are output.

        Tokens that the model embeds but cannot produce are replaced by the first that it can.
        Raises InvalidStep if there is none.
        """
        tokens = np.asarray(token_ids, dtype=np.int64)
        known = known_tokens(tokens, self._vocab_size)
        if not self._free:
            self._grow_slots(max(2 * len(self._tokens), _MIN_SLOTS))
        self._grow_len(len(tokens))
        slot = self._free.pop()
        used = np.where(tokens < self._vocab_size, tokens, known[0])
        output = tokens[prompt_len:]
        counts = np.bincount(output[output < self._vocab_size], minlength=self._vocab_size)
        row, row_counts = self._staging.to_device_all((used, counts.astype(np.float32)))
        self._tokens[slot].fill_(int(known[0]))
        self._tokens[slot, : len(tokens)] = row
        self._counts[slot] = row_counts
        return slot

    def close(self, slot: int) -> None:
        """Release a slot."""
        self._free.append(slot)

    def append(self, slots: Ints, positions: Ints, token_ids: Ints) -> None:
        """One output token for each of the slots, at its index in the sequence."""
        self._grow_len(int(positions.max()) + 1)
        at_slot, at_position, tokens = self._staging.to_device_all((slots, positions, token_ids))
        self._tokens[at_slot, at_position] = tokens
        self._counts[at_slot, tokens] += 1.0

    def extend(self, slot: int, position: int, token_ids: Sequence[int]) -> None:
        """Output tokens of one slot, from this index of the sequence on."""
        end = position + len(token_ids)
        self._grow_len(end)
        tokens = np.asarray(token_ids, dtype=np.int64)
        row, used, counts = self._staging.to_device_all(
            (tokens, *np.unique(tokens, return_counts=True))
        )
        self._tokens[slot, position:end] = row
        self._counts[slot, used] += counts

    def tokens(self, slots: Tensor, used_len: int) -> Tensor:
        """[num_slots, used_len]; used_len: of the longest of these sequences."""
        return self._tokens[slots, :used_len]

    def counts(self, slots: Tensor, tokens: Tensor) -> Tensor:
        """How often each of `tokens` [num_slots, len] is in the output, as float32."""
        return self._counts[slots.unsqueeze(-1), tokens]

    def reserve(self, num_slots: int, max_len: int) -> None:
        """Hold memory for so many slots, of sequences of up to so many tokens."""
        self._grow_len(max_len)
        self._grow_slots(num_slots)

    def _grow_slots(self, wanted: int) -> None:
        num_slots = len(self._tokens)
        num_new = wanted - num_slots
        if num_new <= 0:
            return
        self._tokens = torch.cat((self._tokens, self._tokens.new_zeros(num_new, self.max_len)))
        counts = self._counts.new_zeros(num_new, self._counts.shape[1])
        self._counts = torch.cat((self._counts, counts))
        self._free.extend(range(num_slots, wanted))

    def _grow_len(self, used_len: int) -> None:
        if used_len <= self.max_len:
            return
        more = max(used_len, 2 * self.max_len) - self.max_len
        first = self._tokens[:, :1].expand(-1, more)
        self._tokens = torch.cat((self._tokens, first), dim=1)

    @property
    def num_slots(self) -> int:
        """Slots that there are before the tables grow."""
        return len(self._tokens)

    @property
    def max_len(self) -> int:
        """Tokens that a slot can hold before the table grows."""
        return self._tokens.shape[1]
