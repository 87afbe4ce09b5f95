"""A shard's spans: each chunk of a traced prompt, and all decode steps of its sequence as one.

The step that brings a traced sequence names the router's inference span in its metadata; the
shard's spans are children of that one. A span for each decoded token would cost more than it
informs.
"""

import logging
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from model_server.errors import ConfigRefused
from model_server.step import StepOutput
from processes.spans import (
    TRACE_KEY,
    Span,
    SpanExporter,
    SpanKind,
    TraceContext,
    parse_metadata_value,
)
from processes.tracing import ExporterMissing, connect_exporter
from proto.contract import NewSequence, RunningUpdate

_log = logging.getLogger(__name__)

_CLOSE_TIMEOUT_S = 2.0


@dataclass(frozen=True, slots=True)
class StepCall:
    """The arguments of a Prefill, or, without `new`, of a Decode; `dropped_ids` leave before."""

    new: Sequence[NewSequence] = ()
    updates: Sequence[RunningUpdate] = ()
    dropped_ids: Sequence[int] = ()
    metadata: Iterable[tuple[str, str | bytes]] | None = None


@dataclass(slots=True)
class _TracedSequence:
    """A sequence that the shard holds. `left_len` prompt tokens are still to be computed.

    The sums are those of its decode steps, the first of which began at `decode_began_ns`; `error`
    is that of the last one.
    """

    parent: TraceContext
    left_len: int
    decode_began_ns: int = 0
    num_steps: int = 0
    forward_ns: int = 0
    sample_ns: int = 0
    error: str | None = None


class StepTracer:
    """Owner of the traced sequences' records; used by the device's thread alone.

    It is called after whatever changes what the shard holds. `exporter` None: nothing is traced.
    """

    def __init__(self, exporter: SpanExporter | None = None, rank: int = 0) -> None:
        self._exporter = exporter
        self._rank = rank
        self._traced: dict[int, _TracedSequence] = {}

    def stepped(self, call: StepCall, output: StepOutput) -> None:
        """A step was computed just now: a span for each traced chunk, a count for each decode."""
        parents = self._parents(call)
        if not parents and not self._traced:
            return
        now_ns = time.time_ns()
        for request_id in call.dropped_ids:
            if request_id in self._traced:
                self._end(request_id, now_ns)
        for one in call.new:
            if one.request_id in parents:
                left_len = len(one.token_ids) - one.cached_len
                self._traced[one.request_id] = _TracedSequence(parents[one.request_id], left_len)
        chunk_lens = {one.request_id: one.chunk_len for one in call.updates}
        chunk_lens |= {one.request_id: one.chunk_len for one in call.new}
        held = frozenset(output.request_ids)
        for request_id, traced in list(self._traced.items()):
            is_held = request_id in held
            error = None if is_held else _error_of(request_id, output)
            self._record(request_id, traced, chunk_lens.get(request_id), output, now_ns, error)
            if not is_held:
                self._end(request_id, now_ns)

    def failed(self, call: StepCall, duration_ns: int, error: BaseException) -> None:
        """A step failed: a failed span for each prompt in it, an error for each decode."""
        now_ns = time.time_ns()
        reason = f"{type(error).__name__}: {error}"
        parents = dict(self._parents(call))
        for request_id, traced in self._traced.items():
            if traced.left_len > 0:
                parents[request_id] = traced.parent
            else:
                traced.error = reason
        for request_id, parent in parents.items():
            span = self._span("prefill", request_id, parent, now_ns - duration_ns)
            span.end(now_ns, error=reason)

    def kept(self, kept_ids: Collection[int]) -> None:
        """All other sequences left."""
        for request_id in list(self._traced):
            if request_id not in kept_ids:
                self._end(request_id, time.time_ns())

    def close(self) -> None:
        """Send what is left, for a few seconds at most."""
        if self._exporter is not None:
            self._exporter.close(_CLOSE_TIMEOUT_S)

    def _parents(self, call: StepCall) -> Mapping[int, TraceContext]:
        """The router's spans by sequence; malformed metadata is logged and skipped."""
        parents: dict[int, TraceContext] = {}
        if self._exporter is None:
            return parents
        for key, value in call.metadata or ():
            if key != TRACE_KEY:
                continue
            parsed = parse_metadata_value(str(value))
            if parsed is None:
                _log.warning("malformed metadata %s: %r", TRACE_KEY, value)
                continue
            request_id, context = parsed
            parents[request_id] = context
        return parents

    def _record(
        self,
        request_id: int,
        traced: _TracedSequence,
        chunk_len: int | None,
        output: StepOutput,
        now_ns: int,
        error: str | None,
    ) -> None:
        """One sequence's part of a step; see `RunningUpdate` for what a chunk_len of None means."""
        began_ns = now_ns - output.total_ns
        if traced.left_len > 0:
            if not chunk_len:
                return
            traced.left_len -= chunk_len
            span = self._span("prefill", request_id, traced.parent, began_ns)
            span.set_attribute("tandem.num_tokens", chunk_len)
            span.set_attribute("tandem.num_tokens_left", traced.left_len)
            _set_times(span, output.forward_ns, output.sample_ns)
            span.end(now_ns, error=error)
        elif chunk_len is None or chunk_len > 0:
            traced.decode_began_ns = traced.decode_began_ns or began_ns
            traced.num_steps += 1
            traced.forward_ns += output.forward_ns
            traced.sample_ns += output.sample_ns
            traced.error = error

    def _end(self, request_id: int, now_ns: int) -> None:
        """Export its decode span; a sequence that ended with its prompt has none."""
        traced = self._traced.pop(request_id)
        if traced.num_steps == 0 and traced.error is None:
            return
        span = self._span("decode", request_id, traced.parent, traced.decode_began_ns or now_ns)
        span.set_attribute("tandem.num_steps", traced.num_steps)
        _set_times(span, traced.forward_ns, traced.sample_ns)
        span.end(now_ns, error=traced.error)

    def _span(self, name: str, request_id: int, parent: TraceContext, began_ns: int) -> Span:
        assert self._exporter is not None
        return self._exporter.start_span(
            name,
            parent.headers,
            SpanKind.SERVER,
            start_ns=began_ns,
            attributes={"tandem.shard_request_id": request_id, "tandem.rank": self._rank},
        )


NO_TRACES = StepTracer()


def start_tracing(endpoint: str | None, service_name: str, rank: int) -> StepTracer:
    """The tracer for --otlp-endpoint. Raises ConfigRefused without the packages that it needs."""
    if endpoint is None:
        return NO_TRACES
    try:
        exporter = connect_exporter(endpoint, service_name, "tandem.model_server", str(rank))
    except ExporterMissing as error:
        raise ConfigRefused(str(error)) from error
    return StepTracer(exporter, rank)


def _error_of(request_id: int, output: StepOutput) -> str | None:
    errors = (one.error for one in output.others if one.request_id == request_id)
    return next(errors, None)


def _set_times(span: Span, forward_ns: int, sample_ns: int) -> None:
    span.set_attribute("tandem.forward_ms", forward_ns / 1e6)
    span.set_attribute("tandem.sample_ms", sample_ns / 1e6)
