"""From the flags of `launcher serve` to the processes of one model, or to the front of several."""

import sys
from pathlib import Path
from typing import Any

import pytest

from launcher.config import BUNDLED_NAME, LaunchConfig, model_ids, serve_settings, with_defaults
from launcher.plan import children_environ, deployment_of, fleet_argv
from processes.deployment import Deployment
from processes.settings import BadConfig, CommandLine, read_settings
from tests.router.http.server.certificates import make_certificate

_QUIET = {"GRPC_VERBOSITY": "ERROR"}


def flags_of_line(*argv: str) -> dict[str, Any]:
    return CommandLine(serve_settings(), "launcher serve", "").parse(argv)


def deployment(*argv: str, **environ: str) -> Deployment:
    flags = flags_of_line(*argv)
    config = read_settings(LaunchConfig, flags, environ)
    models = model_ids(config, environ)
    flags = with_defaults(models, flags, environ)
    return deployment_of(config, models, flags, environ, "/tmp/x")


def test_each_process_gets_the_flags_that_it_has() -> None:
    plan = deployment("m", "--max-beams", "3", "--dtype=float32", "--no-json-output", "-p", "81")
    assert "--max-beams=3" in plan.router_flags
    assert "--port=81" in plan.router_flags
    assert "--no-json-output" in plan.router_flags
    assert {"--dtype=float32", "--no-json-output"} <= set(plan.shard_flags)
    assert not any(flag.startswith(("--dtype", "--max-beams=81")) for flag in plan.router_flags)
    assert (plan.port, plan.model_id) == (81, "m")


def test_the_model_may_come_from_its_variable() -> None:
    assert deployment(MODEL_ID="/no such/folder").model_id == "/no such/folder"
    assert deployment("m", MODEL_ID="/no such/folder").model_id == "m"


def test_tgi_s_launcher_has_defaults_of_its_own() -> None:
    assert "--max-batch-prefill-tokens=2048" in deployment().router_flags
    assert "--max-batch-prefill-tokens=9" in deployment("--max-batch-prefill-tokens=9").router_flags
    by_variable = deployment(MAX_BATCH_PREFILL_TOKENS="512", MAX_BATCH_SIZE="300")
    assert not any("prefill-tokens" in flag for flag in by_variable.router_flags)


def test_the_bundled_model_has_a_name() -> None:
    assert f"--served-model-name={BUNDLED_NAME}" in deployment().router_flags
    assert not any("served-model" in flag for flag in deployment("m").router_flags)
    assert not any(
        "served-model" in flag for flag in deployment(SERVED_MODEL_NAME="a").router_flags
    )


def test_the_shards_name_in_traces_follows_the_routers() -> None:
    assert "--otlp-service-name=a.server" in deployment("--otlp-service-name=a.router").shard_flags


def test_custom_kernels_are_not_used_where_that_is_asked_for() -> None:
    assert "--attention=cpu" in deployment("--disable-custom-kernels").shard_flags
    chosen = deployment("--disable-custom-kernels", "--attention=reference").shard_flags
    assert "--attention=cpu" not in chosen


def test_secrets_are_no_flags() -> None:
    plan = deployment("--api-key", "hush")
    assert plan.secrets == {"API_KEY": "hush"}
    assert "hush" not in str(plan.router_flags + plan.shard_flags)
    assert deployment(API_KEY="a,b").secrets == {"API_KEY": "a,b"}
    environ = children_environ({"API_KEY": "hush", "PATH": "/"}, None)
    assert environ == {"PATH": "/"} | _QUIET


def test_what_a_process_would_refuse_is_refused_beforehand() -> None:
    for argv in (["--max-best-of", "0"], ["--kv-blocks", "0"], ["--watermark-gamma", "1"]):
        with pytest.raises(BadConfig, match=f"{argv[0]} '{argv[1]}': must be"):
            deployment(*argv)
    with pytest.raises(BadConfig, match="API_KEY: each key must be") as caught:
        deployment(API_KEY="hu sh")
    assert "hu sh" not in str(caught.value)


def test_tls_files_are_tried_beforehand(tmp_path: Path) -> None:
    mine, other = make_certificate(tmp_path / "mine"), make_certificate(tmp_path / "other")
    flags = ("--ssl-certfile", str(mine.cert), "--ssl-keyfile")
    assert deployment(*flags, str(mine.key)).has_tls
    with pytest.raises(BadConfig, match="must be the key of the certificate"):
        deployment(*flags, str(other.key))


@pytest.mark.parametrize(
    ("line", "models"),
    [([""], []), (["", "--model-id", ""], []), (["", "--model-id", "a"], ["a"]), (["a"], ["a"])],
)
def test_an_empty_id_of_a_variable_that_is_not_set_is_none(
    line: list[str], models: list[str]
) -> None:
    assert model_ids(read_settings(LaunchConfig, flags_of_line(*line), {}), {}) == models


def test_the_hubs_cache_is_handed_on_in_its_own_word() -> None:
    environ = children_environ({"HF_HUB_CACHE": "/old", "PATH": "/bin"}, Path("/new"))
    assert environ == {"HF_HUB_CACHE": "/new", "PATH": "/bin"} | _QUIET
    assert children_environ({"HF_HUB_CACHE": "/old"}, None) == {"HF_HUB_CACHE": "/old"} | _QUIET


def test_grpcs_notes_are_not_shown_unless_somebody_asks_for_them() -> None:
    assert children_environ({}, None) == _QUIET
    assert children_environ({"GRPC_VERBOSITY": "DEBUG"}, None) == {"GRPC_VERBOSITY": "DEBUG"}


@pytest.mark.parametrize(
    ("argv", "flags"),
    [
        pytest.param(("a", "--dtype", "float32"), ["--dtype=float32"], id="value"),
        pytest.param(("a", "-p", "99", "--api-key", "k"), [], id="the-fronts-own"),
        pytest.param(("a", "--no-hub-models"), [], id="of-the-fleet"),
        pytest.param(("a", "--no-sharded"), ["--no-sharded"], id="switched-off"),
        pytest.param(("a", "--json-output", "b"), ["--json-output"], id="switch"),
        pytest.param(("a", "b"), [], id="defaults"),
    ],
)
def test_a_servers_flags_are_those_of_the_command_line(
    argv: tuple[str, ...], flags: list[str]
) -> None:
    command = fleet_argv(["a", "b"], flags_of_line(*argv), {"MAX_TOTAL_TOKENS": "5"})
    assert command[command.index("--") + 1 :] == flags


def test_the_fronts_command_keeps_the_servers_flags_apart() -> None:
    flags = flags_of_line(
        "--port", "1", "--dtype", "float32", "--no-hub-models", "--protect-metrics"
    )
    assert fleet_argv(["a", "b"], flags, {}) == [
        sys.executable, "-m", "fleet", "--port=1", "--protect-metrics", "--no-hub-models",
        "--model=a", "--model=b", "--", "--dtype=float32", "--protect-metrics",
    ]  # fmt: skip
