"""The launcher: its command line as it is typed, and which process gets which flag."""

import ast
import json
import os
import re
import socket
import subprocess
import sys
import tomllib
from dataclasses import fields
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import yaml

from fleet.config import FleetConfig
from fleet.config import read_config as read_front
from launcher import (
    _OVERVIEW,
    BUNDLED_NAME,
    LaunchConfig,
    children_environ,
    deployment_of,
    fleet_argv,
    model_ids,
    replicas_argv,
    serve_settings,
    with_defaults,
)
from model_server.config import parse as read_shard
from models import smollm2
from processes.deployment import Deployment, Node
from processes.settings import (
    BadConfig,
    CommandLine,
    Kind,
    flag_of,
    misspelt_variables,
    read_settings,
    variables_of,
)
from router.config import RouterConfig
from router.config import read_config as read_router
from tests.certificates import make_certificate
from tests.command_line import run_launcher
from tests.settings_table import CHART, PAGE, page_with_table, schema_with_names

ROOT = Path(__file__).resolve().parents[1]
_OURS = {
    "PYTHONSAFEPATH": "1",
    "GRPC_VERBOSITY": "ERROR",
    "GRPC_EXPERIMENTS": "-event_engine_client,-event_engine_listener",
}


def flags_of_line(*argv: str) -> dict[str, Any]:
    return CommandLine(serve_settings(), "launcher serve", "").parse(argv)


def launch_config(*argv: str) -> LaunchConfig:
    return read_settings(LaunchConfig, flags_of_line(*argv), {})


def deployment(*argv: str, **environ: str) -> Deployment:
    flags = flags_of_line(*argv)
    config = read_settings(LaunchConfig, flags, environ)
    models = model_ids(config, environ)
    flags = with_defaults(models, flags, environ)
    return deployment_of(config, models, flags, environ, "/tmp/x")


# ---- the command line as it is typed


def test_help_names_every_command() -> None:
    said = run_launcher("--help")
    assert said.returncode == 0
    assert run_launcher("-h").stdout == said.stdout
    for command in ("serve", "client", "query", "download-weights", "quantize", "env"):
        assert command in said.stdout


def test_the_help_of_serve_names_every_flag_whole_on_a_narrow_terminal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    said = run_launcher("serve", "--help", "all").stdout
    for flag in ("--max-batch-prefill-tokens", "--graceful-termination-timeout", "--num-shard"):
        assert f"  {flag} " in said
    assert said.index("Where it runs:") < said.index("--num-shard") < said.index("Limits of")


def test_the_help_of_serve_is_short_first_and_names_where_the_rest_stands() -> None:
    said = run_launcher("serve", "--help").stdout
    assert _OVERVIEW.names <= {each.name for each in serve_settings()}
    assert all(flag_of(name) in said for name in _OVERVIEW.names - {"model_ids"})
    assert "--validation-workers" not in said
    assert "launcher serve ./my-model --port 8080" in said
    assert len(said.splitlines()) < 100
    group = run_launcher("serve", "a", "--help=batch").stdout
    assert "--validation-workers" in group
    assert "--port" not in group
    assert "  --help batch " in said


@pytest.mark.parametrize("topic", ["--max-input-length", "max_input_tokens"])
def test_a_flag_s_help_is_asked_by_its_name_or_an_older_one(topic: str) -> None:
    said = run_launcher("serve", "--help", topic).stdout
    assert "longest prompt; absent: --max-total-tokens less one" in said
    assert "--max-total-tokens VALUE" not in said


@pytest.mark.parametrize("topic", [["Limits"], ["limit"], ["Limits", "of", "all", "requests"]])
def test_a_group_s_help_is_asked_by_its_title_as_it_is_printed(topic: list[str]) -> None:
    said = run_launcher("serve", "--help", *topic).stdout
    assert "Limits of all requests:" in said
    assert ("Limits of one request:" in said) == (len(topic) == 1)
    assert "HTTP:" not in said


def test_a_misspelt_variable_is_named_with_what_was_meant(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAX_INPUT_TOKNES", "5")
    monkeypatch.setenv("SSL_CERT_FILE", "/a")
    found = misspelt_variables(serve_settings(), os.environ)
    assert found == {"MAX_INPUT_TOKNES": "MAX_INPUT_TOKENS"}


def test_env_names_versions_and_hardware() -> None:
    said = run_launcher("env")
    assert said.returncode == 0
    for name in ("tandem:", "python:", "torch:", "transformers:", "cpu:", "gpu:"):
        assert name in said.stdout


@pytest.mark.parametrize(
    ("args", "said"),
    [
        pytest.param(("--quantize", "awq"), "--quantize 'awq': must be one of int8", id="quantize"),
        pytest.param(("--speculate", "32"), "--speculate '32': must be a whole", id="speculate"),
        pytest.param(("--kv-cache-dtype", "fp8_e5m2"), "the model's own", id="kv-cache-dtype"),
        pytest.param(("--rope-scaling", "linear"), "config.json says", id="rope-scaling"),
        pytest.param(("--rope-factor", "2.0"), "--rope-factor '2.0': positions", id="rope-factor"),
        pytest.param(("--lora-adapters", "a=b=c"), "each NAME=PATH", id="lora-adapters"),
        pytest.param(("--lora-folders", "/tmp"), "set ADMIN_API_KEY", id="no-admin"),
        pytest.param(("--batch-file", "/no/such/b"), "in a folder that exists", id="batch-file"),
        pytest.param(("--ngrok",), "opens no tunnel", id="ngrok"),
        pytest.param(("a", "--model-id", "b"), "'a' and --model-id 'b' differ", id="two-models"),
        pytest.param(("--sharded", "--device", "cpu"), "--num-shard N", id="sharded-cpu"),
        pytest.param(("--api-key", ""), "--api-key: each key must be", id="empty-key"),
        pytest.param(("--api-key", "a b"), "--api-key: each key must be", id="bad-key"),
        pytest.param(("--cors-allow-origin", "a/"), "SCHEME://HOST", id="bad-origin"),
        pytest.param(("--otlp-endpoint", "http://a:1/v1"), "without a path", id="bad-collector"),
        pytest.param(("--ssl-certfile", __file__), "needs --ssl-keyfile", id="half-of-tls"),
        pytest.param(
            ("--kv-blocks", "0"),
            "--kv-blocks '0': must be a whole",
            id="too-small",
        ),
        pytest.param(
            ("--validation-workers", "257"),
            "--validation-workers '257': must be a whole number, at least 1 and at most 256",
            id="too-large",
        ),
        pytest.param(("--max-beams=x",), "--max-beams 'x': must be a whole number", id="no-number"),
        pytest.param(("--body-timeout", "x"), "--body-timeout 'x': must be a number", id="no-time"),
        pytest.param(("-p", "70000"), "--port '70000': must be a whole number", id="short-flag"),
        pytest.param(("--dtype", "int3"), "--dtype 'int3': must be one of auto, bf", id="no-dtype"),
        pytest.param(("--http-uds", "/no/such/s"), "in a folder that exists", id="no-folder"),
        pytest.param(("--http-uds", __file__), "something else than a socket", id="a-file"),
        pytest.param(("--http-uds", ""), "not a folder", id="empty-path"),
        pytest.param(("--shard-uds-path", "/no/such/s"), "--shard-uds-path '/no", id="no-shards"),
        pytest.param(("--shard-uds-path", f"/tmp/{'s' * 101}"), "must be shorter", id="long-path"),
        pytest.param(("--num-shard", "0"), "--num-shard '0': must be", id="no-rank"),
        pytest.param(("--port", "0"), "--port '0': must be at least 1", id="any-port"),
        pytest.param(
            ("--nonsense",), "--nonsense: there is no such flag; see --help", id="unknown"
        ),
        pytest.param(("--prot", "3"), "such flag; did you mean --port?", id="nearly"),
        pytest.param(("--no-json-outptu",), "did you mean --no-json-output?", id="nearly-a-switch"),
        pytest.param(("--max-model-len=9",), "did you mean --max-total-tokens?", id="vllm-s-word"),
        pytest.param(("--port",), "error: --port/-p: expected one argument; see", id="no-value"),
        pytest.param(("--config=/no/file",), "/no/file: No such file or directory\n", id="no-file"),
        pytest.param(("a", "b", "--lora-adapters=x"), "--lora-adapters x: an", id="no-list"),
        pytest.param(("--help", "nothing"), "no group and no flag has this name", id="no-topic"),
        pytest.param(("auto", "b"), "auto is any model", id="auto-and-another"),
        pytest.param(("b", "b"), "'b' is given twice", id="model-twice"),
        pytest.param(("auto", "--trust-remote-code"), "add --no-hub-models", id="code-of-anybody"),
        pytest.param(
            ("a", "b", "--served-model-name", "c"), "goes by its own id", id="one-name-for-two"
        ),
        pytest.param(("auto", "--revision", "main"), "--revision main", id="revision-of-many"),
        pytest.param(("a", "b", "--nnodes", "2"), "ranks of one model", id="machines-of-many"),
    ],
)
def test_what_cannot_be_served_is_one_clear_line(args: tuple[str, ...], said: str) -> None:
    answer = run_launcher("serve", "--port", "39211", *args)
    assert answer.returncode == 2
    assert said in answer.stderr
    assert answer.stderr.startswith("error: ")
    assert "Traceback" not in answer.stderr


def test_a_variable_that_breaks_a_rule_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAX_INPUT_LENGTH", "0")
    answer = run_launcher("serve")
    assert answer.returncode == 2
    assert answer.stderr == "error: MAX_INPUT_LENGTH '0': must be a whole number, at least 1\n"


def test_a_socket_that_is_served_is_refused_at_once(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as taken:
        taken.bind(str(tmp_path / "s"))
        taken.listen()
        answer = run_launcher("serve", "--http-uds", str(tmp_path / "s"))
    assert answer.returncode == 1
    assert "must be free, and somebody listens" in answer.stderr


def test_a_port_in_use_is_refused_at_once() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        answer = run_launcher("serve", "--port", str(port))
        argv = [sys.executable, "-m", "launcher", "serve", "./none", "--dry-run", f"--port={port}"]
        tried = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert answer.returncode == 1
    assert f"cannot listen at 127.0.0.1:{port}" in answer.stderr
    # A dry run does not listen, and the port is that of the server that runs, as a rule.
    assert tried.returncode == 1
    assert tried.stderr.endswith("error: the model's folder './none' does not exist\n")


@pytest.mark.slow
def test_quantize_refuses_a_wrong_flag_before_anything_is_loaded() -> None:
    said = run_launcher("quantize", "a/b", "out", "--method", "awq")
    assert said.returncode == 2
    assert said.stderr.startswith("error: --method 'awq': its format is read, not written")
    assert "usage: launcher quantize MODEL_ID OUT" in run_launcher("quantize", "--help").stdout


@pytest.mark.parametrize("spelling", [["-m", "launcher"], ["launcher.py"]])
def test_the_command_is_a_module_and_a_script_too(spelling: list[str]) -> None:
    argv = [sys.executable, *spelling, "serve", "--help"]
    run = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert run.returncode == 0
    assert "usage: launcher serve" in run.stdout


def test_help_loads_no_engine_and_no_http_server() -> None:
    code = "import sys, launcher; print(*sys.modules)"
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    heavy = {"torch", "transformers", "fastapi", "starlette", "uvicorn", "grpc", "tokenizers"}
    assert run.returncode == 0, run.stderr
    assert not heavy & set(run.stdout.split())


def test_of_a_tier_only_what_declares_its_settings_is_imported() -> None:
    imports = {
        node.module or ""
        for node in ast.walk(ast.parse((ROOT / "launcher.py").read_text()))
        if isinstance(node, ast.ImportFrom)
    }
    of_tiers = {
        name for name in imports if name.split(".")[0] in {"router", "model_server", "fleet"}
    }
    assert of_tiers == {
        "fleet.config", "model_server.config", "router.config", "router.front_config",
    }  # fmt: skip


def test_the_package_installs_the_command_and_bounds_what_it_subclasses() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert project["project"]["scripts"]["launcher"] == "launcher:main"
    (uvicorn,) = [each for each in project["project"]["dependencies"] if "uvicorn" in each]
    assert "<" in uvicorn


def test_the_version_is_one_line() -> None:
    answer = run_launcher("--version")
    assert (answer.returncode, answer.stderr) == (0, "")
    assert answer.stdout == f"tandem {version('tandem')}\n"


# ---- which process gets which flag


def test_each_process_gets_the_flags_that_it_has() -> None:
    plan = deployment("m", "--max-beams", "3", "--dtype=float32", "--no-json-output", "-p", "81")
    meeting = deployment("m", "--num-shard=2", "--master-addr=10.0.0.1", "--master-port=29501")
    assert "--max-beams=3" in plan.router_flags
    assert "--port=81" in plan.router_flags
    assert "--no-json-output" in plan.router_flags
    assert {"--dtype=float32", "--no-json-output"} <= set(plan.shard_flags)
    assert not any(flag.startswith(("--dtype", "--max-beams=81")) for flag in plan.router_flags)
    assert (plan.port, plan.model_id) == (81, "m")
    # Shards have these from the environment alone.
    assert not any(flag.startswith("--master") for flag in meeting.shard_flags)


def test_machines_share_the_ranks_by_torchruns_variables_or_those_of_kubernetes() -> None:
    here = {"SHARD_TOKEN": "a-secret-of-all-machines"}
    flags = ("m", "--num-shard=6", "--nnodes=3", "--node-rank=2", "--master-addr=127.0.0.1")
    by_flag = deployment(*flags, **here)
    assert by_flag.node == Node(2, 3, "127.0.0.1", "lo")
    assert (list(by_flag.ranks), by_flag.serves_http) == ([4, 5], False)
    assert by_flag.master_port == 29500
    torchruns = {"NNODES": "3", "NODE_RANK": "2", "MASTER_ADDR": "127.0.0.1"}
    of_group = {"LWS_GROUP_SIZE": "3", "LWS_WORKER_INDEX": "2", "LWS_LEADER_ADDRESS": "127.0.0.1"}
    for environ in (torchruns, of_group):
        assert deployment("m", "--num-shard=6", **environ, **here).node == by_flag.node
    alone = {"LWS_GROUP_SIZE": "1", "LWS_WORKER_INDEX": "0", "LWS_LEADER_ADDRESS": "10.0.0.1"}
    assert deployment("m", **alone).node is None
    assert deployment("m", *flags[1:3], "--node-rank=0", "--master-addr=::1", **here).serves_http


def test_the_manifest_for_groups_of_machines_gives_launchers_what_they_need() -> None:
    group = yaml.safe_load((ROOT / "deploy/kubernetes/lws.yaml").read_text())
    template = group["spec"]["leaderWorkerTemplate"]
    assert template["restartPolicy"] == "None"
    pods = [template["leaderTemplate"], template["workerTemplate"]]
    environ = {"LWS_GROUP_SIZE": "2", "LWS_LEADER_ADDRESS": "127.0.0.1"}
    for rank, pod in enumerate(pods):
        container = pod["spec"]["containers"][0]
        assert [each["name"] for each in container["env"]] == ["SHARD_TOKEN"]
        secret = {"SHARD_TOKEN": "a-secret-of-all-machines"}
        plan = deployment(*container["args"], **environ, **secret, LWS_WORKER_INDEX=f"{rank}")
        assert plan.serves_http == (rank == 0)
        assert str(len(plan.ranks)) == container["resources"]["limits"]["nvidia.com/gpu"]


@pytest.mark.parametrize(
    ("argv", "environ", "said"),
    [
        pytest.param(("--node-rank=1",), {}, "--node-rank 1: must be below --nnodes", id="rank"),
        pytest.param(("--nnodes=2",), {}, "needs --num-shard, the ranks of all", id="no-ranks"),
        pytest.param(("--nnodes=2", "--num-shard=3"), {}, "a multiple of --nnodes", id="odd"),
        pytest.param(("--nnodes=2", "--num-shard=2"), {}, "the variable SHARD_TOKEN", id="secret"),
        pytest.param(
            ("--nnodes=2", "--num-shard=2", "--master-port=65534"),
            {},
            "--master-port 65534: the ranks' ports follow it, up to 65536",
            id="port",
        ),
        pytest.param(
            ("--nnodes=2", "--num-shard=2", "--master-addr=no.such.machine.invalid"),
            {"SHARD_TOKEN": "a-secret-of-all-machines"},
            "--master-addr 'no.such.machine.invalid': ",
            id="address",
        ),
    ],
)
def test_machines_that_cannot_share_a_model_are_refused(
    argv: tuple[str, ...], environ: dict[str, str], said: str
) -> None:
    with pytest.raises(BadConfig, match=said):
        deployment("m", *argv, **environ)


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


def test_the_small_real_model_has_a_name_and_does_not_draw_unless_asked_to() -> None:
    plan = deployment(str(smollm2.FILE))
    assert f"--served-model-name={smollm2.NAME}" in plan.router_flags
    assert '--override-generation-config={"temperature": 0}' in plan.router_flags
    own = deployment(str(smollm2.FILE), "--served-model-name", "a").router_flags
    assert "--served-model-name=a" in own


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
    admin = "a-long-enough-key"
    plan = deployment("--admin-api-key", admin)
    assert plan.secrets == {"ADMIN_API_KEY": admin}
    assert admin not in str(plan.router_flags + plan.shard_flags)
    given = {"API_KEY": "hush", "ADMIN_API_KEY": admin, "PATH": "/"}
    environ = children_environ(given, None)
    assert environ == {"PATH": "/"} | _OURS


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
    assert model_ids(launch_config(*line), {}) == models


def test_the_hubs_cache_is_handed_on_in_its_own_word() -> None:
    environ = children_environ({"HF_HUB_CACHE": "/old", "PATH": "/bin"}, Path("/new"))
    assert environ == {"HF_HUB_CACHE": "/new", "PATH": "/bin"} | _OURS
    assert children_environ({"HF_HUB_CACHE": "/old"}, None) == {"HF_HUB_CACHE": "/old"} | _OURS


def test_a_file_of_the_folder_it_is_started_in_is_not_taken_for_one_of_ours(tmp_path: Path) -> None:
    (tmp_path / "router.py").write_text("raise SystemExit('somebody else')")
    environ = children_environ({**os.environ, "PYTHONPATH": str(ROOT)}, None)
    words = [sys.executable, "-m", "router", "--help"]
    done = subprocess.run(
        words, cwd=tmp_path, env=environ, capture_output=True, text=True, check=False
    )

    assert (done.returncode, done.stderr) == (0, "")


def test_grpcs_notes_are_not_shown_unless_somebody_asks_for_them() -> None:
    assert children_environ({}, None) == _OURS
    own = {"GRPC_VERBOSITY": "DEBUG", "GRPC_EXPERIMENTS": "", "PYTHONSAFEPATH": "1"}
    assert children_environ(own, None) == own


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


def test_shards_have_room_for_the_adapters_of_the_start_and_some_of_later() -> None:
    names = ("--lora-adapters", "a,b", "--lora-adapters", "c=d")
    assert "--max-loras=3" in deployment(*names).shard_flags
    assert "--max-loras=2" in deployment(*names, "--max-loras", "2").shard_flags
    later = ("--lora-folders", "/", "--admin-api-key", "k" * 16)
    assert "--max-loras=8" in deployment(*names, *later).shard_flags
    assert not [flag for flag in deployment().shard_flags if "lora" in flag]


@pytest.mark.parametrize("flag", ["--lora-adapters=x=y", "--lora-folders=/"])
def test_adapters_are_for_one_model(flag: str) -> None:
    with pytest.raises(BadConfig, match=r"^--lora.*: an adapter is for one model"):
        fleet_argv(["a", "b"], flags_of_line(flag), {})


def test_batches_are_for_one_model() -> None:
    with pytest.raises(
        BadConfig, match=r"^--batch-file /tmp/b: batches are computed by one model's"
    ):
        fleet_argv(["a", "b"], flags_of_line("--batch-file=/tmp/b"), {})


# ---- replicas


def replicas_command(*argv: str, environ: dict[str, str] | None = None) -> list[str]:
    by_flag = flags_of_line(*argv)
    config = read_settings(LaunchConfig, by_flag, {})
    models = list(config.model_ids)
    fleet = read_settings(FleetConfig, {**by_flag, "model": models} if models else by_flag, {})
    return replicas_argv(config, fleet, models, by_flag, environ or {})


def test_a_fronts_replicas_get_its_model_and_the_servers_flags() -> None:
    assert replicas_command("m", "--replicas", "2", "--dtype", "float32", "--port", "1") == [
        sys.executable, "-m", "fleet", "--port=1", "--replicas=2", "--replica-shards=1",
        "--model=m", "--", "--dtype=float32",
    ]  # fmt: skip
    assert replicas_command("--replica", "http://a", "--replica", "https://b")[3:] == [
        "--replica=http://a",
        "--replica=https://b",
        "--",
    ]


def test_replicas_share_the_gpus_that_there_are() -> None:
    argv = ("m", "--replicas", "2", "--num-shard", "2")
    found = replicas_command(*argv, environ={"CUDA_VISIBLE_DEVICES": "3,2,1,0"})
    assert [each for each in found if "gpus" in each] == [f"--replica-gpus={k}" for k in "3210"]
    assert "--replica-shards=2" in found
    with pytest.raises(
        BadConfig, match=r"^--replicas 2: .* they need 4 GPUs .*, and 3 are visible"
    ):
        replicas_command(*argv, environ={"CUDA_VISIBLE_DEVICES": "2,1,0"})
    on_cpus = replicas_command(*argv, "--device=cpu", environ={"CUDA_VISIBLE_DEVICES": "0"})
    assert not [each for each in on_cpus if "gpus" in each]
    # Those names are the machine's, not the container's.
    inside = replicas_command(*argv, environ={"NVIDIA_VISIBLE_DEVICES": "GPU-a,GPU-b,GPU-c,GPU-d"})
    assert [each for each in inside if "gpus" in each] == [f"--replica-gpus={k}" for k in "0123"]


@pytest.mark.parametrize(
    ("flag", "said"),
    [
        ("--shard-uds-path=/tmp/x", "sockets of its own"),
        ("--master-port=29500", "a free port of its own"),
        ("--sharded", "--num-shard says how many"),
        ("--nnodes=2", "name it by --replica"),
        (f"--api-key-file={__file__}", "use --api-key"),
    ],
)
def test_what_only_one_server_can_have_is_refused_for_replicas(flag: str, said: str) -> None:
    with pytest.raises(BadConfig, match=said):
        replicas_command("m", "--replicas=2", flag)


# ---- a switch on the command line wins over the environment, in every process
#
# The environment of a child is that of its parent, so a flag has to reach it when it says no, too.


def switches(settings: Any) -> list[tuple[str, bool]]:
    # A tunnel is refused however it is asked for.
    names = [each.name for each in settings if each.metadata["kind"] is Kind.SWITCH]
    both = [(name, value) for name in names for value in (True, False)]
    return [case for case in both if case != ("ngrok", True)]


def spelt(name: str, value: bool) -> str:
    return flag_of(name if value else f"no_{name}")


def found(name: str, flag: str, environ: dict[str, str]) -> list[bool]:
    """The switch's value in the launcher and in every process that has one of its name."""
    by_flag = flags_of_line(flag)
    ranks = {"NUM_SHARD": "2"} if flag == "--sharded" else {}
    config = read_settings(LaunchConfig, by_flag, environ | ranks)
    plan = deployment_of(config, ["m"], by_flag, environ, "/tmp/x")
    everywhere: list[Any] = [
        config,
        read_router(plan.router_flags, environ),
        read_front(fleet_argv(["m"], by_flag, environ)[3:], environ).config,
        read_shard(plan.shard_argv(None)[3:], plan.shard_environ(0, environ)),
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


# ---- a command line that was TGI's works, or says why it cannot

TGI_FLAGS = """
    model-id revision validation-workers sharded num-shard quantize speculate dtype kv-cache-dtype
    trust-remote-code max-concurrent-requests max-best-of max-stop-sequences max-top-n-tokens
    max-input-tokens max-input-length max-total-tokens waiting-served-ratio
    max-batch-prefill-tokens max-batch-total-tokens max-waiting-tokens max-batch-size cuda-graphs
    hostname port prometheus-port shard-uds-path master-addr master-port huggingface-hub-cache
    weights-cache-override disable-custom-kernels cuda-memory-fraction rope-scaling rope-factor
    json-output otlp-endpoint otlp-service-name cors-allow-origin api-key watermark-gamma
    watermark-delta ngrok tokenizer-config-path disable-grammar-support env max-client-batch-size
    lora-adapters usage-stats payload-limit enable-prefill-logprobs graceful-termination-timeout
""".split()
# HOSTNAME is the machine's name; MODEL_ID is read for the argument, which may be several; the
# others TGI reads in another way, or not at all.
WITHOUT_VARIABLE = {"hostname", "env", "model-id"}


@pytest.mark.parametrize("flag", TGI_FLAGS)
def test_a_flag_of_tgi_is_known_by_its_name_and_its_variable(flag: str) -> None:
    known = {
        flag_of(name): variables_of(each)
        for each in serve_settings()
        for name in (each.name, *each.metadata["aliases"])
    }
    variable = flag.upper().replace("-", "_")
    assert f"--{flag}" in known
    assert flag in WITHOUT_VARIABLE or variable in known[f"--{flag}"]


def test_what_asks_for_nothing_is_not_refused() -> None:
    assert launch_config("--rope-scaling", "", "--usage-stats", "on").rope_scaling is None


def test_what_asks_for_something_is_refused_with_its_reason() -> None:
    with pytest.raises(BadConfig, match=r"^--rope-scaling 'linear': positions are scaled as"):
        launch_config("--rope-scaling", "linear")


@pytest.mark.parametrize(
    ("argv", "sharded", "models"),
    [
        (["m", "--sharded", "true"], True, ("m",)),
        (["--sharded", "false", "m"], False, ("m",)),
        (["--sharded=true"], True, ()),
        (["--sharded", "m", "true"], True, ("m", "true")),
    ],
)
def test_sharded_takes_a_word_as_tgi_s_does(
    argv: list[str], sharded: bool, models: tuple[str, ...]
) -> None:
    config = launch_config(*argv)
    assert (config.sharded, config.model_ids) == (sharded, models)


def test_the_documentation_lists_every_setting_as_it_is_declared() -> None:
    page = PAGE.read_text()
    assert page == page_with_table(page), "run: python -m tests.settings_table"
    assert "`--max-batch-prefill-tokens`" in page


def test_the_chart_takes_the_names_of_settings_as_they_are_declared() -> None:
    schema = CHART.read_text()
    assert schema == schema_with_names(schema), "run: python -m tests.settings_table"
    (names,) = json.loads(schema)["properties"]["config"]["patternProperties"]
    assert re.match(names, "max-batch-size")
    assert re.match(names, "max_batch_size")
    assert not re.match(names, "max-batch-sizes")
