"""What a step's rows sampled, and rows that are being sampled."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from torch import Tensor

from model_server.sampling.outcome import ArrivingOutcome
from proto.contract import MaskEffect, TopToken


@dataclass(frozen=True, slots=True)
class SampledRows:
    """The tokens that a step's rows sampled, in the order of the call.

    errors:  row index -> reason. Such a row has drawn nothing: its token id is 0, its logprob NaN,
             and it has no top tokens.
    mask_effects: by row, see `mask_effects`
    redrawn: rows whose token is not the one that was launched, see `LaunchedSample.tokens`
    """

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    top_tokens: tuple[tuple[TopToken, ...], ...]
    errors: Mapping[int, str]
    mask_effects: Mapping[int, MaskEffect] = field(default_factory=dict)
    redrawn: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True, eq=False)
class LaunchedSample:
    """Rows that are being sampled.

    tokens:  [num_rows] int64, on the device: what the rows draw, unless they draw again since their
             constraint refuses it or too few candidates were looked at; of a row that fails any
             number
    collect: waits for the results; to be called once
    """

    tokens: Tensor
    _arriving: ArrivingOutcome
    collect: Callable[[], SampledRows]

    @property
    def is_ready(self) -> bool:
        """Whether `collect` does not wait for the device."""
        return self._arriving.has_arrived
