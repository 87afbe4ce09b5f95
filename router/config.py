"""Every setting of the router: its flag, its environment name, its default, its rule.

Those that the front of several models has as well are in `router/front_config.py`.

The only file of this tier that reads the command line and the environment. A flag beats its
environment variable, which beats the default; an empty variable counts as absent. Names and
defaults are those of TGI's router where TGI has the setting. Two differ on purpose: the server
binds 127.0.0.1 by default, and HOSTNAME is not read, since shells and containers set it to the
machine's name.
"""

import os
import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from processes import rules
from processes.rules import (
    Whole,
    collector,
    file,
    number,
    one_of,
    sampling_parameters,
    seconds,
    token,
)
from processes.settings import BadConfig, CommandLine, Group, Kind, read_settings, refused, setting
from router.front_config import FrontConfig

_PROG = "python -m router"
_ABOUT = (
    "Tandem's router: HTTP in front, shards behind. Every flag but --hostname, --parent-pid and\n"
    "--ngrok-* can be given as a variable too: in capitals, with underscores."
)
_NGROK = (
    "Tandem opens no tunnel. Run one beside it (ngrok http 3000, cloudflared tunnel, ssh -R) and "
    "point it at --port"
)


def _route(text: str) -> str:
    if not text.startswith("/"):
        raise BadConfig("must be a path that begins with /")
    return text


def _new_file(text: str) -> Path:
    if not Path(text).absolute().parent.is_dir():
        raise BadConfig("must be in a folder that exists")
    return Path(text)


def _folders(text: str) -> tuple[Path, ...]:
    folders = tuple(Path(word.strip()) for word in text.split(","))
    for folder in folders:
        if not folder.is_dir():
            raise BadConfig(f"must be of folders that exist; {folder} is none")
    return tuple(folder.resolve() for folder in folders)


def _image_hosts(text: str) -> tuple[str, ...]:
    hosts = tuple(word.strip().lower().rstrip(".") for word in text.split(","))
    if len(hosts) > 1 and {"public", "none"}.intersection(hosts):
        raise BadConfig("must be public, none, or names of hosts")
    for host in hosts:
        if not re.fullmatch(r"[a-z0-9._-]+|[0-9a-f:]+", host):
            raise BadConfig(
                f"must be public, none, or names of hosts without ports; {host!r} is none"
            )
    return hosts


@dataclass(frozen=True, slots=True)
class RouterConfig(FrontConfig):
    """Settings of `python -m router`. Lengths in tokens, times in seconds.

    Raises BadConfig when settings contradict each other.
    """

    tokenizer_name: str | None = setting(
        None,
        "folder or hub id of the tokenizer; absent: the model id that the shard reports. For the "
        "hub HF_HOME, HF_HUB_CACHE and HF_TOKEN are honoured",
        group=Group.MODEL,
        internal=True,
    )
    tokenizer_config_path: Path | None = setting(
        None,
        "another tokenizer_config.json, for its chat template",
        file,
        group=Group.MODEL,
        elsewhere=("chat_template", "chat_template_file"),
    )
    revision: str | None = setting(
        None, "branch, tag or commit of a tokenizer from the hub", group=Group.MODEL
    )
    served_model_name: str | None = setting(
        None,
        "the model's name in answers, /info and /v1/models; absent: its hub id, or the last part "
        "of its path. Requests may name the id as it was given, or its last part, as well",
        group=Group.MODEL,
        elsewhere=("alias",),
    )
    master_shard_uds_path: str = setting(
        str(Path(tempfile.gettempdir(), "text-generation-server-0")),
        "rank 0's Unix socket, or host:port; it names the other ranks",
        group=Group.MODEL,
        internal=True,
    )
    prefix_caching: bool = setting(
        True,
        "keep the KV blocks of past prompts and answers for requests that begin alike",
        group=Group.MODEL,
        kind=Kind.SWITCH,
    )
    allow_control_tokens: bool = setting(
        False,
        "control tokens that a client writes into a message of a chat, like <|end|>, take effect; "
        "else they are text",
        group=Group.MODEL,
        kind=Kind.SWITCH,
    )
    prefix_cache_scope: str = setting(
        "key",
        "who shares these blocks: those of one API key, or all, who can then guess by the number "
        "of cached tokens how others' prompts begin: key or shared",
        one_of("key", "shared"),
        group=Group.MODEL,
    )

    generation_config: str = setting(
        "auto",
        "sampling parameters for requests that leave them out, on OpenAI's and Anthropic's routes: "
        "those of the model's generation_config.json (auto, model), or none",
        one_of("auto", "model", "none"),
        group=Group.MODEL,
    )
    override_generation_config: Mapping[str, float] | None = setting(
        None,
        'the same as a JSON object, like {"temperature": 0}, stronger than the model\'s file',
        sampling_parameters,
        group=Group.MODEL,
    )
    lora_adapters: tuple[tuple[str, str], ...] = setting(
        (),
        "LoRA adapters that are loaded at the start, between commas or by repeating the flag: "
        "NAME=PATH, of a folder in PEFT's format or a hub id, or that alone as its own name. "
        "Requests name one as their model",
        rules.lora_adapters,
        group=Group.MODEL,
        kind=Kind.LIST,
        elsewhere=("lora_modules", "lora"),
    )
    lora_folders: tuple[Path, ...] = setting(
        (),
        "folders below which adapters may be loaded at run time, by /v1/load_lora_adapter and the "
        "admin key, between commas or by repeating the flag; absent: none",
        _folders,
        group=Group.MODEL,
        kind=Kind.LIST,
    )
    admin_api_key: str | None = setting(
        None,
        "the key of routes for who runs the server, which are those to load adapters. The variable "
        "is safer: everybody on the machine sees flags",
        token,
        group=Group.ACCESS,
        secret=True,
    )
    aip_predict_route: str | None = setting(
        None, "another path for /vertex, which Vertex AI chooses", _route, group=Group.HTTP
    )
    aip_health_route: str | None = setting(
        None, "another path for /health, which Vertex AI chooses", _route, group=Group.HTTP
    )
    compute_type: str | None = setting(
        None,
        "value of the x-compute-type response header; absent: cpu or gpu+optimized, as the shard "
        "computes",
        group=Group.HTTP,
    )

    max_input_tokens: int | None = rules.max_input_tokens()
    max_total_tokens: int | None = rules.max_total_tokens()
    max_best_of: int = setting(2, "largest best_of", Whole(1), group=Group.REQUEST)
    max_stop_sequences: int = setting(4, "most stop strings", Whole(0), group=Group.REQUEST)
    max_top_n_tokens: int = setting(5, "largest top_n_tokens", Whole(0), group=Group.REQUEST)
    max_client_batch_size: int = setting(
        4, "most prompts of one /v1/completions call", Whole(1), group=Group.REQUEST
    )

    max_beams: int = setting(32, "most beams of one search", Whole(1), group=Group.REQUEST)

    disable_grammar_support: bool = setting(
        False, "refuse every grammar", group=Group.REQUEST, kind=Kind.SWITCH
    )
    constraint_timeout: float = setting(
        2.0,
        "seconds of computing that compiling a constraint may take; what needs more is refused",
        seconds,
        group=Group.REQUEST,
    )
    constraint_memory: int = setting(
        512, "MiB that compiling a constraint may take", Whole(16), group=Group.REQUEST
    )
    max_constraints_waiting: int = setting(
        256,
        "constraints that may wait to be compiled; more are answered 429",
        Whole(1),
        group=Group.REQUEST,
    )
    max_request_duration: float | None = setting(
        None,
        "seconds from a request's arrival after which it ends with the text so far and the finish "
        "reason deadline; absent: never",
        seconds,
        group=Group.REQUEST,
    )

    max_images: int = setting(16, "most images", Whole(1), group=Group.REQUEST)
    max_image_pixels: int = setting(
        64_000_000, "pixels of an image, at most", Whole(1), group=Group.REQUEST
    )
    max_image_fetch_size: int = setting(
        20 << 20, "bytes of an image's file, at most", Whole(1), group=Group.REQUEST
    )
    image_hosts: tuple[str, ...] = setting(
        ("public",),
        "hosts from which images are fetched, between commas or by repeating the flag: names, or "
        "public: any with a public address, or none: images come in data: URLs alone",
        _image_hosts,
        group=Group.REQUEST,
        kind=Kind.LIST,
        elsewhere=("allowed_media_domains",),
    )
    image_memory: int = setting(
        4096,
        "MiB that files and tensors of images may take; more are answered 429",
        Whole(64),
        group=Group.BATCH,
    )

    reasoning_format: str = setting(
        "auto",
        "where thoughts go: apart from the answer, if the chat template shows how they begin and "
        "end, or with their marks into the content: auto or none",
        one_of("auto", "none"),
        group=Group.REQUEST,
    )
    unproven_tools: str = setting(
        "refuse",
        "what happens to tools where the chat template's calls cannot be read back: they are "
        "refused, or called in a generic form that the prompt explains: refuse or generic",
        one_of("refuse", "generic"),
        group=Group.REQUEST,
    )
    strict_fields: bool = setting(
        False,
        "refuse unknown fields in bodies of TGI's and OpenAI's routes, which otherwise are ignored "
        "and named in the header x-ignored-fields",
        group=Group.REQUEST,
        kind=Kind.SWITCH,
    )
    resume_grace: float = setting(
        60.0,
        "seconds that a stream goes on without its client, and is kept after its end, where the "
        "client asked for it with the header X-Resumable",
        seconds,
        group=Group.REQUEST,
    )

    batch_file: Path | None = setting(
        None,
        "keep /v1/files and /v1/batches in this SQLite file, which is made where there is none; "
        "absent: there are no batches",
        _new_file,
        group=Group.BATCH,
    )
    batch_retention_hours: int = setting(
        720, "hours that files, and batches that ended, are kept", Whole(1), group=Group.BATCH
    )
    max_batch_bytes: int = setting(
        10_000_000_000,
        "bytes that the files and open batches of one API key may have together",
        Whole(1),
        group=Group.BATCH,
    )
    max_concurrent_requests: int = setting(
        128, "sequences waiting and running; more are answered 429", Whole(1), group=Group.BATCH
    )
    max_batch_prefill_tokens: int = setting(
        4096,
        "tokens of one step, prompt chunks and decodes together",
        Whole(1),
        group=Group.BATCH,
        elsewhere=("max_num_batched_tokens",),
    )
    max_batch_size: int | None = setting(
        None,
        "sequences that run at once; absent: --max-concurrent-requests, or the tokens of a "
        "step if they are fewer",
        Whole(1),
        group=Group.BATCH,
        elsewhere=("max_num_seqs", "parallel"),
    )
    speculate: int | None = setting(
        None,
        "draft tokens that a step may compute of a sequence: guesses from its own text, which "
        "change how soon tokens come and not which; absent: 7 on CPUs, 0 elsewhere",
        Whole(0, 31),
        group=Group.BATCH,
    )
    check_invariants: bool = setting(
        False,
        "check after each step that the scheduler's books agree, as it does when idle: each KV "
        "block free, cached or owned, and owned twice only where it is shared",
        group=Group.BATCH,
        kind=Kind.SWITCH,
    )
    validation_workers: int = setting(
        2, "threads that tokenize long prompts", Whole(1, 256), group=Group.BATCH
    )

    shard_token: str | None = setting(
        None,
        "the secret of shards that listen at a port",
        token,
        group=Group.PLACE,
        kind=Kind.VARIABLE,
        secret=True,
    )
    shard_connect_timeout: float = setting(
        60.0, "seconds to wait for the shards at start", seconds, group=Group.TIME
    )
    shard_warmup_timeout: float = setting(
        1800.0, "seconds that a shard may take to warm up", seconds, group=Group.TIME
    )
    shard_step_timeout: float = setting(
        120.0, "seconds after which a step counts as failed", seconds, group=Group.TIME
    )
    shard_restart_timeout: float = setting(
        300.0,
        "seconds that requests wait for shards that have failed and are started anew",
        seconds,
        group=Group.TIME,
    )
    progress_timeout: float = setting(
        4.0,
        "seconds that a step may take before /health/progress says 503; nothing else follows",
        seconds,
        group=Group.TIME,
    )

    otlp_endpoint: str | None = setting(
        None,
        "send traces to this collector, http://HOST:PORT (OTLP over gRPC); needs the extra otlp",
        collector,
        group=Group.LOGS,
    )
    otlp_service_name: str = setting(
        "text-generation-inference.router", "the router's name in its traces", group=Group.LOGS
    )
    metrics_names: str | None = setting(
        None,
        "vllm: export what gateways choose a server by under vLLM's names too",
        one_of("vllm"),
        group=Group.LOGS,
    )
    waiting_served_ratio: float = setting(
        1.2,
        "prompts and decodes share each step, so nothing waits for a ratio",
        number,
        group=Group.INERT,
    )
    max_waiting_tokens: int = setting(20, "see --waiting-served-ratio", Whole(0), group=Group.INERT)
    max_batch_total_tokens: int | None = setting(
        None, "the KV cache is sized by the shards (their --kv-blocks)", Whole(1), group=Group.INERT
    )
    messages_api_enabled: bool = setting(
        False, "/v1/chat/completions is always on", group=Group.INERT, kind=Kind.SWITCH
    )
    enable_prefill_logprobs: bool = setting(
        False, "prompt log-probabilities are always available", group=Group.INERT, kind=Kind.SWITCH
    )
    prometheus_port: int = setting(
        9000, "/metrics is on the main port", Whole(0, 65535), group=Group.INERT
    )
    usage_stats: str = setting(
        "off", "Tandem sends nothing home", one_of("on", "off", "no-stack"), group=Group.INERT
    )

    ngrok: None = refused(_NGROK, kind=Kind.SWITCH)
    # The variables of these two may well be set for ngrok's own client.
    ngrok_authtoken: None = refused(_NGROK, env=False)
    ngrok_edge: None = refused(_NGROK, env=False)

    def __post_init__(self) -> None:
        FrontConfig.__post_init__(self)
        total = self.max_total_tokens
        prompt = self.max_input_tokens
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

        if self.lora_folders and self.admin_api_key is None:
            raise BadConfig(
                "--lora-folders: who loads adapters needs a key; set ADMIN_API_KEY to one"
            )

    @property
    def fetched_hosts(self) -> frozenset[str] | None:
        """The hosts from which images are fetched; None: any that is public."""
        if self.image_hosts == ("public",):
            return None
        return frozenset(() if self.image_hosts == ("none",) else self.image_hosts)

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
    by_flag = CommandLine(fields(RouterConfig), _PROG, _ABOUT).parse(argv)
    return read_settings(RouterConfig, by_flag, os.environ if environ is None else environ)
