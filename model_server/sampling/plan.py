"""The sampling plan of a step: its rows in groups, with their parameters on the device.

A decode step's rows are mostly those of the step before, so a plan outlives its step. It depends on
parameters alone and knows no scores; it goes stale when the rows change, when a row reaches its
minimum length, and when other rows of the step have a mask.

    rows of the step:   0 1 2 3 4 5
    groups:             greedy: 0 3    plain: 1    filtered, 64 candidates: 2 4 5
    merged:             0 3 1 2 4 5  -> order -> 0 1 2 3 4 5
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, auto

import numpy as np
import numpy.typing as npt
from torch import Tensor

from model_server.sampling.filters import Filters
from model_server.sampling.rows import Rows, SamplingRows
from model_server.staging import PinnedStaging

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
            has_top_p, has_top_k = members["top_p"] < 1.0, members["top_k"] > 0
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
