"""--dry-run and serve come to one verdict; `python -m bench.dry_runs` tries all cases."""

import shutil
from pathlib import Path

import httpx
import pytest

from bench.dry_runs import CASES, judge
from launcher import BUNDLED_MODEL
from tests.integration.server import launched
from tests.model_server.checkpoint.test_tokenizer_conversion import sentencepiece_folder

pytestmark = pytest.mark.slow


def test_a_dry_run_of_what_can_be_served_says_so() -> None:
    (case,) = [each for each in CASES if each.name == "as it is"]
    tried = judge(case, "--dry-run")
    assert (tried.is_right, tried.error) == (True, None)


# Refused before anything is loaded; at night also what is refused when all of it is.
@pytest.mark.parametrize(
    "name",
    [
        "unknown quantization",
        pytest.param("past its pool", marks=pytest.mark.nightly),
        pytest.param("no tokenizer", marks=pytest.mark.nightly),
        pytest.param("past its context", marks=pytest.mark.nightly),
        pytest.param("as it is", marks=pytest.mark.nightly),
    ],
)
def test_a_dry_run_says_what_serve_would(name: str) -> None:
    (case,) = [each for each in CASES if each.name == name]
    tried, served = judge(case, "--dry-run"), judge(case)
    assert (tried.is_right, tried.error) == (served.is_right, served.error)
    assert tried.is_right == case.is_right
    assert not tried.is_accident


# Its tokenizer is held to sentencepiece's where checkpoints are loaded.
@pytest.mark.nightly
def test_a_model_with_a_sentencepiece_file_alone_is_served_masks_included(tmp_path: Path) -> None:
    folder = tmp_path / "demo-spm"
    folder.mkdir()
    sentencepiece_folder(folder, "bpe", "LlamaTokenizer")
    for name in ("config.json", "model.safetensors"):
        shutil.copy(BUNDLED_MODEL / name, folder)
    with launched(model=folder) as server:
        body = {
            "model": "demo-spm",
            "prompt": "naïve 你好",
            "max_tokens": 8,
            "structured_outputs": {"regex": "[0-9]{3}"},
        }
        answer = httpx.post(f"{server.url}/v1/completions", json=body, timeout=60.0)
        listed = httpx.get(f"{server.url}/v1/models").json()
    text = answer.json()["choices"][0]["text"]
    assert len(text) == 3
    assert text.isdecimal()
    assert [card["id"] for card in listed["data"]] == [str(folder), "demo-spm"]
    assert "converting the tokenizer" in server.said
