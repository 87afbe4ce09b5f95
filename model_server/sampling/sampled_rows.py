"""What a step's rows sampled, and rows that are being sampled."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from torch import Tensor

from model_server.sampling.outcome import ArrivingOutcome
from proto.contract import TopToken


@dataclass(frozen=True, slots=True)
class SampledRows:
    """The tokens that a step's rows sampled, in the order of the call.

    errors: row index -> reason. Such a row has drawn nothing: its token id is 0, its logprob NaN,
    and it has no top tokens.
    """

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    top_tokens: tuple[tuple[TopToken, ...], ...]
    errors: Mapping[int, str]


@dataclass(frozen=True, slots=True, eq=False)
class LaunchedSample:
    """Rows that are being sampled.

    tokens:   [num_rows] int64, on the device; None: they may change, or what follows depends on
              more than them
    _collect: the sampler's, of this
    """

    arriving: ArrivingOutcome
    logits: Tensor
    tokens: Tensor | None
    _collect: Callable[["LaunchedSample"], SampledRows]

    @property
    def is_ready(self) -> bool:
        """Whether `collect` does not wait for the device."""
        return self.arriving.has_arrived

    def collect(self) -> SampledRows:
        """Wait for the results; once."""
        return self._collect(self)
