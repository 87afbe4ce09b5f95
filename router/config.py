"""Every knob of the router, once: its flag, its environment name, its default, its rule.

The only file of this tier that reads the command line and the environment. A flag beats its
environment variable, which beats the default; an empty variable counts as absent. Names and
defaults are those of TGI's router where TGI has the knob. Two differ on purpose: the server binds
127.0.0.1 unless told otherwise, and HOSTNAME is not read, since shells and containers set it
to the machine's name.

It knows nothing of what the knobs do.
"""

import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from router.knobs import (
    BadConfig,
    api_key,
    collector,
    file,
    knob,
    number,
    one_of,
    origin,
    parser_of,
    read_knobs,
    refused,
    route,
    seconds,
    several,
    switch,
    whole,
)

LOG_LEVELS = ("debug", "info", "warning", "error")
_NGROK = (
    "Tandem opens no tunnel. Run one beside it (ngrok http 3000, cloudflared tunnel, ssh -R) and "
    "point it at --port"
)


def _no_tunnel(text: str) -> bool:
    if switch(text):
        raise BadConfig(_NGROK)
    return False


_TIERS = "the model and the shards"
_HTTP = "HTTP"
_ACCESS = "who may ask, and how"
_LIMITS = "limits of one request"
_STEPS = "limits of all requests"
_TIME = "time"
_LOGS = "logs and telemetry"
_INERT = "accepted for TGI's sake, without effect"
_REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class RouterConfig:
    """What `python -m router` was told. Lengths in tokens, `_s` in seconds.

    Raises BadConfig when knobs contradict each other.
    """

    tokenizer_name: str | None = knob(
        None,
        "folder or hub id of the tokenizer; absent: the model id that the shard reports. For the "
        "hub HF_HOME, HF_HUB_CACHE and HF_TOKEN are honoured",
        group=_TIERS,
    )
    tokenizer_config_path: Path | None = knob(  # noqa: RUF009 (a dataclass field, by our name)
        None,
        "another tokenizer_config.json, for its chat template",
        file,
        group=_TIERS,
    )
    revision: str | None = knob(
        None, "branch, tag or commit of a tokenizer from the hub", group=_TIERS
    )
    served_model_name: str | None = knob(
        None,
        "the model's name in answers, /info and /v1/models; absent: --tokenizer-name",
        group=_TIERS,
    )
    master_shard_uds_path: str = knob(
        str(Path(tempfile.gettempdir(), "text-generation-server-0")),
        "rank 0's Unix socket, or host:port; it names the other ranks",
        group=_TIERS,
    )
    prefix_caching: bool = knob(
        True,
        "keep the KV blocks of past prompts and answers for requests that begin alike",
        switch,
        group=_TIERS,
    )

    hostname: str = knob(
        "127.0.0.1",
        "address to bind; 0.0.0.0 for every interface",
        group=_HTTP,
        env=False,
    )
    port: int = knob(
        3000,
        "port to bind; 0 takes a free one and logs it",
        whole(0, 65535),
        group=_HTTP,
        aliases=("aip_http_port",),
    )
    http_uds: Path | None = knob(  # noqa: RUF009 (a dataclass field, by our name)
        None,
        "bind this unix socket, for this user alone, instead of an address and a port",
        Path,
        group=_HTTP,
    )
    aip_predict_route: str | None = knob(
        None, "another path for /vertex, which Vertex AI chooses", route, group=_HTTP
    )
    aip_health_route: str | None = knob(
        None, "another path for /health, which Vertex AI chooses", route, group=_HTTP
    )
    payload_limit: int = knob(
        2_000_000, "bytes of a request's body, at most", whole(1), group=_HTTP
    )
    socket_message_limit: int = knob(
        8_388_608, "bytes of a WebSocket message, at most", whole(1024), group=_HTTP
    )
    compute_type: str | None = knob(
        None,
        "value of the x-compute-type response header; absent: cpu or gpu+optimized, as the shard "
        "computes",
        group=_HTTP,
    )

    api_key: tuple[str, ...] = knob(
        (),
        "keys, between commas or by repeating the flag; every request but those for health and "
        "metrics must bring one. A variable is seen by fewer than a flag",
        several(api_key),
        group=_ACCESS,
        kind="list",
        secret=True,
    )
    protect_metrics: bool = knob(
        False, "/metrics wants a key too", switch, group=_ACCESS, kind="switch"
    )
    cors_allow_origin: tuple[str, ...] = knob(
        ("*",),
        "origins whose pages may ask, between commas or by repeating the flag",
        several(origin),
        group=_ACCESS,
        kind="list",
    )
    ssl_certfile: Path | None = knob(  # noqa: RUF009 (a dataclass field, by our name)
        None, "serve HTTPS with this chain of certificates (PEM)", file, group=_ACCESS
    )
    ssl_keyfile: Path | None = knob(  # noqa: RUF009 (a dataclass field, by our name)
        None, "the certificate's private key (PEM)", file, group=_ACCESS
    )
    ssl_keyfile_password: str | None = knob(
        None, "what opens the private key", group=_ACCESS, secret=True
    )
    header_limit: int = knob(
        32_768, "bytes of a request's headers, at most", whole(1024), group=_ACCESS
    )
    header_timeout: float = knob(
        30.0, "seconds that a client may take to send the headers", seconds, group=_ACCESS
    )
    body_timeout: float = knob(
        30.0, "seconds in which 16 KiB of the body must come, or the rest", seconds, group=_ACCESS
    )
    write_timeout: float = knob(
        30.0,
        "seconds after which a client that does not take its answer is cut off",
        seconds,
        group=_ACCESS,
    )

    socket_ping_interval: float = knob(
        20.0,
        "seconds between two pings on a WebSocket, and to answer one, before it is closed",
        seconds,
        group=_ACCESS,
    )

    max_input_tokens: int | None = knob(
        None,
        "longest prompt; absent: --max-total-tokens less one",
        whole(1),
        group=_LIMITS,
        aliases=("max_input_length",),
    )
    max_total_tokens: int | None = knob(
        None,
        "longest prompt and answer together; absent: what the model and the KV cache hold",
        whole(2),
        group=_LIMITS,
    )
    max_best_of: int = knob(2, "largest best_of", whole(1), group=_LIMITS)
    max_stop_sequences: int = knob(4, "most stop strings", whole(0), group=_LIMITS)
    max_top_n_tokens: int = knob(5, "largest top_n_tokens", whole(0), group=_LIMITS)
    max_client_batch_size: int = knob(
        4, "most prompts of one /v1/completions call", whole(1), group=_LIMITS
    )

    max_socket_streams: int = knob(
        256, "most streams that a WebSocket may have open", whole(1), group=_LIMITS
    )

    max_beams: int = knob(128, "most beams of one search", whole(1), group=_LIMITS)

    disable_grammar_support: bool = knob(
        False, "refuse every grammar", group=_LIMITS, kind="switch"
    )
    constraint_timeout: float = knob(
        2.0,
        "seconds of computing that compiling a constraint may take; what needs more is refused",
        seconds,
        group=_LIMITS,
    )
    constraint_memory: int = knob(
        512, "MiB that compiling a constraint may take", whole(16), group=_LIMITS
    )
    max_constraints_waiting: int = knob(
        256,
        "constraints that may wait to be compiled; more are answered 429",
        whole(1),
        group=_LIMITS,
    )
    max_request_duration: float | None = knob(
        None,
        "seconds from a request's arrival after which it ends with the text so far and the finish "
        "reason deadline; absent: never",
        seconds,
        group=_LIMITS,
    )

    max_concurrent_requests: int = knob(
        128, "sequences waiting and running; more are answered 429", whole(1), group=_STEPS
    )
    max_batch_prefill_tokens: int = knob(
        4096, "tokens of one step, prompt chunks and decodes together", whole(1), group=_STEPS
    )
    max_batch_size: int | None = knob(
        None,
        "sequences that run at once; absent: --max-concurrent-requests, or the tokens of a "
        "step if they are fewer",
        whole(1),
        group=_STEPS,
    )
    validation_workers: int = knob(
        2, "threads that tokenize long prompts", whole(1, 256), group=_STEPS
    )

    graceful_termination_timeout: float = knob(
        90.0, "seconds that running requests get after the first signal", seconds, group=_TIME
    )
    parent_pid: int | None = knob(
        None,
        "drain and stop once this process is no longer the parent",
        whole(1),
        group=_TIME,
        env=False,
    )
    shard_connect_timeout: float = knob(
        60.0, "seconds to wait for the shards at start", seconds, group=_TIME
    )
    shard_warmup_timeout: float = knob(
        1800.0, "seconds that a shard may take to warm up", seconds, group=_TIME
    )
    shard_step_timeout: float = knob(
        120.0, "seconds after which a step counts as failed", seconds, group=_TIME
    )
    progress_timeout: float = knob(
        4.0,
        "seconds that a step may take before /health/progress says 503; nothing else follows",
        seconds,
        group=_TIME,
    )

    log_level: str = knob("info", "least severe lines to log", one_of(*LOG_LEVELS), group=_LOGS)
    json_output: bool = knob(False, "log JSON lines", group=_LOGS, kind="switch")
    otlp_endpoint: str | None = knob(
        None,
        "send traces to this collector, http://HOST:PORT (OTLP over gRPC); needs the extra otlp",
        collector,
        group=_LOGS,
    )
    otlp_service_name: str = knob(
        "text-generation-inference.router", "the router's name in its traces", group=_LOGS
    )
    waiting_served_ratio: float = knob(
        1.2,
        "prompts and decodes share each step, so nothing waits for a ratio",
        number,
        group=_INERT,
    )
    max_waiting_tokens: int = knob(20, "see --waiting-served-ratio", whole(0), group=_INERT)
    max_batch_total_tokens: int | None = knob(
        None, "the KV cache is sized by the shards (their --kv-blocks)", whole(1), group=_INERT
    )
    messages_api_enabled: bool = knob(
        False, "/v1/chat/completions is always on", group=_INERT, kind="switch"
    )
    enable_prefill_logprobs: bool = knob(
        False, "prompt log-probabilities are always available", group=_INERT, kind="switch"
    )
    prometheus_port: int = knob(9000, "/metrics is on the main port", whole(0, 65535), group=_INERT)
    max_image_fetch_size: int = knob(
        1_073_741_824, "no model with images is served yet", whole(0), group=_INERT
    )
    usage_stats: str = knob(
        "off", "Tandem sends nothing home", one_of("on", "off", "no-stack"), group=_INERT
    )

    ngrok: bool = knob(False, _NGROK, _no_tunnel, group=_REFUSED, kind="switch")
    # The variables of these two may well be set for ngrok's own client.
    ngrok_authtoken: None = knob(None, "see --ngrok", refused(_NGROK), group=_REFUSED, env=False)
    ngrok_edge: None = knob(None, "see --ngrok", refused(_NGROK), group=_REFUSED, env=False)

    def __post_init__(self) -> None:
        self._check_tls()
        total, prompt = self.max_total_tokens, self.max_input_tokens
        if total is not None and prompt is not None and prompt >= total:
            raise BadConfig(
                f"--max-input-tokens {prompt}: must be below --max-total-tokens {total}, so that "
                "a longest prompt can have an answer"
            )
        if self.max_batch_size is not None and self.max_batch_size > self.max_batch_prefill_tokens:
            raise BadConfig(
                f"--max-batch-size {self.max_batch_size}: must not exceed "
                f"--max-batch-prefill-tokens {self.max_batch_prefill_tokens}, since each running "
                "sequence takes a token of the step"
            )

    def _check_tls(self) -> None:
        if (self.ssl_certfile is None) is not (self.ssl_keyfile is None):
            given, missing = "--ssl-certfile", "--ssl-keyfile"
            if self.ssl_certfile is None:
                given, missing = missing, given
            raise BadConfig(f"{given} needs {missing} beside it")
        if self.ssl_keyfile_password is not None and self.ssl_keyfile is None:
            raise BadConfig("--ssl-keyfile-password needs --ssl-certfile and --ssl-keyfile")

    @property
    def batch_size(self) -> int:
        """Sequences that run at once."""
        if self.max_batch_size is not None:
            return self.max_batch_size
        return min(self.max_concurrent_requests, self.max_batch_prefill_tokens)


def read_config(argv: Sequence[str], environ: Mapping[str, str] | None = None) -> RouterConfig:
    """The configuration of a command line (without the program's name) and an environment.

    Raises BadConfig. `--help` prints to stdout and raises SystemExit(0).
    """
    return read_knobs(
        RouterConfig,
        argv,
        os.environ if environ is None else environ,
        parser_of(fields(RouterConfig)),
    )
