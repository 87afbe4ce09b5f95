"""What a GGUF file has is given in its own form, and what it takes is known before."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from model_server.checkpoint.check import ModelSettings, check_checkpoint
from model_server.checkpoint.gguf_file import GgufFile
from model_server.checkpoint.gguf_parameters import GgufParameters
from tests.model_server.checkpoint.gguf_files import DOWN, file_of


@pytest.mark.parametrize("kind", ["Q4_K", "Q6_K", "Q8_0"])
def test_no_number_changes_where_runs_of_inputs_are_in_another_order(
    kind: str, tmp_path: Path
) -> None:
    file = file_of(tmp_path, kind)
    tensor = file.tensors[DOWN]
    in_order = file.get_tensor(DOWN)
    num_runs = in_order.shape[1] // 32
    turned = replace(tensor, parts=(replace(tensor.parts[0], turned_columns=(num_runs // 2, 2)),))
    parameters = GgufParameters(GgufFile(file.paths, {"own": turned}), {"own": "own"})
    weight = parameters.grouped("own")
    assert weight is not None
    assert torch.equal(weight.dense(), parameters["own"])
    # Of the first of both runs of a key all come first in the file.
    assert torch.equal(weight.dense()[:, 32:64], in_order[:, 16 * num_runs : 16 * num_runs + 32])


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [("F32", torch.float32), ("F16", torch.float32), ("BF16", torch.bfloat16)],
)
def test_numbers_that_are_in_no_groups_stay_as_they_are(
    kind: str, dtype: torch.dtype, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = file_of(tmp_path, kind)
    caplog.clear()
    parameters = GgufParameters(file, {"own": DOWN})
    assert not parameters.has_groups
    assert parameters.grouped("own") is None
    assert parameters["own"].dtype == dtype
    assert torch.equal(parameters["own"].float(), file.get_tensor(DOWN))
    assert not caplog.records


def test_other_kinds_are_dequantized_to_bfloat16_and_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = file_of(tmp_path, "IQ3_S")
    caplog.set_level("INFO")
    caplog.clear()
    parameters = GgufParameters(file, {"own": DOWN})
    assert parameters.grouped("own") is None
    assert torch.equal(parameters["own"], file.get_tensor(DOWN).bfloat16())
    assert caplog.messages == [f"{file.paths[0]}: what it has in IQ3_S is dequantized to bfloat16"]


@pytest.mark.parametrize(
    ("kind", "bits"),
    [
        ("Q4_0", 4.5),
        ("Q4_1", 5),
        ("Q5_0", 5.5),
        ("Q8_0", 8.5),
        ("Q2_K", 5.125),
        ("Q3_K", 4.5625),
        ("Q4_K", 4.625),
        ("Q6_K", 6.5625),
        ("IQ4_XS", 8.3125),
        ("MXFP4", 5.5),
        ("F16", 32),
    ],
)
def test_the_memory_of_packed_weights_is_known_before_they_are_read(
    kind: str, bits: float, tmp_path: Path
) -> None:
    file = file_of(tmp_path, kind)
    checked = check_checkpoint(ModelSettings(tmp_path, torch.device("cpu"), dtype="float32"), 1)
    sizes = {name: file.get_tensor(name).numel() for name in file.tensors}
    plain = sum(n for name, n in sizes.items() if "norm" in name or "embed" in name)
    expected = plain * 4 + int((sum(sizes.values()) - plain) * bits / 8)
    assert checked.weights_bytes == expected
