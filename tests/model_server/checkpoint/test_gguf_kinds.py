"""Quantized kinds of a GGUF file are packed in groups, with the numbers of the package `gguf`."""

from pathlib import Path

import gguf
import pytest
import torch
from gguf import GGMLQuantizationType as Kind

from model_server.checkpoint.gguf_conversion import convert
from model_server.checkpoint.gguf_file import GgufFile
from model_server.checkpoint.gguf_kinds import grouped_weight
from model_server.executor.grouped import GroupedWeight, alike
from tests.model_server.checkpoint.gguf_files import DOWN, file_of, small_model, write_gguf

_QUERIES = "model.layers.0.self_attn.q_proj.weight"


def stored_in(file: GgufFile, name: str) -> GroupedWeight:
    weight = grouped_weight(file.stored(file.tensors[name].parts[0]))
    assert weight is not None
    return weight


def by_package(file: GgufFile, name: str) -> torch.Tensor:
    stored = file.stored(file.tensors[name].parts[0])
    return torch.from_numpy(gguf.dequantize(stored.rows, Kind[stored.kind]))


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
    for name in (_QUERIES, DOWN):  # whose rows are in another order in the file, and are not
        weight = stored_in(file, name)
        assert torch.equal(weight.dense(), by_package(file, name))
        assert torch.equal(file.get_tensor(name), by_package(file, name))
        assert (weight.kind, weight.bits, weight.group_len) == (kind, bits, group_len)
        assert (weight.minimums is not None) == has_minimums
        assert int(weight.numbers.max()) < 1 << bits


def test_kinds_that_are_merged_keep_their_numbers(tmp_path: Path) -> None:
    first, second = (stored_in(file_of(tmp_path, kind), DOWN) for kind in ("Q4_K", "Q6_K"))
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
    (packed,) = alike([stored_in(file, DOWN)])
    assert packed.scales.values.dtype == torch.float32
    assert torch.equal(packed.dense(), by_package(file, DOWN))
    assert packed.dense()[:, :32].any()
