"""A step's results, gathered on the device, brought to the host in one transfer and unpacked there.

    one vector:  | tokens | logprobs | short | raw logprobs | alternatives of each group ... |
                   n        n          n       num_raw        2 * rows * count

Every number travels as float64, which holds token ids and float32 exactly.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from model_server.sampling.choosing import Choice, TopLogprobs, best_of, take
from model_server.sampling.logprobs import pad_rows
from model_server.sampling.plan import RawRows, SamplingPlan, Top
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


def gather_outcome(plan: SamplingPlan, choices: Sequence[Choice], logits: Tensor) -> Outcome:
    """The step's results in the order of its rows. This is the only wait for the device."""
    tokens = _merge(plan, [choice.tokens for choice in choices])
    parts = [
        tokens.double(),
        _merge(plan, [choice.logprobs for choice in choices]),
        _merge(plan, [choice.short for choice in choices]).double(),
    ]
    tops = [choice.tops for choice in choices if choice.tops is not None]
    if plan.raw is not None:
        raw_logprobs, raw_tops = _score_raw(plan.raw, logits, tokens)
        parts.append(raw_logprobs.double())
        tops += raw_tops
    for found in tops:
        parts += [found.token_ids.flatten().double(), found.logprobs.flatten().double()]
    bounds = pairwise(accumulate((len(part) for part in parts), initial=0))
    vector = torch.cat(parts).cpu().numpy()
    values = [vector[start:stop] for start, stop in bounds]
    outcome = Outcome(
        tokens=values[0].astype(np.int64),
        logprobs=values[1],
        failed=np.isnan(values[1]),
        short=values[2] > 0.0,
        tops={},
    )
    rest = values[3:]
    if plan.raw is not None:
        outcome.logprobs[plan.raw.places] = rest.pop(0)
    for index, found in enumerate(tops):
        shape = found.token_ids.shape
        ids, logprobs = rest[2 * index].reshape(shape), rest[2 * index + 1].reshape(shape)
        _unpack(outcome, found.top, ids, logprobs)
    return outcome


def _merge(plan: SamplingPlan, columns: Sequence[Tensor]) -> Tensor:
    merged = columns[0] if len(columns) == 1 else torch.cat(list(columns))
    return merged if plan.order is None else merged[plan.order]


def _score_raw(raw: RawRows, logits: Tensor, tokens: Tensor) -> tuple[Tensor, list[TopLogprobs]]:
    """The model's own log-probabilities of the chosen tokens, and of the most likely ones."""
    scored = torch.log_softmax(take(logits, raw.rows), -1, dtype=torch.float32)
    chosen = scored.gather(-1, take(tokens, raw.rows).unsqueeze(-1)).squeeze(-1)
    if raw.top is None:
        return chosen, []
    return chosen, [best_of(pad_rows(take(scored, raw.top.rows)), raw.top)]


def _unpack(outcome: Outcome, top: Top, token_ids: Floats, logprobs: Floats) -> None:
    columns = (top.places.tolist(), top.counts, token_ids.astype(np.int64).tolist())
    for place, count, ids, values in zip(*columns, logprobs.tolist(), strict=True):
        outcome.tops[place] = tuple(map(TopToken, ids[:count], values[:count]))
