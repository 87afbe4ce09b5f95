"""The sampler's table: a row of parameters and positions for each request, on the host.

It has no tensors and no scores. All that decides a step's work is here, so that no step reads from
the device. Rows are reused; the table doubles when it is full. The sampler is its only mutator.
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from model_server.errors import InvalidStep
from model_server.sampling.draw import uniforms
from proto.contract import LogprobParams, SamplingParams, StopParams

# A token that is sampled again draws at another position, out of reach of any sequence.
_REDRAW_SHIFT = np.uint64(48)

# Draws are computed for so many positions of a row at once: Philox costs the same for 1 and for 64.
_WINDOW_LEN = 64

_MAX_FLOAT = float(np.finfo(np.float32).max)

ROW = np.dtype(
    [
        ("do_sample", np.bool_),
        ("temperature", np.float32),
        ("top_k", np.int64),  # 0: off
        ("top_p", np.float64),  # 1: off
        ("nucleus", np.float64),  # of top_p, see nucleus_share
        ("typical_p", np.float64),  # 1: off
        ("min_p", np.float32),  # 0: off
        ("repetition", np.float32),
        ("presence", np.float32),
        ("frequency", np.float32),
        ("has_bias", np.bool_),
        ("seed", np.uint64),
        ("position", np.int64),  # of the next token in the sequence
        ("min_len", np.int64),  # until then the sequence may not end
        ("num_top_tokens", np.int64),
        ("raw", np.bool_),
        ("is_penalised", np.bool_),
        ("slot", np.int64),  # in the penalty history, if it is penalised
        ("is_watermarked", np.bool_),
        ("previous_token", np.int64),  # the one before position, if it is watermarked
        ("window", np.int64),  # number of the row's window of draws
    ],
    align=True,
)

Rows = npt.NDArray[np.int64]
# Token ids and what is added to their scores, one for each.
Additions = tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]


class SamplingRows:
    """The table, and the row of each request."""

    def __init__(self, vocab_size: int, eos_token_ids: tuple[int, ...], max_rows: int) -> None:
        self._vocab_size = vocab_size
        self._eos_token_ids = eos_token_ids
        self.table = np.zeros(max(max_rows, 1), dtype=ROW)
        self._draws = np.zeros((len(self.table), _WINDOW_LEN))
        self._free = list(range(len(self.table) - 1, -1, -1))
        self._row_of: dict[int, int] = {}
        self._bias: dict[int, Additions] = {}
        self._end_token_ids: dict[int, tuple[int, ...]] = {}
        # Grows with every change of ownership, which makes earlier plans invalid.
        self.version = 0

    def add(
        self,
        request_id: int,
        sampling: SamplingParams,
        stop: StopParams,
        logprobs: LogprobParams,
        num_tokens: int,
        prompt_len: int,
    ) -> int:
        """The new row. Raises InvalidStep for a bias out of range or an id held already."""
        if request_id in self._row_of:
            raise InvalidStep(f"request {request_id} is being sampled already")
        bias = _bias(request_id, sampling.logit_bias, self._vocab_size)
        if not self._free:
            self._grow()
        row = self._free.pop()
        self.table[row] = np.zeros((), dtype=ROW)
        entry = self.table[row : row + 1]
        self._write_sampling(entry, sampling)
        entry["position"] = num_tokens
        entry["min_len"] = prompt_len + stop.min_new_tokens
        entry["num_top_tokens"] = min(logprobs.num_top_tokens, self._vocab_size)
        entry["raw"] = logprobs.raw
        entry["window"] = np.iinfo(np.int64).max
        self._bias[row] = bias
        eos_token_ids = () if stop.ignore_eos else self._eos_token_ids
        endings = dict.fromkeys((*eos_token_ids, *stop.stop_token_ids))
        self._end_token_ids[row] = tuple(i for i in endings if 0 <= i < self._vocab_size)
        self._row_of[request_id] = row
        self.version += 1
        return row

    def remove(self, request_id: int) -> int:
        """The row that is free now. Raises InvalidStep for an unknown id."""
        row = self._row_of.pop(request_id, None)
        if row is None:
            raise InvalidStep(f"request {request_id} is not being sampled")
        del self._bias[row], self._end_token_ids[row]
        self._free.append(row)
        self.version += 1
        return row

    def row_of(self, request_id: int) -> int:
        """Raises InvalidStep for an unknown id."""
        return int(self.rows_of((request_id,))[0])

    def rows_of(self, request_ids: Sequence[int]) -> Rows:
        """Raises InvalidStep for an unknown id."""
        try:
            return np.array([self._row_of[i] for i in request_ids], dtype=np.int64)
        except KeyError as missing:
            raise InvalidStep(f"request {missing.args[0]} is not being sampled") from None

    def additions(self, row: int) -> Additions:
        """The terms to add to this row's scores: its bias, and -inf while it may not end.

        No token comes twice.
        """
        token_ids, values = self._bias[row]
        if self.table["position"][row] >= self.table["min_len"][row]:
            return token_ids, values
        ends = np.array(self._end_token_ids[row], dtype=np.int64)
        impossible = np.full(len(ends), -math.inf, dtype=np.float32)
        others = ~np.isin(token_ids, ends)
        return (
            np.concatenate((token_ids[others], ends)),
            np.concatenate((values[others], impossible)),
        )

    def may_not_end(self, rows: Rows) -> npt.NDArray[np.bool_]:
        """Which of the rows are below their minimum length."""
        return self.table["position"][rows] < self.table["min_len"][rows]

    def uniforms(self, rows: Rows) -> npt.NDArray[np.float64]:
        """The draw of each row's next token, in [0, 1)."""
        window, place = np.divmod(self.table["position"][rows], _WINDOW_LEN)
        stale = rows[self.table["window"][rows] != window]
        if len(stale) > 0:
            self._refill(stale)
        return self._draws[rows, place]

    def redraws(self, rows: Rows, num_refused: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """The draw of each row's next token after `num_refused` were refused, at least one."""
        positions = self.table["position"][rows].astype(np.uint64)
        positions |= num_refused.astype(np.uint64) << _REDRAW_SHIFT
        return uniforms(self.table["seed"][rows], positions)

    def _refill(self, rows: Rows) -> None:
        windows = self.table["position"][rows] // _WINDOW_LEN
        positions = windows[:, None] * _WINDOW_LEN + np.arange(_WINDOW_LEN)
        seeds = self.table["seed"][rows, None]
        self._draws[rows] = uniforms(seeds, positions.astype(np.uint64))
        self.table["window"][rows] = windows

    def _grow(self) -> None:
        num_rows = len(self.table)
        self.table = np.concatenate((self.table, np.zeros_like(self.table)))
        self._draws = np.concatenate((self._draws, np.zeros_like(self._draws)))
        self._free.extend(range(2 * num_rows - 1, num_rows - 1, -1))

    def _write_sampling(self, entry: npt.NDArray[np.void], sampling: SamplingParams) -> None:
        top_k = sampling.top_k or 0
        entry["do_sample"] = sampling.do_sample
        # Scores up to 1e8 stay finite; colder than that, only the best token is left anyway.
        entry["temperature"] = max(sampling.temperature, 1e-30)
        entry["top_k"] = top_k if top_k < self._vocab_size else 0
        entry["top_p"] = 1.0 if sampling.top_p is None else sampling.top_p
        entry["nucleus"] = nucleus_share(entry["top_p"])
        entry["typical_p"] = 1.0 if sampling.typical_p is None else sampling.typical_p
        entry["min_p"] = sampling.min_p or 0.0
        entry["repetition"] = sampling.repetition_penalty
        entry["presence"] = sampling.presence_penalty
        entry["frequency"] = sampling.frequency_penalty
        entry["is_penalised"] = (
            sampling.repetition_penalty != 1.0
            or sampling.presence_penalty != 0.0
            or sampling.frequency_penalty != 0.0
        )
        entry["has_bias"] = len(sampling.logit_bias) > 0
        entry["is_watermarked"] = sampling.watermark
        entry["seed"] = sampling.seed


def _bias(request_id: int, bias: Mapping[int, float], vocab_size: int) -> Additions:
    """A bias as arrays: a mask has as many entries as the vocabulary. Raises InvalidStep."""
    token_ids = np.fromiter(bias, np.int64, len(bias))
    values = np.fromiter(bias.values(), np.float64, len(bias))
    for numbers, rule, holds in (
        (token_ids, f"for tokens 0..{vocab_size - 1}", (token_ids >= 0) & (token_ids < vocab_size)),
        (values, "finite", np.abs(values) <= _MAX_FLOAT),
    ):
        if not holds.all():
            first = numbers[np.argmin(holds)]
            raise InvalidStep(f"request {request_id}: logit_bias {first} must be {rule}")
    return token_ids, values.astype(np.float32)


def nucleus_share(top_p: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """The mass that those above a token must have for top-p to drop it, of a total of 1.

    TopPLogitsWarper drops a token if it and those below sum to no more than 1 - top_p, rounding
    both to float32. That sum rounds to the bound or less as long as it lies below the middle
    between the bound and the next float: so a sum that should meet the bound exactly does.
    """
    bound = (1.0 - top_p).astype(np.float32)
    above = np.nextafter(bound, np.float32(np.inf))
    return 1.0 - (bound.astype(np.float64) + above.astype(np.float64)) / 2.0
