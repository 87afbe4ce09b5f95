"""`launcher serve --dry-run` and `launcher serve` come to one verdict."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from launcher import BUNDLED_MODEL
from processes.addresses import free_port
from tests.integration.server import launched, wait_until_gone
from tests.model_server.checkpoint.gguf_files import small_model, write_gguf
from tests.model_server.checkpoint.test_tokenizer_conversion import sentencepiece_folder

pytestmark = pytest.mark.slow

READY = re.compile(r"ready after|can be served$")
# Without the name of the process that says it: both tiers know how large the pool is.
ERROR = re.compile(r"error: (?:router: |shard \d+: )?(.*)")

Change = Callable[[Path], None]


def changed(name: str, **changes: Any) -> Change:
    def change(folder: Path) -> None:
        path = folder / name
        content = json.loads(path.read_text()) | changes
        path.write_text(json.dumps(content))

    return change


def with_text(name: str, text: str) -> Change:
    def change(folder: Path) -> None:
        folder.joinpath(name).write_text(text)

    return change


def without(name: str) -> Change:
    return lambda folder: folder.joinpath(name).unlink()


def renamed(name: str, to: str) -> Change:
    def change(folder: Path) -> None:
        folder.joinpath(name).rename(folder / to)

    return change


def cut_off(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


def indexed(folder: Path) -> None:
    """One file of weights behind an index, as large models have several."""
    path = folder / "model.safetensors"
    length = int.from_bytes(path.read_bytes()[:8], "little")
    names = json.loads(path.read_bytes()[8 : 8 + length])
    file = "model-00001-of-00001.safetensors"
    path.rename(folder / file)
    weight_map = {name: file for name in names if name != "__metadata__"}
    folder.joinpath("model.safetensors.index.json").write_text(
        json.dumps({"metadata": {}, "weight_map": weight_map})
    )


def index_of_missing(folder: Path) -> None:
    indexed(folder)
    folder.joinpath("model-00001-of-00001.safetensors").unlink()


def as_gguf(folder: Path) -> None:
    """A small Llama in the place of everything."""
    for path in folder.iterdir():
        path.unlink()
    write_gguf(folder / "model.gguf", small_model("llama"))


def cut_off_gguf(folder: Path) -> None:
    path = folder / "model.gguf"
    path.write_bytes(path.read_bytes()[:-100])


@dataclass(frozen=True)
class Case:
    """A model, made of the bundled one, and flags. `is_right`: it can be served."""

    name: str
    is_right: bool
    changes: tuple[Change, ...] = ()
    flags: tuple[str, ...] = ()

    def model(self, folder: Path) -> Path:
        shutil.copytree(BUNDLED_MODEL, folder, dirs_exist_ok=True)
        for change in self.changes:
            change(folder)
        return folder


CONFIG = "config.json"
TOKENIZER = "tokenizer_config.json"
CASES = (
    Case("as it is", True),
    Case("a GGUF file", True, (as_gguf,)),
    Case("a GGUF file that is cut off", False, (as_gguf, cut_off_gguf)),
    Case("int8", True, flags=("--quantize", "int8")),
    Case("two shards", True, flags=("--num-shard", "2", "--device", "cpu")),
    Case("float16 in its own class", True, flags=("--dtype", "float16")),
    Case("its whole context", True, flags=("--max-total-tokens", "1024")),
    Case("a longest prompt", True, flags=("--max-input-tokens", "1023")),
    Case("a small pool", True, flags=("--kv-blocks", "64")),
    Case("no chat template", True, (with_text(TOKENIZER, "{}"),)),
    Case("no generation config", True, (without("generation_config.json"),)),
    Case("weights behind an index", True, (indexed,)),
    Case("a template that cannot be read", True, (changed(TOKENIZER, chat_template="{% if"),)),
    Case("three shards", False, flags=("--num-shard", "3", "--device", "cpu")),
    Case("past its context", False, flags=("--max-total-tokens", "1025")),
    Case("a prompt past its context", False, flags=("--max-input-tokens", "1024")),
    Case("past its pool", False, flags=("--kv-blocks", "4", "--max-total-tokens", "65")),
    Case("a prompt past its pool", False, flags=("--kv-blocks", "4", "--max-input-tokens", "64")),
    Case("int8 of float16", False, flags=("--quantize", "int8", "--dtype", "float16")),
    Case("fp8 on a CPU", False, flags=("--quantize", "fp8", "--device", "cpu")),
    Case("a GPU that is not there", False, flags=("--device", "cuda")),
    Case("a tokenizer's config that is not there", False, flags=("--tokenizer-config-path", "/x")),
    Case("keys that are not there", False, flags=("--api-key-file", "/x")),
    Case("no config", False, (without(CONFIG),)),
    Case("a config that is no JSON", False, (with_text(CONFIG, "{"),)),
    Case("an unknown kind", False, (changed(CONFIG, model_type="no-such-type"),)),
    Case("an encoder and a decoder", False, (changed(CONFIG, model_type="t5"),)),
    Case("weights of another shape", False, (changed(CONFIG, num_key_value_heads=2),)),
    Case("a head that is not there", False, (changed(CONFIG, tie_word_embeddings=False),)),
    Case("a folder of an adapter", False, (renamed(CONFIG, "adapter_config.json"),)),
    Case("an end that is no token", False, (changed("generation_config.json", eos_token_id="x"),)),
    Case(
        "quantized with what is not installed",
        False,
        (changed(CONFIG, quantization_config={"quant_method": "gptq", "bits": 8}),),
    ),
    Case(
        "unknown quantization",
        False,
        (changed(CONFIG, quantization_config={"quant_method": "no-such-way"}),),
    ),
    Case("weights that are cut off", False, (cut_off,)),
    Case("pickled weights", False, (renamed("model.safetensors", "pytorch_model.bin"),)),
    Case("an index of missing files", False, (index_of_missing,)),
    Case("no tokenizer", False, (without("tokenizer.json"),)),
    Case("a tokenizer that is no JSON", False, (with_text("tokenizer.json", "{"),)),
    Case("a template that is a number", False, (changed(TOKENIZER, chat_template=3),)),
)


@dataclass(frozen=True)
class Verdict:
    """What a command said of a case."""

    is_right: bool
    error: str | None

    @property
    def is_accident(self) -> bool:
        """Whether a process fell instead of giving a reason."""
        return "its last lines" in (self.error or "")


def judge(case: Case, *flags: str) -> Verdict:
    """Starts `launcher serve` on a case; what is ready is stopped."""
    is_right = False
    error = None
    with tempfile.TemporaryDirectory(prefix="dry-runs-") as folder:
        model = case.model(Path(folder, "model"))
        argv = [sys.executable, "-m", "launcher", "serve", str(model), *case.flags, *flags]
        with subprocess.Popen(
            [*argv, "--port", str(free_port())],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "HF_HUB_OFFLINE": "1"},
        ) as process:
            assert process.stderr is not None
            for line in process.stderr:
                if READY.search(line.strip()):
                    is_right = True
                    process.send_signal(signal.SIGTERM)
                if found := ERROR.search(line):
                    error = found[1].replace(folder, "")
    return Verdict(is_right, error)


def test_a_dry_run_of_what_can_be_served_says_so() -> None:
    (case,) = [each for each in CASES if each.name == "as it is"]
    meeting = ("--num-shard=2", "--master-addr=127.0.0.1", f"--master-port={free_port()}")
    tried = judge(case, "--dry-run", *meeting)
    assert (tried.is_right, tried.error) == (True, None)


def test_a_dry_run_that_is_ended_leaves_nothing_behind() -> None:
    with launched("--dry-run", wait=False) as server:
        while len(server.descendants()) < 2:
            time.sleep(0.01)
        checks = server.descendants()
        server.signal(signal.SIGTERM)
        server.wait()
        assert wait_until_gone(checks) == []


@pytest.mark.nightly
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_dry_run_says_what_serve_would(case: Case) -> None:
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
        answer = server.http.post("/v1/completions", json=body, timeout=60.0)
        listed = server.http.get("/v1/models").json()
        bodies = [server.http.get(path).text for path in ("/v1/models", "/info", "/metrics")]
        alias = server.http.post("/v1/completions", json={**body, "model": str(folder)})
    text = answer.json()["choices"][0]["text"]
    assert len(text) == 3
    assert text.isdecimal()
    assert [card["id"] for card in listed["data"]] == ["demo-spm"]
    assert not any(str(folder) in each for each in bodies)
    # As guidellm does, which takes the tokenizer of the model that it names.
    assert alias.json()["model"] == str(folder)
    assert "converting the tokenizer" in server.said
