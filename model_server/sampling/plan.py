"""The sampling plan of a step: its rows in groups, with their parameters on the device.

    rows of the step:   0 1 2 3 4 5
    groups:             greedy: 0 3    plain: 1    filtered, 64 candidates: 2 4 5
    merged:             0 3 1 2 4 5  -> order -> 0 1 2 3 4 5

It is made from the sampler's table: a row of parameters and positions for each request, on the
host. All that decides a step's work is in the table, so that no step reads from the device; the
sampler is its only mutator.

A decode step's rows are mostly those of the step before, so a plan outlives its step. It depends on
parameters alone and knows no scores; it goes stale when the rows change, when a row reaches its
minimum length, and when other rows of the step have a mask.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto

import numpy as np
import numpy.typing as npt
from torch import Tensor

from model_server.errors import InvalidStep
from model_server.sampling.filters import Filters, uniforms
from model_server.staging import PinnedStaging
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


Mask = npt.NDArray[np.bool_]


# Candidates searched for a row. NARROW holds a top-k of up to _MAX_NARROW_TOP_K with some equal
# scores at its end; WIDE holds the .95 of nearly every step of a trained model. A vocabulary not
# much larger is searched as a whole, and so is a row whose top-k would not fit.
NARROW = 64


WIDE = 1024


_MAX_NARROW_TOP_K = 56


_MAX_WIDE_TOP_K = 896


class Kind(Enum):
    """How a group's tokens are chosen."""

    GREEDY = auto()
    PLAIN = auto()  # drawn from all tokens
    PREFIX = auto()  # drawn after top-k, top-p or min-p, and typical decoding if asked for
    TYPICAL = auto()  # drawn after typical decoding alone


@dataclass(frozen=True, slots=True, eq=False)
class Top:
    """Rows that report alternatives to their token, and how many."""

    places: Rows  # in the step
    rows: Tensor | None  # [num_top_rows] of the group; None: all of it
    counts: tuple[int, ...]

    @property
    def max_count(self) -> int:
        """The number that is computed for every row."""
        return max(self.counts)


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """Rows of one step with the same kind of sampling."""

    kind: Kind
    places: Rows  # in the step
    rows: Tensor | None  # the same, on the device; None: all rows of the step
    temperature: Tensor  # [n, 1] float32
    filters: Filters
    num_candidates: int
    top: Top | None  # of warped log-probabilities


@dataclass(frozen=True, slots=True, eq=False)
class Bias:
    """Sparse additions to scores; each [num_places]."""

    rows: Tensor
    token_ids: Tensor
    values: Tensor


@dataclass(frozen=True, slots=True, eq=False)
class Watermarked:
    """Rows with a watermark, each [n]; `rows_on_host` are of the table."""

    rows_on_host: Rows
    places: Rows
    rows: Tensor


@dataclass(frozen=True, slots=True, eq=False)
class Penalties:
    """Rows with a penalty; the tensors are [n] but for `rows_on_host`, rows of the table."""

    rows_on_host: Rows
    places: Rows
    rows: Tensor
    slots: Tensor
    repetition: Tensor
    presence: Tensor | None
    frequency: Tensor | None


@dataclass(frozen=True, slots=True, eq=False)
class RawRows:
    """Rows whose reported log-probabilities are the model's own and differ from the warped ones."""

    places: Rows
    rows: Tensor | None  # the same, on the device; None: all rows of the step
    top: Top | None


@dataclass(frozen=True, slots=True, eq=False)
class Edited:
    """Rows whose scores are not the model's logits before anything is filtered."""

    rows: Tensor | None  # in the step; None: there are none
    is_most: bool  # of the step


@dataclass(frozen=True, slots=True, eq=False)
class SamplingPlan:
    """A step's work."""

    rows: Rows  # of the table
    may_not_end: Mask
    edited: Edited
    watermarked: Watermarked | None
    bias: Bias | None
    penalties: Penalties | None
    groups: tuple[Group, ...]
    order: Tensor | None  # [num_rows]: row i of the step is element order[i] of the merged groups
    raw: RawRows | None

    @property
    def is_drawn(self) -> bool:
        """Whether some row needs a random number."""
        return any(group.kind is not Kind.GREEDY for group in self.groups)


class SamplingPlanner:
    """Makes plans from the table's rows.

    by_torch: whether torch chooses for all groups. If not, those rows that are left to torch (with
    typical decoding, or alternatives to report) are in groups of their own.
    """

    def __init__(
        self, rows: SamplingRows, staging: PinnedStaging, width: int, *, by_torch: bool
    ) -> None:
        self._rows = rows
        self._staging = staging
        self._width = width
        self._by_torch = by_torch

    def plan(
        self, rows: Rows, *, masked: Rows | None = None, complete: bool = False
    ) -> SamplingPlan:
        """The plan for these rows of the table.

        masked: rows of the step that have a mask. complete: candidates are the whole vocabulary.
        """
        table = self._rows.table[rows]
        may_not_end = self._rows.may_not_end(rows)
        biased = table["has_bias"] | may_not_end
        edited = biased | table["is_watermarked"] | table["is_penalised"]
        if masked is not None:
            edited[masked] = True
        changed = edited | self._is_warped(table)
        raw = table["raw"] & changed
        groups = tuple(self._groups(table, ~raw, complete))
        merged = np.concatenate([group.places for group in groups])
        in_order = bool((merged == np.arange(len(rows))).all())
        return SamplingPlan(
            rows=rows,
            may_not_end=may_not_end,
            edited=self._edited(np.flatnonzero(edited), len(rows)),
            watermarked=self._watermarked(rows, np.flatnonzero(table["is_watermarked"])),
            bias=self._bias(rows, np.flatnonzero(biased)),
            penalties=self._penalties(rows, table),
            groups=groups,
            order=None if in_order else self._to_device(np.argsort(merged)),
            raw=self._raw(table, np.flatnonzero(raw)),
        )

    def _groups(self, table: npt.NDArray[np.void], warped: Mask, complete: bool) -> Iterator[Group]:
        has_prefix = (table["top_k"] > 0) | (table["top_p"] < 1.0) | (table["min_p"] > 0.0)
        is_typical = table["typical_p"] < 1.0
        sampled = table["do_sample"]
        is_filtered = sampled & (has_prefix | is_typical)
        left_to_torch = np.ones(len(table), dtype=np.bool_)
        if not self._by_torch:
            left_to_torch = (is_filtered & is_typical) | (warped & (table["num_top_tokens"] > 0))
        num_candidates = np.where(
            is_filtered & left_to_torch, self._num_candidates(table, complete), self._width
        )
        for kind, members in (
            (Kind.GREEDY, ~sampled),
            (Kind.PLAIN, sampled & ~is_filtered),
            (Kind.PREFIX, sampled & has_prefix),
            (Kind.TYPICAL, is_filtered & ~has_prefix),
        ):
            for some in (members & ~left_to_torch, members & left_to_torch):
                for count in np.unique(num_candidates[some]):
                    places = np.flatnonzero(some & (num_candidates == count))
                    yield self._group(kind, table, places, warped, int(count))

    def _num_candidates(self, table: npt.NDArray[np.void], complete: bool) -> Rows:
        top_k = table["top_k"]
        is_narrow = (top_k > 0) & (top_k <= _MAX_NARROW_TOP_K)
        count = np.where(is_narrow, NARROW, np.where(top_k <= _MAX_WIDE_TOP_K, WIDE, self._width))
        return np.where((count * 2 > self._width) | complete, self._width, count)

    def _group(
        self,
        kind: Kind,
        table: npt.NDArray[np.void],
        places: Rows,
        warped: Mask,
        num_candidates: int,
    ) -> Group:
        members = table[places]
        filters = Filters()
        if kind in (Kind.PREFIX, Kind.TYPICAL):
            has_top_p = members["top_p"] < 1.0
            has_top_k = members["top_k"] > 0
            filters = Filters(
                top_k=self._column(members, "top_k", has_top_k),
                nucleus=self._column(members, "nucleus", has_top_p),
                top_p_of_all=bool((has_top_p & ~has_top_k).any()),
                min_p=self._column(members, "min_p", members["min_p"] > 0.0),
                typical_p=self._column(members, "typical_p", members["typical_p"] < 1.0),
            )
        return Group(
            kind=kind,
            places=places,
            rows=self._unless_all(places, len(table)),
            temperature=self._to_device(members["temperature"]).unsqueeze(-1),
            filters=filters,
            num_candidates=num_candidates,
            top=self._top(places, members, warped[places]),
        )

    def _edited(self, places: Rows, num_rows: int) -> Edited:
        # A row is copied twice to be edited in place, and the whole step once to be edited apart.
        rows = self._to_device(places) if len(places) else None
        return Edited(rows, 2 * len(places) > num_rows)

    def _top(self, places: Rows, members: npt.NDArray[np.void], wanted: Mask) -> Top | None:
        within = np.flatnonzero((members["num_top_tokens"] > 0) & wanted)
        if len(within) == 0:
            return None
        counts = tuple(members["num_top_tokens"][within].tolist())
        return Top(places[within], self._unless_all(within, len(members)), counts)

    def _raw(self, table: npt.NDArray[np.void], places: Rows) -> RawRows | None:
        if len(places) == 0:
            return None
        members = table[places]
        top = self._top(places, members, np.ones(len(places), dtype=np.bool_))
        return RawRows(places, self._unless_all(places, len(table)), top)

    def _bias(self, rows: Rows, places: Rows) -> Bias | None:
        if len(places) == 0:
            return None
        additions = [self._rows.additions(row) for row in rows[places].tolist()]
        counts = [len(token_ids) for token_ids, _ in additions]
        if not any(counts):
            return None
        return Bias(
            self._to_device(np.repeat(places, counts)),
            self._to_device(np.concatenate([token_ids for token_ids, _ in additions])),
            self._to_device(np.concatenate([values for _, values in additions])),
        )

    def _watermarked(self, rows: Rows, places: Rows) -> Watermarked | None:
        if len(places) == 0:
            return None
        return Watermarked(rows[places], places, self._to_device(places))

    def _penalties(self, rows: Rows, table: npt.NDArray[np.void]) -> Penalties | None:
        places = np.flatnonzero(table["is_penalised"])
        if len(places) == 0:
            return None
        members = table[places]
        counted = (members["presence"] != 0.0) | (members["frequency"] != 0.0)
        return Penalties(
            rows_on_host=rows[places],
            places=places,
            rows=self._to_device(places),
            slots=self._to_device(members["slot"]),
            repetition=self._to_device(members["repetition"]),
            presence=self._column(members, "presence", counted),
            frequency=self._column(members, "frequency", counted),
        )

    @staticmethod
    def _is_warped(table: npt.NDArray[np.void]) -> Mask:
        filtered = (
            (table["top_k"] > 0)
            | (table["top_p"] < 1.0)
            | (table["min_p"] > 0.0)
            | (table["typical_p"] < 1.0)
        )
        is_warped: Mask = table["do_sample"] & (filtered | (table["temperature"] != 1.0))
        return is_warped

    def _column(self, table: npt.NDArray[np.void], name: str, has: Mask) -> Tensor | None:
        return self._to_device(table[name]) if has.any() else None

    def _unless_all(self, rows: Rows, num_rows: int) -> Tensor | None:
        return None if len(rows) == num_rows else self._to_device(rows)

    def _to_device(self, values: npt.NDArray[np.generic]) -> Tensor:
        return self._staging.to_device(values)
