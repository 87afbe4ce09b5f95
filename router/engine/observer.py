"""The observer of steps: writes each event of a step or stream to metrics and traces.

It keeps no state; the batcher could run without it. The `method` label is TGI's: "prefill" for a
step in which a prompt begins, else "decode".
"""

import re
import time
from collections.abc import Collection, Mapping

from processes.spans import TraceContext
from proto.contract import Batch, Generation, Prepared, StepResult
from router.engine.stream import Stream
from router.request.errors import ConstraintRefused, Refused, RouterError
from router.request.request import ApiKey, Failed, Finished
from router.scheduler.fair_shares import KeyUse
from router.scheduler.scheduler import SchedulerStats
from router.telemetry.metrics import Metrics
from router.telemetry.tracing import NO_TRACES, SequenceLife, Tracer

_INNER_CAPITAL = re.compile(r"(?<!^)(?=[A-Z])")


class StepObserver:
    """Writes the batcher's half of `Metrics`, and sequences' spans. `block_size` in tokens."""

    def __init__(self, metrics: Metrics, block_size: int, tracer: Tracer = NO_TRACES) -> None:
        self._metrics = metrics
        self._block_size = block_size
        self._tracer = tracer

    def rejected(self, error: Refused, key: ApiKey) -> None:
        """A request was refused before it was queued."""
        if key.name:
            self._metrics.key_refusals.inc(key.name)
        self._metrics.rejected.inc(_reason(error))
        self._metrics.retry_after.set(error.retry_after_s)

    def drain_rate(self, drain_rate: float) -> None:
        """The sequences that end per second, as of now."""
        self._metrics.drain_rate.set(drain_rate)

    def freed(self, since_s: float) -> None:
        """A cancelled request has left the shards and its blocks, `since_s` after its cancel."""
        self._metrics.cancel_to_free.observe(since_s)

    def scheduled(self, batch: Batch, schedule_s: float) -> None:
        """The scheduler made a step."""
        self._metrics.step_phase.observe(schedule_s, "schedule")
        for new in batch.new:
            for image in new.images:
                is_cached = image.stop <= new.cached_len
                self._metrics.image_rows.inc("prefix_cache" if is_cached else "encoder")
        if batch.new:
            self._metrics.batch_next_size.observe(len(batch.new))
            if batch.running_ids:
                self._metrics.batch_concat.inc("chunking")

    def admitted(self, stream: Stream, step_id: int, schedule_s: float) -> None:
        """A stream's sequence enters a step, which was scheduled within `schedule_s`."""
        if stream.request.trace is not None:
            self._tracer.start_inference(
                stream.request_id, stream.request.trace, step_id, schedule_s
            )

    def began(self, batch: Batch) -> None:
        """A step goes to the shards."""
        if batch.has_work:
            self._metrics.batch_inference_count.inc(_method(batch))

    def failed(self, batch: Batch) -> None:
        """The shards did not answer a step."""
        self._metrics.batch_inference_failure.inc(_method(batch))

    def shards_failed(self) -> None:
        """The shards lost their state; what ran is computed anew once they have begun anew."""
        self._metrics.shard_failures.inc()

    def recovered(self, broken_s: float) -> None:
        """The shards began anew, so long after they failed."""
        self._metrics.shard_recovery.observe(broken_s)

    def finished(self, batch: Batch, result: StepResult, step_s: float, apply_s: float) -> None:
        """A step was answered after `step_s` and applied in `apply_s`."""
        metrics = self._metrics
        method = _method(batch)
        if not batch.has_work:
            metrics.batch_filter_duration.observe(step_s, method)
            return
        metrics.batch_inference_success.inc(method)
        metrics.batch_inference_duration.observe(step_s, method)
        metrics.batch_forward_duration.observe(result.forward_s, method)
        metrics.batch_decode_duration.observe(result.sample_s, method)
        phase = metrics.step_phase.observe
        phase(result.forward_s, "forward")
        phase(result.sample_s, "sample")
        phase(max(0.0, step_s - result.forward_s - result.sample_s), "rpc")
        phase(apply_s, "apply")
        if result.num_masked_rows:
            metrics.mask_duration.observe(result.mask_s)
            metrics.masked_rows.inc(amount=result.num_masked_rows)
        num_late = sum([generation.is_late for generation in result.others])
        if num_late:
            metrics.late_rows.inc(amount=num_late)
        if result.num_masked_rows or num_late:
            metrics.mask_wait_duration.observe(result.mask_wait_s)

    def looked(self, looked_s: float) -> None:
        """Shards looked at an image beside their steps."""
        self._metrics.image_encoder.observe(looked_s)

    def generated(self, num_tokens: int, waited_s: Mapping[float, int]) -> None:
        """A step brought so many tokens; so many sequences had waited so long since their last."""
        self._metrics.output_tokens.inc(amount=num_tokens)
        for since_s, count in waited_s.items():
            self._metrics.inter_token_latency.observe(since_s, count=count)

    def several(self, generation: Generation) -> None:
        """A step may have brought a sequence several tokens, with no latency between them."""
        metrics = self._metrics
        num_tokens = len(generation.tokens)
        if num_tokens > 1:
            metrics.inter_token_latency.observe(0.0, count=num_tokens - 1)
            metrics.forced_tokens.inc(amount=generation.num_forced)
        if generation.num_drafts:
            metrics.draft_tokens.inc(amount=generation.num_drafts)
            metrics.accepted_tokens.inc(amount=generation.num_accepted)

    def prepared(self, prepared: Prepared, waited_s: float) -> None:
        """Requests waited until their constraint was compiled or found in the shard's cache."""
        source = "cache" if prepared.was_cached else "compiled"
        self._metrics.constraint_cache_bytes.set(prepared.cache_bytes)
        self._metrics.constraint_prepare_duration.observe(waited_s, source)

    def refused(self, error: ConstraintRefused) -> None:
        """The shard refused a constraint that had passed the router's check."""
        self._metrics.constraint_refusals.inc(error.reason)

    def scheduler_stats(self, stats: SchedulerStats, num_paused: int) -> None:
        """The scheduler's numbers after a step; so many sequences wait for their readers."""
        metrics = self._metrics
        metrics.paused_sequences.set(num_paused)
        metrics.queue_size.set(stats.num_waiting)
        metrics.batch_current_size.set(stats.num_running)
        metrics.batch_current_max_tokens.set(stats.num_blocks_used * self._block_size)
        metrics.batch_max_total_tokens.set(stats.num_blocks_total * self._block_size)
        metrics.kv_blocks_capacity.set(stats.num_blocks_total)
        metrics.kv_blocks_used.set(stats.num_blocks_used)
        metrics.kv_blocks_cached.set(stats.num_blocks_cached)
        if stats.num_states_total:
            metrics.states_capacity.set(stats.num_states_total)
            metrics.states_used.set(stats.num_states_used)
            metrics.states_kept.set(stats.num_states_kept)
        metrics.constrained_sequences.set(stats.num_constrained)
        metrics.preemptions.set_total(stats.num_preemptions)
        metrics.prompt_tokens.set_total(stats.num_prompt_tokens)
        metrics.prefix_hit_tokens.set_total(stats.num_cached_tokens)
        if metrics.gateways is not None:
            metrics.gateways.set(
                num_waiting=stats.num_waiting,
                num_running=stats.num_running,
                num_blocks_used=stats.num_blocks_used,
                num_blocks=stats.num_blocks_total,
                block_size=self._block_size,
            )

    def adapters(self, max_loras: int, running: Collection[str], waiting: Collection[str]) -> None:
        """The LoRA adapters of running requests, and of those that wait for their first step."""
        labels = (str(max_loras), ",".join(sorted(waiting)), ",".join(sorted(running)))
        self._metrics.lora_requests.set(labels, time.time())

    def key_uses(self, uses: Mapping[str, KeyUse]) -> None:
        """What the requests of each key have taken."""
        metrics = self._metrics
        for name, use in uses.items():
            metrics.key_sequences.set_total(use.num_sequences, name)
            metrics.key_prompt_tokens.set_total(use.num_prompt_tokens, name)
            metrics.key_cached_tokens.set_total(use.num_cached_tokens, name)
            metrics.key_generated_tokens.set_total(use.num_generated_tokens, name)
            metrics.key_forced_tokens.set_total(use.work.num_forced, name)
            metrics.key_wasted_tokens.set_total(use.work.num_wasted, name)
            metrics.key_shard_seconds.set_total(use.work.shard_s, name)
            metrics.key_block_seconds.set_total(use.work.block_s, name)

    def ended(self, stream: Stream) -> None:
        """A stream has ended."""
        metrics = self._metrics
        end = stream.end
        if stream.request.on_end is not None:
            stream.request.on_end(stream.cached_len, stream.num_generated)
        if stream.request.trace is not None:
            self._tracer.end_sequence(_life(stream, stream.request.trace))
        if isinstance(end, Failed):
            metrics.sequence_ends.inc(_reason(end.error))
        if not isinstance(end, Finished) or end.timings is None:
            return
        timings = end.timings
        metrics.sequence_ends.inc(end.reason.value)
        if end.constraint_satisfied is not None:
            outcome = "satisfied" if end.constraint_satisfied else "unsatisfied"
            metrics.constraint_ends.inc(outcome)
        metrics.queue_duration.observe(timings.queue_s)
        metrics.skipped_tokens.observe(end.num_cached_tokens)
        metrics.generated_tokens.observe(end.num_generated_tokens)
        if end.num_generated_tokens:
            metrics.time_to_first_token.observe(timings.time_to_first_token_s)
            metrics.inference_duration.observe(timings.inference_s)
            metrics.mean_time_per_token.observe(timings.inference_s / end.num_generated_tokens)


def _life(stream: Stream, context: TraceContext) -> SequenceLife:
    end = stream.end
    constraint = stream.request.constraint
    return SequenceLife(
        request_id=stream.request_id,
        context=context,
        submitted_s=stream.submitted_s,
        first_scheduled_s=stream.first_scheduled_s,
        first_token_s=stream.first_token_s,
        num_cached_tokens=stream.cached_len,
        num_generated_tokens=stream.num_generated,
        finish_reason=end.reason.value if isinstance(end, Finished) else None,
        error=end.error if isinstance(end, Failed) else None,
        constraint_kind=None if constraint is None else constraint.spec.kind.value,
        constraint_satisfied=end.constraint_satisfied if isinstance(end, Finished) else None,
    )


def _reason(error: RouterError) -> str:
    """The error's class as a label value: RowFailed is row_failed."""
    return _INNER_CAPITAL.sub("_", type(error).__name__).lower()


def _method(batch: Batch) -> str:
    return "prefill" if batch.is_prefill else "decode"
