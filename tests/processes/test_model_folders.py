"""What clients call a model, and that a local one is found without the hub."""

import subprocess
import sys
from pathlib import Path

import pytest

from processes.model_folders import name_for_clients


@pytest.mark.parametrize(
    ("model_id", "others", "name"),
    [
        ("org/name", (), "org/name"),
        ("/data/org/name/", (), "name"),
        ("~/name", (), "name"),
        ("here/name", (), "name"),
        ("/data/model.gguf", (), "model.gguf"),
        ("/data/a/name", ("/data/a/name", "/data/b/name"), "a/name"),
        ("/data/org/name", ("org/name",), "data/org/name"),
        ("/data/name", ("/data/a-name",), "name"),
    ],
)
def test_clients_are_told_a_hub_id_or_as_much_of_a_path_as_tells_models_apart(
    model_id: str,
    others: tuple[str, ...],
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "here" / "name").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert name_for_clients(model_id, others) == name


def test_a_router_imports_no_http_client_for_texts() -> None:
    code = "import sys, router.__main__; print('httpx' in sys.modules)"
    argv = [sys.executable, "-c", code]
    run = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=60)
    assert run.stdout == "False\n"


@pytest.mark.parametrize("module", ["launcher", "router.__main__"])
def test_what_only_finds_a_folder_does_not_wait_for_the_hubs_imports(module: str) -> None:
    code = (
        f"import sys, {module}; from processes.model_folders import find_folder\n"
        "find_folder('.', None, ['*']); print('huggingface_hub' in sys.modules)"
    )
    argv = [sys.executable, "-c", code]
    run = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=60)
    assert run.stdout == "False\n"
