"""The spans of traced sequences, from submission to any end, and their metadata for the shards."""

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
from router.request.request import GenerateRequest
from router.telemetry.tracing import Tracer
from tests.fakes import FakeShard
from tests.router.rig import asking, events_of, routing, settled

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
