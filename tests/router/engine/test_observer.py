"""What metrics and spans say of steps, sequences and ends."""

import asyncio
from dataclasses import replace
from typing import Any

import grpc
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from processes.otlp import OtlpExporter
from processes.spans import TRACE_KEY, TraceContext
from proto import generate_pb2 as pb
from proto.contract import Image
from router.request.request import GenerateRequest
from router.scheduler.states import StateSlots
from router.telemetry.metrics import Metrics
from router.telemetry.tracing import Tracer
from tests.fakes import FakeShard
from tests.router.rig import asking, events_of, routing, settled


async def test_metrics_tell_what_happened() -> None:
    async with routing(FakeShard()) as rig:
        await events_of(rig.batcher.submit(asking(max_new_tokens=6)))
        await settled(rig)
        metrics = rig.metrics
        assert metrics.output_tokens.value() == 6
        assert metrics.inter_token_latency.count() == 5
        assert metrics.time_to_first_token.count() == 1
        assert metrics.sequence_ends.value("length") == 1
        assert metrics.batch_inference_success.value("prefill") == 1
        assert metrics.batch_inference_success.value("decode") == 5
        assert metrics.kv_blocks_capacity.value() == 64
        assert metrics.kv_blocks_used.value() == 0
        assert metrics.step_phase.count("rpc") == 6


async def test_an_image_in_the_prefix_cache_is_counted_as_not_encoded() -> None:
    image = Image(bytes(16), 4, 16, {})
    async with routing(FakeShard()) as rig:
        for _ in range(2):
            asked = replace(asking(prompt="a" * 40, max_new_tokens=2), images=(image,))
            await events_of(rig.batcher.submit(asked))
        await settled(rig)
        rows = rig.metrics.image_rows

    assert (rows.value("encoder"), rows.value("prefix_cache")) == (1, 1)


async def test_slots_for_states_are_counted() -> None:
    states = StateSlots(12)
    async with routing(FakeShard(), states=states) as rig:
        await events_of(rig.batcher.submit(asking("abcdefgh", max_new_tokens=6)))
        await settled(rig)
        metrics = rig.metrics
        slots = [each.value() for each in (metrics.states_capacity, metrics.states_used)]
        assert (slots, metrics.states_kept.value()) == ([12, 0], 1)


async def test_what_can_fail_is_counted_from_zero() -> None:
    async with routing(FakeShard()) as rig:
        exposed = rig.metrics.exposition().decode()
        assert 'tgi_batch_inference_failure_total{method="prefill"} 0.0' in exposed
        assert 'tgi_batch_inference_failure{method="decode"} 0.0' in exposed
        assert 'tgi_request_failure{err="validation"} 0.0' in exposed


async def test_what_happens_adds_no_series_to_the_first_scrape() -> None:
    async with routing(FakeShard()) as rig:
        before = series_of(rig.metrics)
        await events_of(rig.batcher.submit(asking(max_new_tokens=6)))
        stream = rig.batcher.submit(asking(max_new_tokens=20))
        await stream.take()
        rig.batcher.cancel(stream)
        await settled(rig)
        assert rig.metrics.batch_filter_duration.count("decode") == 1
        assert series_of(rig.metrics) == before


def series_of(metrics: Metrics) -> set[str]:
    lines = metrics.exposition().decode().splitlines()
    return {line.rpartition(" ")[0] for line in lines if not line.startswith("#")}


async def test_reasons_of_an_end_are_words_in_small_letters() -> None:
    async with routing(FakeShard(num_blocks=256)) as rig:
        stream = rig.batcher.submit(asking(max_new_tokens=400))
        await stream.take()
        rig.batcher.cancel(stream)
        await settled(rig)
        assert rig.metrics.sequence_ends.value("cancelled") == 1


CONTEXT = TraceContext("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331")


class ListeningShard(FakeShard):
    """Keeps the trace metadata that it receives: (request id, span id)."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.traced: list[tuple[int, str]] = []

    async def Prefill(self, request: pb.PrefillRequest, context: Any) -> pb.StepResponse:
        for key, value in context.invocation_metadata():
            if key == TRACE_KEY:
                request_id, traceparent = value.split(" ")
                self.traced.append((int(request_id), traceparent.split("-")[2]))
        return await super().Prefill(request, context)


class Traces:
    """A tracer, and the spans that it ended."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        provider = TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.tracer = Tracer(OtlpExporter(provider, "tandem.router"))

    def of(self, request_id: int) -> dict[str, ReadableSpan]:
        """One sequence's spans by name; each name comes once."""
        found: dict[str, ReadableSpan] = {}
        for span in self._exporter.get_finished_spans():
            if (span.attributes or {})["tandem.shard_request_id"] == request_id:
                assert span.name not in found
                found[span.name] = span
        return found

    @property
    def num_open(self) -> int:
        return len(self.tracer._inferences)


def traced(request: GenerateRequest) -> GenerateRequest:
    return replace(request, trace=CONTEXT)


def id_of(span: ReadableSpan) -> str:
    assert span.context is not None
    return f"{span.context.span_id:016x}"


async def test_the_shards_get_the_metadata_of_traced_sequences_with_them() -> None:
    shard = ListeningShard()
    traces = Traces()
    async with routing(shard, tracer=traces.tracer) as rig:
        other = rig.batcher.submit(asking("other", 4))
        stream = rig.batcher.submit(traced(asking("mine", 4)))
        await asyncio.gather(events_of(stream), events_of(other))
        spans = traces.of(stream.request_id)
        assert spans.keys() == {"queue", "inference"}
        assert shard.traced == [(stream.request_id, id_of(spans["inference"]))]
        assert traces.of(other.request_id) == {}


async def test_one_that_left_while_it_waited_has_a_queue_alone() -> None:
    traces = Traces()
    async with routing(FakeShard(num_blocks=256), max_batch_size=1, tracer=traces.tracer) as rig:
        running = rig.batcher.submit(traced(asking("first", 200)))
        await running.take()
        waiting = rig.batcher.submit(traced(asking("second", 4)))
        rig.batcher.cancel(waiting)
        rig.batcher.cancel(running)
        await settled(rig)
        assert traces.of(waiting.request_id).keys() == {"queue"}
        assert traces.of(running.request_id).keys() == {"queue", "inference"}
        assert traces.num_open == 0


async def test_failed_shards_end_the_spans_of_what_ran() -> None:
    shard = FakeShard()
    traces = Traces()
    async with routing(shard, tracer=traces.tracer) as rig:
        shard.faults.fail_for_good("Decode", grpc.StatusCode.INTERNAL, "device lost")
        stream = rig.batcher.submit(traced(asking(max_new_tokens=10)))
        await events_of(stream)
        inference = traces.of(stream.request_id)["inference"]
        assert "device lost" in str(inference.status.description)
        assert traces.num_open == 0


async def test_a_preempted_sequence_stays_under_its_span() -> None:
    shard = ListeningShard(num_blocks=8)
    traces = Traces()
    async with routing(shard, tracer=traces.tracer) as rig:
        streams = [rig.batcher.submit(traced(asking(word, 14))) for word in ("ab", "cd", "ef")]
        for stream in streams:
            await events_of(stream)
        assert rig.scheduler.stats().num_preemptions > 0
        ids = {
            stream.request_id: id_of(traces.of(stream.request_id)["inference"])
            for stream in streams
        }
        assert len(shard.traced) > len(streams)
        assert set(shard.traced) == set(ids.items())
        assert traces.num_open == 0
