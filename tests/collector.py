"""A stand-in for an OTLP collector: the real gRPC service, which keeps what it is sent."""

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as pb
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc as pb_grpc
from opentelemetry.proto.trace.v1.trace_pb2 import Span as SpanMessage
from opentelemetry.proto.trace.v1.trace_pb2 import Status


@dataclass(frozen=True, slots=True)
class Span:
    """A span as it arrived; ids in hex, times in nanoseconds."""

    service: str
    name: str
    trace_id: str
    span_id: str
    parent_id: str
    start_ns: int
    end_ns: int
    is_error: bool
    attributes: dict[str, Any]
    events: tuple[str, ...]
    state: str


@dataclass
class Collector(pb_grpc.TraceServiceServicer):
    """Owner of the spans received so far."""

    endpoint: str = ""
    spans: list[Span] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def Export(
        self, request: pb.ExportTraceServiceRequest, context: grpc.ServicerContext
    ) -> pb.ExportTraceServiceResponse:
        """One batch of one process."""
        with self.lock:
            for resource in request.resource_spans:
                named = {each.key: each.value for each in resource.resource.attributes}
                service = named["service.name"].string_value
                for scope in resource.scope_spans:
                    self.spans += [_span(service, span) for span in scope.spans]
        return pb.ExportTraceServiceResponse()

    def of(self, trace_id: str) -> list[Span]:
        """Those of one trace, in the order of their beginning."""
        with self.lock:
            found = [span for span in self.spans if span.trace_id == trace_id]
        return sorted(found, key=lambda span: span.start_ns)

    def wait_for(self, trace_id: str, names: set[str], timeout_s: float = 30.0) -> list[Span]:
        """The spans of a trace, once all of these have come."""
        deadline_s = time.monotonic() + timeout_s
        while not names <= {f"{span.service}: {span.name}" for span in self.of(trace_id)}:
            assert time.monotonic() < deadline_s, f"of {names} there came only {self.of(trace_id)}"
            time.sleep(0.05)
        return self.of(trace_id)


@contextmanager
def collecting() -> Iterator[Collector]:
    """A collector at a free port."""
    collector = Collector()
    server = grpc.server(ThreadPoolExecutor(max_workers=2))
    pb_grpc.add_TraceServiceServicer_to_server(collector, server)  # type: ignore[no-untyped-call]
    port = server.add_insecure_port("127.0.0.1:0")
    collector.endpoint = f"http://127.0.0.1:{port}"
    server.start()
    try:
        yield collector
    finally:
        server.stop(0.2).wait()


def _span(service: str, span: SpanMessage) -> Span:
    return Span(
        service=service,
        name=span.name,
        trace_id=span.trace_id.hex(),
        span_id=span.span_id.hex(),
        parent_id=span.parent_span_id.hex(),
        start_ns=span.start_time_unix_nano,
        end_ns=span.end_time_unix_nano,
        is_error=span.status.code == Status.STATUS_CODE_ERROR,
        attributes={each.key: _value(each.value) for each in span.attributes},
        events=tuple(event.name for event in span.events),
        state=span.trace_state,
    )


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(each) for each in value.array_value.values]
    return getattr(value, kind)
