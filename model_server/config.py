"""Every knob of a shard, read once from the command line and the environment.

The only file of this tier that touches either. It knows no torch, so that `--help` is instant
and the launcher may import it.

    python -m model_server serve MODEL_ID [--uds-path P | --listen HOST:PORT] ...
    python -m model_server check MODEL_ID ...
    python -m model_server download-weights MODEL_ID ...

Ranks come from the environment, as torchrun and TGI's launcher set them: RANK, WORLD_SIZE,
MASTER_ADDR, MASTER_PORT.
"""

import argparse
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from model_server.errors import ConfigRefused
from model_server.flags import parser

# Beyond this a score may leave float32; any delta of some dozens decides alone already.
_MAX_DELTA = 1e6
# By these OpenMP is told where its threads run.
_PLACES = ("OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY")


@dataclass(frozen=True, slots=True)
class DownloadConfig:
    """Which checkpoint to fetch, and whether pickled weights are acceptable."""

    model_id: str
    revision: str | None
    allow_pickle: bool = False
    parent_pid: int | None = None


@dataclass(frozen=True, slots=True)
class ServeConfig:
    """One rank of one model.

    `listen` None: a unix socket at `<uds_path>-<rank>`; else host and port, and rank r listens
    at port + r. `advertise_host` is the name under which the other machines reach this one.
    """

    model_id: str
    revision: str | None
    dtype: str
    device: str
    attention: str
    trust_remote_code: bool
    uds_path: str
    listen: tuple[str, int] | None
    advertise_host: str | None
    rank: int
    world_size: int
    master_addr: str
    master_port: int
    num_threads: int | None
    openmp_places_threads: bool
    kv_blocks: int | None
    cuda_memory_fraction: float
    watermark_gamma: float
    watermark_delta: float
    logger_level: str
    json_output: bool
    otlp_endpoint: str | None
    otlp_service_name: str
    parent_pid: int | None

    @property
    def address(self) -> Path | str:
        """Where this rank listens: its unix socket's path, or "host:port"."""
        if self.listen is None:
            return Path(f"{self.uds_path}-{self.rank}")
        host, port = self.listen
        return f"{host}:{port + self.rank}"

    @property
    def urls(self) -> tuple[str, ...]:
        """The addresses of all ranks, in rank order, as the router dials them."""
        ranks = range(self.world_size)
        if self.listen is None:
            return tuple(f"unix://{self.uds_path}-{rank}" for rank in ranks)
        host, port = self.listen
        name = self.advertise_host or host
        return tuple(f"{name}:{port + rank}" for rank in ranks)


@dataclass(frozen=True, slots=True)
class CheckConfig:
    """A model that is looked over and not loaded: as it would be served, beside what else is there.

    `folder_file`: where its folder is written, if all is in order. `turn_file`: what is locked
    while it is examined, so that of several one at a time takes a core. `needs_file`: where the
    bytes are written that it needs of the host, for whoever knows what others will give back and
    decides whether it fits; without it, what is available decides.
    """

    serve: ServeConfig
    folder_file: Path | None = None
    turn_file: Path | None = None
    needs_file: Path | None = None


def parse(
    argv: Sequence[str], environ: Mapping[str, str] = os.environ
) -> ServeConfig | CheckConfig | DownloadConfig:
    """Read `argv` (without the program's name). Raises ConfigRefused; --help exits."""
    args = parser().parse_args(argv)
    if args.command == "download-weights":
        return DownloadConfig(args.model_id, args.revision, args.allow_pickle, args.parent_pid)
    if args.command == "quantize":
        raise ConfigRefused(
            "quantize: Tandem does not write quantized checkpoints; "
            "serve one that was made elsewhere, or serve in bfloat16"
        )
    if args.quantize is not None:
        raise ConfigRefused(f"--quantize {args.quantize}: quantization on load is not served yet")
    if args.speculate:
        raise ConfigRefused(f"--speculate {args.speculate}: speculation is not served yet")
    serve = _serve_config(args, environ)
    if args.command == "check":
        return CheckConfig(serve, args.folder_file, args.turn_file, args.needs_file)
    return serve


def _serve_config(args: argparse.Namespace, environ: Mapping[str, str]) -> ServeConfig:
    world_size = _int(environ, "WORLD_SIZE", 1, lowest=1)
    rank = _int(environ, "RANK", 0, lowest=0)
    if rank >= world_size:
        raise ConfigRefused(f"RANK={rank} must be below WORLD_SIZE={world_size}")
    if args.sharded and world_size == 1:
        raise ConfigRefused("--sharded needs RANK and WORLD_SIZE in the environment")
    if not 0.0 < args.cuda_memory_fraction <= 1.0:
        raise ConfigRefused(
            f"--cuda-memory-fraction {args.cuda_memory_fraction}: must be above 0 and at most 1"
        )
    if args.kv_blocks is not None and args.kv_blocks < 1:
        raise ConfigRefused(f"--kv-blocks {args.kv_blocks}: must be at least 1")
    _check_watermark(args.watermark_gamma, args.watermark_delta)
    num_threads = environ.get("OMP_NUM_THREADS")
    return ServeConfig(
        model_id=args.model_id,
        revision=args.revision,
        dtype=args.dtype,
        device=args.device,
        attention=args.attention,
        trust_remote_code=args.trust_remote_code,
        # The router may dial it from another working directory.
        uds_path=os.path.abspath(args.uds_path),
        listen=_listen(args.listen),
        advertise_host=args.advertise_host,
        rank=rank,
        world_size=world_size,
        master_addr=environ.get("MASTER_ADDR", "127.0.0.1"),
        master_port=_int(environ, "MASTER_PORT", 29500, lowest=1),
        num_threads=_int(environ, "OMP_NUM_THREADS", 1, lowest=1) if num_threads else None,
        openmp_places_threads=any(environ.get(name) for name in _PLACES),
        kv_blocks=args.kv_blocks,
        cuda_memory_fraction=args.cuda_memory_fraction,
        watermark_gamma=args.watermark_gamma,
        watermark_delta=args.watermark_delta,
        logger_level=args.logger_level.upper(),
        json_output=args.json_output,
        otlp_endpoint=_collector(args.otlp_endpoint),
        otlp_service_name=args.otlp_service_name,
        parent_pid=args.parent_pid,
    )


def _check_watermark(gamma: float, delta: float) -> None:
    if not 0.0 < gamma < 1.0:
        raise ConfigRefused(f"--watermark-gamma {gamma}: must be above 0 and below 1")
    if not abs(delta) <= _MAX_DELTA:
        raise ConfigRefused(
            f"--watermark-delta {delta}: must be finite, between {-_MAX_DELTA:g} and {_MAX_DELTA:g}"
        )


def _int(environ: Mapping[str, str], name: str, default: int, lowest: int) -> int:
    text = environ.get(name, str(default))
    if not text.isdecimal() or int(text) < lowest:
        raise ConfigRefused(f"{name}={text!r}: must be a whole number of at least {lowest}")
    return int(text)


def _listen(text: str | None) -> tuple[str, int] | None:
    if text is None:
        return None
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise ConfigRefused(f"--listen {text!r}: must be HOST:PORT, with a port of 1 to 65535")
    return host, int(port)


def _collector(text: str | None) -> str | None:
    """Raises ConfigRefused for what is no collector's address."""
    if not text:
        return None
    url = urlsplit(text if "://" in text else f"http://{text}")
    try:
        port = url.port
    except ValueError:
        port = None
    if url.scheme not in ("http", "https") or not url.hostname or not port or url.path.strip("/"):
        raise ConfigRefused(
            f"--otlp-endpoint {text!r}: must be http://HOST:PORT or https://HOST:PORT, without a "
            "path: it is OTLP over gRPC, commonly at port 4317"
        )
    return text
