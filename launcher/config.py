"""The settings of `launcher serve`: its own, and those of the processes that it starts.

HOSTNAME is not read: shells and containers set it to the machine's name, and a server must not open
itself to a network because of that.
"""

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import Field, dataclass, fields
from pathlib import Path
from typing import Any

from fleet.config import FleetConfig
from model_server.config import ServeConfig
from processes.rules import Whole, seconds
from processes.settings import BadConfig, Group, Kind, refused, setting
from router.config import RouterConfig

BUNDLED_MODEL = Path(__file__).resolve().parents[1] / "models" / "demo"
BUNDLED_NAME = "tandem-demo"
# TGI's launcher has other defaults than its router.
_DEFAULTS = {"max_batch_prefill_tokens": "2048", "waiting_served_ratio": "0.3"}
# What the front of several models gives its servers.
_OF_FRONT: Any = {"env": False, "front_only": True}


@dataclass(frozen=True, slots=True)
class LaunchConfig:
    """The settings of `launcher serve` that no process has which it starts."""

    model_ids: tuple[str, ...] = setting(
        (),
        "a local folder or a hub id, also from the variable MODEL_ID; absent: the bundled model. "
        "Several: each is loaded when a request names it. auto: any that a request names",
        str,
        group=Group.MODEL,
        kind=Kind.ARGUMENT,
        env=False,
        spelling="MODEL_ID",
        front_only=True,
    )
    model_id: str | None = setting(
        None, "the same as MODEL_ID", str, group=Group.MODEL, env=False, front_only=True
    )
    config: Path | None = setting(
        None,
        "a file of settings in YAML, by the names of flags; flags and variables beat it",
        Path,
        group=Group.MODEL,
        env=False,
        front_only=True,
    )
    huggingface_hub_cache: Path | None = setting(
        None, "folder of the hub's cache; absent: that of huggingface_hub", Path, group=Group.MODEL
    )
    weights_cache_override: Path | None = setting(
        None, "the same, and stronger than --huggingface-hub-cache", Path, group=Group.MODEL
    )
    sharded: bool | None = setting(
        None, "spread the model over all visible GPUs", group=Group.PLACE, kind=Kind.SWITCH
    )
    num_shard: int | None = setting(None, "tensor-parallel ranks", Whole(1), group=Group.PLACE)
    shard_uds_path: str | None = setting(
        None, "prefix of the shards' unix sockets; absent: in a private folder", group=Group.PLACE
    )
    master_addr: str = setting("127.0.0.1", "where ranks meet", group=Group.PLACE)
    master_port: int | None = setting(
        None, "its port; absent: a free one", Whole(1, 65535), group=Group.PLACE
    )
    max_restarts: int = setting(
        5,
        "how often shards or router that died or hang are started anew within 10 minutes; 0: then "
        "everything stops",
        Whole(0),
        group=Group.TIME,
    )
    disable_custom_kernels: bool = setting(
        False, "as --attention cpu", group=Group.PLACE, kind=Kind.SWITCH
    )
    shard_startup_timeout: float = setting(
        1800.0, "seconds until a load counts as hung", seconds, group=Group.TIME, env=False
    )
    dry_run: bool = setting(
        False,
        "check everything that is checked before weights are read, say what would be served, and "
        "end",
        group=Group.MODEL,
        kind=Kind.SWITCH,
        env=False,
        front_only=True,
    )
    env: bool = setting(
        False,
        "print the environment first",
        group=Group.LOGS,
        kind=Kind.SWITCH,
        spelling="-e",
        **_OF_FRONT,
    )
    parent_pid: int | None = setting(None, "", Whole(1), group=Group.FLEET, **_OF_FRONT)
    cuda_graphs: str | None = setting(None, "no step is recorded", str, group=Group.INERT)
    kv_cache_dtype: None = refused("the cache has the model's own precision")
    rope_scaling: None = refused("positions are scaled as the checkpoint's config.json says")
    rope_factor: None = refused("positions are scaled as the checkpoint's config.json says")
    lora_adapters: None = refused("adapters are not served yet; merge one into the checkpoint")


def serve_settings() -> list[Field[Any]]:
    """Every setting of `launcher serve`: its own, then those of the processes that it starts."""
    found: dict[str, Field[Any]] = {}
    for kind in (LaunchConfig, ServeConfig, RouterConfig, FleetConfig):
        for each in fields(kind):
            if not each.metadata["internal"] and each.metadata["kind"] is not Kind.VARIABLE:
                found.setdefault(each.name, each)
    for name, default in _DEFAULTS.items():
        found[name] = copy(found[name])
        found[name].default = default
    return list(found.values())


def model_ids(config: LaunchConfig, environ: Mapping[str, str]) -> list[str]:
    """The ids of the command line, or of the variable MODEL_ID, whose text may have spaces.

    Raises BadConfig.
    """
    by_flag, by_variable = config.model_id, environ.get("MODEL_ID")
    # An empty id, of a shell's variable that is not set, is none.
    named = [each for each in config.model_ids if each]
    models = named or ([] if by_flag or not by_variable else [by_variable])
    if models and by_flag is not None and models != [by_flag]:
        raise BadConfig(f"MODEL_ID {' '.join(models)!r} and --model-id {by_flag!r} differ")
    return models or ([by_flag] if by_flag else [])


def with_defaults(
    models: Sequence[str], by_flag: Mapping[str, Any], environ: Mapping[str, str]
) -> dict[str, Any]:
    """The flags, with the launcher's own defaults of settings that nothing sets."""
    defaults = _DEFAULTS if models else {**_DEFAULTS, "served_model_name": BUNDLED_NAME}
    unset = {name: text for name, text in defaults.items() if not environ.get(name.upper())}
    return {**unset, **by_flag}
