"""Traces: what a shard tells of its steps for the requests that the router traces.

The step that brings a traced sequence names, in its metadata, the router's span that waits for it.
Each chunk of its prompt is a `prefill` span below that, and all its further steps together are one
`decode` span: a span for each token would cost more than it tells.

`StepTracer` tells nobody, and is what runs without --otlp-endpoint; the one that does is in
`otlp.py`, which is loaded only when it is asked for, since it needs packages that an installation
may lack.
"""

import importlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from model_server.engine.step import StepOutput
from model_server.errors import ConfigRefused
from proto.contract import NewSequence, RunningUpdate

# "<request id> <traceparent>[ <tracestate>]", once for each traced sequence of a Prefill.
TRACE_KEY = "tandem-trace"

Metadata = Iterable[tuple[str, str | bytes]]


@dataclass(frozen=True, slots=True)
class StepCall:
    """A Prefill or Decode, as a tracer wants to know it; `batch_ids` become one, the first."""

    batch_ids: tuple[int, ...]
    new: tuple[NewSequence, ...]
    updates: Sequence[RunningUpdate]
    metadata: Metadata | None = None


class StepTracer:
    """Told of everything that moves sequences, between two steps of the device's thread."""

    def stepped(self, call: StepCall, output: StepOutput) -> None:
        """A step was computed, just now."""

    def failed(self, call: StepCall, duration_ns: int, error: Exception) -> None:
        """A step was not."""

    def filtered(self, batch_id: int, kept_ids: Sequence[int]) -> None:
        """A batch lost all its other sequences."""

    def cleared(self, batch_id: int | None) -> None:
        """A batch, or all, were forgotten."""

    def close(self) -> None:
        """Sends what is left, for a few seconds at most."""


NO_TRACES = StepTracer()


def start_tracing(endpoint: str | None, service_name: str, rank: int) -> StepTracer:
    """The tracer for --otlp-endpoint. Raises ConfigRefused without the packages that it needs."""
    if endpoint is None:
        return NO_TRACES
    try:
        otlp = importlib.import_module("model_server.otlp")
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("opentelemetry"):
            raise
        raise ConfigRefused(
            f"--otlp-endpoint {endpoint}: {error.name} is not installed; it comes with the extra "
            "otlp: pip install 'tandem[otlp]'"
        ) from error
    tracer = otlp.connect(endpoint, service_name, rank)
    assert isinstance(tracer, StepTracer)
    return tracer
