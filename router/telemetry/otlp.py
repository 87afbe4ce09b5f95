"""Spans to an OTLP collector, over gRPC as TGI sends them; loaded by `start_tracing` alone.

The SDK batches spans and sends them on a thread of its own; a collector that is down or slow
costs spans, never requests. What it complains of is passed on once a minute. Beyond the endpoint,
the SDK reads its own variables: OTEL_TRACES_SAMPLER, OTEL_RESOURCE_ATTRIBUTES,
OTEL_EXPORTER_OTLP_HEADERS, OTEL_EXPORTER_OTLP_CERTIFICATE and the like.
"""

import logging
import threading
import time
from collections.abc import Iterable, Mapping
from importlib.metadata import version
from types import MappingProxyType

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.semconv.attributes import error_attributes, http_attributes, url_attributes
from opentelemetry.trace import SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from router.request.errors import Cancelled
from router.telemetry.tracing import (
    TRACE_KEY,
    Metadata,
    RequestSpan,
    SequenceLife,
    TraceContext,
    Tracer,
)

_logger = logging.getLogger(__name__)

# A batch is serialized while the event loop waits for the interpreter; small ones go unnoticed.
_MAX_BATCH_LEN = 64
_MAX_QUEUE_LEN = 8192
_BATCH_EVERY_MS = 1000.0
_EXPORT_TIMEOUT_S = 5.0
_CLOSE_TIMEOUT_S = 3.0
_COMPLAIN_EVERY_S = 60.0
_NANOSECONDS = 1_000_000_000
# Shards take a megabyte of metadata; what is beyond this is traced in the router alone.
_MAX_METADATA_LEN = 256 * 1024
_MAX_STATE_LEN = 512

# The log's words where OpenTelemetry has its own; the others get our prefix.
_ATTRIBUTES: Mapping[str, str] = MappingProxyType(
    {
        "method": http_attributes.HTTP_REQUEST_METHOD,
        "path": url_attributes.URL_PATH,
        "route": http_attributes.HTTP_ROUTE,
        "status": http_attributes.HTTP_RESPONSE_STATUS_CODE,
        "error_type": error_attributes.ERROR_TYPE,
        "model": "gen_ai.request.model",
        "num_prompt_tokens": "gen_ai.usage.input_tokens",
        "num_generated_tokens": "gen_ai.usage.output_tokens",
        "finish_reasons": "gen_ai.response.finish_reasons",
    }
)


class OtlpSpan(RequestSpan):
    """A request's span in the SDK's hands."""

    def __init__(self, tracer: trace.Tracer, span: trace.Span) -> None:
        context = _context_of(span)
        super().__init__(context.trace_id, context if span.is_recording() else None)
        self._tracer = tracer
        self._span = span

    def validated(self, duration_s: float, error: Exception | None = None) -> None:
        """A child that ends now."""
        now_ns = time.time_ns()
        child = self._tracer.start_span(
            "validate",
            trace.set_span_in_context(self._span, Context()),
            start_time=now_ns - _ns(duration_s),
        )
        _tell_error(child, error)
        child.end(now_ns)

    def end(self, told: Mapping[str, object] = MappingProxyType({})) -> None:
        """With all that the log line tells; 5xx and errors inside a stream are failures."""
        for word, value in told.items():
            if word == "finish_reasons":
                value = tuple(str(value).split(","))
            if isinstance(value, str | bool | int | float | tuple):
                self._span.set_attribute(_ATTRIBUTES.get(word, f"tandem.{word}"), value)
        status, error_type = told.get("status"), told.get("error_type")
        # A refusal (4xx) is no failure of the server's: so say the conventions for HTTP. Nor is it
        # one that the client left.
        is_refusal = isinstance(status, int) and 400 <= status < 500
        if error_type not in (None, "cancelled") and not is_refusal:
            self._span.set_status(Status(StatusCode.ERROR, str(error_type)))
        self._span.end()


class OtlpTracer(Tracer):
    """Owner of the inference spans of running sequences; all else is the SDK's."""

    def __init__(self, provider: TracerProvider) -> None:
        self._provider = provider
        self._tracer = provider.get_tracer("tandem.router", version("tandem"))
        self._propagator = TraceContextTextMapPropagator()
        self._inferences: dict[int, trace.Span] = {}

    def request(
        self, method: str, route: str, headers: Iterable[tuple[bytes, bytes]], started_s: float
    ) -> RequestSpan:
        """Named by method and route; the sampler decides, by default as the client's flag says."""
        carrier = {
            name.decode("latin-1"): value.decode("latin-1")
            for name, value in headers
            if name in (b"traceparent", b"tracestate")
        }
        span = self._tracer.start_span(
            f"{method} {route}",
            self._propagator.extract(carrier, Context()),
            SpanKind.SERVER,
            start_time=_wall_ns(started_s),
        )
        return OtlpSpan(self._tracer, span)

    def admitted(
        self, request_id: int, context: TraceContext, step_id: int, elapsed_s: float
    ) -> None:
        """The shards' spans will be children of the inference span that begins here."""
        inference = self._inferences.get(request_id)
        if inference is not None:
            inference.add_event("readmitted", {"tandem.step_id": step_id})
            return
        self._inferences[request_id] = self._tracer.start_span(
            "inference",
            _parent(context),
            SpanKind.CLIENT,
            {"tandem.shard_request_id": request_id, "tandem.first_step_id": step_id},
            start_time=time.time_ns() - _ns(elapsed_s),
        )

    def step_metadata(self, request_ids: Iterable[int]) -> Metadata | None:
        """One pair for each recorded sequence, as long as there is room."""
        pairs, len_left = [], _MAX_METADATA_LEN
        for request_id in request_ids:
            inference = self._inferences.get(request_id)
            if inference is None:
                continue
            context = _context_of(inference)
            text = f"{request_id} {context.traceparent} {context.state}".rstrip()
            len_left -= len(text)
            if len_left < 0:
                break
            pairs.append((TRACE_KEY, text))
        return pairs or None

    def ended(self, life: SequenceLife) -> None:
        """Its queue span, whole, and the end of its inference span."""
        parent, now_ns = _parent(life.context), time.time_ns()
        queue = self._tracer.start_span("queue", parent, start_time=_wall_ns(life.submitted_s))
        queue.set_attribute("tandem.shard_request_id", life.request_id)
        inference = self._inferences.pop(life.request_id, None)
        if life.first_scheduled_s is None or inference is None:
            _tell_error(queue, life.error)
            queue.end(now_ns)
            return
        queue.end(_wall_ns(life.first_scheduled_s))
        if life.first_token_s is not None:
            inference.add_event("first token", timestamp=_wall_ns(life.first_token_s))
        inference.set_attribute("tandem.num_cached_tokens", life.num_cached_tokens)
        inference.set_attribute("gen_ai.usage.output_tokens", life.num_generated_tokens)
        if life.finish_reason is not None:
            inference.set_attribute("gen_ai.response.finish_reasons", (life.finish_reason,))
        if life.constraint_kind is not None:
            inference.set_attribute("tandem.constraint.kind", life.constraint_kind)
        if life.constraint_satisfied is not None:
            inference.set_attribute("tandem.constraint.satisfied", life.constraint_satisfied)
        _tell_error(inference, life.error)
        inference.end(now_ns)

    def close(self) -> None:
        """The SDK would wait for half a minute; its thread is left behind when time is up."""
        closing = threading.Thread(target=self._provider.shutdown, daemon=True)
        closing.start()
        closing.join(_CLOSE_TIMEOUT_S)


class _Complaints(logging.Handler):
    """The SDK's complaints, passed on now and then."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._quiet_until_s = 0.0

    def emit(self, record: logging.LogRecord) -> None:
        if time.monotonic() >= self._quiet_until_s:
            self._quiet_until_s = time.monotonic() + _COMPLAIN_EVERY_S
            _logger.warning(
                "traces are being lost (told once in %g s): %s",
                _COMPLAIN_EVERY_S,
                record.getMessage(),
            )


def connect(endpoint: str, service_name: str) -> Tracer:
    """A tracer for the collector at `endpoint`, which need not be there yet."""
    sdk_logger = logging.getLogger("opentelemetry")
    sdk_logger.handlers = [_Complaints()]
    sdk_logger.propagate = False
    provider = TracerProvider(
        resource=Resource.create(
            {"service.name": service_name, "service.version": version("tandem")}
        ),
        shutdown_on_exit=False,
    )
    exporter = OTLPSpanExporter(
        endpoint=endpoint,
        insecure=not endpoint.startswith("https://"),
        timeout=_EXPORT_TIMEOUT_S,
    )
    provider.add_span_processor(
        BatchSpanProcessor(
            exporter,
            max_queue_size=_MAX_QUEUE_LEN,
            schedule_delay_millis=_BATCH_EVERY_MS,
            max_export_batch_size=_MAX_BATCH_LEN,
        )
    )
    return OtlpTracer(provider)


def _context_of(span: trace.Span) -> TraceContext:
    context = span.get_span_context()
    state = context.trace_state.to_header()
    return TraceContext(
        trace.format_trace_id(context.trace_id),
        trace.format_span_id(context.span_id),
        state if len(state) <= _MAX_STATE_LEN else "",
    )


def _parent(context: TraceContext) -> Context:
    """As the SDK wants a parent that it does not hold as an object."""
    parent = trace.SpanContext(
        int(context.trace_id, 16),
        int(context.span_id, 16),
        is_remote=False,
        trace_flags=trace.TraceFlags(trace.TraceFlags.SAMPLED),
        trace_state=trace.TraceState.from_header([context.state]),
    )
    return trace.set_span_in_context(trace.NonRecordingSpan(parent), Context())


def _tell_error(span: trace.Span, error: Exception | None) -> None:
    if error is not None:
        span.set_attribute(error_attributes.ERROR_TYPE, type(error).__name__)
        if not isinstance(error, Cancelled):
            span.set_status(Status(StatusCode.ERROR, str(error)))


def _ns(seconds: float) -> int:
    return int(seconds * _NANOSECONDS)


def _wall_ns(monotonic_s: float) -> int:
    """A time of time.monotonic as nanoseconds since 1970."""
    return time.time_ns() - _ns(time.monotonic() - monotonic_s)
