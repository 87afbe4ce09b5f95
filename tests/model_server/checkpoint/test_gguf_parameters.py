"""Quantized kinds of a GGUF file are packed in groups, with the numbers of the package `gguf`."""

from pathlib import Path

import pytest
import torch
from gguf import GGML_QUANT_SIZES
from gguf import GGMLQuantizationType as Kind

from model_server.checkpoint.check import ModelSettings, check_checkpoint
from model_server.checkpoint.gguf_conversion import convert
from model_server.checkpoint.gguf_file import GgufFile
from model_server.checkpoint.gguf_parameters import GgufParameters, grouped_weight
from model_server.executor.grouped import GroupedWeight, alike
from tests.model_server.checkpoint.gguf_files import small_model, write_gguf

_QUERIES = "model.layers.0.self_attn.q_proj.weight"
_DOWN = "model.layers.0.mlp.down_proj.weight"


def file_of(folder: Path, kind: str) -> GgufFile:
    is_wide = GGML_QUANT_SIZES[Kind[kind]][0] == 256
    wide = {"hidden_size": 256, "intermediate_size": 512} if is_wide else {}
    model = small_model("llama", num_hidden_layers=1, **wide)
    convert(write_gguf(folder / "model.gguf", model, Kind[kind]), folder)
    file = GgufFile.of_folder(folder)
    assert file is not None
    return file


def stored_in(file: GgufFile, name: str) -> GroupedWeight:
    weight = grouped_weight(file.stored(file.tensors[name].parts[0]))
    assert weight is not None
    return weight


@pytest.mark.parametrize(
    ("kind", "bits", "group_len", "has_minimums"),
    [
        ("Q4_0", 4, 32, False),
        ("Q4_1", 4, 32, True),
        ("Q5_0", 5, 32, False),
        ("Q5_1", 5, 32, True),
        ("Q8_0", 8, 32, False),
        ("IQ4_NL", 8, 32, False),
        ("Q2_K", 4, 16, True),
        ("Q3_K", 4, 16, False),
        ("Q4_K", 4, 32, True),
        ("Q5_K", 5, 32, True),
        ("Q6_K", 6, 16, False),
        ("IQ4_XS", 8, 32, False),
        ("MXFP4", 5, 32, False),
    ],
)
def test_no_number_changes(
    kind: str, bits: int, group_len: int, has_minimums: bool, tmp_path: Path
) -> None:
    file = file_of(tmp_path, kind)
    for name in (_QUERIES, _DOWN):  # whose rows are in another order in the file, and are not
        weight = stored_in(file, name)
        assert torch.equal(weight.dense(), file.get_tensor(name))
        assert (weight.kind, weight.bits, weight.group_len) == (kind, bits, group_len)
        assert (weight.minimums is not None) == has_minimums
        assert int(weight.numbers.max()) < 1 << bits


def test_kinds_that_are_merged_keep_their_numbers(tmp_path: Path) -> None:
    first, second = (stored_in(file_of(tmp_path, kind), _DOWN) for kind in ("Q4_K", "Q6_K"))
    merged = alike([first, second])
    assert [each.group_len for each in merged] == [16, 16]
    for before, after in zip((first, second), merged, strict=True):
        assert torch.equal(after.dense(), before.dense())


def test_powers_of_two_that_no_float16_has_stay_as_they_are(tmp_path: Path) -> None:
    model = small_model("llama", num_hidden_layers=1)
    model.model.layers[0].mlp.down_proj.weight.data[:, :32] *= 2.0**-60
    convert(write_gguf(tmp_path / "model.gguf", model, Kind.MXFP4), tmp_path)
    file = GgufFile.of_folder(tmp_path)
    assert file is not None
    (packed,) = alike([stored_in(file, _DOWN)])
    assert packed.scales.values.dtype == torch.float32
    assert torch.equal(packed.dense(), file.get_tensor(_DOWN))
    assert packed.dense()[:, :32].any()


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [("F32", torch.float32), ("F16", torch.float32), ("BF16", torch.bfloat16)],
)
def test_numbers_that_are_in_no_groups_stay_as_they_are(
    kind: str, dtype: torch.dtype, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = file_of(tmp_path, kind)
    caplog.clear()
    parameters = GgufParameters(file, {"own": _DOWN})
    assert not parameters.has_groups
    assert parameters.grouped("own") is None
    assert parameters["own"].dtype == dtype
    assert torch.equal(parameters["own"].float(), file.get_tensor(_DOWN))
    assert not caplog.records


def test_other_kinds_are_dequantized_to_bfloat16_and_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = file_of(tmp_path, "IQ3_S")
    caplog.set_level("INFO")
    caplog.clear()
    parameters = GgufParameters(file, {"own": _DOWN})
    assert parameters.grouped("own") is None
    assert torch.equal(parameters["own"], file.get_tensor(_DOWN).bfloat16())
    assert caplog.messages == [f"{file.path}: what it has in IQ3_S is dequantized to bfloat16"]


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
