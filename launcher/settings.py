"""What `launcher serve` was asked for, checked, and the command lines that follow from it."""

import os
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from launcher.errors import BadSetting, PlaceTaken
from processes.readiness import socket_listens

BUNDLED_MODEL = Path(__file__).resolve().parent.parent / "models" / "demo"
BUNDLED_NAME = "tandem-demo"
# For the router alone, and by its environment: everybody on the machine sees command lines.
SECRETS = ("API_KEY", "SSL_KEYFILE_PASSWORD")
_MAX_SOCKET_BYTES = 107


@dataclass(frozen=True, slots=True)
class ServeSettings:
    """One model to serve on this machine. `router_flags` and `shard_flags` go on as they are.

    `secrets` are those of SECRETS that were given. `http_uds` takes the place of hostname and port.
    With `parent_pid`, that process's end is a SIGTERM.
    """

    model_id: str
    served_model_name: str | None
    revision: str | None
    num_shard: int
    device: str
    hostname: str
    port: int
    uds_path: str
    master_addr: str
    master_port: int
    graceful_timeout_s: float
    startup_timeout_s: float
    shard_flags: tuple[str, ...]
    router_flags: tuple[str, ...]
    has_tls: bool = False
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    http_uds: Path | None = None
    parent_pid: int | None = None

    def shard_argv(self) -> list[str]:
        """The command of every rank; they differ in the environment alone."""
        argv = [sys.executable, "-m", "model_server", "serve", self.model_id]
        argv += ["--uds-path", self.uds_path, "--parent-pid", str(os.getpid())]
        return argv + _revision(self.revision) + list(self.shard_flags)

    def check_argv(self, folder_file: Path) -> list[str]:
        """The command that looks the model over, and writes its folder into this file."""
        argv = [sys.executable, "-m", "model_server", "check", self.model_id]
        argv += ["--parent-pid", str(os.getpid()), "--folder-file", str(folder_file)]
        return argv + _revision(self.revision) + list(self.shard_flags)

    def shard_environ(self, rank: int, environ: Mapping[str, str]) -> dict[str, str]:
        """The environment of one rank: who it is, where the ranks meet, its share of cores."""
        num_cores = len(os.sched_getaffinity(0))
        return {
            "OMP_NUM_THREADS": str(max(1, num_cores // self.num_shard)),
            # Threads that wait for each other spin; beside the router, or any busy neighbour, a
            # short spin is several times faster than OpenMP's long one, and no slower alone.
            "GOMP_SPINCOUNT": "20000",
            **environ,
            "RANK": str(rank),
            "WORLD_SIZE": str(self.num_shard),
            "MASTER_ADDR": self.master_addr,
            "MASTER_PORT": str(self.master_port),
            # transformers reads it to choose this rank's GPU.
            "LOCAL_RANK": str(rank),
            **({"CUDA_VISIBLE_DEVICES": ""} if self.device == "cpu" else {}),
        }

    def router_argv(self, tokenizer_folder: Path) -> list[str]:
        """The router's command."""
        argv = [sys.executable, "-m", "router", "--tokenizer-name", str(tokenizer_folder)]
        argv += ["--master-shard-uds-path", f"{self.uds_path}-0"]
        argv += ["--hostname", self.hostname, "--port", str(self.port)]
        argv += ["--parent-pid", str(os.getpid())]
        argv += ["--graceful-termination-timeout", str(self.graceful_timeout_s)]
        if self.http_uds is not None:
            argv += ["--http-uds", str(self.http_uds)]
        if self.served_model_name:
            argv += ["--served-model-name", self.served_model_name]
        return argv + list(self.router_flags)

    def router_environ(self, environ: Mapping[str, str]) -> dict[str, str]:
        """The router's environment."""
        return {**environ, **self.secrets}

    def download_argv(self) -> list[str]:
        """The command that fetches the checkpoint and prints its folder."""
        argv = [sys.executable, "-m", "model_server", "download-weights", self.model_id]
        argv += ["--parent-pid", str(os.getpid())]
        return argv + _revision(self.revision)


def children_environ(environ: Mapping[str, str], hub_cache: Path | None) -> dict[str, str]:
    """The environment that all children begin with; `hub_cache` as huggingface_hub reads it."""
    told = {name: value for name, value in environ.items() if name not in SECRETS}
    # Its notes on forks and the like are no matter of who serves a model.
    told.setdefault("GRPC_VERBOSITY", "ERROR")
    return {**told, **({"HF_HUB_CACHE": str(hub_cache)} if hub_cache else {})}


def num_shards(
    sharded: bool | None, num_shard: int | None, device: str, environ: Mapping[str, str]
) -> int:
    """How many ranks to start, by TGI's rules. Raises BadSetting for a contradiction."""
    if sharded is False:
        if num_shard is not None and num_shard > 1:
            raise BadSetting(f"--no-sharded contradicts --num-shard {num_shard}")
        return 1
    if num_shard is not None:
        if num_shard < 1:
            raise BadSetting(f"--num-shard {num_shard}: must be at least 1")
        if sharded and num_shard == 1:
            raise BadSetting("--sharded needs --num-shard of 2 or more")
        return num_shard
    num_gpus = 0 if device == "cpu" else _num_gpus(environ, count_all=bool(sharded))
    if sharded and num_gpus < 2:
        raise BadSetting(
            f"--sharded: {num_gpus} GPU(s) are visible, which leaves nothing to shard over; "
            "say how many ranks to start with --num-shard N"
        )
    return max(1, num_gpus)


def _num_gpus(environ: Mapping[str, str], *, count_all: bool) -> int:
    """GPUs named by the environment; without a word there, all of the machine's or none."""
    for name in ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"):
        visible = environ.get(name)
        if visible is not None and visible != "all":
            names = [word.strip() for word in visible.split(",")]
            return len([word for word in names if word not in ("", "-1", "none", "void")])
        count_all = count_all or visible == "all"
    return len(list(Path("/proc/driver/nvidia/gpus").glob("*"))) if count_all else 0


def require_free_port(hostname: str, port: int) -> None:
    """Raises PlaceTaken when `port` is, before minutes are spent on loading."""
    family = socket.AF_INET6 if ":" in hostname else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((hostname, port))
        except OSError as error:
            raise PlaceTaken(
                f"cannot listen at {hostname}:{port}: {error.strerror}; "
                "choose another with --port or --hostname"
            ) from error


def require_place(flag: str, path: Path, ending: str = "") -> None:
    """Raises BadSetting when no unix socket can be made at `path`, to which `ending` is added, and
    PlaceTaken when somebody listens there."""
    place, said = Path(f"{path}{ending}"), f"{flag} {str(path)!r}"
    try:
        rule = _broken_rule(place)
    except OSError as error:
        raise BadSetting(f"{said}: {error.strerror}") from error
    if rule is not None:
        raise BadSetting(f"{said}: {rule}")
    if socket_listens(place):
        raise PlaceTaken(f"{said}: must be free, and somebody listens at {place}")


def _broken_rule(place: Path) -> str | None:
    """Why no socket can be there. Raises OSError where nobody may look."""
    if len(os.fsencode(place)) > _MAX_SOCKET_BYTES:
        return f"must be shorter: a unix socket's path has at most {_MAX_SOCKET_BYTES} bytes"
    if place.is_dir():
        return "must be a path for a socket, not a folder"
    if not place.parent.is_dir():
        return f"must be in a folder that exists, and {place.parent} does not"
    if place.exists() and not place.is_socket():
        return f"must not be taken by something else than a socket, and {place} is"
    return None


def free_port() -> int:
    """A TCP port of the loopback interface that nobody listens on at the moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _revision(revision: str | None) -> list[str]:
    return [] if revision is None else ["--revision", revision]
