"""The command line: serve, check, client, query, top, download-weights, env."""

import asyncio
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import fields
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import typer
from click.shell_completion import CompletionItem
from typer.core import TyperCommand

from client.cli import commands as client_commands
from client.errors import TandemError
from constraints.check_command import CheckConfig, check
from fleet.config import AUTO, FleetConfig
from launcher.config import BUNDLED_MODEL, LaunchConfig, model_ids, serve_settings, with_defaults
from launcher.plan import children_environ, deployment_of, fleet_argv
from processes.addresses import AddressInUse, require_free_port, require_socket_path
from processes.child import ChildFailed
from processes.config_file import with_config_file
from processes.deployment import Deployment
from processes.dry_run import dry_run
from processes.host import describe
from processes.logs import Console
from processes.settings import BadConfig, CommandLine, Kind, flag_of, read_settings, read_values
from processes.socket_folder import socket_folder
from processes.supervisor import Supervisor
from router.config import RouterConfig

_CODE_OF_ANYBODY = (
    "--trust-remote-code with auto: whoever asks would choose what code runs here; "
    "name the models, or add --no-hub-models"
)

app = typer.Typer(
    name="launcher",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


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
    """Serve a language model: TGI's API, OpenAI's API, one router over sharded workers."""


class _OfSettings(TyperCommand):
    """A command whose flags the shell completes from its settings, which click does not know."""

    def shell_complete(self, ctx: Any, incomplete: str) -> list[Any]:
        """The flags that begin so."""
        flags = [(flag_of(each.name), each) for each in serve_settings() if each.metadata["help"]]
        return [
            CompletionItem(flag, help=each.metadata["help"])
            for flag, each in flags
            if each.metadata["kind"] is not Kind.ARGUMENT and flag.startswith(incomplete)
        ]


# The settings of these commands are read by `CommandLine`, --help among them.
_UNREAD: Any = {
    "allow_extra_args": True,
    "ignore_unknown_options": True,
    "allow_interspersed_args": False,
    "help_option_names": [],
}


@app.command(
    cls=_OfSettings, context_settings=_UNREAD, short_help="Serve a model over HTTP, or several."
)
def serve(context: typer.Context) -> None:
    """Serve a model over HTTP, from one process or from one per GPU; or several, on demand.

    Exit codes: 0 stopped when asked; 1 could not start, or could not go on; 2 a flag or a variable
    is wrong.
    """
    by_flag = CommandLine(
        serve_settings(), "launcher serve [MODEL_ID] ...", serve.__doc__ or ""
    ).parse(context.args)
    file = read_settings(LaunchConfig, by_flag, os.environ).config
    if file is not None:
        by_flag = with_config_file(file, serve_settings(), by_flag, os.environ)
    config = read_settings(LaunchConfig, by_flag, os.environ)
    models = model_ids(config, os.environ)
    by_flag = with_defaults(models, by_flag, os.environ)
    if config.env:
        typer.echo(describe(), err=True)
    hub_cache = config.weights_cache_override or config.huggingface_hub_cache
    environ = children_environ(os.environ, hub_cache)
    several = {"model": models} if len(models) > 1 or models == [AUTO] else {}
    fleet = read_settings(FleetConfig, {**by_flag, **several}, os.environ)
    with socket_folder() as folder:
        deployment = deployment_of(config, models, by_flag, os.environ, str(folder))
        _require_addresses(deployment, config.shard_uds_path)
        if config.dry_run:
            others = [
                deployment_of(config, [each], by_flag, os.environ, str(folder))
                for each in models[1:]
            ]
            router = read_settings(RouterConfig, by_flag, os.environ)
            raise typer.Exit(_dry_run([deployment, *others], router.batch_size, environ))
        if not fleet.model:
            raise typer.Exit(asyncio.run(_run(deployment, environ)))
    if fleet.takes_any and fleet.hub_models and deployment.trusts_code:
        raise BadConfig(_CODE_OF_ANYBODY)
    argv = fleet_argv(models, by_flag, os.environ)
    # Nothing is to be watched but the front, so no process stays to watch it.
    os.execve(argv[0], argv, deployment.router_environ(environ))


def _dry_run(
    deployments: Sequence[Deployment], max_batch_size: int, environ: Mapping[str, str]
) -> int:
    if deployments[0].model_id == AUTO:
        raise BadConfig("--dry-run: auto names no model that could be checked")
    console = _console(deployments[0].json_output)
    return max(asyncio.run(dry_run(each, max_batch_size, environ, console)) for each in deployments)


def _console(as_json: bool) -> Console:
    """On a terminal it has colours, unless somebody wants none (https://no-color.org)."""
    return Console(as_json, has_colours=sys.stderr.isatty() and not os.environ.get("NO_COLOR"))


def _require_addresses(deployment: Deployment, shard_uds_path: str | None) -> None:
    """Raises BadConfig and AddressInUse for what cannot be listened at."""
    if deployment.http_uds is None:
        require_free_port(deployment.hostname, deployment.port)
    else:
        require_socket_path("--http-uds", deployment.http_uds)
    if shard_uds_path:
        # As the shards name it in their own errors.
        require_socket_path("--shard-uds-path", Path(shard_uds_path).absolute(), "-0")


async def _run(deployment: Deployment, environ: Mapping[str, str]) -> int:
    return await Supervisor(deployment, environ, _console(deployment.json_output)).run()


@app.command("download-weights", short_help="Fetch a checkpoint and print its folder.")
def download_weights(
    model_id: Annotated[str, typer.Argument(metavar="ID", envvar="MODEL_ID", help="A hub id.")],
    revision: Annotated[
        str | None, typer.Option(envvar="REVISION", help="Branch, tag or commit.")
    ] = None,
) -> None:
    """Fetch a checkpoint into the hub's cache and print its folder."""
    argv = [sys.executable, "-m", "model_server", "download-weights", model_id]
    argv += ["--revision", revision] if revision else []
    raise typer.Exit(subprocess.run(argv, check=False).returncode)


@app.command("check", context_settings=_UNREAD, short_help="Judge texts by a constraint.")
def check_command(context: typer.Context) -> None:
    """Judge texts by a constraint: accepted, or where and why not. Needs no server.

    Exit codes: 0 all accepted, 1 some refused, 2 the constraint or the command is at fault.
    """
    limits = [each for each in fields(RouterConfig) if each.name.startswith("constraint_")]
    options = CommandLine(
        [*fields(CheckConfig), *limits], "launcher check", check_command.__doc__ or ""
    )
    by_flag = options.parse(context.args)
    config = read_settings(CheckConfig, {"tokenizer": str(BUNDLED_MODEL), **by_flag}, os.environ)
    bounds = RouterConfig(**read_values(limits, by_flag, os.environ))
    memory_bytes = bounds.constraint_memory << 20
    code = check(config, bounds.constraint_timeout, memory_bytes, sys.stdout)
    raise typer.Exit(code)


app.command("client", short_help="Talk to a served model.")(client_commands.client)
app.command("top", short_help="Watch a server's load.")(client_commands.top)
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
    except (BadConfig, AddressInUse, ChildFailed, TandemError) as error:
        sys.stderr.write(f"error: {error}\n")
        sys.exit(2 if isinstance(error, BadConfig) else 1)


if __name__ == "__main__":
    main()
