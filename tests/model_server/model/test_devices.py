"""Which device a rank computes on, and in which dtype: nothing falls back without being asked."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from model_server.checkpoint.check import _resolve_dtype, device_of
from model_server.errors import ConfigRefused, ModelRefused

CUDA = torch.device("cuda", 0)


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


@pytest.mark.usefixtures("two_gpus")
def test_a_rank_takes_the_gpu_of_its_number_on_this_machine() -> None:
    assert device_of("auto", 1, num_gpus=2) == torch.device("cuda", 1)
    assert device_of("cpu", 1, num_gpus=2) == torch.device("cpu")
    with pytest.raises(ConfigRefused, match="LOCAL_RANK 2 has no GPU: torch finds 2"):
        device_of("auto", 2, num_gpus=4)


@pytest.mark.usefixtures("no_gpu")
def test_without_gpus_auto_is_the_cpu() -> None:
    assert device_of("auto", 0, num_gpus=0) == torch.device("cpu")
    with pytest.raises(ConfigRefused, match=r"--device cuda: torch .* finds no CUDA device"):
        device_of("cuda", 0, num_gpus=0)


@pytest.mark.usefixtures("no_gpu")
def test_gpus_that_torch_does_not_find_are_no_reason_to_compute_on_the_cpu() -> None:
    with pytest.raises(ConfigRefused, match=r"the machine has 8 \(driver: .*--device cpu"):
        device_of("auto", 0, num_gpus=8)
    assert device_of("cpu", 0, num_gpus=8) == torch.device("cpu")


def config(dtype: torch.dtype) -> Any:
    text = SimpleNamespace(dtype=dtype)
    return SimpleNamespace(get_text_config=lambda: text)


@pytest.mark.parametrize(
    ("capability", "checkpoint", "expected"),
    [
        ((9, 0), torch.bfloat16, torch.bfloat16),
        ((9, 0), torch.float16, torch.float16),
        ((9, 0), torch.float32, torch.bfloat16),
        ((7, 5), torch.bfloat16, torch.float16),
    ],
)
def test_auto_is_a_dtype_that_the_gpu_computes_in(
    monkeypatch: pytest.MonkeyPatch,
    capability: tuple[int, int],
    checkpoint: torch.dtype,
    expected: torch.dtype,
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    assert _resolve_dtype("auto", config(checkpoint), CUDA) is expected
    assert _resolve_dtype("float32", config(checkpoint), CUDA) is torch.float32


def test_bfloat16_is_refused_where_a_gpu_only_emulates_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Tesla T4")
    with pytest.raises(ModelRefused, match=r"Tesla T4 has compute capability 7\.5, .* try float16"):
        _resolve_dtype("bfloat16", config(torch.bfloat16), CUDA)
