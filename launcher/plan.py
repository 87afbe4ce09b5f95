"""Which process gets which flag: one server's processes, or the front of several models."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from fleet.config import FleetConfig
from launcher.config import BUNDLED_MODEL, LaunchConfig, serve_settings
from model_server.config import ServeConfig
from model_server.config import parse as parse_shard
from processes.addresses import free_port
from processes.deployment import Deployment, num_shards
from processes.settings import BadConfig, flags_of, read_settings, sources_of
from router.config import RouterConfig
from router.http.server.listen import server_tls

# For the router alone, and by its environment: everybody on the machine sees command lines.
_API_KEY = "API_KEY"
_OF_ONE_MODEL = {
    "api_key_file": "its shares and limits are those of one model's server; use --api-key",
    "served_model_name": "each of several models goes by its own id",
    "revision": "it is a version of one model; with several, name a downloaded folder instead",
    "tokenizer_config_path": "it belongs to one model; with several, put it into the folder",
    "shard_uds_path": "each of several models has sockets of its own",
    "master_port": "each of several models takes a free port of its own",
}


def deployment_of(
    config: LaunchConfig,
    models: Sequence[str],
    by_flag: Mapping[str, Any],
    environ: Mapping[str, str],
    folder: str,
) -> Deployment:
    """How the first of the models, or the bundled one, is served, by flags; `folder` is its own.

    Reads the settings of router and shards as they will. Raises BadConfig, before a model is
    loaded.
    """
    router = read_settings(RouterConfig, by_flag, environ)
    server_tls(router)
    if router.port == 0:
        raise BadConfig("--port '0': must be at least 1")
    service_name = f"{router.otlp_service_name.removesuffix('.router')}.server"
    shard_flags = [*flags_of(fields(ServeConfig), by_flag), f"--otlp-service-name={service_name}"]
    device, attention = (by_flag.get(name, "auto").lower() for name in ("device", "attention"))
    if config.disable_custom_kernels and attention == "auto" and device != "cuda":
        shard_flags.append("--attention=cpu")
    # It starts beside the shards, and waits while they load.
    connect_s = f"{config.shard_startup_timeout + router.shard_connect_timeout:g}"
    router_flags = {**by_flag, "shard_connect_timeout": connect_s}
    deployment = Deployment(
        model_id=models[0] if models else str(BUNDLED_MODEL),
        revision=by_flag.get("revision") or environ.get("REVISION") or None,
        num_shard=num_shards(config.sharded, config.num_shard, device, environ),
        device=device,
        hostname=router.hostname,
        port=router.port,
        uds_path=config.shard_uds_path or f"{folder}/shard",
        master_addr=config.master_addr,
        master_port=config.master_port or free_port(),
        graceful_timeout_s=router.graceful_termination_timeout,
        startup_timeout_s=config.shard_startup_timeout,
        shard_flags=tuple(shard_flags),
        router_flags=tuple(flags_of(fields(RouterConfig), router_flags)),
        has_tls=router.ssl_certfile is not None,
        reloads_keys=router.api_key_file is not None,
        json_output=router.json_output,
        secrets={_API_KEY: ",".join(router.api_key)} if router.api_key else {},
        http_uds=router.http_uds,
        parent_pid=config.parent_pid,
        max_restarts=config.max_restarts,
        own_folder=Path(folder),
    )
    return replace(deployment, trusts_code=_trusts_code(deployment, environ))


def _trusts_code(deployment: Deployment, environ: Mapping[str, str]) -> bool:
    """Whether the checkpoint's own code may run. Raises BadConfig for a shard's wrong setting."""
    shard = parse_shard(deployment.shard_argv(None)[3:], deployment.shard_environ(0, environ))
    return isinstance(shard, ServeConfig) and shard.trust_remote_code


def children_environ(environ: Mapping[str, str], hub_cache: Path | None) -> dict[str, str]:
    """The environment that all children begin with; `hub_cache` as huggingface_hub reads it."""
    shared = {name: value for name, value in environ.items() if name != _API_KEY}
    # Its notes on forks and the like do not concern whoever serves a model.
    shared.setdefault("GRPC_VERBOSITY", "ERROR")
    return {**shared, **({"HF_HUB_CACHE": str(hub_cache)} if hub_cache else {})}


def fleet_argv(
    models: Sequence[str], by_flag: Mapping[str, Any], environ: Mapping[str, str]
) -> list[str]:
    """The command of the front of several models: its own flags, the models, and behind `--` the
    flags of every model's server. What came from the environment reaches both the same way.

    Raises BadConfig for a setting that only one model can have.
    """
    argv = [sys.executable, "-m", "fleet", *flags_of(fields(FleetConfig), by_flag)]
    argv += [f"--model={model}" for model in models]
    argv += [f"--parent-pid={by_flag['parent_pid']}"] if "parent_pid" in by_flag else []
    for each in serve_settings():
        source, value = next(sources_of(each, by_flag, environ), ("", ""))
        if each.name in _OF_ONE_MODEL and value not in ("", "false"):
            shown = source if value == "true" else f"{source} {value}"
            raise BadConfig(f"{shown}: {_OF_ONE_MODEL[each.name]}")
    of_front = {
        each.name
        for kind in (LaunchConfig, FleetConfig)
        for each in fields(kind)
        if each.metadata["front_only"]
    }
    of_servers = (each for each in serve_settings() if each.name not in of_front)
    return [*argv, "--", *flags_of(of_servers, by_flag)]
