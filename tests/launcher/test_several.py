"""Several models: which flags their servers get, and the command of the front."""

import sys
from pathlib import Path
from typing import Annotated, Any

import pytest
import typer
from typer.testing import CliRunner

from launcher.errors import BadSetting
from launcher.options import Dtype
from launcher.several import check_models, front_argv, is_fleet, passed_on


def flags_of(*argv: str, **environ: str) -> tuple[str, ...]:
    """What `passed_on` makes of a command line of some options."""
    app, got = typer.Typer(), []

    @app.command()
    def serve(
        context: typer.Context,
        models: Annotated[list[str], typer.Argument()],
        dtype: Annotated[Dtype, typer.Option()] = Dtype.auto,
        port: Annotated[int, typer.Option("--port", "-p")] = 3000,
        sharded: Annotated[bool, typer.Option()] = True,
        json_output: Annotated[bool, typer.Option("--json-output")] = False,
        origin: Annotated[list[str] | None, typer.Option()] = None,
        max_total_tokens: Annotated[int, typer.Option(envvar="MAX_TOTAL_TOKENS")] = 10,
    ) -> None:
        got.append(passed_on(context, frozenset({"port"})))

    result = CliRunner().invoke(app, list(argv), env=environ)
    assert result.exit_code == 0, result.output
    flags: tuple[str, ...] = got[0]
    return flags


@pytest.mark.parametrize(
    ("argv", "flags"),
    [
        pytest.param(("a", "--dtype", "float32"), ("--dtype", "float32"), id="choice"),
        pytest.param(("a", "-p", "99"), (), id="the-fronts-own"),
        pytest.param(("a", "--no-sharded"), ("--no-sharded",), id="switched-off"),
        pytest.param(("a", "--json-output", "b"), ("--json-output",), id="switch"),
        pytest.param(
            ("a", "--origin", "x", "--origin", "y"), ("--origin", "x", "--origin", "y"), id="list"
        ),
        pytest.param(("a", "b"), (), id="defaults"),
    ],
)
def test_a_servers_flags_are_those_that_were_given(
    argv: tuple[str, ...], flags: tuple[str, ...]
) -> None:
    assert flags_of(*argv) == flags


def test_what_the_environment_says_reaches_servers_by_the_environment() -> None:
    assert flags_of("a", MAX_TOTAL_TOKENS="5") == ()


def test_one_model_needs_no_front() -> None:
    assert not is_fleet([])
    assert not is_fleet(["a"])
    assert is_fleet(["auto"])
    assert is_fleet(["a", "b"])


def test_code_of_strangers_is_not_for_strangers_to_choose() -> None:
    rules: dict[str, Any] = {"trusts_code": True, "takes_hub_models": True}
    check_models(["a", "b"], **rules)
    check_models(["auto"], **{**rules, "takes_hub_models": False})
    with pytest.raises(BadSetting, match="whoever asks would choose what code runs"):
        check_models(["auto"], **rules)


def test_the_fronts_command_keeps_the_servers_flags_apart() -> None:
    argv = front_argv(["a", "b"], ("--port", "1"), ("--dtype", "x"))
    assert argv == [
        sys.executable, "-m", "fleet", "--port", "1", "--model", "a", "--model", "b", "--",
        "--dtype", "x",
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["/no/such/folder", "./none", "~/none-either", "~no-such-user/x"])
def test_a_path_that_is_no_folder_is_told_at_the_start(name: str, tmp_path: Path) -> None:
    with pytest.raises(BadSetting, match=f"MODEL_ID '{name}': must be a folder that exists"):
        check_models([str(tmp_path), name], trusts_code=False, takes_hub_models=True)
    check_models([str(tmp_path), "org/name"], trusts_code=False, takes_hub_models=True)
