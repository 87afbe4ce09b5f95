"""The front's command line."""

from pathlib import Path

import pytest

from fleet.config import FleetConfig, read_config
from processes.settings import BadConfig


def test_models_flags_and_the_servers_flags_are_kept_apart() -> None:
    argv = ["--model", "a,b", "--port", "1", "--model", "-c d", "--", "--port", "2", "--dtype", "x"]
    command = read_config(argv, {"MAX_LOADED_MODELS": "3", "API_KEY": "k,l"})
    assert command.config.model == ("a,b", "-c d")
    assert (command.config.port, command.config.max_loaded_models) == (1, 3)
    assert command.config.api_key == ("k", "l")
    assert command.child_flags == ("--port", "2", "--dtype", "x")
    assert not command.config.takes_any


def test_auto_takes_any_model() -> None:
    assert read_config(["--model", "auto"], {}).config.takes_any
    assert not read_config(["--model", "a", "--model", "b"], {}).config.takes_any


def test_replicas_need_no_model() -> None:
    urls = ("http://a", "https://b:1")
    config = read_config([f"--replica={url}" for url in urls], {"FRONT_SECRET": "s" * 16}).config
    assert (config.replica, config.front_secret, config.has_replicas) == (urls, "s" * 16, True)
    own = ["--replicas", "2", "--replica-gpus=4", "--replica-gpus=5", "--replica-shards=1"]
    assert read_config(own, {}).config.replica_gpus == ("4", "5")
    with pytest.raises(BadConfig, match=r"^FRONT_SECRET: must be at least 16"):
        read_config(own, {"FRONT_SECRET": "short"})


@pytest.mark.parametrize("name", ["/no/such/folder", "./none", "~/none-either", "~no-such-user/x"])
def test_a_path_that_is_no_folder_is_refused_at_the_start(name: str, tmp_path: Path) -> None:
    with pytest.raises(BadConfig, match=f"MODEL_ID '{name}': must be a folder that exists"):
        FleetConfig(model=(str(tmp_path), name))
    assert FleetConfig(model=(str(tmp_path), "org/name")).model[1] == "org/name"


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        pytest.param([], "--model: at least one", id="no-model"),
        pytest.param(["--models-folder", "/no/such"], "'/no/such': must be a folder", id="folder"),
        pytest.param(["--models-folder", "~no-such-user"], "must be a folder", id="user"),
        pytest.param(["--max-loaded-models", "0"], "at least 1", id="no-room"),
        pytest.param(["--cuda-memory-fraction", "1.5"], "at most 1", id="share"),
        pytest.param(["--whatever", "1"], "see --help", id="unknown"),
        pytest.param(["--replicas", "2", "--replica", "http://a"], "not both", id="both"),
        pytest.param(["--replicas", "2", "--model", "b"], "for one model", id="models"),
        pytest.param(["--replica", "http://a"], "no model of its own", id="front-alone"),
        pytest.param(["--replicas", "0"], "at least 1", id="none"),
        pytest.param(["--replica", "a:3000"], r"must be http://HOST\[:PORT\]", id="no-url"),
        pytest.param(["--replica", "http://a:x"], "must be http", id="no-port"),
        pytest.param(["--replica", "http://a/b"], "without a path", id="path"),
        pytest.param(["--migrate", "all"], "one of same, any", id="migrate"),
        pytest.param(["--ssl-certfile", __file__], "needs --ssl-keyfile", id="half-of-tls"),
    ],
)
def test_a_bad_flag_is_named_with_its_rule(argv: list[str], said: str) -> None:
    models = [] if not argv else ["--model", "a"]
    with pytest.raises(BadConfig, match=said):
        read_config([*models, *argv], {})


def test_the_folder_of_models_is_its_real_path(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    command = read_config(["--model", "auto", "--models-folder", str(tmp_path / "link")], {})
    assert command.config.models_folder == tmp_path / "real"
