"""A switch on the command line wins over the environment, in every process.

The environment of a child is that of its parent, so a flag has to reach it when it says no, too.
"""

from dataclasses import fields
from typing import Any

import pytest

from fleet.config import read_config as read_front
from launcher.config import LaunchConfig, serve_settings
from launcher.plan import deployment_of, fleet_argv
from model_server.config import parse as read_shard
from processes.settings import CommandLine, Kind, flag_of, read_settings
from router.config import RouterConfig
from router.config import read_config as read_router


def switches(settings: Any) -> list[tuple[str, bool]]:
    # A tunnel is refused however it is asked for.
    names = [each.name for each in settings if each.metadata["kind"] is Kind.SWITCH]
    both = [(name, value) for name in names for value in (True, False)]
    return [case for case in both if case != ("ngrok", True)]


def spelt(name: str, value: bool) -> str:
    return flag_of(name if value else f"no_{name}")


def found(name: str, flag: str, environ: dict[str, str]) -> list[bool]:
    """The switch's value in the launcher and in every process that has one of its name."""
    by_flag = CommandLine(serve_settings(), "launcher serve", "").parse([flag])
    ranks = {"NUM_SHARD": "2"} if flag == "--sharded" else {}
    config = read_settings(LaunchConfig, by_flag, environ | ranks)
    deployment = deployment_of(config, ["m"], by_flag, environ, "/tmp/x")
    shard_argv = deployment.shard_argv(None)[3:]
    everywhere: list[Any] = [
        config,
        read_router(deployment.router_flags, environ),
        read_front(fleet_argv(["m"], by_flag, environ)[3:], environ).config,
        read_shard(shard_argv, deployment.shard_environ(0, environ)),
    ]
    values = [getattr(each, name) for each in everywhere if hasattr(each, name)]
    return [value for value in values if value is not None]


@pytest.mark.parametrize(("name", "value"), switches(serve_settings()))
def test_a_flag_of_serve_wins_over_its_variable(name: str, value: bool) -> None:
    environ = {name.upper(): str(not value).lower()}
    assert set(found(name, spelt(name, value), environ)) == ({value} if name != "ngrok" else set())


@pytest.mark.parametrize(("name", "value"), switches(fields(RouterConfig)))
def test_a_flag_of_the_router_wins_over_its_variable(name: str, value: bool) -> None:
    config = read_router([spelt(name, value)], {name.upper(): str(not value).lower()})
    assert getattr(config, name) is (value if name != "ngrok" else None)
