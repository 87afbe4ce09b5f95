"""The options of `launcher serve` that do something, with TGI's flag and environment names."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Optional

import typer


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


MODEL, PLACE, ACCESS, LIMITS, LOGS = (
    "Model", "Where it runs", "Who may ask, and how", "Limits", "Logs and traces"
)  # fmt: skip


def _limit(variable: str, least: int, told: str) -> object:
    return typer.Option(envvar=variable, min=least, rich_help_panel=LIMITS, help=told)


ModelIds = Annotated[
    Optional[list[str]],
    typer.Argument(
        metavar="MODEL_ID",
        show_default="the bundled model",
        help="A local folder or a hub id, also from the variable MODEL_ID. Several: each is loaded "
        "when a request names it. auto: any that a request names.",
    ),
]
ModelIdFlag = Annotated[
    Optional[str],
    typer.Option("--model-id", rich_help_panel=MODEL, help="The same as MODEL_ID."),
]
ServedModelName = Annotated[
    Optional[str],
    typer.Option(
        envvar="SERVED_MODEL_NAME", rich_help_panel=MODEL, help="The name that clients see."
    ),
]
Revision = Annotated[
    Optional[str],
    typer.Option(envvar="REVISION", rich_help_panel=MODEL, help="Branch, tag or commit."),
]
HuggingfaceHubCache = Annotated[
    Optional[Path],
    typer.Option(
        envvar="HUGGINGFACE_HUB_CACHE",
        rich_help_panel=MODEL,
        help="Folder of the hub's cache (default: that of huggingface_hub).",
    ),
]
WeightsCacheOverride = Annotated[
    Optional[Path],
    typer.Option(
        envvar="WEIGHTS_CACHE_OVERRIDE",
        rich_help_panel=MODEL,
        help="The same, and stronger than --huggingface-hub-cache.",
    ),
]
DtypeOption = Annotated[
    Dtype,
    typer.Option(envvar="DTYPE", rich_help_panel=MODEL, help="auto is bfloat16 where it is fast."),
]
TrustRemoteCode = Annotated[
    bool,
    typer.Option(
        envvar="TRUST_REMOTE_CODE", rich_help_panel=MODEL, help="Run the checkpoint's code."
    ),
]
TokenizerConfigPath = Annotated[
    Optional[Path],
    typer.Option(
        envvar="TOKENIZER_CONFIG_PATH",
        rich_help_panel=MODEL,
        help="Another tokenizer_config.json, e.g. for its chat template.",
    ),
]
Sharded = Annotated[
    Optional[bool],
    typer.Option(
        envvar="SHARDED", rich_help_panel=PLACE, help="Spread the model over all visible GPUs."
    ),
]
NumShard = Annotated[
    Optional[int],
    typer.Option(envvar="NUM_SHARD", rich_help_panel=PLACE, help="Tensor-parallel ranks."),
]
DeviceOption = Annotated[
    Device, typer.Option(rich_help_panel=PLACE, help="auto takes CUDA where there is one.")
]
AttentionOption = Annotated[
    Attention, typer.Option(rich_help_panel=PLACE, help="Attention backend.")
]
CudaMemoryFraction = Annotated[
    float,
    typer.Option(
        envvar="CUDA_MEMORY_FRACTION",
        min=0.01,
        max=1,
        rich_help_panel=PLACE,
        help="Share of the GPU's memory that we may fill.",
    ),
]
KvBlocks = Annotated[
    Optional[int],
    typer.Option(min=1, rich_help_panel=PLACE, help="Blocks of the KV pool (default: by memory)."),
]
WatermarkGamma = Annotated[
    Optional[float],
    typer.Option(
        envvar="WATERMARK_GAMMA",
        rich_help_panel=MODEL,
        help="Share of the tokens that a watermark favours (default: 0.5).",
    ),
]
WatermarkDelta = Annotated[
    Optional[float],
    typer.Option(
        envvar="WATERMARK_DELTA",
        rich_help_panel=MODEL,
        help="What a watermark adds to their logits (default: 2).",
    ),
]
Hostname = Annotated[
    str,
    typer.Option(rich_help_panel=PLACE, help="Address to listen at; 0.0.0.0 for all."),
]
Port = Annotated[
    int,
    typer.Option(
        "--port",
        "-p",
        envvar=["PORT", "AIP_HTTP_PORT"],
        min=1,
        max=65535,
        rich_help_panel=PLACE,
        help="Port to listen at.",
    ),
]
ShardUdsPath = Annotated[
    Optional[str],
    typer.Option(
        envvar="SHARD_UDS_PATH",
        rich_help_panel=PLACE,
        show_default="a private folder",
        help="Prefix of the shards' unix sockets.",
    ),
]
MasterAddr = Annotated[
    str, typer.Option(envvar="MASTER_ADDR", rich_help_panel=PLACE, help="Where ranks meet.")
]
MasterPort = Annotated[
    Optional[int],
    typer.Option(
        envvar="MASTER_PORT",
        rich_help_panel=PLACE,
        show_default="a free one",
        help="Its port.",
    ),
]
ApiKey = Annotated[
    Optional[list[str]],
    typer.Option(
        envvar="API_KEY",
        rich_help_panel=ACCESS,
        help="Keys, repeated or between commas; all but health and metrics want one. The variable "
        "is safer: flags are seen by everybody on the machine.",
    ),
]
ProtectMetrics = Annotated[
    bool,
    typer.Option(
        "--protect-metrics",
        envvar="PROTECT_METRICS",
        rich_help_panel=ACCESS,
        help="/metrics wants a key too.",
    ),
]
CorsAllowOrigin = Annotated[
    Optional[list[str]],
    typer.Option(
        envvar="CORS_ALLOW_ORIGIN",
        rich_help_panel=ACCESS,
        help="Origins whose pages may ask, repeated or between commas (default: any).",
    ),
]
SslCertfile = Annotated[
    Optional[Path],
    typer.Option(
        envvar="SSL_CERTFILE",
        rich_help_panel=ACCESS,
        help="Serve HTTPS with this chain of certificates (PEM).",
    ),
]
SslKeyfile = Annotated[
    Optional[Path],
    typer.Option(
        envvar="SSL_KEYFILE", rich_help_panel=ACCESS, help="The certificate's private key (PEM)."
    ),
]
SslKeyfilePassword = Annotated[
    Optional[str],
    typer.Option(
        envvar="SSL_KEYFILE_PASSWORD",
        rich_help_panel=ACCESS,
        help="What opens the private key; better by its variable.",
    ),
]
HeaderLimit = Annotated[
    int,
    typer.Option(
        envvar="HEADER_LIMIT",
        min=1024,
        rich_help_panel=ACCESS,
        help="Bytes of a request's headers.",
    ),
]
HeaderTimeout = Annotated[
    float,
    typer.Option(
        envvar="HEADER_TIMEOUT",
        min=0.001,
        rich_help_panel=ACCESS,
        help="Seconds that a client may take to send the headers.",
    ),
]
BodyTimeout = Annotated[
    float,
    typer.Option(
        envvar="BODY_TIMEOUT",
        min=0.001,
        rich_help_panel=ACCESS,
        help="Seconds in which 16 KiB of the body must come, or the rest.",
    ),
]
WriteTimeout = Annotated[
    float,
    typer.Option(
        envvar="WRITE_TIMEOUT",
        min=0.001,
        rich_help_panel=ACCESS,
        help="Seconds after which a client that does not take its answer is cut off.",
    ),
]
SocketMessageLimit = Annotated[
    int,
    typer.Option(
        envvar="SOCKET_MESSAGE_LIMIT",
        min=1024,
        rich_help_panel=ACCESS,
        help="Bytes of a WebSocket message, at most.",
    ),
]
SocketPingInterval = Annotated[
    float,
    typer.Option(
        envvar="SOCKET_PING_INTERVAL",
        min=0.001,
        rich_help_panel=ACCESS,
        help="Seconds between two pings on a WebSocket, and to answer one, before it is closed.",
    ),
]
MaxSocketStreams = Annotated[
    int,
    typer.Option(
        envvar="MAX_SOCKET_STREAMS",
        min=1,
        rich_help_panel=ACCESS,
        help="Most streams that a WebSocket may have open.",
    ),
]
MaxConcurrentRequests = Annotated[
    int,
    _limit("MAX_CONCURRENT_REQUESTS", 1, "Beyond these, requests are refused with 429."),
]
MaxInputTokens = Annotated[
    Optional[int],
    typer.Option(
        "--max-input-tokens",
        "--max-input-length",
        envvar=["MAX_INPUT_TOKENS", "MAX_INPUT_LENGTH"],
        min=1,
        rich_help_panel=LIMITS,
        help="Longest prompt (default: --max-total-tokens less one).",
    ),
]
MaxTotalTokens = Annotated[
    Optional[int],
    typer.Option(
        envvar="MAX_TOTAL_TOKENS",
        min=2,
        rich_help_panel=LIMITS,
        help="Longest prompt and output together (default: what model and pool hold).",
    ),
]
MaxBatchPrefillTokens = Annotated[
    int,
    typer.Option(
        envvar="MAX_BATCH_PREFILL_TOKENS",
        min=1,
        rich_help_panel=LIMITS,
        help="Token budget of one step: prompt chunks and decodes together.",
    ),
]
MaxBatchSize = Annotated[
    Optional[int], _limit("MAX_BATCH_SIZE", 1, "Sequences that run at once; others wait.")
]
MaxBeams = Annotated[int, _limit("MAX_BEAMS", 1, "Most beams of one search.")]
MaxBestOf = Annotated[int, _limit("MAX_BEST_OF", 1, "Largest best_of of a request.")]
MaxStopSequences = Annotated[int, _limit("MAX_STOP_SEQUENCES", 0, "Most stop strings.")]
MaxTopNTokens = Annotated[int, _limit("MAX_TOP_N_TOKENS", 0, "Largest top_n_tokens.")]
MaxClientBatchSize = Annotated[
    int, _limit("MAX_CLIENT_BATCH_SIZE", 1, "Most prompts of one /v1/completions call.")
]
DisableGrammarSupport = Annotated[
    bool,
    typer.Option(
        envvar="DISABLE_GRAMMAR_SUPPORT", rich_help_panel=LIMITS, help="Refuse every grammar."
    ),
]
PayloadLimit = Annotated[
    int,
    typer.Option(envvar="PAYLOAD_LIMIT", min=1, rich_help_panel=LIMITS, help="Bytes of a request."),
]
ValidationWorkers = Annotated[
    int, _limit("VALIDATION_WORKERS", 1, "Threads that tokenize long prompts.")
]
MaxRequestDuration = Annotated[
    Optional[float],
    typer.Option(
        envvar="MAX_REQUEST_DURATION",
        min=0.001,
        rich_help_panel=LIMITS,
        help="Seconds after which an answer ends with what there is (default: none).",
    ),
]
ProgressTimeout = Annotated[
    float,
    typer.Option(
        envvar="PROGRESS_TIMEOUT",
        min=0.1,
        rich_help_panel=LIMITS,
        help="Seconds that a step may take before /health/progress says 503.",
    ),
]
GracefulTerminationTimeout = Annotated[
    float,
    typer.Option(
        envvar="GRACEFUL_TERMINATION_TIMEOUT",
        min=0.1,
        rich_help_panel=LIMITS,
        help="Seconds that running requests get after SIGTERM.",
    ),
]
ShardStartupTimeout = Annotated[
    float,
    typer.Option(min=1, rich_help_panel=LIMITS, help="Seconds until a load counts as hung."),
]
JsonOutput = Annotated[
    bool, typer.Option(envvar="JSON_OUTPUT", rich_help_panel=LOGS, help="Log in JSON lines.")
]
OtlpEndpoint = Annotated[
    Optional[str],
    typer.Option(
        envvar="OTLP_ENDPOINT",
        rich_help_panel=LOGS,
        help="Send traces to this collector, http://HOST:PORT (OTLP, gRPC); needs the extra otlp.",
    ),
]
OtlpServiceName = Annotated[
    str,
    typer.Option(
        envvar="OTLP_SERVICE_NAME",
        rich_help_panel=LOGS,
        help="The router's name in traces; the shards' ends in .server instead of .router.",
    ),
]
Env = Annotated[
    bool, typer.Option("--env", "-e", rich_help_panel=LOGS, help="Print the environment first.")
]
