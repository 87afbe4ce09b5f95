"""Changes of a step's scores before anything is filtered.

    scores -> watermark -> masks -> biases -> penalties
                                                  ^
                                    history: the tokens that each penalised sequence has used

They work in place on float32 scores [num_rows, width], width >= vocab_size, whatever lies beyond
the vocabulary being -inf. Only the rows named are changed, so a step pays for the rows that need an
edit and not for the others. They know rows and token ids, not requests.

First comes the watermark, as in TGI; then the order is transformers': bias, repetition penalty,
then the penalties that transformers lacks. Masks may come anywhere, since -inf stays -inf under all
of them; a token is masked by adding -inf, which keeps a NaN or +inf of the model visible (as NaN)
instead of hiding it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from model_server.errors import ConfigRefused, InvalidStep
from model_server.sampling.plan import Bias, Penalties, Rows
from model_server.staging import PinnedStaging

Ints = npt.NDArray[np.int64]


BITS_PER_WORD = 32


@dataclass(slots=True, eq=False)
class Masks:
    """The masks of a step's rows; this class accepts every token that they allow.

    A mask allows tokens one by one; the check of a sampled token may still refuse it, and changes
    the mask of its row before the row samples again. Rows without a mask are not in here.

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
    """Changes scores [num_rows, width] float32 in place."""

    @property
    def history(self) -> History:
        """Of the sequences that have a penalty."""

    def mask(self, scores: Tensor, masks: DeviceMasks) -> None:
        """Allow only the tokens whose bit is set, in the rows that have a mask."""

    def add_bias(self, scores: Tensor, bias: Bias) -> None:
        """Add the terms, of which no two are for one score."""

    def penalise(self, scores: Tensor, penalties: Penalties, used_len: int) -> None:
        """Lower the scores of used tokens; used_len: of the longest penalised sequence."""


_MIN_SLOTS = 4


_MIN_LEN = 256


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


# The default of Kirchenbauer's code, of TGI and of transformers: the millionth prime.
_HASH_KEY = 15_485_863


# Lists that are kept: 16 MiB for a vocabulary of 128 256.
_MAX_LISTS = 1024


# Rows that are written at once, so that what they need on the way stays small. Not above the lists.
_MAX_ROWS = 64


class Watermark:
    """The watermark of Kirchenbauer et al., "A Watermark for Large Language Models", algorithm 2.

        previous token -> seed -> permutation of the vocabulary:  | green: gamma of it | red |
        scores of the green tokens += delta

    Whoever knows gamma can count green tokens later; transformers' WatermarkDetector does, with
    `greenlist_ratio` gamma, `bias` delta and else its defaults (lefthash, one token of context), on
    the device "cpu". As a list depends on one token alone, a watermark is the same in any batch,
    after a preemption, and on every device: permutations are always made by the CPU's generator,
    for CUDA's makes others of the same seed.

    It owns the lists in use: packed, on the device, the least recently used replaced first. Cost
    per row and step, for a vocabulary of 128 256 on one core of a CPU: 0.7 ms to make a list, 0.1
    ms to add one, so that frequent tokens cost the latter alone.

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
