"""The router's metrics, each declared once, in `Metrics`.

TGI's `tgi_batch_concat_duration` is missing: there it is the time of a separate step that merges
two batches, while here new prompts join the running batch within their own step, whose time is in
`tgi_batch_inference_duration`.
"""

from collections.abc import Collection, Iterator, Sequence

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from constraints.spec import Kind
from processes.instruments import Counter, Gauge, Histogram, LastKnown

METHODS = ("prefill", "decode")
PHASES = ("schedule", "rpc", "forward", "sample", "apply")
CONSTRAINT_KINDS = tuple(kind.value for kind in Kind)
# Exported from the start: alerts on a rate need the series before the first failure.
FAILURES = (
    "validation",
    "template",
    "overloaded",
    "rate_limited",
    "unhealthy",
    "draining",
    "generation",
    "incomplete",
    "dropped",
    "payload_too_large",
    "unsupported_media_type",
    "slow_sender",
    "slow_reader",
    "internal_error",
)
SEQUENCE_ENDS = (
    "eos",
    "length",
    "stop_token",
    "stop_string",
    "constraint_complete",
    "deadline",
    "paused",
    "cancelled",
    "constraint_refused",
    "row_failed",
    "shard_failed",
    "shard_unfit",
    "displaced",
    "failed_alone",
    "adapter_lost",
    "server_stopped",
)
CUTS = ("slow_head", "slow_body", "slow_reader", "no_pong", "too_many")
RESUMES = ("resumed", "ended", "unknown", "gone")
CLOSE_CODES = ("1000", "1001", "1003", "1005", "1006", "1007", "1008", "1009", "1011", "other")
BEAM_ENDS = ("complete", "hole", "budget", "full", "deadline", "cancelled")
FRAMES = ("GENERATE", "SCORE", "CANCEL", "HELLO", "MODEL_INFO", "BEAMS", "other")
REFUSALS = ("overloaded", "rate_limited", "unhealthy", "draining")
IMAGE_OUTCOMES = ("taken", "refused")
# An image whose tokens are all in the prefix cache is not encoded.
IMAGE_SOURCES = ("encoder", "prefix_cache")
CONSTRAINT_REFUSALS = (
    "malformed",
    "not_enforced",
    "contradiction",
    "does_not_fit",
    "too_complex",
    "overloaded",
    "unserved",
)

# TGI's: 35 geometric steps from 150 us to 145.6 s.
DURATION_BUCKETS = tuple(0.00015 * 1.5**k for k in range(35))
# The gaps between tokens are milliseconds; twice the resolution where they lie.
TOKEN_GAP_BUCKETS = tuple(0.0005 * 2 ** (k / 2) for k in range(31))
BATCH_SIZE_BUCKETS = tuple(float(2**k) for k in range(11))


def _seconds(
    name: str, documentation: str, label: str | None = None, label_values: Sequence[str] = ()
) -> Histogram:
    return Histogram(name, documentation, DURATION_BUCKETS, label, label_values)


def _of_key(name: str, documentation: str) -> Counter:
    return Counter(f"tandem_key_{name}", f"{documentation}, by the name of the API key", "key")


def _equal_steps(limit: int) -> tuple[float, ...]:
    return tuple(limit * (k + 1) / 100 for k in range(100))


class GatewayMetrics:
    """What gateways choose a server by, under vLLM's names, which their pickers know."""

    def __init__(self) -> None:
        self._waiting = Gauge("vllm:num_requests_waiting", "As tgi_queue_size")
        self._running = Gauge("vllm:num_requests_running", "As tgi_batch_current_size")
        self._usage = Gauge(
            "vllm:kv_cache_usage_perc", "Share of the blocks that running requests hold, 0 to 1"
        )
        self._cache = LastKnown(
            "vllm:cache_config_info",
            "Tokens of a block, and the blocks of the KV cache",
            ("block_size", "num_gpu_blocks"),
        )

    def set(
        self,
        *,
        num_waiting: int,
        num_running: int,
        num_blocks_used: int,
        num_blocks: int,
        block_size: int,
    ) -> None:
        """The scheduler's numbers after a step; the size in tokens."""
        self._waiting.set(num_waiting)
        self._running.set(num_running)
        self._usage.set(num_blocks_used / max(1, num_blocks))
        self._cache.set((str(block_size), str(num_blocks)), 1.0)

    def families(self) -> Iterator[Metric]:
        """All of them."""
        for instrument in (self._waiting, self._running, self._usage, self._cache):
            yield from instrument.families()


class Metrics(Collector):
    """Every metric of the router, registered in `registry`.

    `max_input_len` and `max_total_len` (tokens) end the buckets of the length histograms.
    `for_gateways`: whether vLLM's names are exported too.
    """

    def __init__(
        self,
        registry: CollectorRegistry,
        *,
        max_input_len: int,
        max_total_len: int,
        for_gateways: bool = False,
    ) -> None:
        self._registry = registry
        self.gateways = GatewayMetrics() if for_gateways else None
        self._declare_requests(max_input_len, max_total_len)
        self._declare_connections()
        self._declare_sequences(max_total_len)
        self._declare_admission()
        self._declare_keys()
        self._declare_steps()
        self._declare_scheduler()
        self._declare_constraint_checks()
        self._declare_constrained_steps()
        registry.register(self)

    def _declare_requests(self, max_input_len: int, max_total_len: int) -> None:
        """Written by http/: one request as a client sees it."""
        self.request_count = Counter("tgi_request_count", "Generation requests received")
        self.request_success = Counter("tgi_request_success", "Requests answered in full")
        self.request_failure = Counter(
            "tgi_request_failure",
            "Requests that failed, by cause",
            label="err",
            label_values=FAILURES,
        )
        self.request_duration = _seconds(
            "tgi_request_duration", "Seconds from receipt to the last token"
        )
        self.validation_duration = _seconds(
            "tgi_request_validation_duration", "Seconds spent in validation"
        )
        self.input_length = Histogram(
            "tgi_request_input_length", "Prompt tokens", _equal_steps(max_input_len)
        )
        self.max_new_tokens = Histogram(
            "tgi_request_max_new_tokens", "Tokens asked for", _equal_steps(max_total_len)
        )

    def _declare_connections(self) -> None:
        """Written by http/: connections, WebSockets and what LMTP does on them."""
        self.connections_cut = Counter(
            "tandem_connections_cut",
            "Connections that were cut because their client was too slow, by what was slow",
            label="cause",
            label_values=CUTS,
        )
        self.stream_resumes = Counter(
            "tandem_stream_resumes",
            "Requests that go on from an event of an earlier stream, by what became of them",
            label="outcome",
            label_values=RESUMES,
        )
        self.sockets = Gauge("tandem_sockets", "WebSockets that are open")
        self.socket_streams = Gauge("tandem_socket_streams", "Streams open on WebSockets")
        self.socket_frames = Counter(
            "tandem_socket_frames",
            "Frames that came over WebSockets, by type",
            label="type",
            label_values=FRAMES,
        )
        self.beam_groups = Counter(
            "tandem_beam_groups",
            "Searched groups of beams, by how the search ended",
            label="reason",
            label_values=BEAM_ENDS,
        )
        self.beam_steps = Counter("tandem_beam_steps", "Tokens by which searched beams grew")
        self.socket_closes = Counter(
            "tandem_socket_closes",
            "WebSockets that were closed, by code",
            label="code",
            label_values=CLOSE_CODES,
        )

    def _declare_sequences(self, max_total_len: int) -> None:
        """Written by the batcher, once for each sequence or each of its tokens."""
        self.queue_duration = _seconds("tgi_request_queue_duration", "Seconds until the first step")
        self.inference_duration = _seconds(
            "tgi_request_inference_duration", "Seconds from first step to end"
        )
        self.mean_time_per_token = _seconds(
            "tgi_request_mean_time_per_token_duration",
            "Inference seconds divided by generated tokens",
        )
        self.generated_tokens = Histogram(
            "tgi_request_generated_tokens", "Tokens generated", _equal_steps(max_total_len)
        )
        self.skipped_tokens = Histogram(
            "tgi_request_skipped_tokens",
            "Prompt tokens found in the prefix cache",
            _equal_steps(max_total_len),
        )
        self.time_to_first_token = _seconds(
            "tandem_time_to_first_token_seconds", "Seconds from submission to the first token"
        )
        self.inter_token_latency = Histogram(
            "tandem_inter_token_latency_seconds",
            "Seconds between two tokens of one sequence",
            TOKEN_GAP_BUCKETS,
        )
        self.output_tokens = Counter("tandem_output_tokens", "Tokens generated for all sequences")
        self.draft_tokens = Counter(
            "tandem_draft_tokens", "Tokens that were guessed and computed, of all steps"
        )
        self.accepted_tokens = Counter(
            "tandem_accepted_tokens", "Draft tokens that were what was sampled in their place"
        )
        self.sequence_ends = Counter(
            "tandem_sequence_ends",
            "Sequences ended, by reason",
            label="reason",
            label_values=SEQUENCE_ENDS,
        )

    def _declare_admission(self) -> None:
        """Written by the batcher: refusals, the rate behind their Retry-After, cancellations."""
        self.rejected = Counter(
            "tandem_rejected",
            "Requests refused before they were queued, by reason",
            label="reason",
            label_values=REFUSALS,
        )
        self.retry_after = Gauge(
            "tandem_retry_after_seconds", "Seconds in the last refusal's Retry-After"
        )
        self.drain_rate = Gauge(
            "tandem_drain_rate", "Sequences finished per second, measured while the server is busy"
        )
        self.cancel_to_free = _seconds(
            "tandem_cancel_to_free_seconds",
            "Seconds from a client's disconnect until its request has left blocks and shards",
        )

    def _declare_keys(self) -> None:
        """Written by the batcher: what the requests of each API key took, once they have ended."""
        self.key_refusals = _of_key("refusals", "Requests refused before they were queued")
        self.key_sequences = _of_key("sequences", "Sequences that ended, good or bad")
        self.key_prompt_tokens = _of_key("prompt_tokens", "Tokens of prompts")
        self.key_cached_tokens = _of_key("cached_tokens", "Prompt tokens found in the cache")
        self.key_generated_tokens = _of_key("generated_tokens", "Tokens of answers")
        self.key_forced_tokens = _of_key("forced_tokens", "Those that their constraint forced")
        self.key_wasted_tokens = _of_key("wasted_tokens", "Tokens computed more than once")
        self.key_shard_seconds = _of_key("shard_seconds", "Steps, by the share of their tokens")
        self.key_block_seconds = _of_key("block_seconds", "KV blocks, by the time of the steps")

        self._of_keys = (
            self.key_refusals,
            self.key_sequences,
            self.key_prompt_tokens,
            self.key_cached_tokens,
            self.key_generated_tokens,
            self.key_forced_tokens,
            self.key_wasted_tokens,
            self.key_shard_seconds,
            self.key_block_seconds,
        )

    def open_keys(self, names: Collection[str]) -> None:
        """Export the counters of these API keys from now on, before they count."""
        for counter in self._of_keys:
            for name in names:
                counter.inc(name, 0.0)

    def _declare_steps(self) -> None:
        """Written by the batcher, once for each step."""
        self.batch_inference_count = Counter(
            "tgi_batch_inference_count", "Steps begun", label="method", label_values=METHODS
        )
        self.batch_inference_success = Counter(
            "tgi_batch_inference_success", "Steps answered", label="method", label_values=METHODS
        )
        self.batch_inference_failure = Counter(
            "tgi_batch_inference_failure", "Steps failed", label="method", label_values=METHODS
        )
        self.batch_concat = Counter(
            "tgi_batch_concat",
            "Steps in which prompts joined a running batch",
            label="reason",
            label_values=("chunking",),
        )
        self.batch_inference_duration = _seconds(
            "tgi_batch_inference_duration", "Seconds of a step", "method", METHODS
        )
        self.batch_forward_duration = _seconds(
            "tgi_batch_forward_duration", "Seconds of the model's forward", "method", METHODS
        )
        self.batch_decode_duration = _seconds(
            "tgi_batch_decode_duration", "Seconds from logits to tokens", "method", METHODS
        )
        self.batch_filter_duration = _seconds(
            "tgi_batch_filter_duration",
            "Seconds of a step that only drops sequences from the shards",
            label="method",
            label_values=METHODS,
        )
        self.batch_next_size = Histogram(
            "tgi_batch_next_size", "Requests that a step admits", BATCH_SIZE_BUCKETS
        )
        self.shard_failures = Counter(
            "tandem_shard_failures", "Failures of the shards, after which all that ran is replayed"
        )
        self.shard_recovery = _seconds(
            "tandem_shard_recovery_seconds", "Seconds from the shards' failure until they are back"
        )
        self.step_phase = _seconds(
            "tandem_step_phase_seconds",
            "Seconds of a step by phase: schedule, rpc (forward and sample taken off), forward, "
            "sample, apply",
            label="phase",
            label_values=PHASES,
        )

    def _declare_constraint_checks(self) -> None:
        """Written by the check of constraints, before their requests are accepted."""
        self.constraint_check_duration = _seconds(
            "tandem_constraint_check_seconds",
            "Seconds of a constraint's check, waiting included, by its kind",
            label="kind",
            label_values=CONSTRAINT_KINDS,
        )
        self.constraint_compile_duration = _seconds(
            "tandem_constraint_compile_seconds",
            "Seconds of compiling a constraint and finding a completion, by its kind",
            label="kind",
            label_values=CONSTRAINT_KINDS,
        )
        self.constraint_checks = Counter(
            "tandem_constraint_checks",
            "Constraints checked, by where the answer came from",
            label="source",
            label_values=("worker", "cache", "look"),
        )
        self.constraint_refusals = Counter(
            "tandem_constraint_refusals",
            "Constraints refused, by reason",
            label="reason",
            label_values=CONSTRAINT_REFUSALS,
        )
        self.constraint_workers_ended = Counter(
            "tandem_constraint_workers_ended",
            "Compiling processes ended for their use of time or memory",
        )

    def _declare_constrained_steps(self) -> None:
        """Written by the batcher: constraints in the shard, and what they cost a step."""
        self.constraint_prepare_duration = _seconds(
            "tandem_constraint_prepare_seconds",
            "Seconds that requests waited until the shard had compiled their constraint, by "
            "whether it had before",
            label="source",
            label_values=("compiled", "cache"),
        )
        self.constraint_cache_bytes = Gauge(
            "tandem_constraint_cache_bytes",
            "About what the shard's compiled constraints take (--constraint-cache-mib)",
        )
        self.mask_duration = _seconds(
            "tandem_mask_seconds", "Seconds that the token masks of a step took, beside its forward"
        )
        self.mask_wait_duration = _seconds(
            "tandem_mask_wait_seconds", "Seconds that sampling waited for the token masks of a step"
        )
        self.masked_rows = Counter("tandem_masked_rows", "Rows that had a token mask, of all steps")
        self.late_rows = Counter(
            "tandem_late_rows", "Rows that sampled no token since their token mask was late"
        )
        self.forced_tokens = Counter(
            "tandem_forced_tokens", "Generated tokens without an alternative under their constraint"
        )
        self.constrained_sequences = Gauge(
            "tandem_constrained_sequences", "Running sequences that have a constraint"
        )
        self.constraint_ends = Counter(
            "tandem_constraint_ends",
            "Sequences with a constraint that ended well, by whether it is satisfied",
            label="outcome",
            label_values=("satisfied", "unsatisfied"),
        )

    def _declare_scheduler(self) -> None:
        """Written by the batcher from the scheduler's and the pool's numbers."""
        self.queue_size = Gauge("tgi_queue_size", "Requests waiting for their first step")
        self.batch_current_size = Gauge("tgi_batch_current_size", "Requests running")
        self.batch_current_max_tokens = Gauge(
            "tgi_batch_current_max_tokens", "Tokens that the blocks in use can hold"
        )
        self.batch_max_total_tokens = Gauge(
            "tgi_batch_max_total_tokens", "Tokens that the KV cache can hold"
        )
        self.paused_sequences = Gauge(
            "tandem_paused_sequences", "Running sequences that wait for their readers"
        )
        self.kv_blocks_capacity = Gauge(
            "tandem_kv_blocks_capacity",
            "Blocks of the KV cache",
            old_name="tandem_kv_blocks_total",
        )
        self.kv_blocks_used = Gauge("tandem_kv_blocks_used", "Blocks held by running requests")
        self.kv_blocks_cached = Gauge(
            "tandem_kv_blocks_cached", "Blocks kept for reuse and held by no request"
        )
        self.states_capacity = Gauge(
            "tandem_states_capacity", "Slots for states, of a model with states"
        )
        self.states_used = Gauge("tandem_states_used", "Slots for states held by running requests")
        self.states_kept = Gauge("tandem_states_kept", "States kept for reuse")
        # By vLLM's name and labels: gateways send a request where its adapter is at work already.
        self.lora_requests = LastKnown(
            "vllm:lora_requests_info",
            "When it was last looked which LoRA adapters have requests, in Unix time",
            ("max_lora", "waiting_lora_adapters", "running_lora_adapters"),
        )
        self.prompt_tokens = Counter("tandem_prompt_tokens", "Prompt tokens of admitted requests")
        self.prefix_hit_tokens = Counter(
            "tandem_prefix_cache_hit_tokens", "Prompt tokens that were in the prefix cache"
        )
        self.images = Counter("tandem_images", "Images of requests", "outcome", IMAGE_OUTCOMES)
        self.image_memory_bytes = Gauge(
            "tandem_image_memory_bytes", "What files and tensors of images take (--image-memory)"
        )
        self.image_processor = _seconds(
            "tandem_image_processor_seconds", "Time of the model's processor on an image's file"
        )
        self.image_encoder = _seconds(
            "tandem_image_encoder_seconds", "Time of the model's encoder on an image, beside steps"
        )
        self.image_rows = Counter(
            "tandem_image_rows",
            "Images of sequences that enter a step, by where their rows come from",
            "source",
            IMAGE_SOURCES,
        )
        self.preemptions = Counter(
            "tandem_preemptions", "Sequences put back because the KV cache was full"
        )

    def collect(self) -> Iterator[Metric]:
        """All families, for the registry."""
        for instrument in list(vars(self).values()):
            if isinstance(instrument, Counter | Gauge | Histogram | LastKnown | GatewayMetrics):
                yield from instrument.families()

    def exposition(self) -> bytes:
        """The registry in Prometheus' text format 0.0.4 (UTF-8)."""
        return generate_latest(self._registry)
