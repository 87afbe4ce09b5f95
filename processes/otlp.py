"""The exporter of spans to an OTLP collector over gRPC; only `tracing.connect_exporter` imports it.

The SDK batches spans and sends them on a thread of its own: a collector that is down or slow loses
spans and delays no request. The SDK's warnings are logged once a minute. Beyond the endpoint, the
SDK reads its own variables: OTEL_TRACES_SAMPLER, OTEL_RESOURCE_ATTRIBUTES,
OTEL_EXPORTER_OTLP_HEADERS, OTEL_EXPORTER_OTLP_CERTIFICATE and the like.
"""

import logging
import threading
import time
from collections.abc import Mapping
from importlib.metadata import version
from types import MappingProxyType

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from processes.spans import Attribute, SpanKind, TraceContext

_logger = logging.getLogger(__name__)

# Serializing a batch holds the interpreter: small batches do not delay the event loop.
_MAX_BATCH_LEN = 64
_MAX_QUEUE_LEN = 8192
_BATCH_EVERY_MS = 1000.0
_EXPORT_TIMEOUT_S = 5.0
_WARN_EVERY_S = 60.0
# A longer tracestate is dropped: it travels in every step's metadata.
_MAX_STATE_LEN = 512


class OtlpSpan:
    """A span of the SDK's (`processes.spans.Span`)."""

    def __init__(self, span: trace.Span) -> None:
        self._span = span
        context = span.get_span_context()
        state = context.trace_state.to_header()
        self.context = TraceContext(
            trace.format_trace_id(context.trace_id),
            trace.format_span_id(context.span_id),
            state if len(state) <= _MAX_STATE_LEN else "",
        )

    @property
    def is_recording(self) -> bool:
        return self._span.is_recording()

    def set_attribute(self, name: str, value: Attribute) -> None:
        self._span.set_attribute(name, value)

    def add_event(
        self,
        name: str,
        attributes: Mapping[str, Attribute] = MappingProxyType({}),
        at_ns: int | None = None,
    ) -> None:
        self._span.add_event(name, dict(attributes), at_ns)

    def end(self, at_ns: int | None = None, *, error: str | None = None) -> None:
        """Hand it to the sending thread, with status ERROR when there is an `error`."""
        if error is not None:
            self._span.set_status(trace.Status(trace.StatusCode.ERROR, error))
        self._span.end(at_ns)


class OtlpExporter:
    """The SDK's provider of spans (`processes.spans.SpanExporter`)."""

    def __init__(self, provider: TracerProvider, scope: str) -> None:
        self._provider = provider
        self._tracer = provider.get_tracer(scope, version("tandem"))
        self._propagator = TraceContextTextMapPropagator()

    def start_span(
        self,
        name: str,
        parent: Mapping[str, str],
        kind: SpanKind = SpanKind.INTERNAL,
        *,
        start_ns: int | None = None,
        attributes: Mapping[str, Attribute] = MappingProxyType({}),
    ) -> OtlpSpan:
        """A span below the one in the headers `parent`; the sampler decides if it is recorded."""
        context = self._propagator.extract(parent, Context())
        return OtlpSpan(
            self._tracer.start_span(
                name, context, trace.SpanKind[kind.name], dict(attributes), start_time=start_ns
            )
        )

    def close(self, timeout_s: float) -> None:
        """Shut the SDK down, which alone would wait for half a minute."""
        closing = threading.Thread(target=self._provider.shutdown, daemon=True)
        closing.start()
        closing.join(timeout_s)


class _RateLimitedWarnings(logging.Handler):
    """Passes one of the SDK's warnings a minute on to our log."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._quiet_until_s = 0.0

    def emit(self, record: logging.LogRecord) -> None:
        if time.monotonic() >= self._quiet_until_s:
            self._quiet_until_s = time.monotonic() + _WARN_EVERY_S
            _logger.warning(
                "traces are being lost (logged once in %g s): %s",
                _WARN_EVERY_S,
                record.getMessage(),
            )


def connect(
    endpoint: str, service_name: str, scope: str, instance_id: str | None = None
) -> OtlpExporter:
    """An exporter to the collector at `endpoint`, which need not be up yet."""
    sdk_logger = logging.getLogger("opentelemetry")
    sdk_logger.handlers = [_RateLimitedWarnings()]
    sdk_logger.propagate = False
    resource = {"service.name": service_name, "service.version": version("tandem")}
    if instance_id is not None:
        resource["service.instance.id"] = instance_id
    provider = TracerProvider(resource=Resource.create(resource), shutdown_on_exit=False)
    is_plain = not endpoint.startswith("https://")
    exporter = OTLPSpanExporter(endpoint=endpoint, insecure=is_plain, timeout=_EXPORT_TIMEOUT_S)
    provider.add_span_processor(
        BatchSpanProcessor(
            exporter,
            max_queue_size=_MAX_QUEUE_LEN,
            schedule_delay_millis=_BATCH_EVERY_MS,
            max_export_batch_size=_MAX_BATCH_LEN,
        )
    )
    return OtlpExporter(provider, scope)
