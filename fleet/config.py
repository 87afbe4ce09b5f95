"""Every setting of the front of several models, or of one model's replicas, and its command line.

The only file of the fleet that reads argv and environment. What it has in common with the router
is in `router/front_config.py`. What stands behind `--` on the command line are flags of
`launcher serve`, for every model's server.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from processes.rules import Whole, one_of, seconds, share
from processes.settings import BadConfig, CommandLine, Group, Kind, read_settings, setting
from router.front_config import FrontConfig

AUTO = "auto"
_PROG = "python -m fleet"
_ABOUT = (
    "Tandem's front for several models: --model ID ..., or --model auto; for replicas of one:\n"
    "--replicas N, or --replica URL ...; and behind -- the flags of `launcher serve` for each."
)


_OF_FRONT: Any = {"group": Group.FLEET, "front_only": True}
_OF_REPLICAS: Any = {"group": Group.REPLICAS, "front_only": True, "env": False}


def _url(text: str) -> str:
    url = urlsplit(text)
    try:
        is_valid = bool(url.hostname) and url.port != 0
    except ValueError:
        is_valid = False
    has_more = url.path.strip("/") or url.query or url.fragment or url.username
    if url.scheme not in ("http", "https") or not is_valid or has_more:
        raise BadConfig("must be http://HOST[:PORT] or https://HOST[:PORT], without a path")
    return text


def _folder(text: str) -> Path:
    path = Path(os.path.expanduser(text))
    if not os.path.isdir(path):
        raise BadConfig("must be a folder that exists")
    return path.resolve()


@dataclass(frozen=True, slots=True)
class FleetConfig(FrontConfig):
    """Settings of `python -m fleet`. Times in seconds. Raises BadConfig for models that cannot be
    served together."""

    model: tuple[str, ...] = setting(
        (),
        "a model to serve, or auto; may be repeated",
        str,
        group=Group.FLEET,
        kind=Kind.REPEATED,
        env=False,
        internal=True,
    )
    models_folder: Path | None = setting(
        None,
        "with auto: requests may name the models below this folder; absent: the working one",
        _folder,
        **_OF_FRONT,
    )
    hub_models: bool = setting(
        True, "with auto: requests may name models of the hub", kind=Kind.SWITCH, **_OF_FRONT
    )
    max_loaded_models: int = setting(
        1,
        "models in memory at once; the least recently used idle one leaves for another",
        Whole(1),
        **_OF_FRONT,
    )
    model_load_timeout: float = setting(
        300.0,
        "seconds that a request waits for its model before 503; the load goes on",
        seconds,
        **_OF_FRONT,
    )
    model_idle_timeout: float | None = setting(
        None,
        "seconds without a request after which a model leaves the memory; absent: never",
        seconds,
        **_OF_FRONT,
    )
    model_turn: float = setting(
        10.0,
        "seconds that a busy model goes on taking requests while another waits for its room",
        seconds,
        **_OF_FRONT,
    )
    model_retry_after: float = setting(
        30.0, "seconds before a model that could not be loaded is tried again", seconds, **_OF_FRONT
    )
    cuda_memory_fraction: float = setting(
        0.9, "share of a GPU's memory that all models together may fill", share, **_OF_FRONT
    )

    replicas: int | None = setting(
        None,
        "whole servers of the model on this machine, behind one front: each with --num-shard GPUs, "
        "or its share of the cores",
        Whole(1),
        **_OF_REPLICAS,
    )
    replica: tuple[str, ...] = setting(
        (),
        "URL of a server that runs elsewhere, for a front without a model of its own; may be "
        "repeated; every address of its name is a replica, and it is resolved every 5 seconds",
        _url,
        kind=Kind.REPEATED,
        **_OF_REPLICAS,
    )
    replica_gpus: tuple[str, ...] = setting(
        (), "the GPUs that replicas share", str, kind=Kind.REPEATED, internal=True, **_OF_REPLICAS
    )
    replica_shards: int = setting(
        1, "tensor-parallel ranks of each replica", Whole(1), internal=True, **_OF_REPLICAS
    )
    migrate: str = setting(
        "same",
        "where the stream of a replica that is gone may go on: at one that computes the same bits "
        "(version, model, dtype, kind of processor), or at any: same or any",
        one_of("same", "any"),
        **_OF_REPLICAS,
    )

    def __post_init__(self) -> None:
        FrontConfig.__post_init__(self)
        if self.replicas and self.replica:
            raise BadConfig(
                "--replicas and --replica: start servers here, or name others, not both"
            )
        if self.has_replicas and (len(self.model) > 1 or self.takes_any):
            raise BadConfig("--replicas and --replica are for one model; start a front for each")
        if self.replica and self.model:
            raise BadConfig(
                f"--replica {self.replica[0]}: its front has no model of its own, and MODEL_ID "
                f"{self.model[0]!r} is given; --replicas N starts servers here"
            )
        if AUTO in self.model and len(self.model) > 1:
            raise BadConfig(
                "auto is any model, so it stands alone; for a folder of that name: ./auto"
            )
        for name in self.model:
            if self.model.count(name) > 1:
                raise BadConfig(f"MODEL_ID {name!r} is given twice")
            # What cannot be an id of the hub; of one model the loader says so.
            if name.startswith(("/", ".", "~")) and not os.path.exists(os.path.expanduser(name)):
                raise BadConfig(f"MODEL_ID {name!r}: must be a folder that exists, or a hub id")

    @property
    def has_replicas(self) -> bool:
        """Whether it is the front of one model's replicas."""
        return bool(self.replicas or self.replica)

    @property
    def takes_any(self) -> bool:
        """Whether requests may name models that the command line does not."""
        return self.model == (AUTO,)


@dataclass(frozen=True, slots=True)
class FleetCommand:
    """A command line: the settings, and the flags and environment of every model's server."""

    config: FleetConfig
    child_flags: tuple[str, ...]
    environ: Mapping[str, str]


def read_config(argv: Sequence[str], environ: Mapping[str, str] | None = None) -> FleetCommand:
    """What a command line without the program's name, and an environment, say. Raises BadConfig."""
    environ = os.environ if environ is None else environ
    own = list(argv)
    child_flags = []
    if "--" in own:
        cut = own.index("--")
        child_flags = own[cut + 1 :]
        own = own[:cut]
    by_flag = CommandLine(fields(FleetConfig), _PROG, _ABOUT).parse(own)
    config = read_settings(FleetConfig, by_flag, environ)
    if not config.model and not config.has_replicas:
        raise BadConfig("--model: at least one must be given; see --help")
    return FleetCommand(config, tuple(child_flags), environ)
