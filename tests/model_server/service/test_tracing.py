"""A shard's spans, as the SDK would export them."""

import sys
from collections.abc import Mapping, Sequence

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from model_server.errors import ConfigRefused, OutOfMemory
from model_server.service.tracing import NO_TRACES, StepCall, StepTracer, start_tracing
from model_server.step import StepOutput
from processes.otlp import OtlpExporter
from processes.spans import TRACE_KEY
from proto.contract import (
    FinishReason,
    Generation,
    NewSequence,
    RunningUpdate,
    SamplingParams,
    StopParams,
)

TRACE_ID = "0af7651916cd43dd8448eb211c80319c"
ROUTER_ID = "b7ad6b7169203331"
MS = 1_000_000


class Traced:
    """A tracer, the steps that it records, and the spans that it exports."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        provider = TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.tracer = StepTracer(OtlpExporter(provider, "tandem.model_server"), rank=1)

    @property
    def spans(self) -> Sequence[ReadableSpan]:
        return self._exporter.get_finished_spans()

    def step(
        self,
        *new: NewSequence,
        updates: Sequence[RunningUpdate] = (),
        held: Sequence[int] = (1,),
        traced: Sequence[int] = (1,),
        generations: tuple[Generation, ...] = (),
    ) -> None:
        """A step that took 5 ms: 3 in the forward, 1 in sampling."""
        output = StepOutput(generations, tuple(held), 3 * MS, MS, 5 * MS)
        metadata = [
            (TRACE_KEY, metadata_value(one.request_id)) for one in new if one.request_id in traced
        ]
        self.tracer.stepped(StepCall(new, updates, (), metadata), output)


def metadata_value(request_id: int) -> str:
    return f"{request_id} 00-{TRACE_ID}-{ROUTER_ID}-01 a=1"


def entering(num_tokens: int = 4, chunk_len: int = 4, request_id: int = 1) -> NewSequence:
    return NewSequence(
        request_id=request_id,
        token_ids=tuple(range(num_tokens)),
        prompt_len=num_tokens,
        cached_len=0,
        chunk_len=chunk_len,
        block_ids=(0,),
        sampling=SamplingParams(),
        stop=StopParams(8),
    )


def attributes(span: ReadableSpan) -> Mapping[str, object]:
    assert span.attributes is not None
    return span.attributes


def error_of(span: ReadableSpan) -> str | None:
    return span.status.description


def test_a_prompt_is_a_span_and_all_decodes_are_one() -> None:
    traced = Traced()
    traced.step(entering())
    traced.step()
    traced.step(held=())
    prefill, decode = traced.spans
    assert (prefill.name, decode.name) == ("prefill", "decode")
    for span in (prefill, decode):
        assert span.parent is not None
        assert span.context is not None
        assert f"{span.context.trace_id:032x}" == TRACE_ID
        assert f"{span.parent.span_id:016x}" == ROUTER_ID
        assert span.context.trace_state.to_header() == "a=1"
    assert attributes(prefill) == {
        "tandem.shard_request_id": 1,
        "tandem.rank": 1,
        "tandem.num_tokens": 4,
        "tandem.num_tokens_left": 0,
        "tandem.forward_ms": 3.0,
        "tandem.sample_ms": 1.0,
    }
    assert attributes(decode)["tandem.num_steps"] == 2
    assert attributes(decode)["tandem.forward_ms"] == 6.0
    assert prefill.start_time is not None
    assert prefill.end_time is not None
    assert prefill.end_time - prefill.start_time == 5 * MS


def test_each_chunk_of_a_prompt_is_a_span() -> None:
    traced = Traced()
    traced.step(entering(num_tokens=10, chunk_len=4))
    traced.step()  # the prompt sits this step out
    traced.step(updates=[RunningUpdate(1, (), 4)])
    traced.step(updates=[RunningUpdate(1, (), 2)])
    assert [attributes(span)["tandem.num_tokens"] for span in traced.spans] == [4, 4, 2]
    assert [attributes(span)["tandem.num_tokens_left"] for span in traced.spans] == [6, 2, 0]


def test_a_decode_that_sits_a_step_out_does_not_count_it() -> None:
    traced = Traced()
    traced.step(entering())
    traced.step(updates=[RunningUpdate(1, (), 0)])
    traced.step(updates=[RunningUpdate(1, (7,), None)], held=())
    assert attributes(traced.spans[-1])["tandem.num_steps"] == 1


def test_an_answer_of_one_token_is_a_prefill_alone() -> None:
    traced = Traced()
    traced.step(entering(), held=())
    assert [span.name for span in traced.spans] == ["prefill"]


def test_requests_that_are_not_traced_leave_no_span() -> None:
    traced = Traced()
    traced.step(entering(request_id=2), held=(2,))
    traced.step(held=())
    assert traced.spans == ()


def test_what_a_filter_keeps_goes_on() -> None:
    traced = Traced()
    traced.step(entering())
    traced.step()
    traced.tracer.kept((1,))
    assert [span.name for span in traced.spans] == ["prefill"]
    traced.tracer.kept(())
    assert traced.spans[-1].name == "decode"
    assert error_of(traced.spans[-1]) is None


def test_a_failed_row_ends_its_span_with_its_reason() -> None:
    failed = Generation(1, (), FinishReason.ERROR, "NaN logits")
    traced = Traced()
    traced.step(entering())
    traced.step(held=(), generations=(failed,))
    assert error_of(traced.spans[-1]) == "NaN logits"
    traced.step(entering(), held=(), generations=(failed,))
    assert (traced.spans[-1].name, error_of(traced.spans[-1])) == ("prefill", "NaN logits")


def test_a_failed_step_fails_the_spans_of_all_that_were_in_it() -> None:
    traced = Traced()
    traced.step(entering())
    metadata = [(TRACE_KEY, metadata_value(2))]
    call = StepCall((entering(request_id=2),), (), (), metadata)
    traced.tracer.failed(call, 2 * MS, OutOfMemory("too much"))
    traced.tracer.kept(())
    assert [attributes(span)["tandem.shard_request_id"] for span in traced.spans] == [1, 2, 1]
    assert [span.name for span in traced.spans] == ["prefill", "prefill", "decode"]
    assert [error_of(span) for span in traced.spans[1:]] == ["OutOfMemory: too much"] * 2


@pytest.mark.parametrize("text", ["", "1", "x 00-1-2-01", f"x 00-{TRACE_ID}-{ROUTER_ID}-01"])
def test_metadata_that_is_no_trace_s_is_logged(text: str, caplog: pytest.LogCaptureFixture) -> None:
    traced = Traced()
    output = StepOutput((), (1,), MS, MS, MS)
    traced.tracer.stepped(StepCall((entering(),), (), (), [(TRACE_KEY, text)]), output)
    assert traced.spans == ()
    assert len(caplog.messages) == 1


def test_without_an_endpoint_nothing_is_traced() -> None:
    assert start_tracing(None, "shard", rank=0) is NO_TRACES


def test_missing_packages_refuse_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "processes.otlp")
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.resources", None)
    with pytest.raises(ConfigRefused, match=r"pip install 'tandem\[otlp\]'"):
        start_tracing("http://127.0.0.1:4317", "shard", rank=0)
