"""What is true or false on the command line is so whatever the environment says, in every process.

The environment of a child is that of its parent, so a flag has to reach it when it says no, too.
"""

from collections.abc import Iterator
from typing import Any, get_args, get_type_hints

import pytest
import typer
from typer.testing import CliRunner

from fleet.config import read_config as read_front
from launcher.declared import Told, flags_for, takes
from launcher.options import ServeOptions
from model_server.config import parse as read_shard
from processes.settings import flag_of
from router.config import RouterConfig
from router.config import read_config as read_router


def switches(kind: type[Any]) -> Iterator[str]:
    """The names of all options that are true or false, below sections too."""
    for name, hint in get_type_hints(kind).items():
        if hint is bool or bool in get_args(hint):
            yield name
        elif hasattr(hint, "__dataclass_fields__"):
            yield from switches(hint)


_WITHOUT_VARIABLE = {"env", "dry_run"}
_SERVES = sorted(set(switches(ServeOptions)) - _WITHOUT_VARIABLE)
_ROUTERS = sorted(switches(RouterConfig))


def spelt(name: str, value: bool) -> str:
    return f"--{'' if value else 'no-'}{name.replace('_', '-')}"


def serve(flag: str, environ: dict[str, str]) -> ServeOptions:
    app, got = typer.Typer(), []
    app.command()(takes(ServeOptions)(lambda context, options: got.append(options)))
    result = CliRunner().invoke(app, [flag], env=environ)
    assert result.exit_code == 0, result.output
    options: ServeOptions = got[0]
    return options


def found(options: ServeOptions, name: str, environ: dict[str, str]) -> list[bool]:
    """What the launcher takes an option for, and every process that has one of its name."""
    children: list[Any] = [
        read_router(flags_for(Told.ROUTER, options), environ),
        read_front([*flags_for(Told.FRONT, options), "--model", "m"], environ).config,
        read_shard(["serve", "m", *flags_for(Told.SHARDS, options)], environ),
    ]
    sections = [getattr(options, section) for section in options.__slots__]
    return [getattr(each, name) for each in [*sections, *children] if hasattr(each, name)]


def cases(names: list[str]) -> list[tuple[str, bool]]:
    # The router refuses a tunnel however it is asked for.
    both = [(name, value) for name in names for value in (True, False)]
    return [case for case in both if case != ("ngrok", True)]


@pytest.mark.parametrize(("name", "value"), cases(_SERVES))
def test_a_flag_of_serve_wins_over_its_variable(name: str, value: bool) -> None:
    environ = {name.upper(): str(not value).lower()}
    options = serve(spelt(name, value), environ)
    assert set(found(options, name, environ)) == {value}


@pytest.mark.parametrize(("name", "value"), cases(_ROUTERS))
def test_a_flag_of_the_router_wins_over_its_variable(name: str, value: bool) -> None:
    is_switch = name != "prefix_caching"
    argv = [spelt(name, value)] if is_switch else [flag_of(name), str(value).lower()]
    config = read_router(argv, {name.upper(): str(not value).lower()})
    assert getattr(config, name) is value
