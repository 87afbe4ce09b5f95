"""The command line: serve, check, client, query, top, batch, download-weights, quantize, env.

`launcher serve` decides which process gets which flag, starts them and watches them. It imports of
a tier only what declares and checks its settings, so that a wrong flag is refused, by the rule of
the process that has it, before anything is loaded.
"""

import asyncio
import os
import secrets
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import Field, dataclass, fields, replace
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import typer
from click.shell_completion import CompletionItem
from typer.core import TyperCommand

from client.cli import commands as client_commands
from client.errors import TandemError
from fleet.config import AUTO, FleetConfig
from model_server.config import ServeConfig, parse_quantize
from model_server.config import parse as parse_shard
from models import smollm2
from processes.addresses import (
    AddressInUse,
    NoAddress,
    free_port,
    own_address,
    require_free_port,
    require_socket_path,
    socket_folder,
)
from processes.child import Child, ChildFailed
from processes.config_file import with_config_file
from processes.deployment import SPIN, Deployment, Node, num_shards, visible_gpus
from processes.fetching import fetch_tokenizer
from processes.host import describe
from processes.logs import Console
from processes.rules import Whole, seconds
from processes.settings import (
    BadConfig,
    CommandLine,
    Group,
    Kind,
    Overview,
    flag_of,
    flags_of,
    misspelt_variables,
    read_settings,
    read_values,
    refused,
    setting,
    sources_of,
)
from processes.signals import Signals, Stopped
from processes.supervisor import Supervisor
from router.config import RouterConfig
from router.front_config import server_tls

BUNDLED_MODEL = Path(__file__).resolve().parent / "models" / "demo"
BUNDLED_NAME = "tandem-demo"
# TGI's launcher has other defaults than its router.
_DEFAULTS = {"max_batch_prefill_tokens": "2048", "waiting_served_ratio": "0.3"}
# For the router alone, and by its environment: everybody on the machine sees command lines.
_API_KEY = "API_KEY"
_ADMIN_API_KEY = "ADMIN_API_KEY"
# What launched replicas and their front have in common.
_FRONT_SECRET = "FRONT_SECRET"
_SECRET_BYTES = 24
_OF_REPLICAS = ("replicas", "replica")
# torchrun's.
_MASTER_PORT = 29500
_MAX_PORT = 65535
# Adapters that there is memory for where they may be loaded at run time.
_LORAS_AT_RUN_TIME = 8
_OVERVIEW = Overview(
    examples="""\
Examples:
  launcher serve                              the bundled model, at http://127.0.0.1:3000
  launcher serve smollm2                      a small real one, downloaded once
  launcher serve ./my-model --port 8080       a folder in Hugging Face's format
  launcher serve model.gguf                   a GGUF file
  launcher serve OWNER/NAME --dry-run         of the hub: would it run here, and in how much memory
  launcher serve OWNER/NAME --hostname 0.0.0.0 --api-key KEY       for others, with a key
  launcher serve OWNER/NAME --num-shard 2     over two GPUs
  launcher serve A B                          two models, each loaded when a request names it

A flag may be a variable too: --max-total-tokens is MAX_TOTAL_TOKENS.""",
    names=frozenset(
        {
            "model_ids",
            "config",
            "dry_run",
            "revision",
            "dtype",
            "quantize",
            "served_model_name",
            "tokenizer_config_path",
            "lora_adapters",
            "num_shard",
            "device",
            "cuda_memory_fraction",
            "kv_blocks",
            "hostname",
            "port",
            "api_key",
            "ssl_certfile",
            "ssl_keyfile",
            "cors_allow_origin",
            "max_input_tokens",
            "max_total_tokens",
            "max_concurrent_requests",
            "max_batch_size",
            "graceful_termination_timeout",
            "json_output",
            "log_level",
        }
    ),
)


# ---- the settings of `launcher serve`


@dataclass(frozen=True, slots=True)
class LaunchConfig:
    """The settings of `launcher serve` that no process has which it starts.

    The variable HOSTNAME is not read: shells and containers set it to the machine's name, and a
    server must not open itself to a network because of that.
    """

    model_ids: tuple[str, ...] = setting(
        (),
        "a local folder or a hub id, also from the variable MODEL_ID; absent: the bundled model; "
        "smollm2: a small real one, downloaded once. "
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
    num_shard: int | None = setting(
        None,
        "tensor-parallel ranks, of all machines",
        Whole(1),
        group=Group.PLACE,
        elsewhere=("tensor_parallel_size", "tp_size"),
    )
    nnodes: int = setting(
        1,
        "machines that share the ranks; each has a launcher with the same settings",
        Whole(1),
        group=Group.PLACE,
        env=("NNODES", "LWS_GROUP_SIZE"),
    )
    node_rank: int = setting(
        0,
        "which of them this is; the first one, 0, serves HTTP",
        Whole(0),
        group=Group.PLACE,
        env=("NODE_RANK", "LWS_WORKER_INDEX"),
    )
    shard_uds_path: str | None = setting(
        None, "prefix of the shards' unix sockets; absent: in a private folder", group=Group.PLACE
    )
    master_addr: str = setting(
        "127.0.0.1",
        "where ranks meet: the first machine",
        group=Group.PLACE,
        env=("MASTER_ADDR", "LWS_LEADER_ADDRESS"),
    )
    master_port: int | None = setting(
        None,
        "its port, before those of the ranks; absent: a free one, or 29500 with several machines",
        Whole(1, 65535),
        group=Group.PLACE,
    )
    max_restarts: int = setting(
        5,
        "how often shards or router that died or hang are started anew within 10 minutes; 0: then "
        "everything stops",
        Whole(0),
        group=Group.TIME,
    )
    standby_shards: bool | None = setting(
        None,
        "keep a process ready for the place of each shard, 0.3 GiB each, more with a large "
        "vocabulary: streams of one that dies go on seconds sooner; absent: with GPUs, or with "
        "memory to spare",
        group=Group.TIME,
        kind=Kind.SWITCH,
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
        env=False,
        front_only=True,
    )
    parent_pid: int | None = setting(
        None, "", Whole(1), group=Group.FLEET, env=False, front_only=True
    )
    cuda_graphs: str | None = setting(
        None,
        "decode steps of recipes on a GPU are graphs for up to 512 sequences, whatever it says",
        str,
        group=Group.INERT,
    )
    kv_cache_dtype: None = refused("the cache has the model's own precision")
    rope_scaling: None = refused("positions are scaled as the checkpoint's config.json says")
    rope_factor: None = refused("positions are scaled as the checkpoint's config.json says")


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
    of_model: Mapping[str, str] = {}
    if not models:
        of_model = {"served_model_name": BUNDLED_NAME}
    elif models == [str(smollm2.FILE)]:
        of_model = smollm2.DEFAULTS
    defaults = {**_DEFAULTS, **of_model}
    unset = {name: text for name, text in defaults.items() if not environ.get(name.upper())}
    return {**unset, **by_flag}


# ---- which process gets which flag


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
    of_shards = {**_room_for_adapters(router), **by_flag}
    shard_flags = [*flags_of(fields(ServeConfig), of_shards), f"--otlp-service-name={service_name}"]
    shard_flags.append(f"--logger-level={router.log_level}")
    device = by_flag.get("device", "auto").lower()
    attention = by_flag.get("attention", "auto").lower()
    if config.disable_custom_kernels and attention == "auto" and device != "cuda":
        shard_flags.append("--attention=cpu")
    # It starts beside the shards, and waits while they load.
    connect_s = f"{config.shard_startup_timeout + router.shard_connect_timeout:g}"
    router_flags = {**by_flag, "shard_connect_timeout": connect_s}
    num_ranks = num_shards(config.sharded, config.num_shard, device, environ)
    node = _node(config, num_ranks, environ)
    deployment = Deployment(
        model_id=models[0] if models else str(BUNDLED_MODEL),
        revision=by_flag.get("revision") or environ.get("REVISION") or None,
        num_shard=num_ranks,
        device=device,
        hostname=router.hostname,
        port=router.port,
        uds_path=config.shard_uds_path or f"{folder}/shard",
        master_addr=config.master_addr,
        master_port=config.master_port or (free_port() if node is None else _MASTER_PORT),
        graceful_timeout_s=router.graceful_termination_timeout,
        startup_timeout_s=config.shard_startup_timeout,
        shard_flags=tuple(shard_flags),
        router_flags=tuple(flags_of(fields(RouterConfig), router_flags)),
        has_tls=router.ssl_certfile is not None,
        reloads_keys=router.api_key_file is not None,
        json_output=router.json_output,
        secrets=_secrets(router),
        http_uds=router.http_uds,
        parent_pid=config.parent_pid,
        max_restarts=config.max_restarts,
        own_folder=Path(folder),
        standby_shards=config.standby_shards,
        node=node,
    )
    # A wrong setting of a shard is refused here.
    of_rank = deployment.shard_environ(deployment.ranks[0], environ)
    shard = parse_shard(deployment.shard_argv(None)[3:], of_rank)
    trusts_code = isinstance(shard, ServeConfig) and shard.trust_remote_code
    return replace(deployment, trusts_code=trusts_code)


def _node(config: LaunchConfig, num_ranks: int, environ: Mapping[str, str]) -> Node | None:
    """This machine among several; None: there is one. Raises BadConfig."""
    count = config.nnodes
    if config.node_rank >= count:
        raise BadConfig(f"--node-rank {config.node_rank}: must be below --nnodes, which is {count}")
    if count == 1:
        return None
    if config.num_shard is None:
        raise BadConfig(f"--nnodes {count}: needs --num-shard, the ranks of all machines")
    if num_ranks % count:
        raise BadConfig(
            f"--num-shard {num_ranks}: must be a multiple of --nnodes, which is {count}"
        )
    last = (config.master_port or _MASTER_PORT) + num_ranks
    if last > _MAX_PORT:
        raise BadConfig(
            f"--master-port {last - num_ranks}: the ranks' ports follow it, up to {last}, and"
            f" {_MAX_PORT} is the last"
        )
    if not environ.get("SHARD_TOKEN"):
        raise BadConfig(
            f"--nnodes {count}: needs the variable SHARD_TOKEN, a secret that all machines have"
        )
    host, interface = own_address(config.master_addr)
    return Node(config.node_rank, count, host, interface)


def _room_for_adapters(router: RouterConfig) -> dict[str, str]:
    """The shards' setting, where nothing is said: those of the start, and some of later."""
    later = _LORAS_AT_RUN_TIME if router.lora_folders else 0
    num_loras = max(len(router.lora_adapters), later)
    return {"max_loras": str(num_loras)} if num_loras else {}


def _secrets(router: RouterConfig) -> dict[str, str]:
    keys = {_API_KEY: ",".join(router.api_key), _ADMIN_API_KEY: router.admin_api_key}
    return {name: value for name, value in keys.items() if value}


def children_environ(environ: Mapping[str, str], hub_cache: Path | None) -> dict[str, str]:
    """The environment that all children begin with; `hub_cache` as huggingface_hub reads it."""
    for_router = (_API_KEY, _ADMIN_API_KEY)
    shared = {name: value for name, value in environ.items() if name not in for_router}
    # `python -m router` is ours, whatever router.py the folder has in which somebody starts us.
    shared.setdefault("PYTHONSAFEPATH", "1")
    # Its notes on forks and the like do not concern whoever serves a model.
    shared.setdefault("GRPC_VERBOSITY", "ERROR")
    # Its event engine reads and writes in threads of its own, and wakes five of them for a step;
    # without, the thread that waits for its events does.
    shared.setdefault("GRPC_EXPERIMENTS", "-event_engine_client,-event_engine_listener")
    if hub_cache:
        shared["HF_HUB_CACHE"] = str(hub_cache)
    return shared


_OF_ONE_MODEL = {
    "api_key_file": "its shares and limits are those of one model's server; use --api-key",
    "served_model_name": "each of several models goes by its own id",
    "lora_adapters": "an adapter is for one model; serve that one alone",
    "lora_folders": "an adapter is for one model; serve that one alone",
    "revision": "it is a version of one model; with several, name a downloaded folder instead",
    "tokenizer_config_path": "it belongs to one model; with several, put it into the folder",
    "shard_uds_path": "each of several models has sockets of its own",
    "master_port": "each of several models takes a free port of its own",
    "batch_file": "batches are computed by one model's server; serve that one alone",
}


_OF_ONE_REPLICA = {
    "api_key_file": "its shares and limits are those of one server; use --api-key",
    "shard_uds_path": "each replica has sockets of its own",
    "master_port": "each replica takes a free port of its own",
    "sharded": "with replicas --num-shard says how many GPUs each has",
    "nnodes": "machines share the ranks of one replica; start each so, and name it by --replica",
}


def fleet_argv(
    models: Sequence[str], by_flag: Mapping[str, Any], environ: Mapping[str, str]
) -> list[str]:
    """The command of the front of several models: its own flags, the models, and behind `--` the
    flags of every model's server. What came from the environment reaches both the same way.

    Raises BadConfig for a setting that only one model can have.
    """
    _refuse(_OF_ONE_MODEL, by_flag, environ)
    return _front_argv(models, by_flag)


def replicas_argv(
    config: LaunchConfig,
    fleet: FleetConfig,
    models: Sequence[str],
    by_flag: Mapping[str, Any],
    environ: Mapping[str, str],
) -> list[str]:
    """The command of the front of a model's replicas, as that of several models.

    Raises BadConfig for a setting that only one server can have, and too few GPUs.
    """
    _refuse(_OF_ONE_REPLICA, by_flag, environ)
    if fleet.replicas is None:
        return _front_argv((), by_flag)
    num_shard = config.num_shard or 1
    gpus = [] if by_flag.get("device", "auto").lower() == "cpu" else visible_gpus(environ)
    num_wanted = fleet.replicas * num_shard
    if gpus and len(gpus) < num_wanted:
        raise BadConfig(
            f"--replicas {fleet.replicas}: with --num-shard {num_shard} they need {num_wanted} GPUs"
            f" of their own, and {len(gpus)} are visible"
        )
    of_gpus = [f"--replica-gpus={gpu}" for gpu in gpus]
    return _front_argv(models, by_flag, [*of_gpus, f"--replica-shards={num_shard}"])


def _refuse(
    reasons: Mapping[str, str], by_flag: Mapping[str, Any], environ: Mapping[str, str]
) -> None:
    """Raises BadConfig for a setting that is given and has a reason here why it cannot be."""
    for each in serve_settings():
        source, value = next(sources_of(each, by_flag, environ), ("", ""))
        if each.name in reasons and value not in ("", "false"):
            text = ",".join(value) if isinstance(value, list) else value
            shown = source if text == "true" else f"{source} {text}"
            raise BadConfig(f"{shown}: {reasons[each.name]}")


def _front_argv(
    models: Sequence[str], by_flag: Mapping[str, Any], own: Sequence[str] = ()
) -> list[str]:
    argv = [sys.executable, "-m", "fleet", *flags_of(fields(FleetConfig), by_flag), *own]
    argv += [f"--model={model}" for model in models]
    if "parent_pid" in by_flag:
        argv.append(f"--parent-pid={by_flag['parent_pid']}")
    of_front = {
        each.name
        for kind in (LaunchConfig, FleetConfig)
        for each in fields(kind)
        if each.metadata["front_only"]
    }
    of_servers = [each for each in serve_settings() if each.name not in of_front]
    return [*argv, "--", *flags_of(of_servers, by_flag)]


# ---- the commands

app = typer.Typer(
    name="launcher",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
# The settings of these commands are read by `CommandLine`, --help among them.
_UNREAD: Any = {
    "allow_extra_args": True,
    "ignore_unknown_options": True,
    "allow_interspersed_args": False,
    "help_option_names": [],
}


def _print_version(is_wanted: bool) -> None:
    if is_wanted:
        typer.echo(f"tandem {version('tandem')}")
        raise typer.Exit


@app.callback()
def options(
    shows_version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """Serve a language model: the APIs of TGI, OpenAI and Anthropic over one process for each GPU.

    \b
    launcher serve             the bundled model, at http://127.0.0.1:3000
    launcher client            talk to it
    launcher serve --help      what can be set
    """


class _ServeCommand(TyperCommand):
    """Its flags are completed by the shell from the settings, which click does not know."""

    def shell_complete(self, ctx: Any, incomplete: str) -> list[Any]:
        return [
            CompletionItem(flag_of(each.name), help=each.metadata["help"])
            for each in serve_settings()
            if each.metadata["help"] and each.metadata["kind"] is not Kind.ARGUMENT
            if flag_of(each.name).startswith(incomplete)
        ]


@app.command(
    cls=_ServeCommand, context_settings=_UNREAD, short_help="Serve a model over HTTP, or several."
)
def serve(context: typer.Context) -> None:
    """Serve a model over HTTP, from one process or from one per GPU; or several, on demand.

    Exit codes: 0 stopped when asked; 1 could not start, or could not go on; 2 a flag or a variable
    is wrong.
    """
    command_line = CommandLine(
        serve_settings(), "launcher serve [MODEL_ID] ...", serve.__doc__, _OVERVIEW
    )
    by_flag = command_line.parse(context.args)
    file = read_settings(LaunchConfig, by_flag, os.environ).config
    if file is not None:
        by_flag = with_config_file(file, serve_settings(), by_flag, os.environ)
    config = read_settings(LaunchConfig, by_flag, os.environ)
    models = model_ids(config, os.environ)
    if models == [smollm2.ID] and not Path(smollm2.ID).exists():
        models = [str(smollm2.FILE)] if smollm2.is_brought() else []
    by_flag = with_defaults(models, by_flag, os.environ)
    if config.env:
        typer.echo(describe(), err=True)
    hub_cache = config.weights_cache_override or config.huggingface_hub_cache
    environ = children_environ(os.environ, hub_cache)
    is_front = len(models) > 1 or models == [AUTO] or not by_flag.keys().isdisjoint(_OF_REPLICAS)
    of_front = {"model": models} if is_front and models else {}
    fleet = read_settings(FleetConfig, {**by_flag, **of_front}, os.environ)
    argv: list[str] = []
    if fleet.has_replicas:
        argv = replicas_argv(config, fleet, models, by_flag, os.environ)
    elif is_front:
        argv = fleet_argv(models, by_flag, os.environ)
    if fleet.replica:
        if config.dry_run:
            raise BadConfig("--dry-run: a front alone has no model that could be checked")
        of_front_alone = read_settings(RouterConfig, by_flag, os.environ)
        os.execve(argv[0], argv, {**environ, **_secrets(of_front_alone)})
    if fleet.model and config.nnodes > 1:
        raise BadConfig(f"--nnodes {config.nnodes}: machines share the ranks of one model")
    with socket_folder() as folder:
        deployment = deployment_of(config, models, by_flag, os.environ, str(folder))
        _warn_of_variables(deployment.json_output)
        try:
            _require_addresses(deployment, config.shard_uds_path)
        except AddressInUse:
            # By the server that runs now, as a rule.
            if not config.dry_run:
                raise
        if config.dry_run:
            others = [
                deployment_of(config, [each], by_flag, os.environ, str(folder))
                for each in models[1:]
            ]
            router = read_settings(RouterConfig, by_flag, os.environ)
            raise typer.Exit(_dry_run([deployment, *others], router, environ))
        if not is_front:
            raise typer.Exit(asyncio.run(_supervise(deployment, environ)))
    if fleet.takes_any and fleet.hub_models and deployment.trusts_code:
        raise BadConfig(
            "--trust-remote-code with auto: whoever asks would choose what code runs here; "
            "name the models, or add --no-hub-models"
        )
    if fleet.replicas:
        environ.setdefault(_FRONT_SECRET, secrets.token_urlsafe(_SECRET_BYTES))
    # Nothing is to be watched but the front, so no process stays to watch it.
    os.execve(argv[0], argv, deployment.router_environ(environ))


def _warn_of_variables(as_json: bool) -> None:
    for name, meant in misspelt_variables(serve_settings(), os.environ).items():
        console = _console(as_json)
        console.say(
            f"warning: no setting has the variable {name}; did you mean {meant}?", "WARNING"
        )
        console.flush()


def _require_addresses(deployment: Deployment, shard_uds_path: str | None) -> None:
    """Raises BadConfig, NoAddress and AddressInUse for what cannot be listened at."""
    if not deployment.serves_http:
        return
    if deployment.http_uds is None:
        require_free_port(deployment.hostname, deployment.port)
    else:
        require_socket_path("--http-uds", deployment.http_uds)
    if shard_uds_path:
        # As the shards name it in their own errors.
        require_socket_path("--shard-uds-path", Path(shard_uds_path).absolute(), "-0")


async def _supervise(deployment: Deployment, environ: Mapping[str, str]) -> int:
    # It watches signals from its beginning, so it is made on the event loop.
    return await Supervisor(deployment, environ, _console(deployment.json_output)).run()


def _dry_run(
    deployments: Sequence[Deployment], router: RouterConfig, environ: Mapping[str, str]
) -> int:
    if deployments[0].model_id == AUTO:
        raise BadConfig("--dry-run: auto names no model that could be checked")
    console = _console(deployments[0].json_output)
    # What only a shard that checks has to know.
    shard_flags = [f"--max-batch-size={router.batch_size}"]
    if router.lora_adapters:
        named = ",".join(f"{name}={path}" for name, path in router.lora_adapters)
        shard_flags.append(f"--lora-adapters={named}")
    codes = [
        asyncio.run(_check_unless_stopped(each, shard_flags, environ, console))
        for each in deployments
    ]
    return max(codes)


async def _check_unless_stopped(
    deployment: Deployment,
    shard_flags: Sequence[str],
    environ: Mapping[str, str],
    console: Console,
) -> int:
    checking = _check_one(deployment, shard_flags, environ, console)
    try:
        return await Signals(None).unless_stopped(checking)
    except Stopped:
        return 1


async def _check_one(
    deployment: Deployment,
    shard_flags: Sequence[str],
    environ: Mapping[str, str],
    console: Console,
) -> int:
    """Says whether the model could be served, and what it would take. Returns the exit code.

    Ranks differ in the part of the weights that they hold alone, so one of them stands for all.
    """
    try:
        folder = await fetch_tokenizer(deployment, environ, console)
    except ChildFailed as error:
        console.say(f"error: {error}", "ERROR")
        console.flush()
        return 1
    num_shard = deployment.num_shard
    console.say(f"checking {deployment.model_id} for {num_shard} shard{'s' * (num_shard > 1)}")
    shard_argv = [*deployment.shard_argv(folder, "check"), *shard_flags]
    router_argv = deployment.router_argv(folder, ["check"])
    rank = deployment.ranks[0]
    of_rank = deployment.shard_environ(rank, environ)
    children = await asyncio.gather(
        Child.start(f"shard {rank}", shard_argv, of_rank, console),
        Child.start("router", router_argv, deployment.router_environ(environ), console),
    )
    try:
        codes = await asyncio.gather(*(child.wait() for child in children))
    finally:
        for child in children:
            child.kill_group()
    for child in children:
        if child.returncode:
            console.say(f"error: {child.death_notice()}", "ERROR")
    if not any(codes):
        console.say(f"{deployment.model_id} can be served")
    console.flush()
    return 1 if any(codes) else 0


def _console(as_json: bool) -> Console:
    # On a terminal it has colours, unless somebody wants none (https://no-color.org).
    return Console(as_json, has_colours=sys.stderr.isatty() and not os.environ.get("NO_COLOR"))


@app.command("download-weights", short_help="Fetch a checkpoint and print its folder.")
def download_weights(
    model_id: Annotated[str, typer.Argument(metavar="ID", envvar="MODEL_ID", help="A hub id.")],
    revision: Annotated[
        str | None, typer.Option(envvar="REVISION", help="Branch, tag or commit.")
    ] = None,
) -> None:
    """Fetch a checkpoint into the hub's cache and print its folder."""
    argv = [sys.executable, "-m", "model_server", "download-weights", model_id]
    if revision:
        argv += ["--revision", revision]
    environ = children_environ(os.environ, None)
    raise typer.Exit(subprocess.run(argv, env=environ, check=False).returncode)


@app.command(
    "quantize", context_settings=_UNREAD, short_help="Write a checkpoint with weights in 4 bits."
)
def quantize(context: typer.Context) -> None:
    """Write a checkpoint whose linear layers are in 4 bits, of one where they are not."""
    parse_quantize(context.args)
    argv = [sys.executable, "-m", "model_server.quantizing", *context.args]
    # Nothing is to be watched but that process.
    os.execve(argv[0], argv, {**SPIN, **children_environ(os.environ, None)})


@app.command("check", context_settings=_UNREAD, short_help="Judge texts by a constraint.")
def check_command(context: typer.Context) -> None:
    """Judge texts by a constraint: accepted, or where and why not. Needs no server.

    Exit codes: 0 all accepted, 1 some refused, 2 the constraint or the command is at fault.
    """
    # No other command needs what it imports.
    from constraints.check_command import CheckConfig, check  # noqa: PLC0415

    limits = [each for each in fields(RouterConfig) if each.name.startswith("constraint_")]
    command_line = CommandLine(
        [*fields(CheckConfig), *limits], "launcher check", check_command.__doc__ or ""
    )
    by_flag = command_line.parse(context.args)
    config = read_settings(CheckConfig, {"tokenizer": str(BUNDLED_MODEL), **by_flag}, os.environ)
    bounds = RouterConfig(**read_values(limits, by_flag, os.environ))
    memory_bytes = bounds.constraint_memory << 20
    raise typer.Exit(check(config, bounds.constraint_timeout, memory_bytes, sys.stdout))


app.command("client", short_help="Talk to a served model.")(client_commands.client)
app.command("top", short_help="Watch a server's load.")(client_commands.top)
app.command("batch", short_help="Have a file of requests computed.")(client_commands.batch)
app.command("query", short_help="Run a program of the query language.")(client_commands.query)


@app.command("env")
def env_command() -> None:
    """Print versions and hardware for a report."""
    typer.echo(describe())


def main() -> None:
    """The console script."""
    if shutil.get_terminal_size().columns < 40:
        os.environ["COLUMNS"] = "80"
    try:
        app(prog_name="launcher")
    except (BadConfig, AddressInUse, NoAddress, ChildFailed, TandemError) as error:
        sys.stderr.write(f"error: {error}\n")
        sys.exit(2 if isinstance(error, BadConfig) else 1)


if __name__ == "__main__":
    main()
