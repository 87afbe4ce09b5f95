"""What the hub has, asked without a network: by rule, from its cache, offline."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fleet.errors import UnknownModel
from fleet.hub import HuggingFaceHub

ASK = """
import sys
from fleet.errors import FleetError
from fleet.hub import HuggingFaceHub
try:
    HuggingFaceHub().require(sys.argv[1])
    print("there")
except FleetError as error:
    print(type(error).__name__, error)
"""


def asked(name: str, home: Path, **environ: str) -> str:
    """What a process with this hub's home finds of a model."""
    return subprocess.run(
        [sys.executable, "-c", ASK, name],
        env={**os.environ, "HF_HOME": str(home), **environ},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    ).stdout


@pytest.mark.parametrize("name", ["a/b/c", "-a", "a..b", "a--b", "a b", "ä", "/a", "a/", "x" * 100])
def test_what_can_be_no_model_of_the_hub_is_not_asked_for(name: str) -> None:
    with pytest.raises(UnknownModel, match="NAME or OWNER/NAME"):
        HuggingFaceHub().require(name)


def test_a_model_in_the_cache_is_there(tmp_path: Path) -> None:
    folder = tmp_path / "hub" / "models--org--name"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text("0" * 40)
    (folder / "snapshots" / ("0" * 40)).mkdir(parents=True)
    (folder / "snapshots" / ("0" * 40) / "config.json").write_text("{}")
    assert asked("org/name", tmp_path, HF_HUB_OFFLINE="1") == "there\n"


def test_offline_what_is_not_in_the_cache_does_not_exist(tmp_path: Path) -> None:
    said = asked("org/none", tmp_path, HF_HUB_OFFLINE="1")
    assert said.startswith("UnknownModel the model 'org/none' does not exist: ")
    assert "offline" in said


@pytest.mark.slow
def test_a_hub_that_is_not_reached_is_no_reason_to_say_that_a_model_does_not_exist(
    tmp_path: Path,
) -> None:
    said = asked("org/none", tmp_path, HF_ENDPOINT="http://127.0.0.1:9", HF_HUB_OFFLINE="0")
    assert said.startswith("LoadFailed ")
    assert "not reached" in said
