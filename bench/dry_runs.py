"""Whether `launcher serve --dry-run` and `launcher serve` come to the same verdict.

    python -m bench.dry_runs [--only NAME ...]

Right and wrong models, each the bundled one with a change or two, and right and wrong flags. Each
case is served, until it is ready or has ended, and tried with --dry-run. Prints JSON: each case's
verdicts, errors and seconds. Exit code 1 when a pair differs.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench.command_line import parser_of, progress
from launcher import BUNDLED_MODEL
from processes.addresses import free_port

_READY = re.compile(r"ready after|can be served$")
# Without the name of the process that says it: both tiers know how large the pool is.
_ERROR = re.compile(r"error: (?:router: |shard \d+: )?(.*)")

Change = Callable[[Path], None]


def _json(name: str, **changes: Any) -> Change:
    def change(folder: Path) -> None:
        path = folder / name
        content = json.loads(path.read_text()) | changes
        path.write_text(json.dumps(content))

    return change


def _text(name: str, text: str) -> Change:
    def change(folder: Path) -> None:
        folder.joinpath(name).write_text(text)

    return change


def _without(name: str) -> Change:
    return lambda folder: folder.joinpath(name).unlink()


def _renamed(name: str, to: str) -> Change:
    def change(folder: Path) -> None:
        folder.joinpath(name).rename(folder / to)

    return change


def _cut_off(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


def _indexed(folder: Path) -> None:
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


def _index_of_missing(folder: Path) -> None:
    _indexed(folder)
    folder.joinpath("model-00001-of-00001.safetensors").unlink()


@dataclass(frozen=True)
class Case:
    """A model, made of the bundled one, and flags. `is_right`: it can be served."""

    name: str
    is_right: bool
    changes: tuple[Change, ...] = ()
    flags: tuple[str, ...] = ()

    def model(self, folder: Path) -> Path:
        """The model, in `folder`."""
        shutil.copytree(BUNDLED_MODEL, folder, dirs_exist_ok=True)
        for change in self.changes:
            change(folder)
        return folder


_CONFIG, _TOKENIZER = "config.json", "tokenizer_config.json"
CASES = (
    Case("as it is", True),
    Case("int8", True, flags=("--quantize", "int8")),
    Case("two shards", True, flags=("--num-shard", "2", "--device", "cpu")),
    Case("float16 in its own class", True, flags=("--dtype", "float16")),
    Case("its whole context", True, flags=("--max-total-tokens", "1024")),
    Case("a longest prompt", True, flags=("--max-input-tokens", "1023")),
    Case("a small pool", True, flags=("--kv-blocks", "64")),
    Case("no chat template", True, (_text(_TOKENIZER, "{}"),)),
    Case("no generation config", True, (_without("generation_config.json"),)),
    Case("weights behind an index", True, (_indexed,)),
    Case("a template that cannot be read", True, (_json(_TOKENIZER, chat_template="{% if"),)),
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
    Case("no config", False, (_without(_CONFIG),)),
    Case("a config that is no JSON", False, (_text(_CONFIG, "{"),)),
    Case("an unknown kind", False, (_json(_CONFIG, model_type="no-such-type"),)),
    Case("an encoder and a decoder", False, (_json(_CONFIG, model_type="t5"),)),
    Case("weights of another shape", False, (_json(_CONFIG, num_key_value_heads=2),)),
    Case("an end that is no token", False, (_json("generation_config.json", eos_token_id="x"),)),
    Case(
        "quantized with what is not installed",
        False,
        (_json(_CONFIG, quantization_config={"quant_method": "gptq", "bits": 8}),),
    ),
    Case(
        "unknown quantization",
        False,
        (_json(_CONFIG, quantization_config={"quant_method": "no-such-way"}),),
    ),
    Case("weights that are cut off", False, (_cut_off,)),
    Case("pickled weights", False, (_renamed("model.safetensors", "pytorch_model.bin"),)),
    Case("an index of missing files", False, (_index_of_missing,)),
    Case("no tokenizer", False, (_without("tokenizer.json"),)),
    Case("a tokenizer that is no JSON", False, (_text("tokenizer.json", "{"),)),
    Case("a template that is a number", False, (_json(_TOKENIZER, chat_template=3),)),
)


@dataclass(frozen=True)
class Verdict:
    """What a command said of a case, and how long that took."""

    is_right: bool
    error: str | None
    seconds: float

    @property
    def is_accident(self) -> bool:
        """Whether a process fell instead of giving a reason."""
        return "its last lines" in (self.error or "")


def judge(case: Case, *flags: str) -> Verdict:
    """Start `launcher serve` on a case; what is ready is stopped."""
    with tempfile.TemporaryDirectory(prefix="dry-runs-") as folder:
        model = case.model(Path(folder, "model"))
        argv = [sys.executable, "-m", "launcher", "serve", str(model), *case.flags, *flags]
        started_s = time.monotonic()
        is_right, error, seconds = False, None, 0.0
        with subprocess.Popen(
            [*argv, "--port", str(free_port())],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "HF_HUB_OFFLINE": "1"},
        ) as process:
            assert process.stderr is not None
            for line in process.stderr:
                if _READY.search(line.strip()):
                    is_right, seconds = True, time.monotonic() - started_s
                    process.send_signal(signal.SIGTERM)
                if found := _ERROR.search(line):
                    error = found[1].replace(folder, "")
        return Verdict(is_right, error, round(seconds or time.monotonic() - started_s, 1))


def main(argv: Sequence[str]) -> int:
    """Judge every case twice; returns the exit code."""
    parser = parser_of(__doc__)
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these cases alone")
    names = parser.parse_args(argv).only
    cases = [case for case in CASES if names is None or case.name in names]
    results, num_apart = {}, 0
    for case in progress(cases, "cases"):
        tried, served = judge(case, "--dry-run"), judge(case)
        agree = (tried.is_right, tried.error) == (served.is_right, served.error)
        is_expected = tried.is_right == case.is_right and not tried.is_accident
        num_apart += not (agree and is_expected)
        results[case.name] = {
            "agree": agree,
            "as_expected": is_expected,
            "dry_run": asdict(tried),
            "serve": asdict(served),
        }
    print(json.dumps({"cases": len(cases), "apart": num_apart, "results": results}, indent=1))
    return 1 if num_apart else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
