"""Every setting of a shard, read once from the command line and the environment.

The only file of this tier that touches either. It knows no torch, so that `--help` is instant
and the launcher may import it.

    python -m model_server serve MODEL_ID [--uds-path P | --listen HOST:PORT] ...
    python -m model_server check MODEL_ID ...
    python -m model_server download-weights MODEL_ID ...

Ranks come from the environment, as torchrun and TGI's launcher set them: RANK, WORLD_SIZE,
MASTER_ADDR, MASTER_PORT.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from processes import rules
from processes.deployment import num_visible_gpus
from processes.rules import Whole, collector, number, one_of, share, token
from processes.settings import BadConfig, CommandLine, Group, Kind, flag_of, read_settings, setting

# Beyond this a score may leave float32; any delta of some dozens decides alone already.
_MAX_DELTA = 1e6


def _gamma(text: str) -> float:
    gamma = number(text)
    if not 0.0 < gamma < 1.0:
        raise BadConfig("must be above 0 and below 1")
    return gamma


def _delta(text: str) -> float:
    delta = number(text)
    if not abs(delta) <= _MAX_DELTA:
        raise BadConfig(f"must be finite, between {-_MAX_DELTA:g} and {_MAX_DELTA:g}")
    return delta


def _host_and_port(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise BadConfig("must be HOST:PORT, with a port of 1 to 65535")
    return host, int(port)


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Which model a command is about."""

    model_id: str = setting(
        ..., "a local folder or a hub id", group=Group.MODEL, kind=Kind.ARGUMENT, env=False
    )
    revision: str | None = setting(None, "branch, tag or commit on the hub", group=Group.MODEL)
    parent_pid: int | None = setting(
        None,
        "stop once this process is no longer the parent",
        Whole(1),
        group=Group.TIME,
        env=False,
        internal=True,
    )


@dataclass(frozen=True, slots=True)
class DownloadConfig(ModelConfig):
    """Which checkpoint to fetch."""

    json_output: bool = setting(
        False, "log JSON lines", group=Group.LOGS, kind=Kind.SWITCH, internal=True
    )


def _activation_bits(text: str) -> int:
    return int(one_of("8", "16")(text))


@dataclass(frozen=True, slots=True)
class ServeConfig(ModelConfig):
    """One rank of one model.

    `listen` None: a unix socket at `<uds_path>-<rank>`; else host and port, and rank r listens
    at port + r. `advertise_host` is the name under which the other machines reach this one.
    Raises BadConfig when settings contradict each other.
    """

    dtype: str = setting(
        "auto",
        "auto, bfloat16, float16 or float32; auto is bfloat16 where it is fast",
        one_of("auto", "bfloat16", "float16", "float32"),
        group=Group.MODEL,
    )
    trust_remote_code: bool = setting(
        False, "run the checkpoint's code", group=Group.MODEL, kind=Kind.SWITCH
    )
    watermark_gamma: float = setting(
        0.5, "share of the tokens that a watermark favours", _gamma, group=Group.MODEL
    )
    watermark_delta: float = setting(
        2.0, "what a watermark adds to their logits", _delta, group=Group.MODEL
    )
    device: str = setting(
        "auto",
        "auto, cpu or cuda; auto takes CUDA where there is one",
        one_of("auto", "cpu", "cuda"),
        group=Group.PLACE,
        env=False,
    )
    attention: str = setting(
        "auto",
        "attention backend: auto, reference, cpu, cpu-op, sdpa or triton",
        one_of("auto", "reference", "cpu", "cpu-op", "sdpa", "triton"),
        group=Group.PLACE,
        env=False,
    )
    quantize: str | None = setting(
        None,
        "int8 or int4 on a CPU, fp8 on a GPU: weights of matrix products in fewer bits, and"
        " activations in 8",
        one_of("int8", "int4", "fp8"),
        group=Group.MODEL,
    )
    activation_bits: int = setting(
        8,
        "8 or 16 bits of activations beside weights in groups, on a CPU",
        _activation_bits,
        group=Group.MODEL,
        env=False,
    )
    cuda_memory_fraction: float = setting(
        0.9,
        "share of a GPU's memory that the server may fill",
        share,
        group=Group.PLACE,
        elsewhere=("gpu_memory_utilization", "mem_fraction_static"),
    )
    constraint_cache_mib: int = setting(
        512,
        "MiB that compiled constraints may take, about",
        Whole(1),
        group=Group.BATCH,
    )
    max_loras: int = setting(
        0,
        "LoRA adapters that may be loaded at one time; memory is kept for them",
        Whole(0),
        group=Group.BATCH,
        env=False,
    )
    max_lora_rank: int = setting(
        16, "the largest rank of an adapter", Whole(1), group=Group.BATCH, env=False
    )
    kv_blocks: int | None = setting(
        None,
        "blocks of the KV pool; absent: by the memory",
        Whole(1),
        group=Group.PLACE,
        env=False,
    )
    tokenizer_folder: Path | None = setting(
        None,
        "the folder of its tokenizer.json; absent: the model's",
        Path,
        group=Group.MODEL,
        env=False,
        internal=True,
    )
    kept_evidence: Path | None = setting(
        None,
        "a file in which a shard leaves what proves the weights to the next one",
        Path,
        group=Group.MODEL,
        env=False,
        internal=True,
    )
    max_input_tokens: int | None = rules.max_input_tokens()
    max_total_tokens: int | None = rules.max_total_tokens()
    sharded: bool | None = setting(
        None,
        "one rank of several",
        group=Group.PLACE,
        kind=Kind.SWITCH,
        env=False,
        internal=True,
    )
    uds_path: str = setting(
        "/tmp/tandem-shard",
        "socket; -RANK is appended",
        # The router may dial it from another working directory.
        os.path.abspath,
        group=Group.PLACE,
        env=False,
        internal=True,
    )
    listen: tuple[str, int] | None = setting(
        None,
        "HOST:PORT instead of a socket; rank r takes PORT + r",
        _host_and_port,
        group=Group.PLACE,
        env=False,
        internal=True,
    )
    advertise_host: str | None = setting(
        None,
        "the name by which the router reaches this host",
        group=Group.PLACE,
        env=False,
        internal=True,
    )
    rank: int = setting(0, "this rank", Whole(0), group=Group.PLACE, kind=Kind.VARIABLE)
    local_rank: int | None = setting(
        None,
        "this rank among those of its machine, which is the number of its GPU; absent: as RANK",
        Whole(0),
        group=Group.PLACE,
        kind=Kind.VARIABLE,
    )
    world_size: int = setting(
        1, "how many ranks there are", Whole(1), group=Group.PLACE, kind=Kind.VARIABLE
    )
    local_world_size: int | None = setting(
        None,
        "how many of them this machine has; absent: all",
        Whole(1),
        group=Group.PLACE,
        kind=Kind.VARIABLE,
    )
    master_addr: str = setting(
        "127.0.0.1", "where the ranks meet", group=Group.PLACE, kind=Kind.VARIABLE
    )
    master_port: int = setting(
        29500, "its port", Whole(1, 65535), group=Group.PLACE, kind=Kind.VARIABLE
    )
    shard_token: str | None = setting(
        None,
        "a secret that the router has to show; --listen needs one",
        token,
        group=Group.PLACE,
        kind=Kind.VARIABLE,
        secret=True,
    )
    num_threads: int | None = setting(
        None,
        "threads of a step",
        Whole(1),
        group=Group.PLACE,
        kind=Kind.VARIABLE,
        env=("OMP_NUM_THREADS",),
    )
    logger_level: str = setting(
        "info",
        "least severe lines to log",
        one_of("debug", "info", "warning", "error", "off"),
        group=Group.LOGS,
        env=False,
        internal=True,
    )
    json_output: bool = setting(False, "log JSON lines", group=Group.LOGS, kind=Kind.SWITCH)
    otlp_endpoint: str | None = setting(
        None,
        "send traces to this collector, http://HOST:PORT (OTLP over gRPC); needs the extra otlp",
        collector,
        group=Group.LOGS,
    )
    otlp_service_name: str = setting(
        "text-generation-inference.server",
        "the shard's name in its traces",
        group=Group.LOGS,
        env=False,
        internal=True,
    )

    def __post_init__(self) -> None:
        if self.rank >= self.world_size:
            raise BadConfig(f"RANK={self.rank} must be below WORLD_SIZE={self.world_size}")
        if self.sharded and self.world_size == 1:
            raise BadConfig("--sharded needs RANK and WORLD_SIZE in the environment")
        if self.listen is not None and self.shard_token is None:
            raise BadConfig(
                "--listen needs the variable SHARD_TOKEN, a secret that the router has, too:"
                " without it, whoever reaches the port could run the model and stop it"
            )

    @property
    def address(self) -> Path | str:
        """Where this rank listens: its unix socket's path, or "host:port"."""
        if self.listen is None:
            return Path(f"{self.uds_path}-{self.rank}")
        host, port = self.listen
        return f"{host}:{port + self.rank}"

    @property
    def url(self) -> str:
        """The address of this rank, as the router dials it."""
        if self.listen is None:
            return f"unix://{self.uds_path}-{self.rank}"
        host, port = self.listen
        return f"{self.advertise_host or host}:{port + self.rank}"

    @property
    def spans_machines(self) -> bool:
        """Whether other machines have some of the ranks."""
        return (self.local_world_size or self.world_size) < self.world_size

    @property
    def shared(self) -> dict[str, str]:
        """The flags that all ranks must have alike, by name."""
        found = {"--num-shard": str(self.world_size)}
        for each in fields(ServeConfig):
            meta = each.metadata
            is_own = meta["internal"] or meta["kind"] in (Kind.ARGUMENT, Kind.VARIABLE)
            if not is_own and meta["group"] is not Group.LOGS:
                found[flag_of(each.name)] = str(getattr(self, each.name))
        return found


@dataclass(frozen=True, slots=True)
class CheckConfig(ServeConfig):
    """One rank of one model that shall not be served but checked."""

    max_batch_size: int = setting(
        1, "sequences that run at once", Whole(1), group=Group.BATCH, env=False, internal=True
    )
    lora_adapters: tuple[tuple[str, str], ...] = setting(
        (),
        "those of the start, with their names",
        rules.lora_adapters,
        group=Group.MODEL,
        env=False,
        internal=True,
    )


_IN_8_BITS = "weights in 8 bits are made while a model is loaded: launcher serve --quantize "
_NOT_WRITTEN = {
    "awq": "its format is read, not written; gptq is as small, and read by as many",
    "int8": f"{_IN_8_BITS}int8, on a CPU",
    "fp8": f"{_IN_8_BITS}fp8, on a GPU",
}


def _method(text: str) -> str:
    if text in _NOT_WRITTEN:
        raise BadConfig(_NOT_WRITTEN[text])
    return str(one_of("gptq", "rtn")(text))


def _four(text: str) -> int:
    if text != "4":
        raise BadConfig(f"must be 4; {_IN_8_BITS}int8")
    return 4


def _group_size(text: str) -> int:
    return int(one_of("16", "32", "64", "128")(text))


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizeConfig(ModelConfig):
    """Which checkpoint to write in 4 bits, where and how."""

    out: Path = setting(
        ..., "the folder that is made", Path, group=Group.MODEL, kind=Kind.ARGUMENT, env=False
    )
    method: str = setting(
        "gptq",
        "gptq: what rounding makes wrong is taken out of weights that are still to be rounded;"
        " rtn: each is rounded to the nearest number",
        _method,
        group=Group.QUANTIZING,
        env=False,
    )
    bits: int = setting(4, "of a weight: 4", _four, group=Group.QUANTIZING, env=False)
    group_size: int = setting(
        128,
        "weights of an output that share a scale: 16, 32, 64 or 128; halved until it divides all",
        _group_size,
        group=Group.QUANTIZING,
        env=False,
    )
    calibration: Path | None = setting(
        None,
        'texts to quantize by, a line {"text": "..."} or {"messages": [...]} each; absent: the'
        " model's own",
        Path,
        group=Group.QUANTIZING,
        env=False,
    )
    seed: int = setting(
        0,
        "of the order of texts, or of the model's own",
        Whole(0),
        group=Group.QUANTIZING,
        env=False,
    )


def num_gpus() -> int:
    """The GPUs that the machine has, or that the environment names of them."""
    return num_visible_gpus(os.environ, count_all=True)


_COMMANDS = {
    "serve": (ServeConfig, "Load a model and serve it to the router over gRPC."),
    "check": (CheckConfig, "Check what `serve` checks before it reads weights, and end."),
    "download-weights": (DownloadConfig, "Fetch a checkpoint from the hub."),
}


def parse(
    argv: Sequence[str], environ: Mapping[str, str] | None = None
) -> ServeConfig | CheckConfig | DownloadConfig:
    """Read `argv` (without the program's name). Raises BadConfig; --help exits."""
    command, *rest = argv or ("--help",)
    commands = ", ".join(_COMMANDS)
    if command in ("-h", "--help"):
        about = f"One tensor-parallel shard of Tandem. Commands: {commands} (each has --help)."
        CommandLine((), "python -m model_server COMMAND", about).print_help()
        raise SystemExit(0)
    if command not in _COMMANDS:
        raise BadConfig(f"{command}: must be one of {commands}; see --help")
    kind, about = _COMMANDS[command]
    by_flag = CommandLine(fields(kind), f"python -m model_server {command}", about).parse(rest)
    return read_settings(kind, by_flag, os.environ if environ is None else environ)


def parse_quantize(argv: Sequence[str], environ: Mapping[str, str] | None = None) -> QuantizeConfig:
    """As `parse`, for the command that writes a checkpoint."""
    command_line = CommandLine(
        [each for each in fields(QuantizeConfig) if not each.metadata["internal"]],
        "launcher quantize MODEL_ID OUT",
        """
        Write a checkpoint whose weights are in 4 bits: linear layers in the format of GPTQ, all
        else as it is. OUT appears whole or not at all.

        Exit codes: 0 made; 1 refused or stopped; 2 a flag or a variable is wrong.
        """,
    )
    by_flag = command_line.parse(argv)
    return read_settings(QuantizeConfig, by_flag, os.environ if environ is None else environ)
