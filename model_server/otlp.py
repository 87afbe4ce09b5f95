"""A shard's spans to an OTLP collector, over gRPC; loaded by `start_tracing` alone.

The SDK batches spans and sends them on a thread of its own; a collector that is down or slow
costs spans, never steps. What it complains of is passed on once a minute. Beyond the endpoint the
SDK reads its own variables (OTEL_RESOURCE_ATTRIBUTES, OTEL_EXPORTER_OTLP_HEADERS and the like).
"""

import logging
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from model_server.engine.step import StepOutput
from model_server.tracing import TRACE_KEY, Metadata, StepCall, StepTracer
from proto.contract import NewSequence

_log = logging.getLogger(__name__)

_MAX_BATCH_LEN = 64
_MAX_QUEUE_LEN = 8192
_BATCH_EVERY_MS = 1000.0
_EXPORT_TIMEOUT_S = 5.0
_CLOSE_TIMEOUT_S = 2.0
_COMPLAIN_EVERY_S = 60.0
_PROPAGATOR = TraceContextTextMapPropagator()


@dataclass(slots=True)
class _Traced:
    """A sequence that the shard holds. `left_len` tokens are to be computed before its first draw.

    The sums are those of its decode steps, of which the first began at `decode_began_ns`; `error`
    is that of the last one.
    """

    parent: Context
    batch_id: int
    left_len: int
    decode_began_ns: int = 0
    num_steps: int = 0
    forward_ns: int = 0
    sample_ns: int = 0
    error: str | None = None


class OtlpStepTracer(StepTracer):
    """Owner of what is known of the traced sequences; used by the event loop's thread alone."""

    def __init__(self, provider: TracerProvider, rank: int) -> None:
        self._provider = provider
        self._tracer = provider.get_tracer("tandem.model_server", version("tandem"))
        self._rank = rank
        self._traced: dict[int, _Traced] = {}

    def stepped(self, call: StepCall, output: StepOutput) -> None:
        """A prefill span for each traced chunk; a step more for each traced decode."""
        parents = _parents(call.metadata)
        if not parents and not self._traced:
            return
        now_ns = time.time_ns()
        for one in call.new:
            if one.request_id in parents:
                self._enter(one, parents[one.request_id], call.batch_ids[0])
        chunk_lens = {one.request_id: one.chunk_len for one in call.updates}
        chunk_lens |= {one.request_id: one.chunk_len for one in call.new}
        held = frozenset(output.request_ids)
        for request_id, traced in list(self._traced.items()):
            if traced.batch_id not in call.batch_ids:
                continue
            traced.batch_id = call.batch_ids[0]
            is_held = request_id in held
            error = None if is_held else _error_of(request_id, output)
            self._compute(request_id, traced, chunk_lens.get(request_id), output, now_ns, error)
            if not is_held:
                self._end(request_id, now_ns)

    def failed(self, call: StepCall, duration_ns: int, error: Exception) -> None:
        """A failed prefill span for those whose prompt it was to compute; the others remember."""
        now_ns, reason = time.time_ns(), f"{type(error).__name__}: {error}"
        parents = dict(_parents(call.metadata))
        for request_id, traced in self._traced.items():
            if traced.batch_id not in call.batch_ids:
                continue
            if traced.left_len > 0:
                parents[request_id] = traced.parent
            else:
                traced.error = reason
        for request_id, parent in parents.items():
            span = self._span("prefill", request_id, parent, now_ns - duration_ns)
            _close(span, now_ns, reason)

    def filtered(self, batch_id: int, kept_ids: Sequence[int]) -> None:
        """The end of the others."""
        kept = frozenset(kept_ids)
        for request_id, traced in list(self._traced.items()):
            if traced.batch_id == batch_id and request_id not in kept:
                self._end(request_id, time.time_ns())

    def cleared(self, batch_id: int | None) -> None:
        """The end of all of them."""
        for request_id, traced in list(self._traced.items()):
            if batch_id is None or traced.batch_id == batch_id:
                self._end(request_id, time.time_ns())

    def close(self) -> None:
        """The SDK would wait for half a minute; its thread is left behind when time is up."""
        closing = threading.Thread(target=self._provider.shutdown, daemon=True)
        closing.start()
        closing.join(_CLOSE_TIMEOUT_S)

    def _enter(self, one: NewSequence, parent: Context, batch_id: int) -> None:
        left_len = len(one.token_ids) - one.cached_len
        self._traced[one.request_id] = _Traced(parent, batch_id, left_len)

    def _compute(
        self,
        request_id: int,
        traced: _Traced,
        chunk_len: int | None,
        output: StepOutput,
        now_ns: int,
        error: str | None,
    ) -> None:
        """What a step did for one sequence; `RunningUpdate` explains a chunk_len of None."""
        began_ns = now_ns - output.total_ns
        if traced.left_len > 0:
            if not chunk_len:
                return
            traced.left_len -= chunk_len
            span = self._span("prefill", request_id, traced.parent, began_ns)
            span.set_attribute("tandem.num_tokens", chunk_len)
            span.set_attribute("tandem.num_tokens_left", traced.left_len)
            _tell_times(span, output.forward_ns, output.sample_ns)
            _close(span, now_ns, error)
        elif chunk_len is None or chunk_len > 0:
            traced.decode_began_ns = traced.decode_began_ns or began_ns
            traced.num_steps += 1
            traced.forward_ns += output.forward_ns
            traced.sample_ns += output.sample_ns
            traced.error = error

    def _end(self, request_id: int, now_ns: int) -> None:
        """Its decode span; one that ended with its prompt or its first token has none."""
        traced = self._traced.pop(request_id)
        if traced.num_steps == 0 and traced.error is None:
            return
        span = self._span("decode", request_id, traced.parent, traced.decode_began_ns or now_ns)
        span.set_attribute("tandem.num_steps", traced.num_steps)
        _tell_times(span, traced.forward_ns, traced.sample_ns)
        _close(span, now_ns, traced.error)

    def _span(self, name: str, request_id: int, parent: Context, began_ns: int) -> trace.Span:
        return self._tracer.start_span(
            name,
            parent,
            SpanKind.SERVER,
            {"tandem.shard_request_id": request_id, "tandem.rank": self._rank},
            start_time=began_ns,
        )


class _Complaints(logging.Handler):
    """The SDK's complaints, passed on now and then."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._quiet_until_s = 0.0

    def emit(self, record: logging.LogRecord) -> None:
        if time.monotonic() >= self._quiet_until_s:
            self._quiet_until_s = time.monotonic() + _COMPLAIN_EVERY_S
            _log.warning(
                "traces are being lost (told once in %g s): %s",
                _COMPLAIN_EVERY_S,
                record.getMessage(),
            )


def connect(endpoint: str, service_name: str, rank: int) -> StepTracer:
    """A tracer for the collector at `endpoint`, which need not be there yet."""
    sdk_log = logging.getLogger("opentelemetry")
    sdk_log.handlers = [_Complaints()]
    sdk_log.propagate = False
    provider = TracerProvider(
        resource=Resource.create(
            {
                "service.name": service_name,
                "service.version": version("tandem"),
                "service.instance.id": str(rank),
            }
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
    return OtlpStepTracer(provider, rank)


def _parents(metadata: Metadata | None) -> Mapping[int, Context]:
    """The router's spans by sequence; what is not of our making is logged and passed over."""
    parents = {}
    for key, value in metadata or ():
        if key != TRACE_KEY:
            continue
        request_id, _, context = str(value).partition(" ")
        traceparent, _, state = context.partition(" ")
        carrier = {"traceparent": traceparent, **({"tracestate": state} if state else {})}
        parent = _PROPAGATOR.extract(carrier, Context())
        is_valid = trace.get_current_span(parent).get_span_context().is_valid
        if not request_id.isdecimal() or not is_valid:
            _log.warning("no trace's: metadata %s: %r", TRACE_KEY, value)
            continue
        parents[int(request_id)] = parent
    return parents


def _error_of(request_id: int, output: StepOutput) -> str | None:
    errors = (one.error for one in output.generations if one.request_id == request_id)
    return next(errors, None)


def _close(span: trace.Span, now_ns: int, error: str | None) -> None:
    if error is not None:
        span.set_status(Status(StatusCode.ERROR, error))
    span.end(now_ns)


def _tell_times(span: trace.Span, forward_ns: int, sample_ns: int) -> None:
    span.set_attribute("tandem.forward_ms", forward_ns / 1e6)
    span.set_attribute("tandem.sample_ms", sample_ns / 1e6)
