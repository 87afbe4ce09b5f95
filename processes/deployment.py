"""The processes that serve one model on this machine: their commands and environments."""

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from processes.settings import BadConfig

# Threads that wait for each other spin; beside the router, or any busy neighbour, a short spin is
# several times faster than OpenMP's long one, and no slower alone.
SPIN = MappingProxyType({"GOMP_SPINCOUNT": "20000"})
_LOOPBACK = ("127.0.0.1", "localhost", "::1")


@dataclass(frozen=True, slots=True)
class Node:
    """This machine among the `count` that share the ranks; the first one serves HTTP.

    `host`: its address, by which the others reach it; `interface`: what has that address.
    """

    rank: int
    count: int
    host: str
    interface: str


@dataclass(frozen=True, slots=True)
class Deployment:
    """One model to serve. `router_flags` and `shard_flags` are passed on as they are.

    `secrets` are variables for the router alone, by its environment: everybody on the machine sees
    command lines. `http_uds` takes the place of hostname and port. With `parent_pid`, that
    process's end is a SIGTERM. What ends by itself is started anew `max_restarts` times.
    `own_folder`: for files that live as long as the server. `standby_shards`: whether a shard waits
    for the death of each; None: where there are GPUs, or memory to spare. `node` None: one machine
    has all ranks.
    """

    model_id: str
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
    reloads_keys: bool = False
    json_output: bool = False
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    http_uds: Path | None = None
    parent_pid: int | None = None
    max_restarts: int = 0
    trusts_code: bool = False
    own_folder: Path | None = None
    standby_shards: bool | None = None
    node: Node | None = None

    @property
    def serves_http(self) -> bool:
        """Whether the router is here."""
        return self.node is None or self.node.rank == 0

    @property
    def ranks(self) -> range:
        """Those of this machine."""
        if self.node is None:
            return range(self.num_shard)
        num_here = self.num_shard // self.node.count
        return range(num_here * self.node.rank, num_here * (self.node.rank + 1))

    def shard_place(self, rank: int) -> Path | tuple[str, int]:
        """Where a rank of this machine listens: at a socket beside the router, else host and port.

        The ranks' ports follow the one where they meet.
        """
        if self.node is None or self.serves_http:
            return Path(f"{self.uds_path}-{rank}")
        return self.node.host, self.master_port + 1 + rank

    def shard_argv(self, tokenizer_folder: Path | None, command: str = "serve") -> list[str]:
        """The command of every rank, or that which only checks; they differ in the environment.

        tokenizer_folder: None: that of the model
        """
        argv = [*self._model_server(command), "--uds-path", self.uds_path]
        if self.node is not None and not self.serves_http:
            host = f"[{self.node.host}]" if ":" in self.node.host else self.node.host
            argv += ["--listen", f"{host}:{self.master_port + 1}"]
        argv += [f"--tokenizer-folder={tokenizer_folder}"] if tokenizer_folder else []
        if command == "serve" and self.own_folder is not None:
            argv.append(f"--kept-evidence={self.own_folder / 'evidence.safetensors'}")
        return argv + list(self.shard_flags)

    def standby_argv(self, tokenizer_folder: Path | None) -> list[str]:
        """The command of a process that becomes the shard of `shard_argv` when it is called up."""
        python, module_flag, _, *rest = self.shard_argv(tokenizer_folder)
        return [python, module_flag, "model_server.standby", *rest]

    def conversion_argv(self, folder: Path, target: Path) -> list[str]:
        """The command that makes a tokenizer.json of other files."""
        argv = [
            sys.executable,
            "-m",
            "model_server.checkpoint.tokenizer_conversion",
            str(folder),
            str(target),
        ]
        return [*argv, "--trust-remote-code"] if self.trusts_code else argv

    def gguf_argv(self, file: Path, target: Path) -> list[str]:
        """The command that makes a checkpoint's folder of a GGUF file."""
        module = "model_server.checkpoint.gguf_conversion"
        return [sys.executable, "-m", module, str(file), str(target)]

    def download_argv(self) -> list[str]:
        """The command that fetches the checkpoint and prints its folder."""
        argv = self._model_server("download-weights")
        argv += [] if self.revision is None else [f"--revision={self.revision}"]
        return [*argv, "--json-output"] if self.json_output else argv

    def router_argv(self, tokenizer_folder: Path, command: Sequence[str] = ()) -> list[str]:
        """The router's command, or that which only checks."""
        argv = [sys.executable, "-m", "router", *command, "--tokenizer-name", str(tokenizer_folder)]
        argv += ["--master-shard-uds-path", f"{self.uds_path}-0", "--parent-pid", str(os.getpid())]
        return argv + list(self.router_flags)

    def shard_environ(self, rank: int, environ: Mapping[str, str]) -> dict[str, str]:
        """The environment of one rank: its number, where the ranks meet, its share of cores."""
        num_cores = len(os.sched_getaffinity(0))
        return {
            "OMP_NUM_THREADS": str(max(1, num_cores // len(self.ranks))),
            **SPIN,
            # Else ranks listen at the address of the machine's name.
            **({"GLOO_SOCKET_IFNAME": "lo"} if self.master_addr in _LOOPBACK else {}),
            **({} if self.node is None else _talking_over(self.node.interface)),
            **environ,
            "RANK": str(rank),
            "WORLD_SIZE": str(self.num_shard),
            "LOCAL_WORLD_SIZE": str(len(self.ranks)),
            "MASTER_ADDR": self.master_addr,
            "MASTER_PORT": str(self.master_port),
            # transformers reads it to choose this rank's GPU.
            "LOCAL_RANK": str(rank - self.ranks[0]),
            **({"CUDA_VISIBLE_DEVICES": ""} if self.device == "cpu" else _allocation(environ)),
        }

    def router_environ(self, environ: Mapping[str, str]) -> dict[str, str]:
        return {**environ, **self.secrets}

    def _model_server(self, command: str) -> list[str]:
        argv = [sys.executable, "-m", "model_server", command, self.model_id]
        return [*argv, "--parent-pid", str(os.getpid())]


def num_shards(
    sharded: bool | None, num_shard: int | None, device: str, environ: Mapping[str, str]
) -> int:
    """How many ranks to start, by TGI's rules. Raises BadConfig for a contradiction."""
    if sharded is False:
        if num_shard is not None and num_shard > 1:
            raise BadConfig(f"--no-sharded contradicts --num-shard {num_shard}")
        return 1
    if num_shard is not None:
        if sharded and num_shard == 1:
            raise BadConfig("--sharded needs --num-shard of 2 or more")
        return num_shard
    num_gpus = 0 if device == "cpu" else num_visible_gpus(environ, count_all=bool(sharded))
    if sharded and num_gpus < 2:
        raise BadConfig(
            f"--sharded: {num_gpus} GPU(s) are visible, which leaves nothing to shard over; "
            "set the number of ranks with --num-shard N"
        )
    return max(1, num_gpus)


def _talking_over(interface: str) -> dict[str, str]:
    """NCCL takes a name for the beginning of one, unless there is a sign before it."""
    return {"GLOO_SOCKET_IFNAME": interface, "NCCL_SOCKET_IFNAME": f"={interface}"}


def _allocation(environ: Mapping[str, str]) -> dict[str, str]:
    """How torch takes a GPU's memory, unless the operator says: in segments that grow, since pieces
    that do not fit together are lost to long prompts.
    """
    if "PYTORCH_CUDA_ALLOC_CONF" in environ or "PYTORCH_ALLOC_CONF" in environ:
        return {}
    return {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}


def num_visible_gpus(environ: Mapping[str, str], *, count_all: bool) -> int:
    """GPUs named by the environment; where it names none, all of the machine's or none."""
    for name in ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"):
        visible = environ.get(name)
        if visible is not None and visible != "all":
            return len(_named(visible))
        count_all = count_all or visible == "all"
    return len(list(Path("/proc/driver/nvidia/gpus").glob("*"))) if count_all else 0


def visible_gpus(environ: Mapping[str, str]) -> list[str]:
    """The GPUs that there are for this process, as its children's CUDA_VISIBLE_DEVICES names them.

    NVIDIA_VISIBLE_DEVICES has the names that they have outside of a container.
    """
    named = environ.get("CUDA_VISIBLE_DEVICES", "all")
    if named != "all":
        return _named(named)
    return [str(number) for number in range(num_visible_gpus(environ, count_all=True))]


def _named(visible: str) -> list[str]:
    names = [word.strip() for word in visible.split(",")]
    return [name for name in names if name not in ("", "-1", "none", "void")]
