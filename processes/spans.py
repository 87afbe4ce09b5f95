"""Trace contexts between the processes, and the interface of the spans that an exporter sends."""

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from types import MappingProxyType
from typing import Protocol, TypeAlias

# gRPC metadata of a step, once for each traced sequence that it brings:
# "<request id in the shards> <traceparent>[ <tracestate>]".
TRACE_KEY = "tandem-trace"

Metadata = Sequence[tuple[str, str]]
Attribute: TypeAlias = str | bool | int | float | tuple[str, ...]

_PAIR = re.compile(r"(\d+) 00-([0-9a-f]{32})-([0-9a-f]{16})-01(?: (.+))?", re.ASCII)
_NS_PER_S = 1_000_000_000


@dataclass(frozen=True, slots=True)
class TraceContext:
    """A recorded span as its children, in any process, name their parent (W3C Trace Context)."""

    trace_id: str
    span_id: str
    state: str = ""

    @property
    def headers(self) -> dict[str, str]:
        """`traceparent` and, if there is one, `tracestate`."""
        headers = {"traceparent": f"00-{self.trace_id}-{self.span_id}-01"}
        return {**headers, "tracestate": self.state} if self.state else headers


class SpanKind(Enum):
    """OpenTelemetry's kinds of those names."""

    INTERNAL = auto()
    SERVER = auto()
    CLIENT = auto()


class Span(Protocol):
    """An open span. Times are nanoseconds since 1970; None: now."""

    @property
    def context(self) -> TraceContext:
        """The parent of its children."""

    @property
    def is_recording(self) -> bool:
        """Whether the sampler kept it."""

    def set_attribute(self, name: str, value: Attribute) -> None:
        """Set or replace an attribute."""

    def add_event(
        self,
        name: str,
        attributes: Mapping[str, Attribute] = MappingProxyType({}),
        at_ns: int | None = None,
    ) -> None:
        """Record an event of the span."""

    def end(self, at_ns: int | None = None, *, error: str | None = None) -> None:
        """Send it, with status ERROR when there is an `error`."""


class SpanExporter(Protocol):
    """Sends spans to a collector, in the background."""

    def start_span(
        self,
        name: str,
        parent: Mapping[str, str],
        kind: SpanKind = SpanKind.INTERNAL,
        *,
        start_ns: int | None = None,
        attributes: Mapping[str, Attribute] = MappingProxyType({}),
    ) -> Span:
        """A span below the one in the headers `parent`; a trace of its own when they name none."""

    def close(self, timeout_s: float) -> None:
        """Send what is left, or drop it when the time is up."""


def metadata_pair(request_id: int, context: TraceContext) -> tuple[str, str]:
    """The gRPC metadata of one traced sequence."""
    return TRACE_KEY, " ".join((str(request_id), *context.headers.values()))


def parse_metadata_value(value: str) -> tuple[int, TraceContext] | None:
    """The request id and span of a metadata pair's text; None when it is malformed."""
    match = _PAIR.fullmatch(value)
    if match is None:
        return None
    request_id, trace_id, span_id, state = match.groups()
    return int(request_id), TraceContext(trace_id, span_id, state or "")


def to_ns(seconds: float) -> int:
    """A duration as spans count it."""
    return int(seconds * _NS_PER_S)


def wall_ns(monotonic_s: float) -> int:
    """A time of time.monotonic as nanoseconds since 1970."""
    return time.time_ns() - to_ns(time.monotonic() - monotonic_s)
