"""Every knob of the router, once: its flag, its environment name, its default, its rule.

Those that the front of several models has as well are in `front_config.py`.

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

from processes.settings import (
    BadConfig,
    Whole,
    collector,
    file,
    knob,
    number,
    one_of,
    parser_of,
    read_knobs,
    refused,
    route,
    seconds,
    switch,
)
from router.front_config import ACCESS, HTTP, LOGS, TIME, FrontConfig

_PROG = "python -m router"
_ABOUT = (
    "Tandem's router: HTTP in front, shards behind. Every flag but --hostname, --parent-pid and "
    "--ngrok-* can be given as a variable too: in capitals, with underscores."
)
_NGROK = (
    "Tandem opens no tunnel. Run one beside it (ngrok http 3000, cloudflared tunnel, ssh -R) and "
    "point it at --port"
)


def _no_tunnel(text: str) -> bool:
    if switch(text):
        raise BadConfig(_NGROK)
    return False


_TIERS = "the model and the shards"
_LIMITS = "limits of one request"
_STEPS = "limits of all requests"
_INERT = "accepted for TGI's sake, without effect"
_REFUSED = "refused"
_GROUPS = (_TIERS, HTTP, ACCESS, _LIMITS, _STEPS, TIME, LOGS, _INERT, _REFUSED)


@dataclass(frozen=True, slots=True)
class RouterConfig(FrontConfig):
    """What `python -m router` was told. Lengths in tokens, times in seconds.

    Raises BadConfig when knobs contradict each other.
    """

    tokenizer_name: str | None = knob(
        None,
        "folder or hub id of the tokenizer; absent: the model id that the shard reports. For the "
        "hub HF_HOME, HF_HUB_CACHE and HF_TOKEN are honoured",
        group=_TIERS,
    )
    tokenizer_config_path: Path | None = knob(
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

    aip_predict_route: str | None = knob(
        None, "another path for /vertex, which Vertex AI chooses", route, group=HTTP
    )
    aip_health_route: str | None = knob(
        None, "another path for /health, which Vertex AI chooses", route, group=HTTP
    )
    compute_type: str | None = knob(
        None,
        "value of the x-compute-type response header; absent: cpu or gpu+optimized, as the shard "
        "computes",
        group=HTTP,
    )

    max_input_tokens: int | None = knob(
        None,
        "longest prompt; absent: --max-total-tokens less one",
        Whole(1),
        group=_LIMITS,
        aliases=("max_input_length",),
    )
    max_total_tokens: int | None = knob(
        None,
        "longest prompt and answer together; absent: what the model and the KV cache hold",
        Whole(2),
        group=_LIMITS,
    )
    max_best_of: int = knob(2, "largest best_of", Whole(1), group=_LIMITS)
    max_stop_sequences: int = knob(4, "most stop strings", Whole(0), group=_LIMITS)
    max_top_n_tokens: int = knob(5, "largest top_n_tokens", Whole(0), group=_LIMITS)
    max_client_batch_size: int = knob(
        4, "most prompts of one /v1/completions call", Whole(1), group=_LIMITS
    )

    max_beams: int = knob(32, "most beams of one search", Whole(1), group=_LIMITS)

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
        512, "MiB that compiling a constraint may take", Whole(16), group=_LIMITS
    )
    max_constraints_waiting: int = knob(
        256,
        "constraints that may wait to be compiled; more are answered 429",
        Whole(1),
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
        128, "sequences waiting and running; more are answered 429", Whole(1), group=_STEPS
    )
    max_batch_prefill_tokens: int = knob(
        4096, "tokens of one step, prompt chunks and decodes together", Whole(1), group=_STEPS
    )
    max_batch_size: int | None = knob(
        None,
        "sequences that run at once; absent: --max-concurrent-requests, or the tokens of a "
        "step if they are fewer",
        Whole(1),
        group=_STEPS,
    )
    validation_workers: int = knob(
        2, "threads that tokenize long prompts", Whole(1, 256), group=_STEPS
    )

    shard_connect_timeout: float = knob(
        60.0, "seconds to wait for the shards at start", seconds, group=TIME
    )
    shard_warmup_timeout: float = knob(
        1800.0, "seconds that a shard may take to warm up", seconds, group=TIME
    )
    shard_step_timeout: float = knob(
        120.0, "seconds after which a step counts as failed", seconds, group=TIME
    )
    progress_timeout: float = knob(
        4.0,
        "seconds that a step may take before /health/progress says 503; nothing else follows",
        seconds,
        group=TIME,
    )

    otlp_endpoint: str | None = knob(
        None,
        "send traces to this collector, http://HOST:PORT (OTLP over gRPC); needs the extra otlp",
        collector,
        group=LOGS,
    )
    otlp_service_name: str = knob(
        "text-generation-inference.router", "the router's name in its traces", group=LOGS
    )
    waiting_served_ratio: float = knob(
        1.2,
        "prompts and decodes share each step, so nothing waits for a ratio",
        number,
        group=_INERT,
    )
    max_waiting_tokens: int = knob(20, "see --waiting-served-ratio", Whole(0), group=_INERT)
    max_batch_total_tokens: int | None = knob(
        None, "the KV cache is sized by the shards (their --kv-blocks)", Whole(1), group=_INERT
    )
    messages_api_enabled: bool = knob(
        False, "/v1/chat/completions is always on", group=_INERT, kind="switch"
    )
    enable_prefill_logprobs: bool = knob(
        False, "prompt log-probabilities are always available", group=_INERT, kind="switch"
    )
    prometheus_port: int = knob(9000, "/metrics is on the main port", Whole(0, 65535), group=_INERT)
    max_image_fetch_size: int = knob(
        1_073_741_824, "no model with images is served yet", Whole(0), group=_INERT
    )
    usage_stats: str = knob(
        "off", "Tandem sends nothing home", one_of("on", "off", "no-stack"), group=_INERT
    )

    ngrok: bool = knob(False, _NGROK, _no_tunnel, group=_REFUSED, kind="switch")
    # The variables of these two may well be set for ngrok's own client.
    ngrok_authtoken: None = knob(None, "see --ngrok", refused(_NGROK), group=_REFUSED, env=False)
    ngrok_edge: None = knob(None, "see --ngrok", refused(_NGROK), group=_REFUSED, env=False)

    def __post_init__(self) -> None:
        FrontConfig.__post_init__(self)
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
        parser_of(fields(RouterConfig), _GROUPS, _PROG, _ABOUT),
    )
