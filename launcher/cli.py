"""The command line, with TGI's flag names and environment names. The only file of the launcher
that reads the environment.

HOSTNAME is not read: shells and containers set it to the machine's name, and a server must not
open itself to a network because of that.
"""

import asyncio
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Annotated, Optional

import typer

from client.cli import commands as client_commands
from client.errors import TandemError
from constraints.check_command import BAD_CONSTRAINT, check, check_settings, read_constraint
from constraints.spec import Whitespace
from launcher.constraint_options import CONSTRAINT_KINDS, CheckOptions
from launcher.declared import Told, flags_for, not_for_servers, takes
from launcher.dry_run import Beside, DryRun
from launcher.environment import describe
from launcher.errors import BadSetting, LauncherError
from launcher.from_options import hub_cache, model_ids, settings_of
from launcher.help_page import SectionedCommand, WholeGroup
from launcher.options import PlaceOptions, ServeOptions
from launcher.precheck import check_router
from launcher.settings import BUNDLED_MODEL, children_environ, require_free_port, require_place
from launcher.several import check_models, front_argv, is_fleet, passed_on, refuse_of_one
from launcher.supervisor import Supervisor
from launcher.tgi_options import in_our_words, refuse
from processes.console import Console

# As typer has it for a flag that there is not.
_WRONG_USAGE = 2

app = typer.Typer(
    name="launcher",
    cls=WholeGroup,
    help="Serve a language model: TGI's API, OpenAI's API, one router over sharded workers.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


@app.command(cls=SectionedCommand)
@takes(ServeOptions)
def serve(context: typer.Context, options: ServeOptions) -> None:
    """Serve a model over HTTP, from one process or from one per GPU; or several, on demand.

    Exit codes: 0 stopped when asked; 1 could not start, or could not go on; 2 a flag or a variable
    is wrong.
    """
    refuse(options.tgi)
    models = model_ids(options.model, os.environ)
    if options.logs.env:
        typer.echo(describe(), err=True)
    if not options.logs.dry_run:
        _require_places(options.place)
    with tempfile.TemporaryDirectory(prefix="tandem-") as private_folder:
        settings = settings_of(options, models, private_folder, os.environ)
        environ = children_environ(os.environ, hub_cache(options.model))
        check_router(settings, environ)
        if not is_fleet(models):
            console = Console(options.logs.json_output)
            work = Supervisor(settings, environ, console).run
            if options.logs.dry_run:
                beside = Beside(options.fleet.turn_file, options.fleet.needs_file)
                work = DryRun(settings, environ, console, beside).run
            raise typer.Exit(asyncio.run(work()))
    check_models(
        models,
        trusts_code=options.model.trust_remote_code,
        takes_hub_models=options.fleet.hub_models,
    )
    refuse_of_one(context)
    for_servers = passed_on(context, not_for_servers(options))
    argv = front_argv(models, flags_for(Told.FRONT, options), for_servers)
    # Nothing is to be watched but the front, so no process stays to watch it.
    os.execve(argv[0], argv, settings.router_environ(environ))


def _require_places(place: PlaceOptions) -> None:
    """Raises BadSetting and PlaceTaken for what cannot be listened at."""
    if place.http_uds is None:
        require_free_port(place.hostname, place.port)
    else:
        require_place("--http-uds", place.http_uds)
    if place.shard_uds_path:
        # The shards' own words for it.
        require_place("--shard-uds-path", Path(place.shard_uds_path).absolute(), "-0")


@app.command("download-weights")
def download_weights(
    model_id: Annotated[str, typer.Argument(envvar="MODEL_ID", help="A hub id.")],
    revision: Annotated[
        Optional[str], typer.Option(envvar="REVISION", help="Branch, tag or commit.")
    ] = None,
    allow_pickle: Annotated[
        bool, typer.Option(help="Take .bin weights when there are no others; unpickling runs code.")
    ] = False,
) -> None:
    """Fetch a checkpoint into the hub's cache and print its folder."""
    argv = [sys.executable, "-m", "model_server", "download-weights", model_id]
    argv += ["--revision", revision] if revision else []
    argv += ["--allow-pickle"] if allow_pickle else []
    raise typer.Exit(subprocess.run(argv, check=False).returncode)


@app.command("check")
@takes(CheckOptions)
def check_command(context: typer.Context, options: CheckOptions) -> None:
    """Judge texts by a constraint: accepted, or where and why not. Needs no server.

    Exit codes: 0 all accepted, 1 some refused, 2 the constraint or the command is at fault.
    """
    kind, spaces = CONSTRAINT_KINDS[options.kind], Whitespace(options.whitespace)
    try:
        settings = check_settings(
            read_constraint(
                kind, options.constraint, options.lines, spaces, lenient=options.lenient
            ),
            tokenizer=options.tokenizer or str(BUNDLED_MODEL),
            texts=options.text or [],
            lines=options.lines,
            timeout_s=options.limits.constraint_timeout,
            memory_bytes=options.limits.constraint_memory << 20,
        )
        code = check(settings, sys.stdout)
    except LauncherError as error:
        # Not 1, which says that a text was refused.
        typer.echo(f"error: {error}", err=True)
        code = BAD_CONSTRAINT
    raise typer.Exit(code)


app.command("client")(client_commands.client)
app.command("query")(client_commands.query)


@app.command("env")
def env_command() -> None:
    """Print what a report of a problem should say about this machine."""
    typer.echo(describe())


def main() -> None:
    """The console script."""
    if shutil.get_terminal_size().columns < 40:
        os.environ["COLUMNS"] = "80"
    try:
        app(in_our_words(sys.argv[1:]))
    except (LauncherError, TandemError) as error:
        sys.stderr.write(f"error: {error}\n")
        sys.exit(_WRONG_USAGE if isinstance(error, BadSetting) else 1)
