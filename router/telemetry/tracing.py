"""Traces: what the router tells of a request while it serves it, and to whom.

    request span                         RequestValidator begins it, Access ends it
      validate                           RequestValidator
      queue, inference                   StepObserver, once for each sequence
        the shards' prefill and decode   through the metadata of the step that admits a sequence

The classes here tell nobody: they are what runs without --otlp-endpoint, and what callers program
against. Those that do tell are in `otlp.py`, which is loaded only when it is asked for, since it
needs packages that an installation may lack.
"""

import importlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from router.request.errors import StartupFailed

# Of the metadata of a step, once for each new request: its id in the shards, its traceparent and,
# if there is one, its tracestate.
TRACE_KEY = "tandem-trace"

Metadata = Sequence[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class TraceContext:
    """A recorded span as its children, here and in the shards, name their parent (W3C)."""

    trace_id: str
    span_id: str
    state: str = ""

    @property
    def traceparent(self) -> str:
        """The header's text."""
        return f"00-{self.trace_id}-{self.span_id}-01"


@dataclass(frozen=True, slots=True)
class SequenceLife:
    """One sequence when it has ended; times in seconds of time.monotonic.

    `first_scheduled_s` and `first_token_s` None: it did not come so far. Exactly one of
    `finish_reason` and `error` is there. The last two are None without a constraint.
    """

    request_id: int
    context: TraceContext
    submitted_s: float
    first_scheduled_s: float | None
    first_token_s: float | None
    num_cached_tokens: int
    num_generated_tokens: int
    finish_reason: str | None
    error: Exception | None
    constraint_kind: str | None = None
    constraint_satisfied: bool | None = None


class RequestSpan:
    """The span of one HTTP request. `context` None: it is not recorded.

    `trace_id` is what log lines tell, recorded or not; None: nobody traces.
    """

    def __init__(self, trace_id: str | None = None, context: TraceContext | None = None) -> None:
        self.trace_id = trace_id
        self.context = context

    def validated(self, duration_s: float, error: Exception | None = None) -> None:
        """A validation that took so long ended now, with `error` in vain."""

    def end(self, told: Mapping[str, object] = MappingProxyType({})) -> None:
        """The answer is out; `told` is what the log line tells."""


class Tracer:
    """Where spans begin. `request_id` is a sequence's in the shards."""

    def request(
        self, method: str, route: str, headers: Iterable[tuple[bytes, bytes]], started_s: float
    ) -> RequestSpan:
        """Begins the span of a request received at `started_s` (time.monotonic).

        A `traceparent` in the headers is its parent, and decides whether it is recorded.
        """
        return _NO_SPAN

    def admitted(
        self, request_id: int, context: TraceContext, step_id: int, elapsed_s: float
    ) -> None:
        """A sequence got into a step, `elapsed_s` ago; not for the first time if preempted."""

    def step_metadata(self, request_ids: Iterable[int]) -> Metadata | None:
        """What the shards are told with a step that brings them these sequences."""
        return None

    def ended(self, life: SequenceLife) -> None:
        """A sequence of a recorded request ended."""

    def close(self) -> None:
        """Sends what is left, for a few seconds at most."""


_NO_SPAN = RequestSpan()
NO_TRACES = Tracer()


def start_tracing(endpoint: str | None, service_name: str) -> Tracer:
    """The tracer for --otlp-endpoint. Raises StartupFailed without the packages that it needs."""
    if endpoint is None:
        return NO_TRACES
    try:
        otlp = importlib.import_module("router.telemetry.otlp")
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("opentelemetry"):
            raise
        raise StartupFailed(
            f"--otlp-endpoint {endpoint}: {error.name} is not installed; it comes with the extra "
            "otlp: pip install 'tandem[otlp]'"
        ) from error
    tracer = otlp.connect(endpoint, service_name)
    assert isinstance(tracer, Tracer)
    return tracer
