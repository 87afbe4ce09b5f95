"""Settings from a file: beneath flags and variables, and wrong ones named with their place."""

from pathlib import Path
from typing import Any

import pytest

from launcher import LaunchConfig, model_ids, serve_settings
from processes.config_file import with_config_file
from processes.settings import BadConfig, read_settings
from router.config import RouterConfig


def settings(folder: Path, text: str, **environ: str) -> dict[str, Any]:
    path = folder / "tandem.yaml"
    path.write_text(text)
    return with_config_file(path, serve_settings(), {"port": "9"}, environ)


def test_names_are_those_of_flags_with_dashes_or_underscores(tmp_path: Path) -> None:
    text = "max-batch-size: 7\nresume_grace: 2.5\njson-output: true\napi-key: [one, two]\n"
    config = read_settings(RouterConfig, settings(tmp_path, text), {})

    assert (config.max_batch_size, config.resume_grace) == (7, 2.5)
    assert (config.json_output, config.api_key) == (True, ("one", "two"))


def test_the_model_is_one_name_or_several(tmp_path: Path) -> None:
    one = read_settings(LaunchConfig, settings(tmp_path, "model_id: demo"), {})
    several = read_settings(LaunchConfig, settings(tmp_path, "model-ids: [a, b]"), {})

    assert model_ids(one, {}) == ["demo"]
    assert model_ids(several, {}) == ["a", "b"]


def test_a_flag_and_a_variable_beat_the_file(tmp_path: Path) -> None:
    text = "port: 8\nmax_batch_size: 8\nhostname: 0.0.0.0\n"
    by_flag = settings(tmp_path, text, MAX_BATCH_SIZE="5")

    assert by_flag == {"port": "9", "hostname": "0.0.0.0"}


def test_what_is_null_or_empty_sets_nothing(tmp_path: Path) -> None:
    assert settings(tmp_path, "hostname: null\n") == {"port": "9"}
    assert settings(tmp_path, "# nothing\n") == {"port": "9"}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("max-batch-size: none", "tandem.yaml: max-batch-size 'none': must be a whole number"),
        ("max-batch-sice: 3", "there is no setting `max-batch-sice`; did you mean max_batch_size?"),
        ("max-batch-size: [3]", "max-batch-size: must be one value, not a list"),
        ("hostname: {a: 1}", "hostname: must be a text, a number, true or false"),
        ("- 3", "must hold names with values, as `port: 8080`"),
        ("a: [", "is not YAML"),
        ("speculate: 32", "tandem.yaml: speculate '32'"),
        ("rope-factor: 3", "tandem.yaml: rope-factor '3'"),
    ],
)
def test_what_is_wrong_is_named_with_its_place(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(BadConfig) as raised:
        settings(tmp_path, text)

    assert words in str(raised.value)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadConfig, match="No such file"):
        with_config_file(tmp_path / "nothing.yaml", serve_settings(), {}, {})
