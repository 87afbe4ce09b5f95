"""The watermark of Kirchenbauer et al., "A Watermark for Large Language Models", 2023, algorithm 2.

    previous token -> seed -> permutation of the vocabulary:  | green: gamma of it | red |
    scores of the green tokens += delta

Whoever knows gamma can count green tokens later; transformers' WatermarkDetector does, with
`greenlist_ratio` gamma, `bias` delta and else its defaults (lefthash, one token of context), on the
device "cpu". It knows token ids and scores, no request. As a list depends on one token alone, a
watermark is the same in any batch, after a preemption, and on every device: permutations are always
made by the CPU's generator, for CUDA's makes others of the same seed.

Cost per row and step, for a vocabulary of 128 256 on one core of a CPU: 0.7 ms to make a list, 0.1
ms to add one; lists are kept, packed, so that frequent tokens cost the latter alone.
"""

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from model_server.errors import ConfigRefused
from model_server.sampling.logits_processors import BITS_PER_WORD, spread_bits
from model_server.staging import PinnedStaging

# The default of Kirchenbauer's code, of TGI and of transformers: the millionth prime.
_HASH_KEY = 15_485_863
# Lists that are kept: 16 MiB for a vocabulary of 128 256.
_MAX_LISTS = 1024
# Rows that are written at once, so that what they need on the way stays small. Not above the lists.
_MAX_ROWS = 64


class Watermark:
    """Owner of the lists in use: packed, on the device, the least recently used replaced first.

    Raises ConfigRefused when gamma, above 0 and below 1, leaves no token of this vocabulary green.
    """

    def __init__(self, vocab_size: int, device: torch.device, gamma: float, delta: float) -> None:
        self._vocab_size = vocab_size
        self._num_green = int(vocab_size * gamma)
        if self._num_green < 1:
            raise ConfigRefused(
                f"--watermark-gamma {gamma}: leaves none of the model's {vocab_size} tokens green"
            )
        self._delta_bits = int(np.array(delta, dtype=np.float32).view(np.int32))
        self._staging = PinnedStaging(device)
        self._generator = torch.Generator()
        num_words = -(-vocab_size // BITS_PER_WORD)
        self._lists = torch.empty((_MAX_LISTS, num_words), dtype=torch.int32, device=device)
        # Where the list of a token is, the least recently used first.
        self._slot_of: dict[int, int] = {}

    def apply(self, scores: Tensor, rows: Tensor, previous: npt.NDArray[np.int64]) -> None:
        """Add delta to the tokens that are green after previous[i] in rows[i]; no row comes twice.

        scores: [num_rows, width] float32, changed in place; rows: [n]; previous: [n], on the host
        """
        places = scores[:, : self._lists.shape[1] * BITS_PER_WORD]
        for start in range(0, len(previous), _MAX_ROWS):
            some = slice(start, start + _MAX_ROWS)
            slots = np.array([self._slot(token_id) for token_id in previous[some].tolist()])
            words = self._lists[self._staging.to_device(slots)]
            places.index_add_(0, rows[some], spread_bits(words, self._delta_bits))

    def _slot(self, token_id: int) -> int:
        slot = self._slot_of.pop(token_id, None)
        if slot is None:
            slot = len(self._slot_of)
            if slot == _MAX_LISTS:
                slot = self._slot_of.pop(next(iter(self._slot_of)))
            self._lists[slot] = self._staging.to_device(self._green_after(token_id))
        self._slot_of[token_id] = slot
        return slot

    def _green_after(self, token_id: int) -> npt.NDArray[np.int32]:
        """The list of a token, [num_words] int32: token t is bit t % 32 of word t // 32."""
        self._generator.manual_seed(_HASH_KEY * token_id % (2**64 - 1))
        permutation = torch.randperm(self._vocab_size, generator=self._generator)
        is_green = np.zeros(self._lists.shape[1] * BITS_PER_WORD, dtype=np.bool_)
        is_green[permutation[: self._num_green].numpy()] = True
        return np.packbits(is_green, bitorder="little").view(np.int32)
