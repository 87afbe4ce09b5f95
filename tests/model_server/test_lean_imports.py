"""What a shard on CPUs does not import."""

import os
import subprocess
import sys

import pytest

from launcher import BUNDLED_MODEL

_OF_RANKS = {"torch._dynamo.convert_frame", "torch.distributed.tensor"}


def _printed(code: str, world_size: int = 1) -> str:
    """By a process that imported what a shard does, and prepared itself as one."""
    code = (
        "import sys; from model_server import __main__, config, loading\n"
        "loading.prepare(config.parse(sys.argv[1:])).constraints.wait_read()\n"
        f"{code}"
    )
    argv = [sys.executable, "-c", code, "serve", str(BUNDLED_MODEL), "--uds-path=unused"]
    environ = {**os.environ, "WORLD_SIZE": str(world_size), "CUDA_VISIBLE_DEVICES": ""}
    run = subprocess.run(
        argv, capture_output=True, text=True, timeout=120, env=environ, check=False
    )
    assert run.returncode == 0, run.stderr
    return run.stdout


@pytest.mark.slow
@pytest.mark.parametrize(("world_size", "imported"), [(1, set()), (2, _OF_RANKS)])
def test_a_shard_alone_imports_no_compiler_and_no_tensors_over_ranks(
    world_size: int, imported: set[str]
) -> None:
    assert set(_printed("print(*sys.modules)", world_size).split()) & _OF_RANKS == imported


@pytest.mark.slow
@pytest.mark.parametrize("first", ["torch", "torch._dynamo.symbolic_convert"])
def test_whoever_compiles_gets_the_compiler_once(first: str) -> None:
    code = f"import {first}; print(torch.compile(torch.neg, backend='eager')(torch.ones(1)).item())"
    assert _printed(code) == "-1.0\n"


@pytest.mark.slow
def test_names_of_models_are_found_without_their_list() -> None:
    code = "import transformers; print(transformers.models.llama.LlamaConfig.model_type)"
    assert _printed(code) == "llama\n"
