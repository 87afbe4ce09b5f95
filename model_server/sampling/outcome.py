"""What a step sampled, on its way from the device: one transfer for all rows."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from model_server.sampling.choosing import Choice, TopLogprobs, best_of, pad_rows, take
from model_server.sampling.plan import RawRows, SamplingPlan, Top
from model_server.staging import Arrival, PinnedStaging
from proto.contract import TopToken

Floats = npt.NDArray[np.float64]


@dataclass(slots=True, eq=False)
class Outcome:
    """Results by row of the step. Rows whose candidates did not suffice are overwritten later."""

    tokens: npt.NDArray[np.int64]
    logprobs: Floats
    failed: npt.NDArray[np.bool_]
    short: npt.NDArray[np.bool_]
    tops: dict[int, tuple[TopToken, ...]]

    def overwrite(self, rows: npt.NDArray[np.int64], other: "Outcome") -> None:
        """Row i of `other` is row rows[i] of this one."""
        self.tokens[rows] = other.tokens
        self.logprobs[rows] = other.logprobs
        self.failed[rows] = other.failed
        self.short[rows] = other.short
        self.tops |= {int(rows[row]): tokens for row, tokens in other.tops.items()}


@dataclass(frozen=True, slots=True, eq=False)
class ArrivingOutcome:
    """The results of a step's rows, in their order, while the device may compute them still.

    tokens:       [num_rows] int64, on the device
    may_be_short: whether the candidates of some row may turn out not to suffice
    """

    plan: SamplingPlan
    tokens: Tensor
    may_be_short: bool
    _parts: tuple[Tensor, ...]
    _tops: tuple[TopLogprobs, ...]
    _arrival: Arrival | None  # None: the parts are on the host

    @classmethod
    def begin(
        cls,
        plan: SamplingPlan,
        choices: Sequence[Choice],
        logits: Tensor,
        staging: PinnedStaging,
    ) -> "ArrivingOutcome":
        """Begin to copy what was chosen, group by group."""
        tokens = _merge(plan, [choice.tokens for choice in choices])
        parts = [tokens, _merge(plan, [choice.logprobs for choice in choices])]
        may_be_short = any(choice.short is not None for choice in choices)
        if may_be_short:
            parts.append(_merge(plan, [_short(choice) for choice in choices]))
        tops = [choice.tops for choice in choices if choice.tops is not None]
        if plan.raw is not None:
            raw_logprobs, raw_tops = _score_raw(plan.raw, logits, tokens)
            parts.append(raw_logprobs)
            tops += raw_tops
        for found in tops:
            parts += [found.token_ids, found.logprobs]
        arrival = None
        if tokens.device.type != "cpu":
            arrival = staging.to_host(torch.cat([part.flatten().double() for part in parts]))
        return cls(plan, tokens, may_be_short, tuple(parts), tuple(tops), arrival)

    @property
    def has_arrived(self) -> bool:
        """Whether `wait` returns at once."""
        return self._arrival is None or self._arrival.has_arrived

    def wait(self) -> Outcome:
        """The results. This is the only wait for the device."""
        values = self._on_host()
        rest = values[2:]
        short = rest.pop(0) if self.may_be_short else np.zeros(len(values[0]), dtype=np.bool_)
        outcome = Outcome(
            tokens=values[0].astype(np.int64, copy=False),
            logprobs=values[1],
            failed=np.isnan(values[1]),
            short=short.astype(np.bool_, copy=False),
            tops={},
        )
        raw = self.plan.raw
        if raw is not None:
            outcome.logprobs[raw.places] = rest.pop(0)
        for index, found in enumerate(self._tops):
            _unpack(outcome, found.top, rest[2 * index], rest[2 * index + 1])
        return outcome

    def _on_host(self) -> list[npt.NDArray[Any]]:
        """The parts, which travel as one vector of float64."""
        if self._arrival is None:
            return [part.numpy() for part in self._parts]
        bounds = pairwise(accumulate((part.numel() for part in self._parts), initial=0))
        vector = self._arrival.array()
        return [
            vector[start:stop].reshape(part.shape)
            for (start, stop), part in zip(bounds, self._parts, strict=True)
        ]


def _short(choice: Choice) -> Tensor:
    if choice.short is not None:
        return choice.short
    return torch.zeros_like(choice.tokens, dtype=torch.bool)


def _merge(plan: SamplingPlan, columns: Sequence[Tensor]) -> Tensor:
    merged = columns[0] if len(columns) == 1 else torch.cat(list(columns))
    return take(merged, plan.order)


def _score_raw(raw: RawRows, logits: Tensor, tokens: Tensor) -> tuple[Tensor, list[TopLogprobs]]:
    """The model's own log-probabilities of the chosen tokens, and of the most likely ones."""
    scored = torch.log_softmax(take(logits, raw.rows), -1, dtype=torch.float32)
    chosen = scored.gather(-1, take(tokens, raw.rows).unsqueeze(-1)).squeeze(-1)
    if raw.top is None:
        return chosen, []
    return chosen, [best_of(pad_rows(take(scored, raw.top.rows)), raw.top)]


def _unpack(
    outcome: Outcome, top: Top, token_ids: npt.NDArray[Any], logprobs: npt.NDArray[Any]
) -> None:
    columns = (top.places.tolist(), top.counts, token_ids.astype(np.int64).tolist())
    for place, count, ids, values in zip(*columns, logprobs.tolist(), strict=True):
        outcome.tops[place] = tuple(map(TopToken, ids[:count], values[:count]))
