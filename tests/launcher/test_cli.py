"""The command line as it is typed: help, refusals, exit codes."""

import ast
import socket
import subprocess
import sys
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import pytest

from launcher.__main__ import main

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Answer:
    """How a command ended, and what it said."""

    returncode: object
    stdout: str
    stderr: str


Launcher = Callable[..., Answer]


@pytest.fixture
def launcher(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Launcher:
    """The console script, called in this process."""

    def call(*args: str) -> Answer:
        monkeypatch.setattr(sys, "argv", ["launcher", *args])
        with pytest.raises(SystemExit) as ended:
            main()
        said = capfd.readouterr()
        return Answer(ended.value.code or 0, said.out, said.err)

    return call


def test_help_names_every_command(launcher: Launcher) -> None:
    said = launcher("--help")
    assert said.returncode == 0
    for command in ("serve", "client", "query", "download-weights", "env"):
        assert command in said.stdout


def test_the_help_of_serve_names_every_flag_whole_on_a_narrow_terminal(
    monkeypatch: pytest.MonkeyPatch, launcher: Launcher
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    said = launcher("serve", "--help").stdout
    for flag in ("--max-batch-prefill-tokens", "--graceful-termination-timeout", "--num-shard"):
        assert f"  {flag} " in said
    assert said.index("Where it runs:") < said.index("--num-shard") < said.index("Limits of")


def test_env_names_versions_and_hardware(launcher: Launcher) -> None:
    said = launcher("env")
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
        pytest.param(("--lora-adapters", "a"), "adapters are not served", id="lora-adapters"),
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
        pytest.param(("--nonsense",), "unrecognized arguments: --nonsense", id="unknown"),
        pytest.param(("auto", "b"), "auto is any model", id="auto-and-another"),
        pytest.param(("b", "b"), "'b' is given twice", id="model-twice"),
        pytest.param(("auto", "--trust-remote-code"), "add --no-hub-models", id="code-of-anybody"),
        pytest.param(
            ("a", "b", "--served-model-name", "c"), "goes by its own id", id="one-name-for-two"
        ),
        pytest.param(("auto", "--revision", "main"), "--revision main", id="revision-of-many"),
    ],
)
def test_what_cannot_be_served_is_one_clear_line(
    args: tuple[str, ...], said: str, launcher: Launcher
) -> None:
    answer = launcher("serve", "--port", "39211", *args)
    assert answer.returncode == 2
    assert said in answer.stderr
    assert answer.stderr.startswith("error: ")
    assert "Traceback" not in answer.stderr


def test_a_variable_that_breaks_a_rule_is_named(
    monkeypatch: pytest.MonkeyPatch, launcher: Launcher
) -> None:
    monkeypatch.setenv("MAX_INPUT_LENGTH", "0")
    answer = launcher("serve")
    assert answer.returncode == 2
    assert answer.stderr == "error: MAX_INPUT_LENGTH '0': must be a whole number, at least 1\n"


def test_a_socket_that_is_served_is_refused_at_once(tmp_path: Path, launcher: Launcher) -> None:
    with socket.socket(socket.AF_UNIX) as taken:
        taken.bind(str(tmp_path / "s"))
        taken.listen()
        answer = launcher("serve", "--http-uds", str(tmp_path / "s"))
    assert answer.returncode == 1
    assert "must be free, and somebody listens" in answer.stderr


def test_a_port_in_use_is_refused_at_once(launcher: Launcher) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        answer = launcher("serve", "--port", str(port))
    assert answer.returncode == 1
    assert f"cannot listen at 127.0.0.1:{port}" in answer.stderr


def test_the_command_is_a_module_too() -> None:
    argv = [sys.executable, "-m", "launcher", "serve", "--help"]
    run = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert run.returncode == 0
    assert "usage: launcher serve" in run.stdout


def test_help_loads_no_engine_and_no_http_server() -> None:
    code = "import sys, launcher.__main__; print(*sys.modules)"
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    heavy = {"torch", "transformers", "fastapi", "starlette", "uvicorn", "grpc", "tokenizers"}
    assert run.returncode == 0, run.stderr
    assert not heavy & set(run.stdout.split())


def test_of_a_tier_only_what_declares_its_settings_is_imported() -> None:
    imports = {
        node.module or ""
        for file in (ROOT / "launcher").glob("*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.ImportFrom)
    }
    of_tiers = {
        name for name in imports if name.split(".")[0] in {"router", "model_server", "fleet"}
    }
    assert of_tiers == {
        "fleet.config", "model_server.config", "router.config", "router.http.server.listen",
    }  # fmt: skip


def test_the_package_installs_the_command_and_bounds_what_it_subclasses() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert project["project"]["scripts"]["launcher"] == "launcher.__main__:main"
    (uvicorn,) = [each for each in project["project"]["dependencies"] if "uvicorn" in each]
    assert "<" in uvicorn


def test_the_version_is_one_line(launcher: Launcher) -> None:
    answer = launcher("--version")

    assert (answer.returncode, answer.stderr) == (0, "")
    assert answer.stdout == f"tandem {version('tandem')}\n"
