"""The backend is the one that was named, or the fastest that fits."""

import logging
from importlib.util import find_spec

import pytest
import torch

from model_server.attention.base import LayerGeometry
from model_server.attention.cpu_op import CpuOp
from model_server.attention.select import select_backend
from model_server.errors import ConfigRefused
from native.library import NativeUnavailable
from tests.model_server.attention.attention_cases import CPU
from tests.native.compiler import needs_compiler

FIT = [LayerGeometry(2, 64, 64)]
UNFIT = [LayerGeometry(2, 64, 64), LayerGeometry(2, 64, 40)]


def without_compiler() -> CpuOp:
    raise NativeUnavailable("there is no C++ compiler (g++, c++)")


@pytest.mark.parametrize(
    "name", ["reference", "cpu", pytest.param("cpu-op", marks=needs_compiler), "sdpa"]
)
def test_a_named_backend_is_taken(name: str) -> None:
    assert select_backend(name, CPU, torch.float32, FIT).name == name


@needs_compiler
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_auto_takes_the_operator_on_a_cpu(dtype: torch.dtype) -> None:
    assert select_backend("auto", CPU, dtype, FIT).name == "cpu-op"


@pytest.mark.skipif(find_spec("triton") is not None, reason="Triton is installed")
def test_auto_gathers_on_a_gpu_without_triton_and_says_why(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING):
        backend = select_backend("auto", torch.device("cuda", 0), torch.bfloat16, FIT)
    assert backend.name == "sdpa"
    assert caplog.messages[0].endswith("Triton is not installed")


@pytest.mark.parametrize(
    ("geometries", "dtype", "reason"),
    [
        (FIT, torch.float32, "there is no C++ compiler"),
        (FIT, torch.float16, "not torch.float16"),
        (UNFIT, torch.float32, "value_dim 40 must be a multiple of 16"),
    ],
)
def test_auto_falls_back_to_torch_and_says_why(
    geometries: list[LayerGeometry],
    dtype: torch.dtype,
    reason: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING):
        backend = select_backend("auto", CPU, dtype, geometries, without_compiler)
    assert backend.name == "cpu"
    assert len(caplog.messages) == 1
    assert reason in caplog.messages[0]


def test_a_named_backend_that_cannot_serve_is_refused() -> None:
    with pytest.raises(ConfigRefused, match=r"--attention cpu-op: there is no C\+\+ compiler"):
        select_backend("cpu-op", CPU, torch.float32, FIT, without_compiler)
    with pytest.raises(ConfigRefused, match="serves CPUs, not cuda:0"):
        select_backend("cpu-op", torch.device("cuda", 0), torch.float32, FIT)
    with pytest.raises(ConfigRefused, match="--attention triton: the kernels are for CUDA"):
        select_backend("triton", CPU, torch.float32, FIT)
    with pytest.raises(
        ConfigRefused, match="--attention flash: there are auto, cpu-op, triton, reference"
    ):
        select_backend("flash", CPU, torch.float32, FIT)
