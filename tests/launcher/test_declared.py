"""Options as fields of dataclasses: what the command line becomes, and what children are told."""

from dataclasses import dataclass, fields

import pytest
import typer
from typer.testing import CliRunner

from launcher.declared import (
    Told,
    argument,
    flags_for,
    knob_of,
    not_for_servers,
    option,
    section,
    takes,
)
from launcher.fleet_knobs import FleetConfig
from launcher.from_options import model_ids
from launcher.options import ServeOptions
from router.config import RouterConfig
from router.front_config import FrontConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    header_limit: int = knob_of(FrontConfig)
    body_timeout: float = knob_of(FrontConfig)
    max_input_tokens: int | None = knob_of(RouterConfig)
    cors_allow_origin: list[str] | None = knob_of(FrontConfig, for_servers=False)
    protect_metrics: bool = knob_of(FrontConfig)
    hub_models: bool = knob_of(FleetConfig)


@dataclass(frozen=True, slots=True, kw_only=True)
class Meal:
    names: list[str] | None = argument(help="Who eats.")
    spoon: str | None = option(None, "With what.", "--spoon", "-s", told=Told.SHARDS)
    patience: Patience = section("Patience")


def meal(*argv: str, **environ: str) -> Meal:
    app, got = typer.Typer(), []

    @app.command()
    @takes(Meal)
    def eat(context: typer.Context, options: Meal) -> None:
        got.append(options)

    result = CliRunner().invoke(app, list(argv), env=environ)
    assert result.exit_code == 0, result.output
    (options,) = got
    assert isinstance(options, Meal)
    return options


def test_a_command_line_becomes_the_dataclass_with_its_sections() -> None:
    options = meal("a", "b", "-s", "wood", "--header-limit", "2048", MAX_INPUT_LENGTH="7")
    assert (options.names, options.spoon) == (["a", "b"], "wood")
    assert (options.patience.header_limit, options.patience.max_input_tokens) == (2048, 7)


def test_a_knobs_default_is_that_of_the_process_that_has_it() -> None:
    patience = meal().patience
    router = RouterConfig()
    assert patience.header_limit == router.header_limit
    assert patience.body_timeout == router.body_timeout
    assert patience.cors_allow_origin is None


def test_each_process_is_told_its_own_flags() -> None:
    options = meal(
        *("--no-hub-models", "--protect-metrics", "--max-input-length", "7", "-s", "wood"),
        *("--cors-allow-origin", "http://a", "--cors-allow-origin", "http://b"),
    )
    of_both = ("--header-limit", "32768", "--body-timeout", "30.0")
    asked = ("--cors-allow-origin", "http://a,http://b", "--protect-metrics")
    assert flags_for(Told.ROUTER, options) == (*of_both, "--max-input-tokens", "7", *asked)
    assert "--no-protect-metrics" in flags_for(Told.ROUTER, meal())
    assert flags_for(Told.FRONT, options) == (*of_both, *asked, "--hub-models", "false")
    assert flags_for(Told.SHARDS, options) == ("--spoon", "wood")
    assert flags_for(Told.SHARDS, options, spoon="steel") == ("--spoon", "steel")


def test_what_only_the_front_knows_is_not_for_servers() -> None:
    assert not_for_servers(meal()) == {"cors_allow_origin", "hub_models"}


@pytest.mark.parametrize("limit", ["100", "x"])
def test_a_value_against_the_knobs_rule_is_refused(limit: str) -> None:
    app = typer.Typer()
    app.command()(takes(Meal)(lambda context, options: None))
    result = CliRunner().invoke(app, ["--header-limit", limit])
    assert result.exit_code == 2
    assert "--header-limit" in result.output


def test_every_option_of_serve_that_a_process_is_told_is_a_knob_it_has() -> None:
    told = {Told.ROUTER: RouterConfig, Told.FRONT: FleetConfig}
    app, got = typer.Typer(), []
    app.command()(takes(ServeOptions)(lambda context, options: got.append(options)))
    assert CliRunner().invoke(app, ["--api-key", "k"]).exit_code == 0
    for child, config in told.items():
        flags = {
            each.replace("--no-", "--")
            for each in flags_for(child, got[0])
            if each.startswith("--")
        }
        assert flags <= {"--" + each.name.replace("_", "-") for each in fields(config)}


@pytest.mark.parametrize(
    ("line", "models"),
    [([""], []), (["", "--model-id", ""], []), (["", "--model-id", "a"], ["a"]), (["a"], ["a"])],
)
def test_an_empty_id_of_a_variable_that_is_not_set_is_none(
    line: list[str], models: list[str]
) -> None:
    app, got = typer.Typer(), []
    app.command()(takes(ServeOptions)(lambda context, options: got.append(options)))
    assert CliRunner().invoke(app, line).exit_code == 0
    assert model_ids(got[0].model, {}) == models
