"""The options of `launcher serve`, with TGI's flag and environment names, section by section."""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from launcher.constraint_options import ConstraintLimits
from launcher.declared import Told, argument, knob_of, option, section
from launcher.fleet_options import FleetOptions
from launcher.tgi_options import TgiOptions
from router.config import RouterConfig
from router.front_config import FrontConfig


class Dtype(StrEnum):
    auto = "auto"
    bfloat16 = "bfloat16"
    float16 = "float16"
    float32 = "float32"


class Device(StrEnum):
    auto = "auto"
    cpu = "cpu"
    cuda = "cuda"


class Attention(StrEnum):
    auto = "auto"
    reference = "reference"
    cpu = "cpu"
    cpu_op = "cpu-op"
    cuda = "cuda"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelOptions:
    """What is served."""

    model_ids: list[str] | None = argument(
        metavar="MODEL_ID",
        show_default="the bundled model",
        help="A local folder or a hub id, also from the variable MODEL_ID. Several: each is loaded "
        "when a request names it. auto: any that a request names.",
    )
    model_id_flag: str | None = option(None, "The same as MODEL_ID.", "--model-id", envvar=None)
    served_model_name: str | None = option(None, "The name that clients see.")
    revision: str | None = option(None, "Branch, tag or commit.")
    huggingface_hub_cache: Path | None = option(
        None, "Folder of the hub's cache (default: that of huggingface_hub)."
    )
    weights_cache_override: Path | None = option(
        None, "The same, and stronger than --huggingface-hub-cache."
    )
    dtype: Dtype = option(Dtype.auto, "auto is bfloat16 where it is fast.", told=Told.SHARDS)
    trust_remote_code: bool = option(False, "Run the checkpoint's code.", told=Told.SHARDS)
    tokenizer_config_path: Path | None = knob_of(RouterConfig)
    watermark_gamma: float | None = option(
        None, "Share of the tokens that a watermark favours (default: 0.5).", told=Told.SHARDS
    )
    watermark_delta: float | None = option(
        None, "What a watermark adds to their logits (default: 2).", told=Told.SHARDS
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaceOptions:
    """On what it runs, and where it listens."""

    sharded: bool | None = option(None, "Spread the model over all visible GPUs.")
    num_shard: int | None = option(None, "Tensor-parallel ranks.")
    device: Device = option(
        Device.auto, "auto takes CUDA where there is one.", envvar=None, told=Told.SHARDS
    )
    attention: Attention = option(
        Attention.auto, "Attention backend.", envvar=None, told=Told.SHARDS
    )
    cuda_memory_fraction: float = option(
        0.9,
        "Share of the GPU's memory that we may fill.",
        min=0.01,
        max=1,
        told=Told.SHARDS | Told.FRONT,
    )
    kv_blocks: int | None = option(
        None, "Blocks of the KV pool (default: by memory).", min=1, envvar=None, told=Told.SHARDS
    )
    hostname: str = knob_of(FrontConfig, told=Told.FRONT, for_servers=False)
    port: int = knob_of(
        FrontConfig,
        "--port",
        "-p",
        told=Told.FRONT,
        for_servers=False,
        min=1,
        help="Port to bind.",
    )
    http_uds: Path | None = knob_of(FrontConfig, told=Told.FRONT, for_servers=False)
    shard_uds_path: str | None = option(
        None, "Prefix of the shards' unix sockets.", show_default="a private folder"
    )
    master_addr: str = option("127.0.0.1", "Where ranks meet.")
    master_port: int | None = option(None, "Its port.", show_default="a free one", min=1, max=65535)


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessOptions:
    """Who is let in, and how patient the server is with them."""

    api_key: list[str] | None = knob_of(FrontConfig, told=Told.NOBODY, for_servers=False)
    protect_metrics: bool = knob_of(FrontConfig)
    cors_allow_origin: list[str] | None = knob_of(FrontConfig, for_servers=False)
    ssl_certfile: Path | None = knob_of(FrontConfig, for_servers=False)
    ssl_keyfile: Path | None = knob_of(FrontConfig, for_servers=False)
    ssl_keyfile_password: str | None = knob_of(FrontConfig, told=Told.NOBODY, for_servers=False)
    header_limit: int = knob_of(FrontConfig)
    header_timeout: float = knob_of(FrontConfig)
    body_timeout: float = knob_of(FrontConfig)
    write_timeout: float = knob_of(FrontConfig)
    socket_message_limit: int = knob_of(FrontConfig)
    socket_ping_interval: float = knob_of(FrontConfig)
    max_socket_streams: int = knob_of(FrontConfig)


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitOptions:
    """How much one request, and all of them, may ask for; and how long things may take."""

    max_beams: int = knob_of(RouterConfig)
    max_concurrent_requests: int = knob_of(RouterConfig)
    max_input_tokens: int | None = knob_of(RouterConfig)
    max_total_tokens: int | None = knob_of(RouterConfig)
    # A bare router has TGI's router's 4096; TGI's launcher finds its own.
    max_batch_prefill_tokens: int = knob_of(RouterConfig, default=2048)
    max_batch_size: int | None = knob_of(RouterConfig)
    max_best_of: int = knob_of(RouterConfig)
    max_stop_sequences: int = knob_of(RouterConfig)
    max_top_n_tokens: int = knob_of(RouterConfig)
    max_client_batch_size: int = knob_of(RouterConfig)
    disable_grammar_support: bool = knob_of(RouterConfig)
    payload_limit: int = knob_of(FrontConfig)
    validation_workers: int = knob_of(RouterConfig)
    max_constraints_waiting: int = knob_of(RouterConfig)
    max_request_duration: float | None = knob_of(RouterConfig)
    progress_timeout: float = knob_of(RouterConfig)
    graceful_termination_timeout: float = knob_of(FrontConfig, told=Told.FRONT)
    shard_startup_timeout: float = option(
        1800.0, "Seconds until a load counts as hung.", min=1, envvar=None
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LogOptions:
    """What is told of it all, and to whom."""

    json_output: bool = knob_of(FrontConfig, told=Told.ROUTER | Told.SHARDS | Told.FRONT)
    otlp_endpoint: str | None = knob_of(RouterConfig, told=Told.ROUTER | Told.SHARDS)
    otlp_service_name: str = knob_of(
        RouterConfig,
        told=Told.ROUTER | Told.SHARDS,
        help="The router's name in traces; the shards' ends in .server instead of .router.",
    )
    dry_run: bool = option(
        False,
        "Say whether the model could be served, without loading it.",
        "--dry-run",
        envvar=None,
        for_servers=False,
    )
    env: bool = option(
        False, "Print the environment first.", "--env", "-e", envvar=None, for_servers=False
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeOptions:
    """All of them, in the order of the page of help."""

    model: ModelOptions = section("Model")
    place: PlaceOptions = section("Where it runs")
    access: AccessOptions = section("Who may ask, and how")
    limits: LimitOptions = section("Limits")
    constraints: ConstraintLimits = section("Limits")
    logs: LogOptions = section("Logs and traces")
    fleet: FleetOptions = section("Several models")
    tgi: TgiOptions = section("Accepted for TGI's sake")
