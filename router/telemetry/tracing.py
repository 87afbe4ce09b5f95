"""The router's spans: one per HTTP request, and below it validation, queue and inference.

    request span                         RequestValidator starts it, Access ends it
      validate                           RequestValidator
      queue, inference                   StepObserver, once for each sequence
        the shards' prefill and decode   through the metadata of the step that admits a sequence

Without --otlp-endpoint there is no exporter, and every method returns at once.
"""

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from processes.spans import (
    Metadata,
    Span,
    SpanExporter,
    SpanKind,
    TraceContext,
    metadata_pair,
    to_ns,
    wall_ns,
)
from processes.tracing import ExporterMissing, connect_exporter
from router.request.errors import Cancelled, StartupFailed

# Shards accept a megabyte of metadata. Sequences beyond this length have no spans in the shards.
_MAX_METADATA_LEN = 256 * 1024
CLOSE_TIMEOUT_S = 3.0

# The log's keys that OpenTelemetry's conventions name otherwise; the others get our prefix.
_ATTRIBUTES: Mapping[str, str] = MappingProxyType(
    {
        "method": "http.request.method",
        "path": "url.path",
        "route": "http.route",
        "status": "http.response.status_code",
        "error_type": "error.type",
        "model": "gen_ai.request.model",
        "num_prompt_tokens": "gen_ai.usage.input_tokens",
        "num_generated_tokens": "gen_ai.usage.output_tokens",
        "finish_reasons": "gen_ai.response.finish_reasons",
    }
)


@dataclass(frozen=True, slots=True)
class SequenceLife:
    """One sequence when it has ended; times in seconds of time.monotonic.

    `first_scheduled_s` and `first_token_s` are None for a sequence that ended before. Exactly one
    of `finish_reason` and `error` is set. The last two are None without a constraint.
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
    """The span of one HTTP request; without an exporter, an empty one."""

    def __init__(self, exporter: SpanExporter | None = None, span: Span | None = None) -> None:
        self._exporter = exporter
        self._span = span

    @property
    def trace_id(self) -> str | None:
        """For the log, also of a span that is not recorded; None without an exporter."""
        return None if self._span is None else self._span.context.trace_id

    @property
    def context(self) -> TraceContext | None:
        """The parent of the sequences' spans; None when it is not recorded."""
        if self._span is None or not self._span.is_recording:
            return None
        return self._span.context

    def validated(self, duration_s: float, error: Exception | None = None) -> None:
        """Record a validation that took `duration_s`, ended just now and raised `error`."""
        if self._exporter is None or self.context is None:
            return
        now_ns = time.time_ns()
        start_ns = now_ns - to_ns(duration_s)
        child = self._exporter.start_span("validate", self.context.headers, start_ns=start_ns)
        _end(child, now_ns, error)

    def end(self, log_fields: Mapping[str, object] = MappingProxyType({})) -> None:
        """End it, with the log line's fields as attributes.

        5xx and errors inside a stream are failures. A refusal (4xx) is no failure of the server,
        by OpenTelemetry's conventions for HTTP; nor is a client that left.
        """
        if self._span is None:
            return
        for key, value in log_fields.items():
            if key == "finish_reasons":
                value = tuple(str(value).split(","))
            if isinstance(value, str | bool | int | float | tuple):
                self._span.set_attribute(_ATTRIBUTES.get(key, f"tandem.{key}"), value)
        status = log_fields.get("status")
        error_type = log_fields.get("error_type")
        is_refusal = isinstance(status, int) and 400 <= status < 500
        is_failure = error_type not in (None, "cancelled") and not is_refusal
        self._span.end(error=str(error_type) if is_failure else None)


class Tracer:
    """Starts spans, and owns the inference spans of running sequences by their ids in the shards.

    `exporter` None: nothing is traced.
    """

    def __init__(self, exporter: SpanExporter | None = None) -> None:
        self._exporter = exporter
        self._inferences: dict[int, Span] = {}

    def start_request(
        self, method: str, route: str, headers: Iterable[tuple[bytes, bytes]], started_s: float
    ) -> RequestSpan:
        """The span of a request received at `started_s` (time.monotonic).

        A `traceparent` in the headers is its parent, and decides whether it is recorded.
        """
        if self._exporter is None:
            return _NO_SPAN
        parent = {
            name.decode("latin-1"): value.decode("latin-1")
            for name, value in headers
            if name in (b"traceparent", b"tracestate")
        }
        span = self._exporter.start_span(
            f"{method} {route}", parent, SpanKind.SERVER, start_ns=wall_ns(started_s)
        )
        return RequestSpan(self._exporter, span)

    def start_inference(
        self, request_id: int, context: TraceContext, step_id: int, elapsed_s: float
    ) -> None:
        """A step admitted a sequence, `elapsed_s` ago; again after each preemption.

        The shards' spans are children of the span that starts here.
        """
        if self._exporter is None:
            return
        inference = self._inferences.get(request_id)
        if inference is not None:
            inference.add_event("readmitted", {"tandem.step_id": step_id})
            return
        self._inferences[request_id] = self._exporter.start_span(
            "inference",
            context.headers,
            SpanKind.CLIENT,
            start_ns=time.time_ns() - to_ns(elapsed_s),
            attributes={"tandem.shard_request_id": request_id, "tandem.first_step_id": step_id},
        )

    def step_metadata(self, request_ids: Iterable[int]) -> Metadata | None:
        """The gRPC metadata of a step that brings the shards these sequences.

        One pair for each recorded sequence, up to a total length; None for none.
        """
        if not self._inferences:
            return None
        pairs = []
        len_left = _MAX_METADATA_LEN
        for request_id in request_ids:
            inference = self._inferences.get(request_id)
            if inference is None:
                continue
            key, value = metadata_pair(request_id, inference.context)
            len_left -= len(value)
            if len_left < 0:
                break
            pairs.append((key, value))
        return pairs or None

    def end_sequence(self, life: SequenceLife) -> None:
        """Export its queue span, and end its inference span if it was ever scheduled."""
        if self._exporter is None:
            return
        now_ns = time.time_ns()
        queue = self._exporter.start_span(
            "queue",
            life.context.headers,
            start_ns=wall_ns(life.submitted_s),
            attributes={"tandem.shard_request_id": life.request_id},
        )
        inference = self._inferences.pop(life.request_id, None)
        if life.first_scheduled_s is None or inference is None:
            _end(queue, now_ns, life.error)
            return
        queue.end(wall_ns(life.first_scheduled_s))
        if life.first_token_s is not None:
            inference.add_event("first token", at_ns=wall_ns(life.first_token_s))
        inference.set_attribute("tandem.num_cached_tokens", life.num_cached_tokens)
        inference.set_attribute("gen_ai.usage.output_tokens", life.num_generated_tokens)
        if life.finish_reason is not None:
            inference.set_attribute("gen_ai.response.finish_reasons", (life.finish_reason,))
        if life.constraint_kind is not None:
            inference.set_attribute("tandem.constraint.kind", life.constraint_kind)
        if life.constraint_satisfied is not None:
            inference.set_attribute("tandem.constraint.satisfied", life.constraint_satisfied)
        _end(inference, now_ns, life.error)

    def close(self) -> None:
        """Send what is left, for a few seconds at most."""
        if self._exporter is not None:
            self._exporter.close(CLOSE_TIMEOUT_S)


_NO_SPAN = RequestSpan()
NO_TRACES = Tracer()


def start_tracing(endpoint: str | None, service_name: str) -> Tracer:
    """The tracer for --otlp-endpoint. Raises StartupFailed without the packages that it needs."""
    if endpoint is None:
        return NO_TRACES
    try:
        return Tracer(connect_exporter(endpoint, service_name, "tandem.router"))
    except ExporterMissing as error:
        raise StartupFailed(str(error)) from error


def _end(span: Span, at_ns: int, error: Exception | None) -> None:
    if error is not None:
        span.set_attribute("error.type", type(error).__name__)
    is_failure = error is not None and not isinstance(error, Cancelled)
    span.end(at_ns, error=str(error) if is_failure else None)
