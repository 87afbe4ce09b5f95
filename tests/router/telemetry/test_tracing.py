"""The router's spans, as the SDK would export them."""

import sys
import time
from collections.abc import Mapping
from dataclasses import replace

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from processes.otlp import OtlpExporter
from processes.spans import TRACE_KEY, TraceContext
from router.request.errors import Cancelled, InvalidRequest, ServerStopped, StartupFailed
from router.telemetry.tracing import NO_TRACES, SequenceLife, Tracer, start_tracing

TRACE_ID = "0af7651916cd43dd8448eb211c80319c"
CLIENT_ID = "b7ad6b7169203331"
SAMPLED = f"00-{TRACE_ID}-{CLIENT_ID}-01"
NOT_SAMPLED = f"00-{TRACE_ID}-{CLIENT_ID}-00"


class Traced:
    """A tracer, and what it exports."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        provider = TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.tracer = Tracer(OtlpExporter(provider, "tandem.router"))

    @property
    def spans(self) -> dict[str, ReadableSpan]:
        """The ended ones by name."""
        return {span.name: span for span in self._exporter.get_finished_spans()}


@pytest.fixture
def traced() -> Traced:
    return Traced()


def headers(**fields: str) -> list[tuple[bytes, bytes]]:
    return [(name.encode(), value.encode()) for name, value in fields.items()]


def attributes(span: ReadableSpan) -> Mapping[str, object]:
    assert span.attributes is not None
    return span.attributes


def is_error(span: ReadableSpan) -> bool:
    return not span.status.is_ok and not span.status.is_unset


def begun(traced: Traced, parent: str = SAMPLED) -> TraceContext:
    """The context of a request that is under way."""
    span = traced.tracer.start_request(
        "POST", "/generate", headers(traceparent=parent), time.monotonic()
    )
    assert span.context is not None
    return span.context


def life(context: TraceContext) -> SequenceLife:
    now_s = time.monotonic()
    return SequenceLife(
        request_id=5,
        context=context,
        submitted_s=now_s - 3,
        first_scheduled_s=now_s - 2,
        first_token_s=now_s - 1,
        num_cached_tokens=16,
        num_generated_tokens=7,
        finish_reason="eos",
        error=None,
    )


def test_the_client_s_span_is_the_parent(traced: Traced) -> None:
    received = headers(traceparent=SAMPLED, tracestate="a=1")
    span = traced.tracer.start_request("POST", "/v1/models/{name}", received, time.monotonic() - 2)
    span.end({"status": 200, "request_id": "mine", "finish_reasons": "eos,length", "seed": None})
    exported = traced.spans["POST /v1/models/{name}"]
    assert exported.parent is not None
    assert exported.context is not None
    assert f"{exported.context.trace_id:032x}" == span.trace_id == TRACE_ID
    assert f"{exported.parent.span_id:016x}" == CLIENT_ID
    assert exported.context.trace_state.to_header() == "a=1"
    assert attributes(exported) == {
        "http.response.status_code": 200,
        "tandem.request_id": "mine",
        "gen_ai.response.finish_reasons": ("eos", "length"),
    }
    assert exported.start_time is not None
    assert exported.end_time is not None
    assert 2.0 <= (exported.end_time - exported.start_time) / 1e9 < 3.0


@pytest.mark.parametrize("parent", ["", "00-zz-1-01", f"00-{'0' * 32}-{CLIENT_ID}-01", "a" * 9000])
def test_a_bad_traceparent_begins_a_trace_of_its_own(traced: Traced, parent: str) -> None:
    context = begun(traced, parent)
    assert context.trace_id not in (TRACE_ID, "0" * 32)


def test_what_the_client_does_not_sample_has_an_id_for_the_log_alone(traced: Traced) -> None:
    span = traced.tracer.start_request("POST", "/", headers(traceparent=NOT_SAMPLED), 0.0)
    span.validated(0.1)
    span.end({"status": 200})
    assert (span.trace_id, span.context) == (TRACE_ID, None)
    assert traced.spans == {}


def test_a_refusal_is_no_error_of_the_server_but_of_its_validation(traced: Traced) -> None:
    span = traced.tracer.start_request("POST", "/", [], 0.0)
    span.validated(0.1, InvalidRequest("`top_k` must be above 0"))
    span.end({"status": 422, "error_type": "validation"})
    assert not is_error(traced.spans["POST /"])
    assert is_error(traced.spans["validate"])
    assert traced.spans["validate"].status.description == "`top_k` must be above 0"


@pytest.mark.parametrize("status", [200, 500])
def test_an_error_inside_a_stream_is_one_of_the_server(traced: Traced, status: int) -> None:
    span = traced.tracer.start_request("POST", "/", [], 0.0)
    span.end({"status": status, "error_type": "generation"})
    assert is_error(traced.spans["POST /"])


def test_a_sequence_has_a_queue_and_an_inference(traced: Traced) -> None:
    context = begun(traced)
    traced.tracer.start_inference(5, context, step_id=9, elapsed_s=2.0)
    traced.tracer.end_sequence(life(context))
    queue = traced.spans["queue"]
    inference = traced.spans["inference"]
    for span in (queue, inference):
        assert span.parent is not None
        assert f"{span.parent.span_id:016x}" == context.span_id
    assert queue.start_time is not None
    assert queue.end_time is not None
    assert (queue.end_time - queue.start_time) / 1e9 == pytest.approx(1.0, abs=0.1)
    assert attributes(inference) == {
        "tandem.shard_request_id": 5,
        "tandem.first_step_id": 9,
        "tandem.num_cached_tokens": 16,
        "gen_ai.usage.output_tokens": 7,
        "gen_ai.response.finish_reasons": ("eos",),
    }
    assert [event.name for event in inference.events] == ["first token"]


def test_a_constraint_is_an_attribute_with_its_outcome(traced: Traced) -> None:
    context = begun(traced)
    traced.tracer.start_inference(5, context, step_id=9, elapsed_s=0.0)
    constrained = replace(life(context), constraint_kind="regex", constraint_satisfied=False)
    traced.tracer.end_sequence(constrained)
    found = attributes(traced.spans["inference"])
    assert (found["tandem.constraint.kind"], found["tandem.constraint.satisfied"]) == (
        "regex",
        False,
    )


def test_a_client_that_left_is_recorded_and_no_error(traced: Traced) -> None:
    context = begun(traced)
    traced.tracer.start_inference(5, context, step_id=9, elapsed_s=0.0)
    left = replace(life(context), finish_reason=None, error=Cancelled("the client left"))
    traced.tracer.end_sequence(left)
    span = traced.tracer.start_request("POST", "/", [], 0.0)
    span.end({"status": 200, "error_type": "cancelled"})
    assert attributes(traced.spans["inference"])["error.type"] == "Cancelled"
    assert attributes(traced.spans["POST /"])["error.type"] == "cancelled"
    assert not any(is_error(each) for each in traced.spans.values())


def test_a_sequence_that_never_ran_has_a_queue_alone(traced: Traced) -> None:
    left = ServerStopped("the drain's time was over")
    never = replace(life(begun(traced)), first_scheduled_s=None, first_token_s=None, error=left)
    traced.tracer.end_sequence(never)
    assert is_error(traced.spans["queue"])
    assert "inference" not in traced.spans


def test_a_preempted_sequence_keeps_its_span(traced: Traced) -> None:
    context = begun(traced)
    traced.tracer.start_inference(5, context, step_id=9, elapsed_s=0.0)
    first = traced.tracer.step_metadata([5])
    traced.tracer.start_inference(5, context, step_id=30, elapsed_s=0.0)
    assert traced.tracer.step_metadata([5]) == first
    traced.tracer.end_sequence(life(context))
    events = [event.name for event in traced.spans["inference"].events]
    assert events == ["readmitted", "first token"]


def test_the_shards_get_metadata_of_recorded_sequences(traced: Traced) -> None:
    context = begun(traced)
    traced.tracer.start_inference(5, context, step_id=9, elapsed_s=0.0)
    metadata = traced.tracer.step_metadata([4, 5])
    assert metadata is not None
    ((key, text),) = metadata
    assert key == TRACE_KEY
    request_id, traceparent = text.split(" ")
    assert request_id == "5"
    assert traceparent.startswith(f"00-{TRACE_ID}-")
    assert context.span_id not in traceparent
    assert traced.tracer.step_metadata([4]) is None


def test_metadata_never_outgrows_what_a_shard_takes(traced: Traced) -> None:
    state = ",".join(f"vendor{number}={'x' * 200}" for number in range(2))
    context = replace(begun(traced), state=state)
    for request_id in range(2000):
        traced.tracer.start_inference(request_id, context, step_id=1, elapsed_s=0.0)
    metadata = traced.tracer.step_metadata(range(2000))
    assert metadata is not None
    assert 0 < sum(len(key) + len(text) + 32 for key, text in metadata) < 2**20


def test_without_an_endpoint_nothing_is_traced() -> None:
    assert start_tracing(None, "router") is NO_TRACES
    assert NO_TRACES.start_request("POST", "/", headers(traceparent=SAMPLED), 0.0).context is None
    assert NO_TRACES.step_metadata([1]) is None


def test_missing_packages_refuse_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "processes.otlp")
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.resources", None)
    with pytest.raises(StartupFailed, match=r"pip install 'tandem\[otlp\]'"):
        start_tracing("http://127.0.0.1:4317", "router")
