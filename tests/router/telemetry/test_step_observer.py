"""What the metrics say of steps and of ends."""

from tests.fakes import FakeShard
from tests.router.rig import (
    asking,
    events_of,
    routing,
    settled,
)


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
        assert metrics.kv_blocks_total.value() == 64
        assert metrics.kv_blocks_used.value() == 0
        assert metrics.step_phase.count("rpc") == 6


async def test_what_can_fail_is_counted_from_zero() -> None:
    async with routing(FakeShard()) as rig:
        told = rig.metrics.exposition().decode()
        assert 'tgi_batch_inference_failure_total{method="prefill"} 0.0' in told
        assert 'tgi_batch_inference_failure{method="decode"} 0.0' in told
        assert 'tgi_request_failure{err="validation"} 0.0' in told


async def test_reasons_of_an_end_are_words_in_small_letters() -> None:
    async with routing(FakeShard(num_blocks=256)) as rig:
        stream = rig.batcher.submit(asking(max_new_tokens=400))
        await stream.take()
        rig.batcher.cancel(stream)
        await settled(rig)
        assert rig.metrics.sequence_ends.value("cancelled") == 1
