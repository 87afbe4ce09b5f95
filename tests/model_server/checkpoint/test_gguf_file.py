"""Numbers of a GGUF file are those of the package `gguf`, in the rows of the model's class."""

import json
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch

from model_server.checkpoint.gguf_file import GGUF_INDEX_NAME, GgufFile
from model_server.errors import CheckpointBroken
from tests.model_server.checkpoint.gguf_files import file_of

_KINDS = "F32 F16 BF16 Q4_0 Q4_1 Q5_0 Q8_0 Q2_K Q4_K Q5_K Q6_K".split()


@pytest.mark.parametrize("kind", _KINDS)
def test_numbers_of_every_kind_are_exact_and_rows_in_the_order_of_the_class(
    kind: str, tmp_path: Path
) -> None:
    file = file_of(tmp_path, kind)
    reader = gguf.GGUFReader(tmp_path / "model.gguf")
    stored = {each.name: gguf.dequantize(each.data, each.tensor_type) for each in reader.tensors}
    layer = "model.layers.0"
    down = file.get_tensor(f"{layer}.mlp.down_proj.weight").numpy()
    assert np.isfinite(down).all()
    assert down.std() > 0
    assert np.array_equal(down, stored["blk.0.ffn_down.weight"])
    norm = file.get_tensor(f"{layer}.input_layernorm.weight").numpy()
    assert np.array_equal(norm, stored["blk.0.attn_norm.weight"])
    # Row 2 i of a head in the file is row i of its first half, row 2 i + 1 of its second.
    keys = file.get_tensor(f"{layer}.self_attn.k_proj.weight").numpy()
    half_len = len(keys) // 4
    in_file = stored["blk.0.attn_k.weight"]
    assert np.array_equal(keys[:half_len], in_file[: 2 * half_len : 2])
    assert np.array_equal(keys[half_len : 2 * half_len], in_file[1 : 2 * half_len : 2])


def test_stored_rows_stay_in_the_form_of_the_file(tmp_path: Path) -> None:
    file = file_of(tmp_path, "Q4_1")
    name = "model.layers.0.self_attn.q_proj.weight"
    stored = file.stored(file.tensors[name].parts[0])
    assert stored.kind == "Q4_1"
    assert stored.rows.dtype == np.uint8
    assert stored.rows.shape == (128, 128 // 32 * 20)
    assert torch.equal(stored.numbers(), file.get_tensor(name))


def test_what_is_in_float32_is_read_so_whatever_the_dtype(tmp_path: Path) -> None:
    tensors = file_of(tmp_path, "Q8_0").read(torch.bfloat16)
    assert tensors["model.norm.weight"].dtype == torch.float32
    assert tensors["lm_head.weight"].dtype == torch.bfloat16


def test_a_file_that_changed_since_it_was_read_is_refused(tmp_path: Path) -> None:
    file_of(tmp_path, "F16")
    with (tmp_path / "model.gguf").open("ab") as file:
        file.write(b"more")
    with pytest.raises(CheckpointBroken, match="is not the file any more that was read"):
        GgufFile.of_folder(tmp_path)
    (tmp_path / "model.gguf").unlink()
    with pytest.raises(CheckpointBroken, match="is not the file any more that was read"):
        GgufFile.of_folder(tmp_path)


def test_a_folder_of_other_weights_names_no_file(tmp_path: Path) -> None:
    assert GgufFile.of_folder(tmp_path) is None
    file_of(tmp_path, "F16")
    assert json.loads((tmp_path / GGUF_INDEX_NAME).read_text())["tensors"]
