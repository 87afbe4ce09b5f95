"""`launcher serve auto` and `launcher serve ID ID ...`: the command of the front that takes over.

The front is one process that becomes the launcher's successor; it starts a `launcher serve` for
each model that it loads, with the flags that are given here and do not concern the front alone.
"""

import os
import sys
from collections.abc import Sequence
from typing import Any

import typer

from launcher.errors import BadSetting

AUTO = "auto"
_OF_ONE = {
    "served_model_name": "each of several models goes by its own id",
    "revision": "it is a version of one model; with several, name a downloaded folder instead",
    "tokenizer_config_path": "it belongs to one model; with several, put it into the folder",
    "shard_uds_path": "each of several models has sockets of its own",
    "master_port": "each of several models takes a free port of its own",
    "dry_run": "it is about one model; of several, ask for each alone",
}


def is_fleet(models: Sequence[str]) -> bool:
    """Whether these ids are more than one model."""
    return len(models) > 1 or list(models) == [AUTO]


def check_models(models: Sequence[str], *, trusts_code: bool, takes_hub_models: bool) -> None:
    """Raises BadSetting for ids that cannot be served together."""
    if AUTO in models and len(models) > 1:
        raise BadSetting("auto is any model, so it stands alone; for a folder of that name: ./auto")
    twice = [name for name in models if list(models).count(name) > 1]
    if twice:
        raise BadSetting(f"MODEL_ID {twice[0]!r} is given twice")
    for name in models:
        # What cannot be an id of the hub; of one model the loader says so.
        if name.startswith(("/", ".", "~")) and not os.path.isdir(os.path.expanduser(name)):
            raise BadSetting(f"MODEL_ID {name!r}: must be a folder that exists, or a hub id")
    if list(models) == [AUTO] and trusts_code and takes_hub_models:
        raise BadSetting(
            "--trust-remote-code with auto: whoever asks would choose what code runs here; "
            "name the models, or add --no-hub-models"
        )


def refuse_of_one(context: typer.Context) -> None:
    """Raises BadSetting for the first option that only one model can have."""
    for name, reason in _OF_ONE.items():
        value = context.params.get(name)
        if value is not None and value is not False:
            shown = "" if value is True else f" {value}"
            raise BadSetting(f"--{name.replace('_', '-')}{shown}: {reason}")


def passed_on(context: typer.Context, fronts_own: frozenset[str]) -> tuple[str, ...]:
    """The flags of the command line that every child is started with: all but the front's own.

    What came from the environment reaches the children the same way.
    """
    flags: list[str] = []
    for parameter in context.command.params:
        name = parameter.name or ""
        source = context.get_parameter_source(name)
        is_given = source is not None and source.name == "COMMANDLINE"
        if parameter.param_type_name != "option" or not is_given or name in fronts_own:
            continue
        flags += _spelt(parameter, context.params[name])
    return tuple(flags)


def _spelt(option: Any, value: object) -> list[str]:
    # Typer may bring a click of its own, so an option has no type that could be named here.
    flag: str = option.opts[0]
    if option.is_flag:
        return [flag] if value else list(option.secondary_opts[:1])
    values = value if isinstance(value, (list, tuple)) else [value]
    return [word for each in values for word in (flag, str(getattr(each, "value", each)))]


def front_argv(
    models: Sequence[str], front_flags: Sequence[str], child_flags: Sequence[str]
) -> list[str]:
    """The front's command: its own flags, the models, and behind `--` its children's flags."""
    named = [word for model in models for word in ("--model", model)]
    return [sys.executable, "-m", "fleet", *front_flags, *named, "--", *child_flags]
